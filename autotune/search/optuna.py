"""Any Optuna sampler over the same list of candidates: `optuna:tpe`, `optuna:gp`, `optuna:cmaes`,
`optuna:nsga2`, `optuna:qmc`.

A knob is an integer for the sampler: the rank of its value among those that occur. The suggested
point may not exist, so the nearest eligible candidate is proposed (sum over knobs of the distance
in ranks, relative to the number of ranks), and the sampler is told of that candidate. Nothing is
proposed twice, nor what a failure rules out. Failed trials are failed trials for Optuna too: its
samplers ignore them.

For every proposal the Optuna study is rebuilt from the trials told so far, with a generator seeded
by their number: samplers advance their random state with every suggestion, which would break the
replay.
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
"""extras that a sampler needs, where they are more than `optuna`: Optuna's Gaussian process is
written in torch"""
STATEFUL = ("cmaes", "nsga2", "qmc")
"""samplers that store state in the trials that they suggest: trials are added by asking for them
again"""


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
        """A sampler by name (`variant`), or one that `sampler` makes of a seed. `stateful`: whether
        that one stores state in the trials that it suggests.

        Raises `MissingExtraError` when Optuna is not installed.
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
        asked = study.ask(space)
        return np.array([asked.params[name] for name in space], dtype=np.int64)

    def _add(
        self,
        study: optuna.Study,
        space: dict[str, Any],
        index: int,
        value: float | None,
        *,
        running: bool = False,
    ) -> None:
        """Adds a candidate with its outcome to the study; no value and not running means failed."""
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
    """The sampler of that name."""
    from optuna import samplers
    from optuna.exceptions import ExperimentalWarning

    with warnings.catch_warnings():
        # GPSampler and others are marked experimental; a user who chose one by name can do nothing
        # about the warning
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
    """An Optuna study in memory, without the log line that Optuna writes for each."""
    import optuna

    verbosity = optuna.logging.get_verbosity()
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    try:
        return optuna.create_study(direction="maximize", sampler=sampler)
    finally:
        optuna.logging.set_verbosity(verbosity)
