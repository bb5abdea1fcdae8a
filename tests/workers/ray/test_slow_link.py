"""A study on two nodes whose link is slow: tensor parallelism across it must lose, and the study
finds that out by measuring.

The cluster is described as one node with four processors, because a law refuses tensor-parallel
groups that leave their node. Per step and rank pair, tensor parallelism sends the activations of
each layer four times (8 MiB here); data parallelism sends each gradient once (0.5 MiB).
"""

from __future__ import annotations

import contextlib
from typing import Any

import pytest

from autotune import api
from autotune.store import MemoryStore
from tests.nodes.network import limited
from tests.nodes.ray_nodes import RayNodes
from tests.workers.ray.two_node_trials import ALONE

pytestmark = [*ALONE, pytest.mark.slow]

RATE = "50mbit"
MODEL = {
    "num_layers": 2,
    "hidden_size": 64,
    "num_attention_heads": 4,
    "vocab_size": 256,
    "max_positions": 256,
}


def spec(address: str) -> dict[str, Any]:
    return {
        "name": "link",
        "model": {"name": "shallow", **MODEL},
        "cluster": "cpu-1x4",
        "workload": {"seq_len": 256, "global_batch_size": 16},
        "space": {"tp": [1, 2, 4], "micro_batch_size": [4], "precision": ["fp32"]},
        "searcher": "grid",
        "budget": {"max_trials": 3, "min_gain": 0},
        "measure": {
            "finalists": 0,
            "min_steps": 4,
            "max_steps": 6,
            "start_timeout_s": 120,
            "trial_timeout_s": 300,
        },
        "runner": {"kind": "ray", "address": address},
    }


def step_times_s(address: str) -> dict[int, float]:
    """Median step time by tensor-parallel degree."""
    result = api.tune(spec(address), store=MemoryStore())
    times = {}
    for trial in result.trials:
        assert trial.measurement is not None, trial.failure
        times[trial.config.tp] = trial.measurement.step_time_s
    assert result.best is not None
    assert result.best.config.tp == min(times, key=lambda tp: times[tp])
    return times


@pytest.mark.parametrize("rate", [None, RATE], ids=["as fast as the machine", RATE])
def test_tensor_parallelism_across_a_slow_link_loses(two_nodes: RayNodes, rate: str | None) -> None:
    with limited(two_nodes.nodes, rate) if rate else contextlib.nullcontext():
        times = step_times_s(two_nodes.address)
    print(
        f"\n{rate or 'unlimited'}: "
        + ", ".join(f"tp={tp} {1e3 * times[tp]:.0f} ms" for tp in sorted(times))
    )
    if rate:
        assert min(times, key=lambda tp: times[tp]) != 4
        assert times[4] > 3 * min(times[1], times[2])
