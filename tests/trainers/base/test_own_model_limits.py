"""Which configs a model that code builds can have, and what is said of the others."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

import pytest

from autotune.space import why_not
from autotune.spec import ModelCode, ModelSpec, ParallelConfig, Workload, catalog
from autotune.trainers import trainer

CODE = ModelCode(module="mine:build", num_parameters=7)


def workload(**code: Any) -> Workload:
    """A model of 8 layers, which brings what `code` says."""
    built = replace(CODE, **code)
    source = "" if built.module else '{"model_type": "llama"}'  # a class of transformers
    model = ModelSpec(
        name="mine",
        num_layers=8,
        hidden_size=64,
        num_attention_heads=4,
        vocab_size=256,
        code=built,
        source=source,
    )
    return Workload(
        model=model, cluster=catalog.cluster("h100-sxm-1x8"), seq_len=128, global_batch_size=8
    )


def refusal(name: str, config: str, **code: Any) -> str:
    """What the trainer says of a config."""
    given = workload(**code)
    return "; ".join(map(str, trainer(name).limits(given, ParallelConfig.parse(config))))


@pytest.mark.parametrize(
    ("config", "message"),
    [
        (
            "tp=2,dp=1",
            r"tp=2: mine has no tensor-parallel plan.*use tp=1, or return a `tp_plan` from the builder",
        ),
        (
            "pp=2,accumulation_steps=8",
            r"pp=2: mine defines no split points for a pipeline.*`pp_split`",
        ),
        ("cp=2", r"cp=2: context parallelism replaces the attention"),
        ("recompute=mlp", r"recompute=mlp: .*; nearest: recompute=full"),
        ("precision=fp8", r"fp8 replaces the projections.*nearest: precision=bf16"),
        ("loss=chunked", r"loss=chunked: .*computes its own loss"),
    ],
)
def test_what_a_model_does_not_bring_is_refused_with_a_remedy(config: str, message: str) -> None:
    assert re.search(message, refusal("native", config))


def test_what_a_model_brings_is_allowed() -> None:
    plans = {"has_tensor_plan": True, "has_pipeline_split": True, "num_cuts": 3}
    assert refusal("native", "tp=2", **plans) == ""
    assert refusal("native", "pp=4,accumulation_steps=8", **plans) == ""
    assert "has 3 split points" in refusal("native", "pp=8,accumulation_steps=8", **plans)
    assert refusal("native", "dp=8,zero_stage=3,recompute=full,precision=bf16") == ""
    assert "has attention" in refusal("native", "recompute=selective", has_attention=False)


def test_a_chunked_loss_is_for_classes_of_transformers_whose_projection_is_whole() -> None:
    assert refusal("native", "loss=chunked", module="") == ""
    assert "gathers the logits" in refusal(
        "native", "tp=2,loss=chunked", module="", has_tensor_plan=True
    )


def test_heads_that_nobody_told_leave_tp_at_1() -> None:
    given = workload(has_tensor_plan=True, guessed=["num_attention_heads", "ffn_hidden_size"])
    given = replace(given, model=replace(given.model, num_attention_heads=1, num_kv_heads=1))
    reason = why_not(given, ParallelConfig.parse("tp=2,micro_batch_size=8"))
    assert reason is not None
    assert (
        "return `shapes: {num_attention_heads: ...}` from the model's builder, or use tp=1"
        in reason
    )
    assert why_not(given, ParallelConfig.parse("micro_batch_size=8")) is None
    told = replace(
        given, model=replace(given.model, num_attention_heads=4, num_kv_heads=4, ffn_hidden_size=7)
    )
    told = replace(
        told, model=replace(told.model, code=replace(CODE, guessed=("ffn_hidden_size",)))
    )
    # the guessed width is no law
    assert why_not(told, ParallelConfig.parse("tp=2,micro_batch_size=8")) is None


def test_trainers_that_build_from_shapes_refuse_modules_alone() -> None:
    assert "cannot use a module" in refusal("megatron", "dp=8")
    assert "cannot use a module" not in refusal("megatron", "dp=8", module="")


def test_a_model_with_code_is_the_same_after_storage() -> None:
    given = workload(guessed=("vocab_size",))
    assert Workload.from_dict(given.to_dict()) == given
    assert given.model.num_parameters == 7
