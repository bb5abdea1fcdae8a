"""Somebody's training loop as a launch (argv, environment, files) and its log lines as step metrics.

    trainer.py   Trainer, the base of all; Option, StepMetrics       launch.py    Launch, and `write_launch` onto a disk
    limit.py     Limit: what a trainer cannot express                torchrun.py  ranks on nodes
    documents.py TOML, YAML and JSON; Hugging Face's config.json     patterns.py  regular expressions that are safe to run on logs
    catalog/     one trainer per file; the file's stem is the name under which it is asked for

Trials and exports use the same files: what was measured with a trainer is what it is launched with.
"""

from __future__ import annotations

from importlib import import_module
from pkgutil import iter_modules

from autotune.errors import CatalogError
from autotune.spec.checks import nearest
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
    catalog = import_module("autotune.trainers.catalog")
    return tuple(sorted(module.name for module in iter_modules(catalog.__path__)))


def trainer(name: str) -> Trainer:
    """The trainer of that name. Raises `CatalogError` with the nearest name when there is none."""
    known = trainer_names()
    if name not in known:
        raise CatalogError(
            f"there is no trainer called {name!r}",
            remedy=nearest(name, known) or f"use {', '.join(known)}",
            field="trainer",
        )
    found: Trainer = import_module(f"autotune.trainers.catalog.{name}").TRAINER
    return found
