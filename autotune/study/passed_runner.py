"""A runner that is passed to `tune` as an object: its name in the study's record, and the check that whoever goes on with the study passes it too."""

from __future__ import annotations

from dataclasses import replace

from autotune.errors import CatalogError, ConflictError
from autotune.ports import TrialRunner
from autotune.registry import PASSED, passed_name
from autotune.spec import Study


def runner_name(runner: TrialRunner) -> str:
    """By what name a study records it: `python:MODULE.CLASS`."""
    return passed_name(type(runner))


def run_by(study: Study, runner: TrialRunner) -> Study:
    """The study with that runner."""
    return replace(study, runner=runner_name(runner), runner_options={})


def check_passed(study: Study, runner: TrialRunner | None) -> None:
    """Raises `CatalogError` when the study's runner was passed as an object and is not passed now, `ConflictError` when another one is."""
    name = study.runner
    if runner is None and name.startswith(PASSED):
        raise CatalogError(
            f"the runner {name.removeprefix(PASSED)!r} was passed to autotune.tune as an object and is known by no name",
            remedy="go on with the Python code that started the study, which passes it again",
            field="runner",
        )
    if runner is not None and runner_name(runner) != name:
        raise ConflictError(
            f"the study runs on {name!r}, but {runner_name(runner)!r} was passed",
            remedy="pass the runner that it was submitted with, or submit a new study",
            field="runner",
        )
