"""Shapes from config.json: as many weights as transformers builds, and nothing misread in silence."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path
from typing import Any

import pytest

from autotune.errors import SpecError
from autotune.spec import ModelSpec, catalog
from autotune.spec.hugging_face import FAMILIES

MODELS: dict[str, dict[str, Any]] = json.loads(
    (Path(__file__).parent / "data" / "hugging_face.json").read_text(encoding="utf-8")
)
"""config.json files by hub id, without what changes no shape, with the parameters of the model that transformers 5.23 builds from each on the meta device
(of multimodal models, the language model)"""
LLAMA = {"hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "vocab_size": 100}


@pytest.mark.parametrize("hub", MODELS)
def test_a_config_has_the_parameters_that_transformers_builds(hub: str) -> None:
    model = ModelSpec.from_hf(MODELS[hub]["config"], name=hub)
    assert model.num_parameters == pytest.approx(MODELS[hub]["parameters"], rel=0.003)


def test_the_models_are_of_all_families_that_are_read() -> None:
    seen = {MODELS[hub]["config"].get("text_config", MODELS[hub]["config"])["model_type"] for hub in MODELS}
    alike = {"code_llama", "ministral", "olmo", "olmo3", "glm", "seed_oss", "nemotron", "gpt_neo"}
    assert seen | alike == set(FAMILIES)
    assert len(MODELS) >= 60


@pytest.mark.slow
def test_transformers_still_builds_as_many() -> None:
    if importlib.util.find_spec("transformers") is None:
        pytest.skip("transformers is not installed")
    import torch
    from transformers import CONFIG_MAPPING, AutoModelForCausalLM

    for hub, known in MODELS.items():
        values = dict(known["config"].get("text_config", known["config"]))
        family = values.pop("model_type")
        values.pop("pretraining_tp", None)
        config = CONFIG_MAPPING["deepseek_v3" if family == "kimi_k2" else family](**values)
        with torch.device("meta"):
            built = AutoModelForCausalLM.from_config(config)
        assert sum(p.numel() for p in built.parameters()) == known["parameters"], hub


@pytest.mark.parametrize(
    ("change", "match"),
    [
        ({"model_type": "qwen9"}, r"the family 'qwen9' .* is not known; known are .*did you mean qwen"),
        ({"model_type": "bert"}, "bert.*no decoder-only"),
        ({"is_encoder_decoder": True}, "no decoder-only"),
        ({"model_type": "llama", "num_experts_in_the_attic": 3}, "num_experts_in_the_attic=3.*misread"),
        ({"model_type": "llama", "adapter_rank": 8}, "adapter_rank=8"),
        ({"model_type": "qwen3_moe", "kv_lora_rank": 8}, "kv_lora_rank=8, which no qwen3_moe"),
        ({"model_type": "opt", "word_embed_proj_dim": 32}, "word_embed_proj_dim must equal hidden_size"),
        ({"model_type": "deepseek_v3", "moe_layer_freq": 2, "n_routed_experts": 8}, "moe_layer_freq must be 1"),
    ],
)
def test_what_would_be_misread_is_refused_by_name(change: dict[str, Any], match: str) -> None:
    with pytest.raises(SpecError, match=match):
        ModelSpec.from_hf({**LLAMA, **change})


def test_keys_that_change_no_weights_are_read_over() -> None:
    harmless = {
        "num_beams": 4,
        "sliding_window": 4096,
        "rope_theta": 1e6,
        "num_labels": 2,
        "chunk_size_feed_forward": 1,
    }
    mistral = {"model_type": "mistral", "num_key_value_heads": 2, **LLAMA}
    assert ModelSpec.from_hf({**mistral, **harmless}, name="m") == ModelSpec.from_hf(mistral, name="m")


def test_a_size_that_is_left_out_is_that_of_the_familys_class_and_not_derived_from_others() -> None:
    written = ("num_hidden_layers", "hidden_size", "num_attention_heads", "vocab_size")
    sizes = dict(zip(written, (36, 2880, 64, 201088), strict=True))
    model = ModelSpec.from_hf({"model_type": "gpt_oss", **sizes})
    assert (model.ffn_hidden_size, model.num_kv_heads) == (2880, 8)
    assert ModelSpec.from_hf({"model_type": "mixtral", "num_key_value_heads": None}).num_kv_heads == 32


def test_a_file_that_names_no_family_gets_no_sizes_of_a_class() -> None:
    with pytest.raises(SpecError, match="lacks num_hidden_layers"):
        ModelSpec.from_hf({key: size for key, size in LLAMA.items() if key != "num_hidden_layers"})


def test_experts_are_counted_with_their_own_width() -> None:
    v3 = ModelSpec.from_hf(MODELS["deepseek-ai/DeepSeek-V3"]["config"], name="v3")
    assert v3.active_parameters == pytest.approx(37.5e9, rel=0.02)
    qwen = ModelSpec.from_hf(MODELS["Qwen/Qwen3-30B-A3B"]["config"], name="q")
    assert qwen.active_parameters == pytest.approx(3.34e9, rel=0.02)


@pytest.mark.parametrize("name", catalog.hub_ids())
def test_a_model_of_the_catalog_is_that_of_the_hub(name: str) -> None:
    hub = catalog.hub_ids()[name]
    assert catalog.model(hub) == catalog.model(hub.upper()) == catalog.model(name)
    if hub in MODELS:
        assert catalog.model(name) == ModelSpec.from_hf(MODELS[hub]["config"], name=name)
