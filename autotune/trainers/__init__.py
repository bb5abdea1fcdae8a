"""Somebody's training loop as a launch (argv, environment, files) and its log lines as step metrics.

    trainer.py   Trainer, the base of all; Option, StepMetrics       launch.py    Launch, and `write_launch` onto a disk
    limit.py     Limit: what a trainer cannot express                torchrun.py  ranks on nodes
    documents.py TOML, YAML and JSON; Hugging Face's config.json     patterns.py  regular expressions that are safe to run on logs
    catalog/     the trainers that ship, one per file; the file's stem is the name under which it is asked for

Trainers are registered as entry points of the group `autotune.trainers`, those of other packages too.

Trials and exports use the same files: what was measured with a trainer is what it is launched with.
"""

from __future__ import annotations

from autotune.errors import RunnerError
from autotune.registry import TRAINERS, load, registered
from autotune.trainers.launch_files import Launch, write_launch
from autotune.trainers.limit import Limit
from autotune.trainers.trainer import Option, StepMetrics, Trainer

__all__ = [
    "Launch",
    "Limit",
    "Option",
    "StepMetrics",
    "Trainer",
    "trainer",
    "trainer_names",
    "write_launch",
]


def trainer_names() -> tuple[str, ...]:
    """The names of all trainers, in alphabetical order."""
    return tuple(registered(TRAINERS))


def trainer(name: str) -> Trainer:
    """The trainer of that name.

    Raises `CatalogError` with the nearest name when there is none, and `RunnerError` when it cannot be loaded.
    """
    loaded = load(TRAINERS, name)
    found = loaded() if isinstance(loaded, type) else loaded
    if not isinstance(found, Trainer):
        raise RunnerError(
            f"a trainer must be a subclass of autotune.trainers.Trainer, but {name!r} is {type(found).__name__}",
            field="trainer",
        )
    return found
