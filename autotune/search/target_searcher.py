"""Search among the configs of a target by proxies: which small job to run next, and how the
target's configs rank given those that ran.

    target    the workload whose configs are ranked: N configs, none of which runs here
    proxy     a small job on the cluster at hand that stands for one of them (`autotune.space.proxy`); several configs may share one
    pick      the config of the greatest expected throughput among those that are expected to fit

Proxies teach the constants of the cost model and the own errors of configs that do the same work on
a rank (`autotune.cost.learn.transferred`); what they teach about memory and failures is the
Bayesian search's (`surrogate.Posterior`). Proxies are of two kinds by turns. The first, third, ...
is that of the config with the greatest expected improvement over the pick: it may be the best one.
The second, fourth, ... is the one that is expected to leave least to gain over the pick, whichever
config it stands for: it tells most about the constants by which the others are compared (stepwise
uncertainty reduction: Bect et al. 2012; here with the means as they are predicted).

    EI = E max(y - y_pick, 0)                y: log throughput of a config        y_pick: the pick's; what both share does not count
    argmin_j sum_i P(i runs) (EI_i | j)      j: proxies

Both are with the loss that stalls are expected to cost (`autotune.cost.time.stalls`), because no
proxy tells whether sends stall on the target.

Once no config with an expected improvement of `worth` lacks its proxy, no further proxy is asked
for. What proxies cannot tell stays as uncertain as it was, so improvements that only a trial on the
target would find stay in `real_gain`. A proxy that fails for memory, and the peak of one that does
not, tell which other proxies run here: one that was expected to run out of memory may be run later,
and one that was expected to run may not be.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import final

import numpy as np
from numpy.typing import NDArray

from autotune.cost import estimate
from autotune.cost.learn.correction import Refitted
from autotune.cost.learn.transferred import (
    transferred_difference,
    transferred_gain,
    transferred_mean,
    transferred_sigma,
)
from autotune.errors import ConfigError, SpecError
from autotune.search.first_pick import likely_shortfall
from autotune.search.history import history_refit, with_refit
from autotune.search.searcher import DONE, FREE, PENDING, Problem, Searcher
from autotune.search.surrogate.acquisition import log_expected_improvement
from autotune.search.surrogate.posterior import Posterior
from autotune.space.proxy import Proxy, proxy_of
from autotune.spec import ClusterSpec, Estimate, ParallelConfig, Trial, TrialStatus, Workload
from autotune.spec.plain import fingerprint

Array = NDArray[np.float64]

WORTH = 0.01
"""expected relative gain below which a proxy is not worth a trial, unless the budget's `min_gain`
says otherwise"""
RANKED = 4000
"""configs, by the expected throughput, whose uncertainty is worked out"""
LOOKED_AT = 200
"""configs, by expected improvement, whose proxies are looked for"""
FITS = 0.5
"""least probability that a config or a proxy runs"""


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Standing:
    """What is known of the target's configs, given the trials so far; shape (N,) each."""

    log_tokens_per_s: Array
    """mean of the log throughput"""
    sd: Array
    """standard deviation of its difference from the pick's; 0 for the pick, and for all but the
    first `RANKED`"""
    runs: Array
    """probability that the config runs on the target"""
    improvement: Array
    """expected improvement over the pick, relative; both with what stalls are expected to cost"""
    order: NDArray[np.intp]
    """all configs, by the expected log throughput with runs that fail or stall, best first; those
    that are not expected to run last"""
    stall_probability: Array
    """probability that sends between stages stall on the target (`autotune.cost.time.stalls`),
    which `log_tokens_per_s` does not count"""
    stalled_factor: Array
    """step time then, over that without a stall"""
    expected: Array
    """mean of the log throughput, with the loss that stalls are expected to cost"""
    refitted: Refitted
    """what the trials say about the constants of the cost model"""

    @property
    def shortfall(self) -> float:
        """How far the pick may be behind the best config: 90% quantile of the log of the ratio, by
        the model (`first_pick`)."""
        pick = int(self.order[0])
        rivals = np.array([i for i in self.order[1:RANKED] if self.runs[i] >= FITS], dtype=np.intp)
        return likely_shortfall(self.log_tokens_per_s, self.sd, pick, rivals)

    @property
    def real_gain(self) -> float:
        """Expected relative gain of one trial on the target: of the best config to try there, the
        pick or another."""
        return float(self.improvement[self.order[1:]].max(initial=0.0))


@final
class TargetSearcher(Searcher):
    """Asks for configs of the target whose proxies are to be run; learns from the proxies."""

    def __init__(
        self,
        problem: Problem,
        at_hand: ClusterSpec,
        *,
        worth: float = WORTH,
        refuse: Callable[[Workload, ParallelConfig], str] = lambda *_: "",
        stand_in: Callable[[Workload, ParallelConfig, ClusterSpec], Proxy] = proxy_of,
    ) -> None:
        """`at_hand`: where proxies run. `worth`: least expected gain of a proxy. `refuse`: why the
        trainer cannot run a config of a workload; empty when it can. `stand_in`: the proxy of a
        config of the target on what is at hand; raises `ConfigError` or `SpecError` where there is
        none."""
        super().__init__(problem)
        self.at_hand = at_hand
        self._worth, self._refuse, self._stand_in = worth, refuse, stand_in
        self._proxies: dict[int, Proxy | str] = {}
        self._asked: set[str] = set()
        """proxies that wait, run or were run"""
        self._ranked: tuple[Standing, Posterior] | None = None
        self._fits: dict[str, float] = {}
        """by proxy, given the same trials: the probability that it does not run out of memory"""
        self._marks: dict[int, str] = {}

    # ---- which proxy next

    def ask(self, n: int = 1) -> list[ParallelConfig]:
        """Up to `n` configs of the target whose proxies are to be run; no two of them share one."""
        configs: list[ParallelConfig] = []
        while len(configs) < n and (found := super().ask(1)):
            self._asked.add(_mark(self.proxy_for(found[0])))
            configs += found
        return configs

    def propose(self) -> tuple[int, str] | None:
        standing = self.standing
        waiting = {self._mark(i): i for i in reversed(self._by_improvement()) if self.is_open(i)}
        indices = sorted(waiting.values(), key=lambda i: (-standing.improvement[i], i))
        if not indices or (standing.improvement[indices[0]] < self._worth and self._asked):
            return None
        if len(self._asked) % 2 == 0:
            return indices[0], self._why(indices[0])
        index = indices[int(np.argmin(self._left_by(indices)))]
        return index, f"most informative about which config is best; {self._why(index)}"

    def _left_by(self, indices: Sequence[int]) -> Array:
        """Sum of the expected improvements over the pick that would be left if the proxy of each of
        these configs were measured, and those that run, and came out as they are predicted."""
        standing, workload = self.standing, self.space.workload
        pick = int(standing.order[0])
        rivals = np.array([pick, *(i for i in self._by_improvement() if i != pick)], dtype=np.intp)
        proxies, running = (
            [
                (proxy.workload, proxy.config)
                for proxy in map(self.proxy_at, some)
                if isinstance(proxy, Proxy)
            ]
            for some in (indices, self.pending().tolist())
        )
        fallen = transferred_gain(
            workload, self.space.table.take(rivals), standing.refitted, 0, proxies, running
        )
        sd = np.sqrt(np.maximum(standing.sd[rivals, None] ** 2 - fallen, 1e-8))
        expected = standing.expected[rivals]
        left = np.exp(log_expected_improvement(expected[:, None], sd, float(expected[0])))
        return np.asarray(standing.runs[rivals[1:]] @ left[1:])

    def is_open(self, index: int) -> bool:
        """Whether a config has a proxy that was not asked for yet."""
        return (
            self.state[index] == FREE
            and self._mark(index) not in self._asked
            and isinstance(self.proxy_at(index), Proxy)
        )

    def proxy_at(self, index: int) -> Proxy | str:
        """The proxy of a config in the space, or why it has none here."""
        mark = self._mark(index)
        if mark and mark not in self._asked and self._chance(index) < FITS:
            return f"the proxy is expected to run out of memory on {self.at_hand.name}"
        return self._stands(index)

    def _stands(self, index: int) -> Proxy | str:
        """The proxy of a config, whatever memory it needs."""
        if index not in self._proxies:
            self._proxies[index] = self._find_proxy(self.space[index])
        return self._proxies[index]

    def proxy_for(self, config: ParallelConfig) -> Proxy:
        """The proxy of a config that was asked for."""
        index = self.space.index_of(config)
        found = "it is not in the space" if index is None else self.proxy_at(index)
        if isinstance(found, str):
            raise ConfigError(f"{config} has no proxy on {self.at_hand.name}: {found}")
        return found

    def estimate_of(self, proxy: Proxy) -> Estimate:
        """What a proxy is predicted to take."""
        return estimate(proxy.workload, proxy.config, calibration=self.problem.calibration)

    def expected_gain(self, trials: int = 1) -> float | None:
        """Expected relative gain of the pick by the next proxy: an upper bound, for it may not tell
        all that is unknown of its config."""
        standing = self.standing
        open_ones = (
            float(standing.improvement[i]) for i in self._by_improvement() if self.is_open(i)
        )
        return max(open_ones, default=0.0)

    def nothing_left(self) -> str:
        refusals = self.without_proxy
        if not self._asked:
            why = max(refusals, key=lambda reason: refusals[reason], default="")
            return f"none of the {self._looked_at} best configs has a proxy on {self.at_hand.name}: {why}"
        return f"no further proxy run is expected to speed up the target's first pick by {self._worth:.1%} or more"

    @property
    def without_proxy(self) -> Mapping[str, int]:
        """Why configs that may win have no proxy here, with how many each."""
        looked_at = (self.proxy_at(i) for i in self._by_improvement())
        return Counter(found for found in looked_at if isinstance(found, str))

    # ---- what the proxies showed

    def tell(self, trials: Iterable[Trial]) -> None:
        """Takes in proxy trials: running, ended, or cancelled."""
        for trial in trials:
            stands_for = trial.stands_for
            if stands_for is None:
                continue
            index, mark = (
                self.space.index_of(stands_for.config),
                _mark_of(stands_for.workload, trial.config),
            )
            if trial.status is TrialStatus.CANCELLED:
                self._move(index, FREE)
                self._asked.discard(mark)
                continue
            self._asked.add(mark)
            self._move(index, DONE if trial.status.is_terminal else PENDING)
            if trial.is_measured or trial.failure is not None:
                self.trials.append((index, trial))
                self._ranked = None

    def trials_of(self, index: int) -> list[int]:
        """Numbers of the trials, measured or failed, whose proxy is also that of this config."""
        mark = self._mark(index)
        return [
            t.number
            for _, t in self.trials
            if t.stands_for and _mark_of(t.stands_for.workload, t.config) == mark
        ]

    def sigma_of(self, indices: NDArray[np.intp]) -> Array:
        """Standard deviation of the log step time of these configs, with what all configs share and
        what no proxy tells."""
        return transferred_sigma(
            self.space.workload, self.space.table.take(indices), self.standing.refitted
        )

    @property
    def _evidence(self) -> tuple[tuple[Workload, Trial], ...]:
        """The proxies, and what earlier studies measured."""
        own = tuple((t.stands_for.workload, t) for _, t in self.trials if t.stands_for is not None)
        return (*own, *self.problem.history)

    @property
    def standing(self) -> Standing:
        """The target's configs given the trials so far."""
        return self._known[0]

    @property
    def _known(self) -> tuple[Standing, Posterior]:
        """The standing, and the models that it is made of."""
        if self._ranked is None:
            self._ranked, self._fits = self._rank(), {}
        return self._ranked

    def _rank(self) -> tuple[Standing, Posterior]:
        problem = replace(self.problem, history=self._evidence)
        refit = history_refit(problem)
        refitted = with_refit(problem, refit)
        posterior = Posterior(refitted)
        everything, table = np.arange(len(self.space)), self.space.table
        workload = self.space.workload
        log_step_s = transferred_mean(workload, table, refit)
        mean = np.log(table.global_batch_size * float(workload.seq_len)) - log_step_s
        runs = np.exp(posterior.log_runs(everything))
        stalls, factor = self._stalls(refitted.predict(), mean)
        expected = mean - stalls * np.log(factor)
        order = np.lexsort((-expected - np.log(np.maximum(runs, 1e-12)), runs < FITS))
        near = order[:RANKED]
        sd, gained = np.zeros(len(table)), np.zeros(len(table))
        sd[near] = transferred_difference(workload, table.take(near), refit, 0)
        improved = log_expected_improvement(
            expected[near], np.maximum(sd[near], 1e-9), float(expected[order[0]])
        )
        gained[near] = np.expm1(np.exp(np.minimum(improved, 0.0)))
        standing = Standing(
            log_tokens_per_s=mean, sd=sd, runs=runs, improvement=gained * runs, order=order, stall_probability=stalls, stalled_factor=factor,
            expected=expected, refitted=refit,
        )  # fmt: skip
        return standing, posterior

    def _stalls(self, predicted: Estimate, mean: Array) -> tuple[Array, Array]:
        """Probability of a stall, and by which factor it lengthens the step of that log throughput;
        shape (N,) each."""
        waits = np.asarray(predicted.stalled_step_time_s) - np.asarray(predicted.step_time_s)
        step_s = (
            self.space.table.global_batch_size * float(self.space.workload.seq_len) / np.exp(mean)
        )
        return np.asarray(predicted.stall_probability), 1.0 + waits / step_s

    # ---- inside

    @property
    def _looked_at(self) -> int:
        return min(LOOKED_AT, len(self.space))

    def _by_improvement(self) -> list[int]:
        standing = self.standing
        return [int(i) for i in np.argsort(-standing.improvement, kind="stable")[: self._looked_at]]

    def _next_enqueued(self) -> tuple[int, str] | None:
        return next(
            (
                (i, "represents a config enqueued in the spec")
                for i in self._enqueued
                if self.is_open(i)
            ),
            None,
        )

    def _why(self, index: int) -> str:
        place = int(np.flatnonzero(self.standing.order == index)[0]) + 1
        if place == 1:
            return "represents the target's first pick"
        return f"represents number {place} in the target's ranking, with an expected improvement of {self.standing.improvement[index]:.1%}"

    def _find_proxy(self, config: ParallelConfig) -> Proxy | str:
        try:
            proxy = self._stand_in(self.space.workload, config, self.at_hand)
        except (ConfigError, SpecError) as error:
            return error.message
        if refusal := self._refuse(proxy.workload, proxy.config):
            return refusal
        return proxy

    def _chance(self, index: int) -> float:
        """Probability that the proxy of a config does not run out of memory, given the trials so
        far."""
        _, posterior = self._known
        if self._mark(index) not in self._fits:
            # of all that are looked at: together they cost little more than one; memory does not
            # depend on the batch of the workload
            alike: dict[str, dict[str, Proxy]] = {}
            for i in {index, *self._by_improvement()}:
                mark, proxy = self._mark(i), self._stands(i)
                if isinstance(proxy, Proxy):
                    alike.setdefault(repr(replace(proxy.workload, global_batch_size=1)), {})[
                        mark
                    ] = proxy
            for some in alike.values():
                proxies = list(some.values())
                fits = posterior.fits(proxies[0].workload, [proxy.config for proxy in proxies])
                self._fits |= dict(zip(some, fits.tolist(), strict=True))
        return self._fits[self._mark(index)]

    def _mark(self, index: int) -> str:
        """What tells the proxy of a config from others; empty where it has none."""
        if index not in self._marks:
            proxy = self._stands(index)
            self._marks[index] = _mark(proxy) if isinstance(proxy, Proxy) else ""
        return self._marks[index]


def _mark(proxy: Proxy) -> str:
    return _mark_of(proxy.workload, proxy.config)


def _mark_of(workload: Workload, config: ParallelConfig) -> str:
    return fingerprint([workload.to_dict(), config.key])
