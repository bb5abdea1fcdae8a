"""Models whose layers are not a decoder's, and models with other towers: weights are those of the
class, by kind of layer, in every answer."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import autotune
from autotune.errors import DryRunError, SpecError
from autotune.schema.files import transformers_model
from autotune.spec import ModelCode, ModelSpec, ParallelConfig, Workload, catalog
from autotune_workers.own_model.inspection import decoder_of_kinds, inspect
from tests.matrix import sampled
from tests.workers.test_own_model import code_of

SIZES = {"hidden_size": 64, "num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": 512, "num_hidden_layers": 4}  # fmt: skip
LINEAR = {"head_dim": 16, "linear_num_key_heads": 2, "linear_num_value_heads": 2, "linear_key_head_dim": 32, "linear_value_head_dim": 32}  # fmt: skip
EXPERTS = {"num_experts": 16, "num_experts_per_tok": 2, "moe_intermediate_size": 128, "shared_expert_intermediate_size": 64}  # fmt: skip
FILES: dict[str, dict[str, Any]] = {
    "qwen3_next": {**SIZES, **LINEAR, **EXPERTS, "intermediate_size": 128, "full_attention_interval": 4},
    "qwen3_5_text": {**SIZES, **LINEAR, "intermediate_size": 192},
    "jamba": {**SIZES, "intermediate_size": 192, "num_experts": 4, "num_experts_per_tok": 2, "attn_layer_period": 4, "attn_layer_offset": 2, "expert_layer_period": 2, "pad_token_id": 0},
    "bamba": {**SIZES, "intermediate_size": 192, "attn_layer_indices": [2], "mamba_n_heads": 8, "mamba_d_head": 16},
    "falcon_h1": {**SIZES, "intermediate_size": 192, "mamba_n_heads": 8, "mamba_d_head": 16, "mamba_d_ssm": 128},
    "mamba2": {"hidden_size": 64, "num_heads": 8, "head_dim": 16, "state_size": 16, "vocab_size": 512, "num_hidden_layers": 4, "n_groups": 1},
    "granitemoehybrid": {
        **SIZES, "intermediate_size": 32, "shared_intermediate_size": 64, "num_local_experts": 4, "num_experts_per_tok": 2,
        "layer_types": ["mamba", "mamba", "attention", "mamba"], "mamba_n_heads": 8, "mamba_d_head": 16, "mamba_d_state": 16, "mamba_expand": 2,
        "tie_word_embeddings": True,
    },
}  # fmt: skip


def built(document: dict[str, Any], name: str = "other") -> ModelSpec:
    """The model that `{hf: PATH}` of a file of this machine means."""
    return transformers_model(name, json.dumps(document), base=Path.cwd(), inspect=inspect)


def described(model: ModelSpec) -> Workload:
    return Workload(
        model=model, cluster=catalog.cluster("h100-sxm-1x8"), seq_len=128, global_batch_size=16
    )


@pytest.mark.parametrize("family", sampled(FILES, ["qwen3_next"]))
def test_weights_of_every_answer_are_those_that_the_class_has(family: str) -> None:
    model = built({**FILES[family], "model_type": family})
    code = code_of(model)
    total = code.num_parameters
    layers = sum(kind.count * kind.parameters for kind in code.layers)
    tables = (1 if model.tied_embeddings else 2) * 512 * 64
    assert layers + tables == pytest.approx(total, rel=0.005)
    assert model.shape_parameters + code.other_parameters == pytest.approx(total, rel=0.01)
    fp32 = autotune.estimate(
        described(model), ParallelConfig(dp=8, micro_batch_size=2, precision="fp32")
    )
    assert float(fp32.memory_parts_bytes.weights) == pytest.approx(4 * total, rel=0.01)
    assert any("layers that a decoder does not have" in words for words in model.assumptions)


def test_experts_that_a_token_does_not_visit_cost_no_compute_and_are_kept() -> None:
    model = built({**FILES["qwen3_next"], "model_type": "qwen3_next"})
    assert (model.num_experts, model.experts_per_token, model.ffn_hidden_size) == (16, 2, 128)
    idle = 4 * 14 * 3 * 64 * 128
    assert model.active_parameters == model.num_parameters - idle
    code = code_of(model)
    assert [(kind.count, kind.attends) for kind in code.layers] == [(3, False), (1, True)]
    assert code.attending_share == 0.25


def test_a_model_of_eighty_billion_weights_does_not_fit_where_its_weights_alone_do_not() -> None:
    """Qwen3-Next 80B on 8 GPUs of 80 GB, by the sizes of its class alone."""
    sizes = {
        **EXPERTS, "hidden_size": 2048, "intermediate_size": 5120, "num_hidden_layers": 48, "num_attention_heads": 16, "num_key_value_heads": 2,
        "head_dim": 256, "vocab_size": 151936, "num_experts": 512, "num_experts_per_tok": 10, "moe_intermediate_size": 512,
        "shared_expert_intermediate_size": 512, "linear_num_value_heads": 32, "linear_num_key_heads": 16, "linear_key_head_dim": 128, "linear_value_head_dim": 128,
    }  # fmt: skip
    model = built({**sizes, "model_type": "qwen3_next"})
    assert model.num_parameters == pytest.approx(79.7e9, rel=0.005)
    # with embedding and output projection
    assert model.active_parameters == pytest.approx(3.9e9, rel=0.1)
    found = autotune.estimate(
        described(model), ParallelConfig(dp=8, micro_batch_size=1, zero_stage=2, precision="bf16")
    )
    assert float(found.memory_parts_bytes.weights) > 148 * 2**30
    assert float(found.oom_probability) > 0.99


def tower() -> dict[str, Any]:
    """A vision tower that has more blocks and weights than the language model beside it."""
    text = {**SIZES, "model_type": "llama", "intermediate_size": 128, "num_hidden_layers": 2}
    vision = {"model_type": "clip_vision_model", "hidden_size": 128, "intermediate_size": 512, "num_hidden_layers": 6, "num_attention_heads": 8, "patch_size": 14, "image_size": 56}  # fmt: skip
    return {"model_type": "llava", "architectures": ["LlavaForConditionalGeneration"], "image_token_index": 511, "text_config": text, "vision_config": vision}  # fmt: skip


def test_towers_are_counted_in_memory_and_named() -> None:
    model = built(tower())
    code = code_of(model)
    assert (model.num_layers, model.hidden_size, model.ffn_hidden_size) == (2, 64, 128)
    assert (
        code.other_parameters
        == model.num_parameters - model.shape_parameters
        > model.shape_parameters
    )
    assert not code.layers
    fp32 = autotune.estimate(
        described(model), ParallelConfig(dp=8, micro_batch_size=2, precision="fp32")
    )
    assert float(fp32.memory_parts_bytes.weights) == pytest.approx(
        4 * model.num_parameters, rel=0.01
    )
    (words,) = model.assumptions
    assert "outside its language model" in words


def test_where_no_class_is_built_towers_are_named_as_left_out() -> None:
    model = transformers_model("other", json.dumps(tower()), base=None, inspect=None)
    assert code_of(model).num_parameters == 0
    (words,) = model.assumptions
    assert "only the language model" in words


def test_layers_of_other_kinds_are_refused_where_no_class_is_built() -> None:
    with pytest.raises(SpecError, match="layer_types"):
        transformers_model("other", json.dumps({**FILES["granitemoehybrid"], "model_type": "granitemoehybrid"}), base=None, inspect=None)  # fmt: skip


def test_experts_without_a_number_of_visited_ones_have_no_shape() -> None:
    model = built({**FILES["qwen3_next"], "model_type": "qwen3_next"})
    assert (
        decoder_of_kinds(
            code_of(model).layers, {"hidden_size": 64, "vocab_size": 512, "num_experts": 16}
        )
        is None
    )


def test_kinds_of_layers_survive_plain_values() -> None:
    from autotune.spec.plain import to_plain

    model = built({**FILES["jamba"], "model_type": "jamba"})
    assert ModelSpec.from_dict(json.loads(json.dumps(to_plain(model)))) == model
    assert isinstance(model.code, ModelCode)


VIT = {"model_type": "vit", "hidden_size": 64, "num_hidden_layers": 4, "num_attention_heads": 4, "intermediate_size": 128, "image_size": 32, "patch_size": 8}  # fmt: skip


def test_a_model_of_images_is_said_to_be_one() -> None:
    """By the assumptions, which plan, review, check, the service, MCP and Python all show."""
    model = built({**VIT, "architectures": ["ViTForImageClassification"]})
    (said, *_) = (text for text in model.assumptions if "pixel_values" in text)
    assert "not tokens" in said
    assert "patches" in said
    assert said in described(model).assumptions
    for family in FILES:
        assert not code_of(built({**FILES[family], "model_type": family})).takes


def test_a_file_of_no_language_model_needs_its_class() -> None:
    with pytest.raises(DryRunError, match=r"vit has no causal language model.*architectures"):
        built(VIT)
