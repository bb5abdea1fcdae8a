"""Matmuls of 8 and 4 bits: faster than 16 bits where the GPU has them, while attention and the head
stay in 16 bits."""

from __future__ import annotations

from dataclasses import replace

import pytest

from autotune.cost import Calibration, estimate
from autotune.cost.time.compute import element_bytes, peak_of, reached_factor
from autotune.spec import PRECISIONS, ConfigTable, ParallelConfig, Workload, catalog

FORMATS = ("bf16", "fp8", "mxfp8", "nvfp4")


def on(gpu: str, model: str = "llama-70b") -> Workload:
    return Workload(
        model=catalog.model(model),
        cluster=catalog.cluster(gpu),
        seq_len=8192,
        global_batch_size=256,
        trainer="megatron",
    )


def seconds(where: Workload, precision: str) -> float:
    config = ParallelConfig(tp=2, pp=4, dp=8, accumulation_steps=32, precision=precision)
    return float(estimate(where, config).time_parts_s.compute)


@pytest.mark.parametrize(
    "gpu", ["b200-sxm-8x8", "gb200-nvl72-16x4", "gb300-nvl72-16x4", "b300-sxm-8x8"]
)
def test_narrower_matmuls_are_faster_but_blocks_of_scales_cost_something(gpu: str) -> None:
    times = {precision: seconds(on(gpu), precision) for precision in FORMATS}
    assert times["nvfp4"] < times["fp8"] < times["mxfp8"] < times["bf16"]


def test_more_fp4_peak_makes_nvfp4_faster_and_nothing_else() -> None:
    where = on("gb300-nvl72-16x4")
    peaks = dict(where.cluster.gpu.peak_flops_per_s)
    slower = replace(
        peaks_of := where.cluster.gpu, peak_flops_per_s={**peaks, "nvfp4": peaks["nvfp4"] / 1.5}
    )
    assert peaks_of.peak_flops_per_s["nvfp4"] > slower.peak_flops_per_s["nvfp4"]
    less = replace(where, cluster=replace(where.cluster, gpu=slower))
    assert seconds(less, "nvfp4") > 1.1 * seconds(where, "nvfp4")
    assert all(seconds(less, p) == seconds(where, p) for p in ("bf16", "fp8", "mxfp8"))


def test_what_is_not_a_matmul_does_not_get_faster() -> None:
    where = on("gb300-nvl72-16x4")
    endless = replace(
        where.cluster.gpu, peak_flops_per_s={**where.cluster.gpu.peak_flops_per_s, "nvfp4": 1e30}
    )
    rest = seconds(replace(where, cluster=replace(where.cluster, gpu=endless)), "nvfp4")
    assert rest > 0.15 * seconds(where, "bf16")


def test_a_format_that_the_gpu_lacks_runs_at_the_next_wider_one() -> None:
    h100, a100 = on("h100-sxm-8x8"), on("a100-80gb-8x8")
    assert peak_of(h100, "nvfp4") == peak_of(h100, "mxfp8") == peak_of(h100, "fp8")
    assert peak_of(a100, "nvfp4") == peak_of(a100, "bf16")


def test_every_precision_has_its_bytes_and_its_factor() -> None:
    table = ConfigTable.of([ParallelConfig(precision=precision) for precision in PRECISIONS])
    factors = reached_factor(table, Calibration(fp8_factor=0.8, half_factor=0.9))
    found = dict(zip(PRECISIONS, factors.tolist(), strict=True))
    assert found["fp32"] == found["tf32"] == 1.0
    assert found["bf16"] == found["fp16"] == 0.9
    assert found["fp8"] == 0.8
    assert 0 < found["nvfp4"] < found["mxfp8"] < found["fp8"]
    assert element_bytes(table).tolist() == [4, 4, 2, 2, 2, 2, 2]
