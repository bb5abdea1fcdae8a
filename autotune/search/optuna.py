"""Optuna's samplers as searchers: `optuna:tpe`, `optuna:gp`, `optuna:cmaes`, `optuna:nsga2`,
`optuna:qmc`.

The sampler sees a knob as an integer: the rank of its value among those in the space. The suggested
point may not be a candidate, so the nearest eligible candidate is proposed (by the sum over knobs
of the rank distance relative to the number of ranks), and the sampler gets the result of that
candidate. No candidate is proposed twice, nor one that a failure rules out. Failed trials are
failed trials for Optuna too, and its samplers ignore them.

For every proposal, the Optuna study is rebuilt from all trials so far, with a seed that depends on
their number. A sampler that is kept would advance its random state with every suggestion, which
would break the replay of a resumed study.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from autotune.extras import require_extra
from autotune.search.searcher import Problem, Searcher, score

if TYPE_CHECKING:
    import optuna

EXTRAS = {"gp": ("optuna", "native")}
"""required extras of samplers that need more than `optuna`: its Gaussian process uses torch"""
STATEFUL = ("cmaes", "nsga2", "qmc")
"""samplers that store state in the trials they suggest, so that trials must be added with `ask`"""


class OptunaSearcher(Searcher):
    """Proposes the candidate nearest to the sampler's suggestion."""

    variants: ClassVar[Mapping[str, str]] = {
        "tpe": "Optuna: tree-structured Parzen estimator.",
        "gp": "Optuna: Gaussian process.",
        "cmaes": "Optuna: CMA-ES.",
        "nsga2": "Optuna: NSGA-II.",
        "qmc": "Optuna: quasi-Monte Carlo.",
    }

    def __init__(
        self,
        problem: Problem,
        *,
        variant: str = "",
        sampler: Callable[[int], optuna.samplers.BaseSampler] | None = None,
        stateful: bool = False,
    ) -> None:
        """A sampler by name (`variant`), or one that `sampler` creates from a seed. `stateful`:
        whether it stores state in the trials it suggests.

        Raises `MissingExtraError` if Optuna is not installed.
        """
        for extra in EXTRAS.get(variant, ("optuna",)):
            require_extra(
                extra, f"the searcher 'optuna:{variant}'" if variant else "a sampler of Optuna"
            )
        super().__init__(problem)
        self._make = sampler or partial(make_sampler, variant)
        self._stateful = stateful or variant in STATEFUL
        self._label = f"{variant} sampler" if sampler is None else "sampler"
        knobs = {name: values for name, values in problem.space.knobs.items() if len(values) > 1}
        self._sizes = {name: len(values) for name, values in knobs.items()}
        columns = [
            np.unique(problem.space.table.column(name), return_inverse=True)[1] for name in knobs
        ]
        self._ranks: NDArray[np.int64] = (
            np.stack(columns, axis=1)
            if columns
            else np.zeros((len(problem.space), 0), dtype=np.int64)
        )

    def propose(self) -> tuple[int, str] | None:
        candidates = self.eligible()
        if not len(candidates):
            return None
        suggested = self._suggest()
        ranges = np.array([size - 1 for size in self._sizes.values()])
        distance = (np.abs(self._ranks[candidates] - suggested) / ranges).sum(axis=1)
        index = int(candidates[np.argmin(distance)])
        nearest = "" if distance.min() == 0 else " (the nearest eligible candidate)"
        return index, f"suggested by Optuna's {self._label}{nearest}"

    def _suggest(self) -> NDArray[np.int64]:
        """The sampler's next point as ranks of knob values, shape (knobs,)."""
        import optuna

        space: dict[str, optuna.distributions.BaseDistribution] = {
            name: optuna.distributions.IntDistribution(0, size - 1)
            for name, size in self._sizes.items()
        }
        observed = [(index, trial) for index, trial in self.trials if index is not None]
        pending = self.pending().tolist()
        study = _quiet_study(self._make(self.problem.seed + len(observed) + len(pending)))
        for index, trial in observed:
            self._add(study, space, index, score(trial) if trial.is_measured else None)
        for index in pending:
            self._add(study, space, index, None, running=True)
        suggestion = study.ask(space)
        return np.array([suggestion.params[name] for name in space], dtype=np.int64)

    def _add(
        self,
        study: optuna.Study,
        space: dict[str, Any],
        index: int,
        value: float | None,
        *,
        running: bool = False,
    ) -> None:
        """Add a candidate with its result to the study. Without a value it failed, unless it is
        `running`."""
        from optuna.trial import TrialState, create_trial

        params = dict(zip(space, self._ranks[index].tolist(), strict=True))
        ended = TrialState.FAIL if value is None else TrialState.COMPLETE
        state = TrialState.RUNNING if running else ended
        if not self._stateful:
            study.add_trial(
                create_trial(state=state, params=params, distributions=space, value=value)
            )
            return
        study.enqueue_trial(params)
        trial = study.ask(space)
        if not running:
            study.tell(trial, value, state=state)


def make_sampler(name: str, seed: int) -> optuna.samplers.BaseSampler:
    """Create the sampler with that name."""
    from optuna import samplers
    from optuna.exceptions import ExperimentalWarning

    with warnings.catch_warnings():
        # GPSampler and others warn that they are experimental, which users cannot act on
        warnings.simplefilter("ignore", ExperimentalWarning)
        if name == "tpe":
            return samplers.TPESampler(seed=seed)
        if name == "gp":
            return samplers.GPSampler(seed=seed, warn_independent_sampling=False)
        if name == "cmaes":
            return samplers.CmaEsSampler(seed=seed, warn_independent_sampling=False)
        if name == "nsga2":
            return samplers.NSGAIISampler(seed=seed)
        return samplers.QMCSampler(
            seed=seed,
            scramble=True,
            warn_independent_sampling=False,
            warn_asynchronous_seeding=False,
        )


def _quiet_study(sampler: optuna.samplers.BaseSampler) -> optuna.Study:
    """Create an Optuna study in memory, without Optuna's log line about it."""
    import optuna

    verbosity = optuna.logging.get_verbosity()
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    try:
        return optuna.create_study(direction="maximize", sampler=sampler)
    finally:
        optuna.logging.set_verbosity(verbosity)
