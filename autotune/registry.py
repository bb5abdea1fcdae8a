"""Searchers, trainers, runners and calibrators by name. Any package may register its own as entry
points.

    group                    an entry is
    autotune.searchers       a class of `autotune.search.Searcher`, or a function of a `Problem` that returns one
    autotune.trainers        an `autotune.trainers.Trainer`, or its class
    autotune.runners         a class, called with the study's `runner_options`       -> `autotune.ports.TrialRunner`
    autotune.calibrators     a function(progress=None) -> dict of measured figures   (see `autotune_workers.calibrate`)
    autotune.dry_runners     a class, called without arguments                     -> `autotune.ports.DryRunner`
    autotune.views           a class, called without arguments                     -> `autotune.results.figure.ResultView`

What ships with autotune is registered in the same way, in pyproject.toml. An entry is imported when
it is asked for by name, so that a broken one does not affect the others. Where two packages
register one name, autotune's own counts, else that of the package that is found first.
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
"""begins the name of an object that Python code passes instead of a registered name"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Registration:
    """A name that a package registered."""

    name: str
    """by which it is asked for"""
    package: str
    """the distribution that brings it"""
    version: str
    """of that distribution"""
    entry: metadata.EntryPoint
    """where it is: MODULE:OBJECT"""


def passed_name(kind: Any) -> str:
    """By what name a study records a class or function that was passed, or the class of an object
    that was: `python:MODULE.NAME`."""
    return f"{PASSED}{kind.__module__}.{kind.__qualname__}"


def registered(group: str) -> Mapping[str, Registration]:
    """All names of a group, in alphabetical order. Imports nothing."""
    return _registered(tuple(sys.path)).get(group, {})


def find(group: str, name: str) -> Registration:
    """The registration of that name. Raises `CatalogError` with the nearest name when there is
    none."""
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
    """What is registered under that name.

    Raises `CatalogError` for a name that nobody registered, `MissingExtraError` when it needs an
    extra that is not installed, and `RunnerError` when it cannot be loaded for another reason.
    """
    found = find(group, name)
    try:
        return found.entry.load()
    except Exception as error:  # importing other people's code may raise anything
        if (missing := missing_extra(error, f"the {_noun(group)} {name!r}")) is not None:
            raise missing from error
        if is_outdated(found, error):
            raise RunnerError(
                f"the {_noun(group)} {name!r} cannot be loaded: the installation of {found.package} {found.version} is older than its files "
                f"and refers to the module {found.entry.module}, which no longer exists",
                remedy=f"install {found.package} again with: {reinstall_command()}",
            ) from error
        raise RunnerError(
            f"the {_noun(group)} {name!r} ({found.entry.value} of {found.package} {found.version}) cannot be loaded: "
            f"{type(error).__name__}: {error}",
            remedy=f"if the module is your own, fix it; otherwise install what it needs, or a different release of {found.package} (`autotune doctor` says what is missing)",
        ) from error


def is_outdated(found: Registration, error: BaseException) -> bool:
    """Whether loading failed because an installation of autotune itself names a module that its
    files no longer have: an editable one keeps the names that it was made with."""
    if (
        found.package not in (DISTRIBUTION, FORMERLY)
        or not isinstance(error, ModuleNotFoundError)
        or not error.name
    ):
        return False
    return f"{found.entry.module}.".startswith(f"{error.name}.")


def runner_class(name: str, options: Mapping[str, Any]) -> Callable[..., TrialRunner]:
    """What makes the runner of that name with these options; nothing is started.

    Raises `CatalogError` for a name that nobody registered, `SpecError` for an option that it does
    not take, and `RunnerError` when it cannot be loaded.
    """
    factory: Callable[..., TrialRunner] = load(RUNNERS, name)
    _check_options(name, factory, options)
    return factory


def make_runner(name: str, **options: Any) -> TrialRunner:
    """The runner of that name. Raises what `runner_class` raises, and `RunnerError` when it cannot
    run here."""
    return runner_class(name, options)(**options)


def calibrator_names() -> tuple[str, ...]:
    """Names of all installed calibrators."""
    return tuple(registered(CALIBRATORS))


def calibrator(name: str = "local") -> Callable[..., dict[str, Any]]:
    """The function that measures a cluster; called with `progress`, a function of (what, fraction
    done), or nothing.

    Raises `CatalogError` for an unknown name and `RunnerError` when it cannot be loaded.
    """
    found: Callable[..., dict[str, Any]] = load(CALIBRATORS, name)
    return found


def dry_runner(name: str = "local") -> DryRunner:
    """The dry runner of that name. Raises `MissingExtraError` without torch, `CatalogError` for an
    unknown name."""
    found: DryRunner = load(DRY_RUNNERS, name)()
    return found


@lru_cache(maxsize=8)
def _registered(path: tuple[str, ...]) -> Mapping[str, Mapping[str, Registration]]:
    """By group. `path` is where packages are looked for: another path, another answer. Names and
    versions are read of those packages alone that register something here: the metadata of all of
    them take long to parse."""
    found: dict[str, dict[str, Registration]] = {}
    seen: set[str] = set()
    for distribution in metadata.distributions():
        if "[autotune." not in (distribution.read_text("entry_points.txt") or ""):
            continue
        package, version, own = distribution.name, distribution.version, is_own(distribution)
        if package in seen:  # a package that is found first hides others of its name
            continue
        seen.add(package)
        for entry in distribution.entry_points:
            group = found.setdefault(entry.group, {})
            if entry.name not in group or own:
                group[entry.name] = Registration(
                    name=entry.name, package=package, version=version, entry=entry
                )
    return {group: dict(sorted(names.items())) for group, names in found.items()}


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
