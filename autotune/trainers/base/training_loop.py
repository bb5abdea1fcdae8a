"""The training loop of a workload, by the name under which the cost model keeps its facts and
constants.

the loop that the workload states (`Workload.loop`), else the one that its trainer declares
(`Trainer.loop`), else the trainer's own name
"""

from __future__ import annotations

from autotune.errors import AutotuneError
from autotune.registry import TRAINERS, load, registered
from autotune.spec.workload import LOOPS, Workload


def training_loop(workload: Workload) -> str:
    """The loop by name."""
    return workload.loop or _declared(workload.trainer)


def _declared(trainer: str) -> str:
    """What the trainer declares; its own name where it declares nothing, or cannot be loaded, which
    is said where it is used."""
    if trainer in LOOPS or trainer not in registered(TRAINERS):
        return trainer
    try:
        return getattr(load(TRAINERS, trainer), "loop", "") or trainer
    except AutotuneError:
        return trainer
