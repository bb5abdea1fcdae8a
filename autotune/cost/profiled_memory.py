"""Peak memory from a profile, in place of the formulas, for the configs that it composes.

    reserved = allocated * (1 + fragmentation) + framework

A profile knows what tensors hold. What the allocator reserves beyond them and what the framework takes by itself are constants of the trainer and
GPU type, and the error bar is theirs (`memory_constants.py`).

Only the native trainer's memory is taken from a profile: its loop was run dry. Other trainers keep weights, gradients and buffers in ways of their own.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from autotune.cost.calibration import Calibration
from autotune.cost.memory import RankMemory
from autotune.spec import ConfigTable, MemoryParts, Workload

if TYPE_CHECKING:
    from autotune.cost.profile import Profile

PROFILED_TRAINERS = ("native",)
"""trainers whose own code is what a dry run runs"""


def with_profile(
    formulas: RankMemory, profile: Profile, workload: Workload, table: ConfigTable, constants: Calibration
) -> tuple[RankMemory, NDArray[np.bool_]]:
    """The memory of every row, from the profile where it composes the row, else from the formulas; and which rows it composes."""
    if workload.trainer not in PROFILED_TRAINERS:
        return formulas, np.zeros(len(table), dtype=np.bool_)
    peaks, known = profile.peaks(workload, table)
    rows = np.flatnonzero(known)
    if not len(rows):
        return formulas, known
    optimizer, weights = peaks.states_bytes - peaks.weights_bytes, peaks.weights_bytes
    gradients, total = peaks.gradients_bytes, peaks.total_bytes
    loose = constants.fragmentation * total
    found = {
        "weights": weights,
        "gradients": gradients,
        "optimizer": optimizer,
        "activations": total - weights - optimizer - gradients,
        "logits": np.zeros_like(total),
        "framework": constants.framework_bytes + loose,
    }
    parts = {name: np.array(np.broadcast_to(getattr(formulas.parts, name), len(table)), dtype=float) for name in found}
    for name, values in found.items():
        parts[name][rows] = values
    spare = np.array(np.broadcast_to(formulas.spare, len(table)), dtype=float)
    spare[rows] = loose
    return RankMemory(parts=MemoryParts(**parts), spare=spare), known
