"""The name of a workload's training loop, under which the cost model stores facts and constants.

The name comes from the workload (`Workload.loop`), else from the trainer's declaration
(`Trainer.loop`); else it is the trainer's name.
"""

from __future__ import annotations

from autotune.errors import AutotuneError
from autotune.registry import TRAINERS, load, registered
from autotune.spec.workload import LOOPS, Workload


def training_loop(workload: Workload) -> str:
    """The name of the loop."""
    return workload.loop or _declared(workload.trainer)


def _declared(trainer: str) -> str:
    """The loop that the trainer declares, or else the trainer's name; also for a trainer that
    cannot be loaded, which is reported where it is used."""
    if trainer in LOOPS or trainer not in registered(TRAINERS):
        return trainer
    try:
        return getattr(load(TRAINERS, trainer), "loop", "") or trainer
    except AutotuneError:
        return trainer
