"""Trainers: a config as a launch of somebody's training program (argv, environment, files), and its
log lines as step metrics.

    NAME/             a folder for each trainer, with its name: trainer.py (the class, and its instance TRAINER), knobs.py, model.py, read.py
    post_training/    what the trainers of post-training share
    base/             trainer.py Trainer, the base class; trainer_option.py Option; limit.py Limit, a value that a trainer cannot express
                      effective.py    a config without knobs that have no effect
                      torchrun.py     placement of ranks on nodes, and the torchrun command
                      executable.py   which file a launch starts on this machine, and which Python runs it
                      bundled_program.py   the training program that a trainer exports which is a library
                      workload_limits.py, trained_families.py, layer_split.py and others: what several trainers cannot do, or do alike
    logs/             formats.py, patterns.py (from a spec, checked for bounded run time), pattern_proposals.py (guessed from a log)
                      steplines.py, step_metrics.py, printed_rates.py: lines as metrics of steps
    documents/        file_formats.py TOML, YAML and JSON files; Hugging Face's config.json of a model
                      python_source.py, program_files.py, placeholders.py, output_options.py
                      program_arguments.py, shell_words.py, shell_statements.py, shell_folders.py: commands and scripts that people write
    schedulers/       a launch as a job of Slurm, Ray or Kubernetes; provenance_comments.py   how its config was found and measured
    launch_files.py   Launch, and `write_launch`, which writes it into a folder
    present_configuration.py   the configuration that a program has now, and what was read of it: keys of nested documents, knobs that follow from others

Trainers are registered as entry points of the group `autotune.trainers`; other packages can
register their own.

Trials and exports use the same files: a config is measured with the launch that is exported.
"""

from __future__ import annotations

from autotune.errors import AutotuneError, RunnerError
from autotune.registry import TRAINERS, load, registered
from autotune.trainers.base.limit import Limit
from autotune.trainers.base.trainer import Option, StepMetrics, Trainer
from autotune.trainers.launch_files import Launch, write_launch

__all__ = [
    "Launch",
    "Limit",
    "Option",
    "StepMetrics",
    "Trainer",
    "python_line",
    "trainer",
    "trainer_names",
    "write_launch",
]


def trainer_names() -> tuple[str, ...]:
    """The names of all trainers, in alphabetical order."""
    return tuple(registered(TRAINERS))


def trainer(name: str) -> Trainer:
    """The trainer of that name.

    Raises `CatalogError` with the nearest name when there is none, and `RunnerError` when it cannot
    be loaded.
    """
    loaded = load(TRAINERS, name)
    found = loaded() if isinstance(loaded, type) else loaded
    if not isinstance(found, Trainer):
        raise RunnerError(
            f"a trainer must be a subclass of autotune.trainers.Trainer, but {name!r} is {type(found).__name__}",
            field="trainer",
        )
    return found


def python_line(name: str) -> str:
    """The line of Python that starts the best config of that trainer's study (`Trainer.in_python`);
    empty where a launch does, and for a trainer that cannot be loaded, which is refused where it is
    used."""
    try:
        return trainer(name).in_python
    except AutotuneError:
        return ""
