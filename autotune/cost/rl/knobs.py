"""The knobs of post-training as columns: a study's own knobs of those names, else what the workload has today."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from autotune.spec import ConfigTable, ParallelConfig, Workload
from autotune.spec.post_training import PostTraining


def asked_of(workload: Workload) -> PostTraining:
    """The workload's post-training, which it must have."""
    assert workload.rl is not None
    return workload.rl


def knob_values(workload: Workload, table: ConfigTable, name: str) -> NDArray[Any]:
    """The values of a knob of post-training, shape (N,)."""
    if name not in table.knobs:
        return np.full(len(table), asked_of(workload).today(name))
    knob = table.knobs[name]
    values = np.array([knob.decode(code) for code in range(len(knob.values))])
    return np.asarray(values[table.column(name).astype(np.int64)])


def knob_value(workload: Workload, config: ParallelConfig, name: str) -> Any:
    """The value of a knob of post-training in one config."""
    return config.extra[name] if name in config.extra else asked_of(workload).today(name)
