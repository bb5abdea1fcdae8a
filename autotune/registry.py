"""Runners and calibrators by name. They arrive as entry points, so that third parties add their own without touching this package.

autotune.runners        name -> class, called with the study's `runner_options`      -> TrialRunner
autotune.calibrators    name -> function(progress=None) -> dict of measured figures  (see `autotune_workers.calibrate`)
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from importlib import metadata
from typing import Any, cast

from autotune.errors import CatalogError, RunnerError, SpecError
from autotune.extras import missing_extra
from autotune.ports import TrialRunner
from autotune.spec.checks import nearest

RUNNERS = "autotune.runners"
CALIBRATORS = "autotune.calibrators"


def runner_names() -> tuple[str, ...]:
    """Names of all installed runners."""
    return tuple(sorted(_entries(RUNNERS)))


def make_runner(name: str, **options: Any) -> TrialRunner:
    """The runner of that name.

    Raises `CatalogError` for a name that nobody registered, `SpecError` for an option that it does not take, `MissingExtraError` when it
    needs an extra that is not installed, and `RunnerError` when it cannot be loaded or cannot run here.
    """
    factory = _load(RUNNERS, "runner", name)
    _check_options(name, factory, options)
    return cast(TrialRunner, factory(**options))


def calibrator_names() -> tuple[str, ...]:
    """Names of all installed calibrators."""
    return tuple(sorted(_entries(CALIBRATORS)))


def calibrator(name: str = "local") -> Callable[..., dict[str, Any]]:
    """The function that measures a cluster; called with `progress`, a function of (what, fraction done), or nothing.

    Raises `CatalogError` for an unknown name, `MissingExtraError` when it needs an extra that is not installed, and `RunnerError` when it
    cannot be loaded.
    """
    return cast("Callable[..., dict[str, Any]]", _load(CALIBRATORS, "calibrator", name))


def _entries(group: str) -> Mapping[str, metadata.EntryPoint]:
    return {entry.name: entry for entry in metadata.entry_points(group=group)}


def _load(group: str, noun: str, name: str) -> Callable[..., Any]:
    entries = _entries(group)
    if name not in entries:
        known = ", ".join(sorted(entries)) or "none: is the package installed?"
        raise CatalogError(
            f"no {noun} is called {name!r}", remedy=nearest(name, entries) or f"{noun}s: {known}", field=noun
        )
    try:
        return cast("Callable[..., Any]", entries[name].load())
    except (ImportError, AttributeError) as error:
        raise missing_extra(error, f"the {noun} {name!r}") or RunnerError(
            f"the {noun} {name!r} ({entries[name].value}) cannot be loaded: {error}",
            remedy="install what it needs; `autotune doctor` says what is missing",
        ) from error


def _check_options(name: str, factory: Callable[..., Any], options: Mapping[str, Any]) -> None:
    parameters = inspect.signature(factory).parameters
    if any(p.kind is inspect.Parameter.VAR_KEYWORD for p in parameters.values()):
        return
    for option in options:
        if option not in parameters:
            known = ", ".join(parameters) or "none"
            raise SpecError(
                f"the runner {name!r} takes no option {option!r}",
                remedy=nearest(option, parameters) or f"options: {known}",
                field=f"runner.{option}",
            )
