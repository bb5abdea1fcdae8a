"""Creates searchers by name, and accepts searchers passed by Python code.

A name is a registered one, FAMILY:VARIANT, or `python:MODULE.NAME` for an object that was passed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any, final

from autotune.cost import Calibration
from autotune.errors import CatalogError, MissingExtraError, RunnerError, SpecError
from autotune.registry import PASSED, SEARCHERS, find, load, passed_name, registered
from autotune.search.searcher import Problem, Searcher
from autotune.space import Launchable, SearchSpace
from autotune.spec import Estimate, Objective, ParallelConfig, Study, Trial, Workload, number_of
from autotune.spec.checks import nearest

if TYPE_CHECKING:
    from autotune.search.target_searcher import TargetSearcher


SearcherFactory = Callable[[Problem], Searcher]
"""A `Searcher` class, or a function that creates a searcher for a problem"""


def make_searcher(
    searcher: str | SearcherFactory,
    space: SearchSpace,
    *,
    seed: int = 0,
    estimate: Estimate | None = None,
    calibration: Calibration | None = None,
    objective: Objective | None = None,
    history: Iterable[tuple[Workload, Trial]] = (),
    enqueue: Iterable[ParallelConfig] = (),
    **options: Any,
) -> Searcher:
    """The searcher with that name (or of that class, or created by that function) over the
    candidates of `space`.

    `estimate`: prediction for all candidates (default: the cost model's). `calibration`: constants
    of the cost model, for the history and for configs outside the space. `history`: trials of
    earlier studies, each with its workload. `enqueue`: configs to try first.

    Raises `CatalogError` for an unknown name, `MissingExtraError` for a searcher whose extra is not
    installed, `RunnerError` for one that cannot be loaded for another reason, `SpecError` for an
    unknown option and `ConfigError` for an enqueued config outside the space.
    """
    problem = Problem(
        space=space,
        seed=seed,
        estimate=estimate,
        calibration=calibration,
        objective=objective or Objective(),
        history=tuple(history),
        enqueue=tuple(enqueue),
        options=options,
    )
    factory, allowed = (
        _find(searcher) if isinstance(searcher, str) else (searcher, _options(searcher))
    )
    for option in options:
        if option not in allowed:
            raise SpecError(
                f"searcher {searcher_name(searcher)!r} has no option {option!r}",
                remedy=nearest(option, allowed) or f"options: {', '.join(allowed) or 'none'}",
                field="searcher",
            )
    created: object = factory(problem)
    if not isinstance(created, Searcher):
        raise RunnerError(
            f"a searcher must be a subclass of autotune.search.Searcher, but {searcher_name(searcher)!r} returned {type(created).__name__}",
            field="searcher",
        )
    return created


def make_target_searcher(
    study: Study,
    space: SearchSpace,
    *,
    estimate: Estimate | None = None,
    calibration: Calibration | None = None,
    history: Iterable[tuple[Workload, Trial]] = (),
) -> TargetSearcher:
    """The searcher of a study with a target: it proposes proxies for the cluster you have,
    regardless of the searcher in the spec."""
    from autotune.search.target_searcher import WORTH, TargetSearcher

    if study.at_hand is None:
        raise ValueError(f"the study {study.name} has no target")
    problem = Problem(
        space=space,
        seed=study.seed,
        estimate=estimate,
        calibration=calibration,
        objective=study.objective,
        history=tuple(history),
        enqueue=study.enqueue,
    )
    worth = WORTH if study.budget.min_gain is None else study.budget.min_gain
    return TargetSearcher(problem, study.at_hand, worth=worth, refuse=Launchable.of(study).refusal)


def searcher_names() -> tuple[str, ...]:
    """All searcher names, with every variant of a family. A family that cannot be loaded is listed
    by its own name."""
    names: list[str] = []
    for name in registered(SEARCHERS):
        try:
            variants = _variants(load(SEARCHERS, name))
        except (RunnerError, MissingExtraError):
            variants = {}
        names += [f"{name}:{variant}" for variant in variants] or [name]
    return tuple(names)


def check_searcher(name: str) -> None:
    """Raise `CatalogError` unless there is a searcher with that name. A family is only imported if
    a variant of it is named."""
    if ":" in name:
        _find(name)
    else:
        find(SEARCHERS, name)


def searcher_name(searcher: str | SearcherFactory) -> str:
    """The name under which a study records its searcher: the registered one, or
    `python:MODULE.NAME` for one passed as an object."""
    if isinstance(searcher, str):
        return searcher
    if isinstance(searcher, OneSearcher):
        searcher = type(searcher.searcher)
    if not callable(searcher):
        raise SpecError(
            f"searcher must be a name, a Searcher, a Searcher class or a function that takes a Problem, but is {searcher!r}",
            remedy="pass the class, or `lambda problem: MySearcher(problem, ...)`",
            field="searcher",
        )
    return passed_name(searcher if hasattr(searcher, "__qualname__") else type(searcher))


def _find(name: str) -> tuple[SearcherFactory, tuple[str, ...]]:
    """The factory of the searcher with this name, NAME or FAMILY:VARIANT, and the names of its
    options. Raises `CatalogError` for an unknown name."""
    if name.startswith(PASSED):
        raise CatalogError(
            f"the searcher {name.removeprefix(PASSED)!r} was passed to autotune.tune as an object and has no name",
            remedy="continue with autotune.tune(study, searcher=...) and the same object, or register it in the group autotune.searchers",
            field="searcher",
        )
    stem, colon, variant = name.partition(":")
    factory: Callable[..., Searcher] = load(SEARCHERS, stem)
    variants = _variants(factory)
    if not colon and not variants:
        return factory, _options(factory)
    if variant not in variants:
        known = [f"{stem}:{name_of_variant}" for name_of_variant in variants] or [stem]
        raise CatalogError(
            f"there is no searcher {name!r}",
            remedy=(nearest(name, known) if variant else "") or f"there are {', '.join(known)}",
            field="searcher",
        )
    return partial(factory, variant=variant), _options(factory)


def _options(factory: Any) -> tuple[str, ...]:
    """Names of a factory's options; a plain function has none."""
    names: tuple[str, ...] = getattr(factory, "options", ())
    return names


def _variants(factory: Any) -> Mapping[str, str]:
    """Variants of a family, with a line about each; empty for a searcher that is not a family."""
    variants: Mapping[str, str] = getattr(factory, "variants", {})
    return variants


@final
class OneSearcher:
    """A factory that returns a searcher created by the caller. It works once: the searcher must be
    new.

    To resume the study, pass a new searcher, which replays all trials.
    """

    def __init__(self, searcher: Searcher) -> None:
        self.searcher = searcher

    def __call__(self, problem: Problem) -> Searcher:
        """Return the searcher. Raises `SpecError` if its space or enqueued configs are not the
        study's, or if it already has trials."""
        searcher = self.searcher
        if searcher.trials or searcher.state.any():
            raise SpecError(
                "a searcher passed to a study must be new, because the study feeds it all trials, but this one was used before",
                remedy="pass a new searcher, or the searcher's class",
                field="searcher",
            )
        if not _are_same(searcher.space, problem.space):
            raise SpecError(
                f"a searcher passed to a study must search its space of {number_of(len(problem.space), 'config')}, but its own space has {len(searcher.space):,}",
                remedy="create the searcher with SearchSpace.of_study(study), or pass the searcher's class",
                field="searcher",
            )
        if tuple(searcher.problem.enqueue) != problem.enqueue:
            raise SpecError(
                f"a searcher passed to a study must try its {len(problem.enqueue)} enqueued configs first, but it has {len(searcher.problem.enqueue)}",
                remedy="create the searcher with Problem(space=..., enqueue=study.enqueue), or pass the searcher's class",
                field="searcher",
            )
        return searcher


def _are_same(one: SearchSpace, other: SearchSpace) -> bool:
    """Whether two spaces hold the same configs in the same order."""
    a, b = one.table, other.table
    return (
        len(a) == len(b)
        and a.knobs == b.knobs
        and all((a.column(n) == b.column(n)).all() for n in a.knobs)
    )
