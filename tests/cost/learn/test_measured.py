"""What `autotune calibrate` measures, turned into constants."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from autotune import assets
from autotune.api import load_study
from autotune.cost import Calibration, estimate
from autotune.errors import SpecError
from autotune.space import SearchSpace
from autotune.spec import ClusterSpec, catalog
from tests.cost.examples import GPU, cluster


def matmul(m: int, n: int, k: int, efficiency: float, half: float) -> dict[str, Any]:
    seconds = (1 + half * (1 / m + 1 / n + 1 / k)) / (GPU.peak_flops_per_s["bf16"] * efficiency)
    return {"m": m, "n": n, "k": k, "precision": "bf16", "flops_per_s": 1 / seconds}


def collective(kind: str, ranks: int, size: float, latency: float, rate: float) -> dict[str, Any]:
    rounds = 2 if kind == "all_reduce" else 1
    seconds = rounds * (latency + (ranks - 1) / ranks * size / rate)
    return {"kind": kind, "ranks": ranks, "scope": "intra", "bytes": size, "time_s": seconds}


def test_the_constants_that_made_the_measurements_come_back() -> None:
    shapes = [(512, 512, 512), (1024, 1024, 4096), (4096, 4096, 4096), (8192, 8192, 1024)]
    measured = {
        "matmul": [matmul(*shape, efficiency=0.6, half=150.0) for shape in shapes],
        "memory_bytes_per_s": 1.5e12,
        "collectives": [collective("all_reduce", 8, s, 45e-6, 200e9) for s in (1e6, 1e7, 1e8)],
        "host_overhead_s": 2e-4,
    }
    c = Calibration.from_measurements(measured, cluster=cluster(), trainer="native")
    assert c.matmul_efficiency == pytest.approx(0.6, rel=1e-3)
    assert c.half_size == pytest.approx(150.0, rel=1e-2)
    assert c.memory_efficiency == pytest.approx(0.75)
    assert c.intra_efficiency == pytest.approx(200 / 300, rel=1e-3)
    assert c.latency_factor == pytest.approx(45e-6 / (5e-6 * math.log2(8)), rel=1e-3)
    assert c.layer_host_s == 2e-4
    assert "measured on made-up" in c.source


def test_one_disturbed_measurement_does_not_matter() -> None:
    shapes = [(256 * i, 1024, 1024) for i in range(1, 10)]
    rows = [matmul(*shape, efficiency=0.6, half=100.0) for shape in shapes]
    rows[3]["flops_per_s"] /= 20
    c = Calibration.from_measurements({"matmul": rows}, cluster=cluster())
    assert c.matmul_efficiency == pytest.approx(0.6, rel=0.1)


@pytest.mark.parametrize("loaded", [(), ("fp32",), ("bf16",), ("fp32", "bf16")], ids=str)
def test_no_calibration_of_a_cpu_has_a_plan_above_its_peak(loaded: tuple[str, ...]) -> None:
    """A core is faster than the catalog's order of magnitude, most of all in bf16; the rates of a
    busy one are a third of that, of every second shape or of all."""
    study = load_study(str(assets.search_spaces() / "studies" / "laptop.yaml"))
    rates = {"fp32": 92e9, "bf16": 400e9}
    sides = (128, 256, 512, 1024)
    rows = [
        {"m": side, "n": side, "k": side, "precision": precision, "flops_per_s": rate / busy}
        for precision, rate in rates.items()
        for busy, side in zip((1, 3, 1, 3) if precision in loaded else (1,) * 4, sides, strict=True)
    ]
    workload = replace(study.workload, cluster=catalog.cluster("cpu-1x4"))
    table = SearchSpace.of_study(replace(study, workload=workload)).table
    constants = Calibration.from_measurements({"matmul": rows}, cluster=workload.cluster)
    found = estimate(workload, table, calibration=constants)
    assert constants.matmul_efficiency * constants.half_factor > 1
    assert np.asarray(found.mfu).max() <= 1
    peaks = np.asarray(found.mfu_peak_flops_per_s)
    per_gpu = np.asarray(found.mfu) * peaks / np.asarray(found.tokens_per_s_per_gpu)
    assert per_gpu == pytest.approx(per_gpu[0])
    assert peaks.min() >= min(workload.cluster.gpu.peak_flops_per_s.values())


def test_a_gpu_at_its_limit_of_power_is_as_fast_as_its_large_matmuls() -> None:
    rates = {
        (4096, 4096, 1024): 0.65,
        (4096, 8192, 5120): 0.62,
        (4096, 8192, 8192): 0.49,
        (4096, 28672, 8192): 0.48,
        (8192, 57344, 4096): 0.46,
    }
    rows = [matmul(*shape, efficiency=rate, half=0.0) for shape, rate in rates.items()]
    c = Calibration.from_measurements({"matmul": rows}, cluster=cluster())
    assert c.matmul_efficiency == pytest.approx(0.49, rel=1e-3)
    assert c.half_size == 0.0


def test_ranks_that_slow_each_other_down_count_by_their_total_rate() -> None:
    where = ClusterSpec.of("cpu", num_nodes=1, gpus_per_node=4)
    shared = [
        {"ranks": 1, "flops_per_s": 5e10},
        {"ranks": 2, "flops_per_s": 5e10},
        {"ranks": 4, "flops_per_s": 2.5e10},
    ]
    assert Calibration.from_measurements(
        {"concurrency": shared}, cluster=where
    ).full_speed_ranks == pytest.approx(2.0)
    free = [{"ranks": r, "flops_per_s": 5e10} for r in (1, 2, 4)]
    assert (
        Calibration.from_measurements({"concurrency": free}, cluster=where).full_speed_ranks == 0.0
    )


def test_the_number_of_cores_bounds_the_total_rate() -> None:
    """A first rate that was disturbed makes the others look faster than the machine is."""
    where = replace(ClusterSpec.of("cpu", num_nodes=1, gpus_per_node=4), cores_per_node=2)
    disturbed = [{"ranks": 1, "flops_per_s": 3e10}, {"ranks": 4, "flops_per_s": 2.5e10}]
    assert (
        Calibration.from_measurements({"concurrency": disturbed}, cluster=where).full_speed_ranks
        == 2.0
    )


def test_waiting_for_a_core_is_separated_from_the_link_latency() -> None:
    where = replace(ClusterSpec.of("cpu", num_nodes=1, gpus_per_node=4), cores_per_node=2)
    shared = [{"ranks": 1, "flops_per_s": 5e10}, {"ranks": 4, "flops_per_s": 2.5e10}]
    turns = {2: 0.0, 4: 3 * 1 * 7e-4, 8: 7 * 3 * 7e-4}
    rows = [
        collective(kind, n, size, 2e-4 * math.log2(n) + wait, 1e9)
        for n, wait in turns.items()
        for kind in ("all_reduce", "all_gather")
        for size in (1e4, 1e6, 1e7)
    ]
    c = Calibration.from_measurements({"concurrency": shared, "collectives": rows}, cluster=where)
    assert c.turn_s == pytest.approx(7e-4, rel=1e-3)
    assert c.latency_factor * where.intra_node.latency_s == pytest.approx(2e-4, rel=1e-3)
    assert c.intra_efficiency * where.intra_node.bytes_per_s == pytest.approx(1e9, rel=1e-3)


def test_sixteen_bits_are_compared_by_shape() -> None:
    where = ClusterSpec.of("cpu", num_nodes=1, gpus_per_node=2)
    rates = {("fp32", 256): 4e10, ("fp32", 512): 5e10, ("bf16", 256): 12e10, ("bf16", 512): 15e10}
    rows = [
        {"m": n, "n": n, "k": n, "precision": p, "flops_per_s": rate}
        for (p, n), rate in rates.items()
    ]
    c = Calibration.from_measurements({"matmul": rows}, cluster=where)
    peaks = where.gpu.peak_flops_per_s
    assert c.half_factor == pytest.approx(3.0 * peaks["fp32"] / peaks["bf16"])


def test_nothing_measured_changes_nothing_but_the_source() -> None:
    c = Calibration.from_measurements(
        {}, cluster=ClusterSpec.of("cpu", num_nodes=1, gpus_per_node=2)
    )
    assert "nothing" in c.source
    assert "run `autotune calibrate`" not in c.source
    with pytest.raises(SpecError, match="must be a mapping of keys"):
        Calibration.from_measurements([], cluster=cluster())  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("measured", "message"),
    [
        ({"matmuls": []}, "did you mean matmul"),
        (
            {"matmul": [{"m": 1, "n": 1, "k": 1, "precision": "int4", "flops_per_s": 1.0}]},
            "precision",
        ),
        ({"matmul": [{"m": 1, "n": 1, "precision": "bf16", "flops_per_s": 1.0}]}, "lacks k"),
        ({"matmul": 3}, "must be a list"),
        ({"memory_bytes_per_s": -1.0}, "memory_bytes_per_s"),
        (
            {
                "collectives": [
                    {"kind": "gossip", "ranks": 2, "scope": "intra", "bytes": 1.0, "time_s": 1.0}
                ]
            },
            "kind",
        ),
        (
            {
                "collectives": [
                    {
                        "kind": "all_reduce",
                        "ranks": 1,
                        "scope": "intra",
                        "bytes": 1.0,
                        "time_s": 1.0,
                    }
                ]
            },
            "ranks",
        ),
    ],
)
def test_nonsense_is_refused(measured: dict[str, Any], message: str) -> None:
    with pytest.raises(SpecError, match=message):
        Calibration.from_measurements(measured, cluster=cluster())
