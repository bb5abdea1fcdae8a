"""Measurements of a healthy training, and workloads to hold them against."""

from __future__ import annotations

import math
from typing import Any

from autotune.spec import Measurement, Workload
from tests.study.controller.world import workload as tiny_workload

STEPS = 20


def losses(shift: float = 0.0) -> tuple[float, ...]:
    """A loss that falls, with the ups and downs of batches."""
    return tuple(
        5.5 * (0.7 + 0.3 * math.exp(-i / 8)) * (1 + 0.02 * math.sin(1.7 * i)) + shift
        for i in range(STEPS)
    )


def healthy(**fields: Any) -> Measurement:
    values: dict[str, Any] = {
        "step_times_s": tuple(0.1 * (1 + 0.02 * math.sin(3.1 * i)) for i in range(STEPS)),
        "tokens_per_step": 256,
        "num_ranks": 4,
        "losses": losses(),
        "reference_losses": losses(),
        "grad_norms": tuple(1 + 3 * math.exp(-i / 3) for i in range(STEPS)),
        "peak_memory_bytes": 2e9,
        "memory_capacity_bytes": 4e9,
    }
    return Measurement(**(values | fields))


def workload() -> Workload:
    return tiny_workload()
