"""Preflight checks: reject a study that cannot run before its runner is made, and so before Ray or any
rank is started.

    check_runner    the runner's name and options, and what it cannot run on any machine; checked on submission
    check_there     what another machine with the same files cannot run either; checked for jobs that start elsewhere
    check_here      what this machine cannot run: too few ranks, no GPU, a program that is not installed; checked where the study runs

Runners without a preflight (`autotune.ports.PreflightRunner` is optional) are checked after they are
made.

Also for runners that are passed to `tune` as objects: their name in the study's record, and the check
that the same runner is passed when the study continues.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from autotune.errors import CatalogError, ConflictError, MissingExtraError, RunnerError
from autotune.ports import TrialRunner
from autotune.registry import PASSED, passed_name, runner_class
from autotune.space import SearchSpace
from autotune.spec import ParallelConfig, Study


def check_runner(study: Study) -> None:
    """Raise `CatalogError` or `SpecError` for an unknown runner or option, `RunnerError` for a study
    that the runner cannot run on any machine."""
    _call(study, "preflight")


def check_here(study: Study, space: SearchSpace) -> None:
    """Raise `RunnerError` or `MissingExtraError` if this machine cannot run the study, and the errors
    of `check_runner`."""
    check_runner(study)
    _call(study, "preflight_here", smallest_config(space))


def check_there(study: Study, space: SearchSpace) -> None:
    """Raise `RunnerError` for a study that another machine with the same files cannot run either, for
    example if its program does not exist, and the errors of `check_runner`."""
    check_runner(study)
    _call(study, "preflight_there", smallest_config(space))


def cannot_run_here(study: Study, space: SearchSpace) -> str:
    """Why this machine cannot run the study; empty if it can. Raises `CatalogError` or `SpecError` for
    an unknown runner or option."""
    try:
        check_here(study, space)
    except (RunnerError, MissingExtraError) as error:
        return str(error)
    return ""


def smallest_config(space: SearchSpace) -> ParallelConfig:
    """The config with the fewest ranks; the first if several have as few."""
    return space[int(np.argmin(space.table.world_size))]


def _call(study: Study, check_name: str, *arguments: Any) -> None:
    """Call a preflight method of the runner's class, if it has it."""
    check = getattr(runner_class(study.runner, study.runner_options), check_name, None)
    if check is not None:
        check(study, *arguments)


def runner_name(runner: TrialRunner) -> str:
    """The runner's name in a study's record: `python:MODULE.CLASS`."""
    return passed_name(type(runner))


def run_by(study: Study, runner: TrialRunner) -> Study:
    """The study with its runner replaced by this object."""
    return replace(study, runner=runner_name(runner), runner_options={})


def check_passed(study: Study, runner: TrialRunner | None) -> None:
    """Raise `CatalogError` if the study was submitted with a runner object and none is passed now,
    `ConflictError` if a runner of another class is passed."""
    name = study.runner
    if runner is None and name.startswith(PASSED):
        raise CatalogError(
            f"the runner {name.removeprefix(PASSED)!r} was passed to autotune.tune as an object and has no name",
            remedy="rerun the Python script that started the study, so that it passes the runner again",
            field="runner",
        )
    if runner is not None and runner_name(runner) != name:
        raise ConflictError(
            f"the study runs on {name!r}, but {runner_name(runner)!r} was passed",
            remedy="pass the runner that the study was submitted with, or submit a new study",
            field="runner",
        )
