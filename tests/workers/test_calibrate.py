"""Calibration measures this machine with real ranks, and reports it under the names that the cost
model uses."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from autotune.cost import Calibration
from autotune.spec import ClusterSpec
from autotune_workers import calibrate
from autotune_workers.calibrate import calibrate_local

pytestmark = pytest.mark.alone


@pytest.mark.parametrize("quick", [True, pytest.param(False, marks=pytest.mark.slow)])
def test_figures_are_plausible_and_the_cost_model_takes_them(
    quick: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    name = "QUICK" if quick else "FULL"
    monkeypatch.setattr(calibrate, name, replace(getattr(calibrate, name), ranks=(2,)))
    told: list[float] = []
    figures = calibrate_local(lambda what, fraction: told.append(fraction), quick=quick)
    assert told == sorted(told)
    assert told[-1] == 1.0
    assert all(1e7 < row["flops_per_s"] < 1e13 for row in figures["matmul"])
    assert 1e8 < figures["memory_bytes_per_s"] < 1e13
    assert 0 < figures["host_overhead_s"] < 10
    assert {row["kind"] for row in figures["collectives"]} == {
        "all_reduce",
        "all_gather",
        "reduce_scatter",
    }
    assert all(row["time_s"] > 0 and row["scope"] == "intra" for row in figures["collectives"])
    assert [row["ranks"] for row in figures["concurrency"]] == [1, 2]
    fitted = Calibration.from_measurements(
        figures, cluster=ClusterSpec.of("cpu", num_nodes=1, gpus_per_node=2)
    )
    assert math.isfinite(fitted.matmul_efficiency)
    assert fitted.matmul_efficiency > 0
