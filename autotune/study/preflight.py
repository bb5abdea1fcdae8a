"""The preflight: what cannot run where it is asked is refused before a runner is made, so before
Ray or any rank is started.

    check_runner    the runner's name and options, and what it can run on no machine: whoever submits a study asks this
    check_there     what a job that begins elsewhere, with the same files, will not find
    check_here      what this machine cannot run: too few ranks, no GPU, a program that is not installed. Asked where the study will run

Runners that say nothing beforehand (`autotune.ports.PreflightRunner` is optional) are judged once
they are made.

A runner that is passed to `tune` as an object: its name in the study's record, and the check that
whoever goes on with the study passes it too.
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
    """Raises `CatalogError` or `SpecError` for a runner or an option that does not exist,
    `RunnerError` for what it can run nowhere."""
    _ask(study, "preflight")


def check_here(study: Study, space: SearchSpace) -> None:
    """Raises `RunnerError` or `MissingExtraError` when this machine cannot run the study; also what
    `check_runner` raises."""
    check_runner(study)
    _ask(study, "preflight_here", smallest_config(space))


def check_there(study: Study, space: SearchSpace) -> None:
    """Raises `RunnerError` for what another machine that sees the same files cannot run either,
    such as a program that is not there; also what `check_runner` raises."""
    check_runner(study)
    _ask(study, "preflight_there", smallest_config(space))


def cannot_run_here(study: Study, space: SearchSpace) -> str:
    """Why the study cannot be run on this machine, in words; empty when nothing speaks against it.
    A wrong runner or option is raised."""
    try:
        check_here(study, space)
    except (RunnerError, MissingExtraError) as error:
        return str(error)
    return ""


def smallest_config(space: SearchSpace) -> ParallelConfig:
    """The config with the fewest ranks; the first of equals."""
    return space[int(np.argmin(space.table.world_size))]


def _ask(study: Study, question: str, *about: Any) -> None:
    answer = getattr(runner_class(study.runner, study.runner_options), question, None)
    if answer is not None:
        answer(study, *about)


def runner_name(runner: TrialRunner) -> str:
    """By what name a study records it: `python:MODULE.CLASS`."""
    return passed_name(type(runner))


def run_by(study: Study, runner: TrialRunner) -> Study:
    """The study with that runner."""
    return replace(study, runner=runner_name(runner), runner_options={})


def check_passed(study: Study, runner: TrialRunner | None) -> None:
    """Raises `CatalogError` when the study's runner was passed as an object and is not passed now,
    `ConflictError` when another one is."""
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
