"""A limit of power slows kernels that compute, not those that wait for memory."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from autotune.cost import Calibration, estimate
from autotune.cost.calibration import bounded
from autotune.spec import ConfigTable, GpuSpec, ParallelConfig, Workload, catalog

TABLE = ConfigTable.of([ParallelConfig.parse("dp=8")])


def step_s(gpu: GpuSpec) -> float:
    cluster = replace(catalog.cluster("h100-sxm-1x8"), gpu=gpu)
    asked = Workload(
        model=catalog.model("llama-8b"), cluster=cluster, seq_len=8192, global_batch_size=8
    )
    return float(np.asarray(estimate(asked, TABLE).step_time_s)[0])


def test_500_of_700_watts_leave_86_percent_of_the_clock() -> None:
    limited = replace(catalog.gpu("h100-sxm"), power_watts=500.0, rated_watts=700.0)
    assert limited.clock == pytest.approx((500 / 700) ** 0.45)
    assert 1.05 < step_s(limited) / step_s(catalog.gpu("h100-sxm")) < 1.0 / limited.clock


def test_matmuls_and_attention_are_slower_and_memory_is_not() -> None:
    constants = Calibration()
    limited = replace(catalog.gpu("h100-sxm"), power_watts=350.0, rated_watts=700.0)
    found = bounded(constants, limited)
    assert found.matmul_efficiency == pytest.approx(constants.matmul_efficiency * limited.clock)
    assert found.attention_efficiency == pytest.approx(
        constants.attention_efficiency * limited.clock
    )
    assert found.memory_efficiency == constants.memory_efficiency


@pytest.mark.parametrize(
    "stated", [{}, {"power_watts": 500.0}, {"power_watts": 800.0, "rated_watts": 700.0}]
)
def test_a_gpu_without_a_lower_limit_keeps_its_clock(stated: dict[str, float]) -> None:
    gpu = replace(catalog.gpu("h100-sxm"), **{"power_watts": None, **stated})
    assert gpu.clock == 1.0


def test_the_limited_h100_of_the_catalog_says_so() -> None:
    assert catalog.gpu("h100-sxm-96gb").clock < 0.9
    assert step_s(catalog.gpu("h100-sxm-96gb")) > 1.1 * step_s(catalog.gpu("h100-sxm"))


def test_a_gpu_whose_matmuls_reach_the_datasheet_has_the_share_of_others_of_that() -> None:
    """An RTX 4090 was measured at its datasheet's peak; of a GPU without a measurement the pooled
    efficiency stays."""
    measured, unknown = catalog.gpu("rtx-4090"), catalog.gpu("rtx-a6000")
    assert bounded(Calibration(), measured, share=0.87).matmul_efficiency == pytest.approx(0.87)
    assert (
        bounded(Calibration(), unknown, share=0.87).matmul_efficiency
        == Calibration().matmul_efficiency
    )
