"""Searchers: which config to try next. A module's name is the registered name of its searcher.

    searcher.py         Searcher, the base class: ask, tell, expected_gain, reason; Problem: what is searched
    random.py           grid.py           cost_ranked.py           rule_of_thumb.py
    bayesian.py         the default: Bayesian search on the cost model's prediction, corrected by every trial
    reinforce.py        a policy trained on simulated clusters, adapted during the study
    optuna.py           any Optuna sampler as a searcher
    optuna_study.py     our searchers as Optuna samplers; export of a study to an Optuna storage

    model_based.py      ModelBasedSearcher, the base of bayesian and reinforce: estimates the gain of further trials
    surrogate/          its models of time, memory and failures
    objective_model.py  from step time to score
    dominance.py        which candidates an out-of-memory failure rules out
    transfer.py         how much another workload's measurements tell about this one
    policy.py           the policy of reinforce; its weights are in policy.json

Assumptions: the candidates are enumerated (`SearchSpace`). A trial takes far longer than choosing it. One loop owns a searcher.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from typing import TYPE_CHECKING, Any

from autotune.errors import CatalogError, SpecError
from autotune.extras import require_extra
from autotune.search.searcher import Problem, Searcher, score
from autotune.search.transfer import transfer_weight
from autotune.spec import Estimate, Objective, ParallelConfig, Trial, Workload
from autotune.spec.checks import nearest

if TYPE_CHECKING:
    from autotune.cost import Calibration
    from autotune.space import SearchSpace

OPTUNA_SAMPLERS = ("tpe", "gp", "cmaes", "nsga2", "qmc")
OPTUNA_EXTRAS = {"gp": ("optuna", "native")}
"""Extras that a sampler needs, where they are more than `optuna`: Optuna's Gaussian process is written in torch"""


def make_searcher(
    name: str,
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
    """The searcher of that name over the candidates of `space`.

    `estimate`: prediction for all candidates (default: the cost model's). `calibration`: constants of the cost model, for the history and for
    configs outside the space. `history`: trials of earlier studies, each with its workload. `enqueue`: configs to try first.

    Raises `CatalogError` for an unknown name, `MissingExtraError` for a searcher whose extra is not installed, `SpecError` for an unknown option
    and `ConfigError` for an enqueued config outside the space.
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
    kind, allowed = _find(name)
    for option in options:
        if option not in allowed:
            raise SpecError(
                f"searcher {name!r} has no option {option!r}",
                remedy=nearest(option, allowed) or f"options: {', '.join(allowed) or 'none'}",
                field="searcher",
            )
    return kind(problem)


def searcher_names() -> tuple[str, ...]:
    """All registered names."""
    return (
        "bayesian",
        "reinforce",
        "cost_ranked",
        "rule_of_thumb",
        "random",
        "grid",
        *(f"optuna:{sampler}" for sampler in OPTUNA_SAMPLERS),
    )


def _find(name: str) -> tuple[Callable[[Problem], Searcher], tuple[str, ...]]:
    """The class of that name and the options that it takes. Imports only the module that is needed."""
    if name == "random":
        from autotune.search.random import RandomSearcher

        return RandomSearcher, ()
    if name == "grid":
        from autotune.search.grid import GridSearcher

        return GridSearcher, ()
    if name == "cost_ranked":
        from autotune.search.cost_ranked import CostRankedSearcher

        return CostRankedSearcher, ()
    if name == "bayesian":
        from autotune.search.bayesian import BayesianSearcher

        return BayesianSearcher, ()
    if name == "reinforce":
        from autotune.search.reinforce import ReinforceSearcher

        return ReinforceSearcher, ()
    if name == "rule_of_thumb":
        from autotune.search.rule_of_thumb import RuleOfThumbSearcher

        return RuleOfThumbSearcher, ()
    kind, _, sampler = name.partition(":")
    if kind == "optuna" and sampler in OPTUNA_SAMPLERS:
        from autotune.search.optuna import OptunaSearcher

        for extra in OPTUNA_EXTRAS.get(sampler, ("optuna",)):
            require_extra(extra, f"the searcher {name!r}")
        return partial(OptunaSearcher, sampler=sampler), ()
    raise CatalogError(
        f"no searcher is called {name!r}",
        remedy=nearest(name, searcher_names()) or f"searchers: {', '.join(searcher_names())}",
        field="searcher",
    )


__all__ = ["Problem", "Searcher", "make_searcher", "score", "searcher_names", "transfer_weight"]
