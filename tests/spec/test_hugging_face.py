"""Shapes from config.json: as many weights as transformers builds, and nothing misread in
silence."""

from __future__ import annotations

import importlib.util
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from autotune.errors import SpecError
from autotune.spec import ClusterSpec, ModelSpec, Workload, catalog
from autotune.spec.catalog_files import read_entry
from autotune.spec.hugging_face.equivalents import EQUIVALENTS
from autotune.spec.hugging_face.families import FAMILIES, UNSUPPORTED
from autotune.spec.hugging_face.figures import narrowest_window
from autotune.spec.hugging_face.reading import text_model

MODELS: dict[str, dict[str, Any]] = json.loads(
    (Path(__file__).parent / "data" / "hugging_face.json").read_text(encoding="utf-8")
)
"""config.json files by hub id, without what changes no shape, with the parameters of the model that
transformers 5.23 builds from each on the meta device (of multimodal models, the language model). Of
those marked as published, whose code is beside the checkpoint, it is what their authors print"""
LLAMA = {"hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "vocab_size": 100}


@pytest.mark.parametrize("hub", MODELS)
def test_a_config_has_the_parameters_that_transformers_builds(hub: str) -> None:
    model = ModelSpec.from_hf(MODELS[hub]["config"], name=hub)
    rel = 0.006 if MODELS[hub].get("published") else 0.003
    assert model.num_parameters == pytest.approx(MODELS[hub]["parameters"], rel=rel)


def test_the_test_models_cover_all_supported_families() -> None:
    seen = {text_model(known["config"])[0] for known in MODELS.values()}
    assert seen | {"ministral", "olmo", "olmo3", "nemotron", "gpt_neo"} == set(FAMILIES)
    written = {
        str(part.get("model_type")) for known in MODELS.values() for part in _parts(known["config"])
    }
    as_another = {
        "Yi",
        "internlm",
        "internlm2",
        "exaone",
        "mimo",
        "qwen",
        "chatglm",
        "minicpm",
        "phi4mm",
        "kimi_k2",
    }
    assert (
        as_another
        | {"stablelm_epoch", "qwen2_vl", "qwen2_5_vl_text", "qwen3_vl_moe_text", "glm4v_moe_text"}
        <= written
    )
    assert not set(FAMILIES) & (set(EQUIVALENTS) | set(UNSUPPORTED))
    assert len(MODELS) >= 140


def _parts(document: dict[str, Any]) -> list[dict[str, Any]]:
    return [document, *(value for value in document.values() if isinstance(value, dict))]


@pytest.mark.slow
def test_transformers_builds_the_counted_number_of_weights() -> None:
    if importlib.util.find_spec("transformers") is None:
        pytest.skip("transformers is not installed")
    import torch
    from transformers import CONFIG_MAPPING, AutoModelForCausalLM

    for hub, known in MODELS.items():
        family, document = text_model(known["config"])
        if not FAMILIES[family].has_class:
            assert family not in CONFIG_MAPPING, hub
            continue
        unwanted = ("model_type", "pretraining_tp")
        config = CONFIG_MAPPING[family](
            **{key: value for key, value in document.items() if key not in unwanted}
        )
        with torch.device("meta"):
            built = AutoModelForCausalLM.from_config(config)
        assert sum(p.numel() for p in built.parameters()) == known["parameters"], hub


@pytest.mark.slow
def test_the_config_of_every_transformers_class_is_read() -> None:
    """With all its keys, and with those alone that differ from the class's own."""
    if importlib.util.find_spec("transformers") is None:
        pytest.skip("transformers is not installed")
    from transformers import CONFIG_MAPPING

    # their defaults are no decoders
    unusable = {
        "granitemoehybrid",
        "deepseek_v2",
        "glm4_moe",
        "glm4v_moe_text",
    }
    known = [
        name
        for name in (*FAMILIES, *EQUIVALENTS)
        if name in CONFIG_MAPPING and name not in unusable
    ]
    assert len(known) > 80
    for name in known:
        config = CONFIG_MAPPING[name]()
        read = [
            ModelSpec.from_hf(
                {**json.loads(json.dumps(written, default=str)), "model_type": name}, name=name
            )
            for written in (config.to_dict(), config.to_diff_dict())
        ]
        assert read[0] == read[1], name


@pytest.mark.parametrize(
    ("change", "match"),
    [
        (
            {"model_type": "qwen9"},
            r"the model family 'qwen9'.* is not supported; the supported families are .*did you mean qwen",
        ),
        ({"model_type": "bert"}, "bert.*not a decoder-only"),
        ({"is_encoder_decoder": True}, "not a decoder-only"),
        (
            {"model_type": "llama", "num_experts_in_the_attic": 3},
            "num_experts_in_the_attic=3.*misread",
        ),
        ({"model_type": "llama", "adapter_rank": 8}, "adapter_rank=8"),
        (
            {"model_type": "qwen3_moe", "kv_lora_rank": 8},
            "kv_lora_rank=8, which autotune does not know for qwen3_moe",
        ),
        (
            {"model_type": "opt", "word_embed_proj_dim": 32},
            "word_embed_proj_dim must equal hidden_size",
        ),
        (
            {"model_type": "deepseek_v3", "moe_layer_freq": 2, "n_routed_experts": 8},
            "moe_layer_freq must be 1",
        ),
        ({"model_type": "jamba"}, r"'jamba'.* mixes state-space.*set `model: \{hf: PATH\}`"),
        (
            {"model_type": "gemma3n", "text_config": LLAMA},
            "'gemma3n_text'.* several residual streams",
        ),
        (
            {"model_type": "granitemoehybrid", "layer_types": ["mamba", "attention"]},
            "layer_types .* has mamba",
        ),
        ({"model_type": "granitemoehybrid"}, "layer_types must list the kind of each layer"),
        (
            {"model_type": "ernie4_5_moe", "moe_layer_end_index": 0},
            "moe_layer_end_index must be the index of the last layer, 1",
        ),
        (
            {"model_type": "llama", "num_key_value_heads": [4, 2]},
            "num_key_value_heads .* differs from layer to layer, 2 to 4",
        ),
        (
            {"model_type": "chatglm", "inner_hidden_size": 128},
            "inner_hidden_size=128, which autotune does not know for glm",
        ),
    ],
)
def test_an_unsupported_key_is_rejected_by_name(change: dict[str, Any], match: str) -> None:
    with pytest.raises(SpecError, match=match):
        ModelSpec.from_hf({**LLAMA, **change})


def test_keys_that_change_no_weights_are_ignored() -> None:
    harmless = {
        "num_beams": 4,
        "sliding_window": 4096,
        "rope_theta": 1e6,
        "num_labels": 2,
        "chunk_size_feed_forward": 1,
    }
    mistral = {"model_type": "mistral", "num_key_value_heads": 2, **LLAMA}
    assert ModelSpec.from_hf({**mistral, **harmless}, name="m") == ModelSpec.from_hf(
        mistral, name="m"
    )


def test_an_omitted_size_is_the_default_of_the_familys_class() -> None:
    written = ("num_hidden_layers", "hidden_size", "num_attention_heads", "vocab_size")
    sizes = dict(zip(written, (36, 2880, 64, 201088), strict=True))
    model = ModelSpec.from_hf({"model_type": "gpt_oss", **sizes})
    assert (model.ffn_hidden_size, model.num_kv_heads) == (2880, 8)
    assert (
        ModelSpec.from_hf({"model_type": "mixtral", "num_key_value_heads": None}).num_kv_heads == 32
    )


def test_a_file_without_a_family_gets_no_default_sizes() -> None:
    with pytest.raises(SpecError, match="lacks num_hidden_layers"):
        ModelSpec.from_hf({key: size for key, size in LLAMA.items() if key != "num_hidden_layers"})


@pytest.mark.parametrize(
    "hub",
    ["bigscience/bloom", "EleutherAI/gpt-neox-20b", "google/gemma-3-1b-pt", "01-ai/Yi-6B-200K"],
)
def test_a_file_without_model_type_is_of_the_family_of_its_class(hub: str) -> None:
    classes = {
        "bloom": "BloomForCausalLM",
        "gpt_neox": "GPTNeoXForCausalLM",
        "gemma3_text": "Gemma3ForCausalLM",
    }
    config = dict(MODELS[hub]["config"])
    named = {**config, "architectures": [classes.get(config.pop("model_type"), "LlamaForCausalLM")]}
    del named["model_type"]
    assert ModelSpec.from_hf(named, name=hub) == ModelSpec.from_hf(MODELS[hub]["config"], name=hub)


@pytest.mark.parametrize(
    ("named", "match"),
    [
        (
            "RWForCausalLM",
            "no model_type, and its class RWForCausalLM belongs to no known family; add the model_type",
        ),
        ("BertForMaskedLM", "describes bert, which is not a decoder-only"),
        ("JambaForCausalLM", "'jamba'.* mixes state-space"),
    ],
)
def test_an_unsupported_class_is_rejected_by_name(named: str, match: str) -> None:
    with pytest.raises(SpecError, match=match):
        ModelSpec.from_hf({**LLAMA, "architectures": [named]})


@pytest.mark.parametrize(("key", "family"), [("hidden_size", "llama"), ("n_embd", "gpt2")])
def test_a_family_that_is_guessed_is_an_assumption(key: str, family: str) -> None:
    config = {key: 64, "num_hidden_layers": 2, "num_attention_heads": 4, "vocab_size": 100}
    model = replace(ModelSpec.from_hf(config, name="own"), source=json.dumps(config))
    assert model.assumptions[0].startswith(
        f"the config.json of own has no model_type, so the file is read as a {family} model"
    )
    named = replace(model, source=json.dumps({**config, "model_type": family}))
    assert named.assumptions == ()


def test_experts_are_counted_with_their_own_width() -> None:
    v3 = ModelSpec.from_hf(MODELS["deepseek-ai/DeepSeek-V3"]["config"], name="v3")
    assert v3.active_parameters == pytest.approx(37.5e9, rel=0.02)
    qwen = ModelSpec.from_hf(MODELS["Qwen/Qwen3-30B-A3B"]["config"], name="q")
    assert qwen.active_parameters == pytest.approx(3.34e9, rel=0.02)


@pytest.mark.parametrize("name", catalog.hub_ids())
def test_a_catalog_model_has_the_shape_on_the_hub(name: str) -> None:
    hub = catalog.hub_ids()[name]
    assert catalog.model(hub) == catalog.model(hub.upper()) == catalog.model(name)
    if hub in MODELS:
        assert catalog.model(name) == ModelSpec.from_hf(MODELS[hub]["config"], name=name)


def test_latent_attention_can_be_switched_off() -> None:
    sizes = {
        "hidden_size": 1280,
        "num_hidden_layers": 12,
        "num_attention_heads": 10,
        "vocab_size": 129280,
    }
    experts = {"n_routed_experts": 64, "moe_intermediate_size": 896, "num_experts_per_tok": 6}
    model = ModelSpec.from_hf(
        {"model_type": "deepseek_v2", "use_mla": False, "kv_lora_rank": None, **sizes, **experts}
    )
    assert (model.is_latent, model.head_dim, model.num_kv_heads) == (False, 128, 10)


def test_an_equivalent_family_is_read_as_the_other_one() -> None:
    family, document = text_model(MODELS["openbmb/MiniCPM-2B-sft-bf16"]["config"])
    assert (family, document["embedding_multiplier"], document["logits_scaling"]) == (
        "granite",
        12,
        9.0,
    )
    assert document["residual_multiplier"] == pytest.approx(1.4 / 40**0.5)
    family, document = text_model(MODELS["THUDM/chatglm3-6b"]["config"])
    assert (family, document["num_key_value_heads"], document["attention_bias"]) == ("glm", 2, True)
    assert text_model({"model_type": "minicpm", **LLAMA, "num_experts": 8})[0] == "granitemoe"
    _, document = text_model(MODELS["Qwen/Qwen2.5-VL-72B-Instruct"]["config"])
    assert "rope_scaling" not in document


def test_ids_of_the_hub_are_found_without_parsing_every_file() -> None:
    parsed = {
        name: read_entry("models", name, field="model").get("hub") for name in catalog.model_names()
    }
    assert catalog.hub_ids() == {name: hub for name, hub in parsed.items() if hub}


@pytest.mark.parametrize(
    ("config", "window"),
    [
        (MODELS["google/gemma-3-4b-pt"]["config"], 1024),
        (MODELS["google/gemma-2-9b"]["config"], 4096),
        (MODELS["mistralai/Mistral-7B-v0.1"]["config"], 4096),
        ({"model_type": "mistral", "sliding_window": None}, 0),
        ({"model_type": "gpt_oss"}, 128),
        (MODELS["meta-llama/Llama-4-Scout-17B-16E"]["config"], 8192),
        (MODELS["Qwen/Qwen2-0.5B"]["config"], 0),
        ({"model_type": "qwen2", "use_sliding_window": True, "sliding_window": 2048}, 2048),
        ({"model_type": "olmo3", "layer_types": ["full_attention"]}, 0),
        ({"model_type": "llama"}, 0),
    ],
)
def test_an_attention_window_shorter_than_the_sequence_is_an_assumption(
    config: dict[str, Any], window: int
) -> None:
    model = replace(ModelSpec.from_hf(config, name="own"), source=json.dumps(config))
    assert narrowest_window(model) == window
    workload = Workload(
        model=model, cluster=ClusterSpec.of("h100-sxm"), seq_len=16384, global_batch_size=8
    )
    said = [line for line in workload.assumptions if "16,384 tokens of a sequence" in line]
    assert [f"limits some or all layers to {window:,} tokens" in line for line in said] == (
        [True] if window else []
    )
    assert replace(workload, seq_len=window or 1).assumptions == model.assumptions
