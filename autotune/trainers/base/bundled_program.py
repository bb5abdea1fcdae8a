"""The training program that is exported with a launch, for trainers that are libraries without a
program of their own: `train.py.txt` in the trainer's folder.

Programs are stored as text (`*.py.txt`), because they import libraries that need not be installed
here.
"""

from __future__ import annotations

from collections.abc import Mapping
from importlib.resources import files
from typing import Any

from autotune.spec import Workload
from autotune.spec.texts.as_text import notes_of
from autotune.trainers.base.trainer import StepLineTrainer
from autotune.trainers.base.trainer_option import Option, Reach
from autotune.trainers.documents.file_formats import hf_config, to_json

DATA = Option(
    name="data",
    meaning="text or .bin file of tokens; default: random tokens",
    default="",
    is_path=True,
    reach=Reach.FILE,
)
"""option of every trainer that exports such a program"""


class BundledTrainer(StepLineTrainer):
    """A trainer with a bundled program, which builds a model from its config.json."""

    reads_config_json = True
    can_import = True
    no_adapters = (
        "the bundled program starts from random weights, so adapters alone would learn nothing"
    )


def program(path: str) -> str:
    """The source of a program, by its path in `autotune/trainers/` without `.txt`."""
    return (files("autotune.trainers") / f"{path}.txt").read_text(encoding="utf-8")


def program_files(trainer: str, workload: Workload) -> dict[str, str]:
    """The trainer's program as train.py, with the files that it needs: the model's config.json, and
    batches.py for its data."""
    return {
        "model/config.json": to_json(hf_config(workload.model, workload.seq_len)),
        "train.py": program(f"{trainer}/train.py"),
        "batches.py": program("base/batches.py"),
    }


def data_arguments(options: Mapping[str, Any]) -> tuple[str, ...]:
    """The program's arguments for its data."""
    return ("--data", options["data"]) if options["data"] else ()


def data_notes(options: Mapping[str, Any]) -> tuple[str, ...]:
    """Notes on the program's data."""
    random = (
        "the program trains on random tokens; to train on your own tokens, set the `data` option"
    )
    return notes_of((not options["data"], random))


def long_options(values: Mapping[str, Any]) -> list[str]:
    """`--name value` for each option."""
    return [word for name, value in values.items() for word in (f"--{name}", str(value))]
