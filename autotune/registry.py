"""Finds searchers, trainers, runners and calibrators by name. Any package can register its own as
entry points.

    group                    an entry is
    autotune.searchers       a class of `autotune.search.Searcher`, or a function of a `Problem` that returns one
    autotune.trainers        an `autotune.trainers.Trainer`, or its class
    autotune.runners         a class, called with the study's `runner_options`       -> `autotune.ports.TrialRunner`
    autotune.calibrators     a function(progress=None) -> dict of measured figures   (see `autotune_workers.calibrate`)
    autotune.dry_runners     a class, called without arguments                     -> `autotune.ports.DryRunner`
    autotune.views           a class, called without arguments                     -> `autotune.results.figure.ResultView`

Those of autotune are registered in the same way, in pyproject.toml. An entry is imported only when
it is loaded by name, so a broken one does not affect the others. If two packages register the same
name, autotune's own entry takes precedence, then that of the package found first.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from importlib import metadata
from typing import TYPE_CHECKING, Any

from autotune.errors import CatalogError, RunnerError, SpecError
from autotune.extras import DISTRIBUTION, FORMERLY, is_own, missing_extra, reinstall_command
from autotune.spec.checks import nearest

if TYPE_CHECKING:
    from autotune.ports import DryRunner, TrialRunner

SEARCHERS = "autotune.searchers"
TRAINERS = "autotune.trainers"
RUNNERS = "autotune.runners"
CALIBRATORS = "autotune.calibrators"
DRY_RUNNERS = "autotune.dry_runners"
VIEWS = "autotune.views"

PASSED = "python:"
"""prefix of the name of an object passed by Python code instead of a registered name"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Registration:
    """A registered entry."""

    name: str
    """its name"""
    package: str
    """the distribution that registered it"""
    version: str
    """version of that distribution"""
    entry: metadata.EntryPoint
    """its location, MODULE:OBJECT"""


def passed_name(kind: Any) -> str:
    """The name under which a study records a passed class or function: `python:MODULE.NAME`."""
    return f"{PASSED}{kind.__module__}.{kind.__qualname__}"


def registered(group: str) -> Mapping[str, Registration]:
    """All entries of a group by name, in alphabetical order. Imports nothing."""
    return _registered(tuple(sys.path)).get(group, {})


def find(group: str, name: str) -> Registration:
    """The entry with this name. Raises `CatalogError`, with the nearest name, if there is none."""
    known, noun = registered(group), _noun(group)
    if name not in known:
        names = ", ".join(known) or "none; is the package installed?"
        raise CatalogError(
            f"there is no {noun} {name!r}",
            remedy=nearest(name, known) or f"{noun}s: {names}",
            field=noun,
        )
    return known[name]


def load(group: str, name: str) -> Any:
    """Import and return the object registered under this name.

    Raises `CatalogError` for an unknown name, `MissingExtraError` if it needs an extra that is not
    installed, and `RunnerError` if it cannot be loaded for another reason.
    """
    registration = find(group, name)
    try:
        return registration.entry.load()
    except Exception as error:  # importing other people's code may raise anything
        if (missing := missing_extra(error, f"the {_noun(group)} {name!r}")) is not None:
            raise missing from error
        if is_outdated(registration, error):
            raise RunnerError(
                f"the {_noun(group)} {name!r} cannot be loaded: the installation of {registration.package} {registration.version} is older than its files "
                f"and refers to the module {registration.entry.module}, which no longer exists",
                remedy=f"install {registration.package} again with: {reinstall_command()}",
            ) from error
        raise RunnerError(
            f"the {_noun(group)} {name!r} ({registration.entry.value} of {registration.package} {registration.version}) cannot be loaded: "
            f"{type(error).__name__}: {error}",
            remedy=f"if the module is your own, fix it; otherwise install what it needs, or a different release of {registration.package} (`autotune doctor` says what is missing)",
        ) from error


def is_outdated(registration: Registration, error: BaseException) -> bool:
    """Whether loading failed because an editable installation of autotune itself still has entry
    points to modules that no longer exist."""
    if (
        registration.package not in (DISTRIBUTION, FORMERLY)
        or not isinstance(error, ModuleNotFoundError)
        or not error.name
    ):
        return False
    return f"{registration.entry.module}.".startswith(f"{error.name}.")


def runner_class(name: str, options: Mapping[str, Any]) -> Callable[..., TrialRunner]:
    """The factory of the runner with this name, after a check of the options. Starts nothing.

    Raises `CatalogError` for an unknown name, `SpecError` for an unknown option, and `RunnerError`
    if it cannot be loaded.
    """
    factory: Callable[..., TrialRunner] = load(RUNNERS, name)
    _check_options(name, factory, options)
    return factory


def make_runner(name: str, **options: Any) -> TrialRunner:
    """Create the runner with this name. Raises the errors of `runner_class`, and `RunnerError` if it
    cannot run on this machine."""
    return runner_class(name, options)(**options)


def calibrator_names() -> tuple[str, ...]:
    """Names of all installed calibrators."""
    return tuple(registered(CALIBRATORS))


def calibrator(name: str = "local") -> Callable[..., dict[str, Any]]:
    """The function that measures a cluster. Its optional argument `progress` is called with (what,
    fraction done).

    Raises `CatalogError` for an unknown name, and `RunnerError` if it cannot be loaded.
    """
    function: Callable[..., dict[str, Any]] = load(CALIBRATORS, name)
    return function


def dry_runner(name: str = "local") -> DryRunner:
    """Create the dry runner with this name. Raises `MissingExtraError` without torch, `CatalogError`
    for an unknown name."""
    runner: DryRunner = load(DRY_RUNNERS, name)()
    return runner


@lru_cache(maxsize=8)
def _registered(path: tuple[str, ...]) -> Mapping[str, Mapping[str, Registration]]:
    """All entries by group and name. `path`: `sys.path`, as the key of the cache. Names and versions
    are only read from packages that register something, because parsing the metadata of all
    packages is slow."""
    by_group: dict[str, dict[str, Registration]] = {}
    seen: set[str] = set()
    for distribution in metadata.distributions():
        if "[autotune." not in (distribution.read_text("entry_points.txt") or ""):
            continue
        package, version, own = distribution.name, distribution.version, is_own(distribution)
        if package in seen:  # another version further back on the path
            continue
        seen.add(package)
        for entry in distribution.entry_points:
            group = by_group.setdefault(entry.group, {})
            if entry.name not in group or own:
                group[entry.name] = Registration(
                    name=entry.name, package=package, version=version, entry=entry
                )
    return {group: dict(sorted(names.items())) for group, names in by_group.items()}


def _noun(group: str) -> str:
    return group.rpartition(".")[2].removesuffix("s").replace("_", " ")


def _check_options(name: str, factory: Callable[..., Any], options: Mapping[str, Any]) -> None:
    parameters = inspect.signature(factory).parameters
    if any(p.kind is inspect.Parameter.VAR_KEYWORD for p in parameters.values()):
        return
    for option in options:
        if option not in parameters:
            known = ", ".join(parameters) or "none"
            raise SpecError(
                f"the {name!r} runner has no option {option!r}",
                remedy=nearest(option, parameters) or f"options: {known}",
                field=f"runner.{option}",
            )
