"""Values that a config leaves out follow from the laws; values that it gives stay."""

from __future__ import annotations

from dataclasses import replace

import pytest

from autotune.errors import ConfigError
from autotune.space import SearchSpace, complete
from autotune.spec import ParallelConfig, SpaceSpec, Workload, catalog

WORK = Workload(
    model=catalog.model("llama-8b"),
    cluster=catalog.cluster("h100-sxm-2x8"),
    seq_len=4096,
    global_batch_size=(96, 128),
)


@pytest.mark.parametrize(
    ("asked", "config"),
    [
        ("", ParallelConfig(dp=16, accumulation_steps=8)),
        ("tp=4,pp=2", ParallelConfig(tp=4, pp=2, dp=2, accumulation_steps=64)),
        ("tp=4,dp=2", ParallelConfig(tp=4, dp=2, accumulation_steps=64)),
        ("dp=4,micro_batch_size=8", ParallelConfig(dp=4, micro_batch_size=8, accumulation_steps=4)),
        ("dp=3", ParallelConfig(dp=3, accumulation_steps=32)),
        ("dp=5", ParallelConfig(dp=5)),
        ("tp=32", ParallelConfig(tp=32, accumulation_steps=128)),
        ("accumulation_steps=2,cp=2", ParallelConfig(cp=2, dp=8, accumulation_steps=2)),
    ],
)
def test_dp_and_accumulation_are_derived(asked: str, config: ParallelConfig) -> None:
    assert complete(WORK, asked) == config
    pairs = (piece.split("=") for piece in asked.split(",") if piece)
    assert complete(WORK, {name: int(value) for name, value in pairs}) == config


@pytest.mark.parametrize(("gpu", "precision"), [("h100-sxm", "bf16"), ("v100-32gb", "fp16")])
def test_a_precision_that_the_gpu_has_is_the_default(gpu: str, precision: str) -> None:
    work = replace(WORK, cluster=catalog.cluster(f"{gpu}-2x8"))
    assert complete(work, "tp=4").precision == precision
    assert complete(work, "tp=4,precision=fp32").precision == "fp32"
    space = SearchSpace.build(work, SpaceSpec(name="own", knobs={"tp": (4, 8)}))
    assert space.knobs["precision"] == (precision,)


def test_a_pasted_label_is_completed_too() -> None:
    assert complete(WORK, "tp4 pp2 zero1") == ParallelConfig(
        tp=4, pp=2, dp=2, accumulation_steps=64, zero_stage=1
    )


def test_what_is_no_knob_is_refused() -> None:
    with pytest.raises(ConfigError, match="there is no knob 'tq'"):
        complete(WORK, "tq=2")
    with pytest.raises(ConfigError, match="there is no knob 'tq'"):
        complete(WORK, {"tq": 2})
