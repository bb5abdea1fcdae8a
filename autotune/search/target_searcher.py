"""Searches the configs of a target with proxies: chooses the next small job to run, and ranks the
target's configs by the results.

    target    the workload whose N configs are ranked; its cluster is larger than the one you have
    proxy     a small job on the cluster you have that represents a config of the target (`autotune.space.proxy`); several configs may share one
    pick      the config with the greatest expected throughput among those expected to fit

Results of proxies refit the cost model's constants, and correct the errors of configs with the same
work per rank (`autotune.cost.learn.transferred`). Memory and failures are modeled as in Bayesian
search (`surrogate.Posterior`). Two criteria alternate. The first, third, ... proxy represents the
config with the greatest expected improvement over the pick, which may be the best config. The
second, fourth, ... proxy is the one that minimizes the improvement over the pick that is still
expected afterwards: it is the most informative about the constants by which configs are compared
(stepwise uncertainty reduction: Bect et al. 2012; here assuming that results equal their predicted
means).

    EI = E max(y - y_pick, 0)                y: log throughput of a config        y_pick: of the pick; shared errors cancel
    argmin_j sum_i P(i runs) (EI_i | j)      j: proxies

Both include the expected loss from stalls (`autotune.cost.time.stalls`), because proxies do not
show whether sends stall on the target.

The search ends when all configs with an expected improvement of `worth` or more have had their
proxy. Proxies do not reduce all uncertainty: improvements that only a trial on the target can find
remain in `real_gain`. Whether other proxies fit on the cluster you have is updated with each
out-of-memory failure and each measured peak.
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
"""minimum expected relative gain for a further proxy, unless the budget sets `min_gain`"""
RANKED = 4000
"""number of configs, those with the greatest expected throughput, whose uncertainty is computed"""
LOOKED_AT = 200
"""number of configs, those with the greatest expected improvement, that may get a proxy"""
FITS = 0.5
"""minimum probability that a config or a proxy runs"""


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Standing:
    """The posterior of the target's configs given the trials so far, arrays of shape (N,)."""

    log_tokens_per_s: Array
    """mean of the log throughput without stalls"""
    sd: Array
    """standard deviation of the difference between its log throughput and the pick's; 0 for the
    pick, and for all but the first `RANKED`"""
    runs: Array
    """probability that the config runs on the target"""
    improvement: Array
    """expected relative improvement over the pick, including the expected loss from stalls"""
    order: NDArray[np.intp]
    """indices of all configs by expected log throughput including failures and stalls, best first;
    those not expected to run come last"""
    stall_probability: Array
    """probability that sends between stages stall on the target (`autotune.cost.time.stalls`)"""
    stalled_factor: Array
    """step time with a stall divided by that without"""
    expected: Array
    """mean of the log throughput, including the expected loss from stalls"""
    refitted: Refitted
    """the refit of the cost model's constants"""

    @property
    def shortfall(self) -> float:
        """How much slower the pick may be than the best config: the model's 90% quantile of the log
        ratio, d of `first_pick`."""
        pick = int(self.order[0])
        rivals = np.array([i for i in self.order[1:RANKED] if self.runs[i] >= FITS], dtype=np.intp)
        return likely_shortfall(self.log_tokens_per_s, self.sd, pick, rivals)

    @property
    def real_gain(self) -> float:
        """Expected relative gain of one trial of another config on the target."""
        return float(self.improvement[self.order[1:]].max(initial=0.0))


@final
class TargetSearcher(Searcher):
    """Proposes configs of the target whose proxies are to be run, and learns from the proxies."""

    def __init__(
        self,
        problem: Problem,
        at_hand: ClusterSpec,
        *,
        worth: float = WORTH,
        refuse: Callable[[Workload, ParallelConfig], str] = lambda *_: "",
        stand_in: Callable[[Workload, ParallelConfig, ClusterSpec], Proxy] = proxy_of,
    ) -> None:
        """`at_hand`: the cluster you have, where proxies run. `worth`: minimum expected gain of a
        proxy. `refuse`: returns why the trainer cannot run a config of a workload; empty if it can.
        `stand_in`: returns the proxy of a config of the target on a cluster; raises `ConfigError`
        or `SpecError` if there is none."""
        super().__init__(problem)
        self.at_hand = at_hand
        self._worth, self._refuse, self._stand_in = worth, refuse, stand_in
        self._proxies: dict[int, Proxy | str] = {}
        self._asked: set[str] = set()
        """keys of the proxies that were proposed, and not cancelled"""
        self._ranked: tuple[Standing, Posterior] | None = None
        self._fits: dict[str, float] = {}
        """by key of a proxy: the probability that it does not run out of memory, for `_ranked`"""
        self._keys: dict[int, str] = {}

    # ---- the next proxy

    def ask(self, n: int = 1) -> list[ParallelConfig]:
        """Up to `n` configs of the target with different proxies, which are to be run."""
        configs: list[ParallelConfig] = []
        while len(configs) < n and (found := super().ask(1)):
            proxy = self.proxy_for(found[0])
            self._asked.add(_key_of(proxy.workload, proxy.config))
            configs += found
        return configs

    def propose(self) -> tuple[int, str] | None:
        standing = self.standing
        waiting = {self._key(i): i for i in reversed(self._by_improvement()) if self.is_open(i)}
        indices = sorted(waiting.values(), key=lambda i: (-standing.improvement[i], i))
        if not indices or (standing.improvement[indices[0]] < self._worth and self._asked):
            return None
        if len(self._asked) % 2 == 0:
            return indices[0], self._reason_for(indices[0])
        index = indices[int(np.argmin(self._remaining_improvement(indices)))]
        return index, f"most informative about which config is best; {self._reason_for(index)}"

    def _remaining_improvement(self, indices: Sequence[int]) -> Array:
        """For the proxy of each of these configs: the sum of expected improvements over the pick
        that would remain if it and the running proxies were measured as predicted."""
        standing, workload = self.standing, self.space.workload
        pick = int(standing.order[0])
        rivals = np.array([pick, *(i for i in self._by_improvement() if i != pick)], dtype=np.intp)
        proxies, running = self._jobs(indices), self._jobs(self.pending().tolist())
        reduction = transferred_gain(
            workload, self.space.table.take(rivals), standing.refitted, 0, proxies, running
        )
        sd = np.sqrt(np.maximum(standing.sd[rivals, None] ** 2 - reduction, 1e-8))
        expected = standing.expected[rivals]
        left = np.exp(log_expected_improvement(expected[:, None], sd, float(expected[0])))
        return np.asarray(standing.runs[rivals[1:]] @ left[1:])

    def _jobs(self, indices: Sequence[int]) -> list[tuple[Workload, ParallelConfig]]:
        """Workloads and configs of the proxies of these configs, without those that have none."""
        proxies = map(self.proxy_at, indices)
        return [(proxy.workload, proxy.config) for proxy in proxies if isinstance(proxy, Proxy)]

    def is_open(self, index: int) -> bool:
        """Whether a config has a proxy that was not proposed yet."""
        return (
            self.state[index] == FREE
            and self._key(index) not in self._asked
            and isinstance(self.proxy_at(index), Proxy)
        )

    def proxy_at(self, index: int) -> Proxy | str:
        """The proxy of a config in the space, or why it has none on the cluster you have."""
        key = self._key(index)
        if key and key not in self._asked and self._fit_probability(index) < FITS:
            return f"the proxy is expected to run out of memory on {self.at_hand.name}"
        return self._proxy_ignoring_memory(index)

    def _proxy_ignoring_memory(self, index: int) -> Proxy | str:
        """The proxy of a config, even if it may run out of memory, or why it has none."""
        if index not in self._proxies:
            self._proxies[index] = self._find_proxy(self.space[index])
        return self._proxies[index]

    def proxy_for(self, config: ParallelConfig) -> Proxy:
        """The proxy of a config. Raises `ConfigError` if it has none."""
        index = self.space.index_of(config)
        proxy = "it is not in the space" if index is None else self.proxy_at(index)
        if isinstance(proxy, str):
            raise ConfigError(f"{config} has no proxy on {self.at_hand.name}: {proxy}")
        return proxy

    def estimate_of(self, proxy: Proxy) -> Estimate:
        """The cost model's estimate of a proxy."""
        return estimate(proxy.workload, proxy.config, calibration=self.problem.calibration)

    def expected_gain(self, trials: int = 1) -> float | None:
        """Expected relative gain of the pick from the next proxy. It is an upper bound, because a
        proxy does not remove all uncertainty of its config."""
        standing = self.standing
        gains = (float(standing.improvement[i]) for i in self._by_improvement() if self.is_open(i))
        return max(gains, default=0.0)

    def nothing_left(self) -> str:
        refusals = self.without_proxy
        if not self._asked:
            why = max(refusals, key=lambda reason: refusals[reason], default="")
            return f"none of the {self._looked_at} best configs has a proxy on {self.at_hand.name}: {why}"
        return f"no further proxy run is expected to make the top-ranked config faster by {self._worth:.1%} or more"

    @property
    def without_proxy(self) -> Mapping[str, int]:
        """Reasons why promising configs have no proxy, with the number of configs for each."""
        proxies = (self.proxy_at(i) for i in self._by_improvement())
        return Counter(reason for reason in proxies if isinstance(reason, str))

    # ---- results of proxies

    def tell(self, trials: Iterable[Trial]) -> None:
        """Update with proxy trials that are running, ended or cancelled."""
        for trial in trials:
            stands_for = trial.stands_for
            if stands_for is None:
                continue
            index = self.space.index_of(stands_for.config)
            key = _key_of(stands_for.workload, trial.config)
            if trial.status is TrialStatus.CANCELLED:
                self._set_state(index, FREE)
                self._asked.discard(key)
                continue
            self._asked.add(key)
            self._set_state(index, DONE if trial.status.is_terminal else PENDING)
            if trial.is_measured or trial.failure is not None:
                self.trials.append((index, trial))
                self._ranked = None

    def trials_of(self, index: int) -> list[int]:
        """Numbers of the measured or failed trials of this config's proxy."""
        key = self._key(index)
        return [
            t.number
            for _, t in self.trials
            if t.stands_for and _key_of(t.stands_for.workload, t.config) == key
        ]

    def sigma_of(self, indices: NDArray[np.intp]) -> Array:
        """Standard deviation of the log step time of these configs, including errors that all
        configs share and errors that proxies do not reduce."""
        return transferred_sigma(
            self.space.workload, self.space.table.take(indices), self.standing.refitted
        )

    @property
    def _evidence(self) -> tuple[tuple[Workload, Trial], ...]:
        """The trials of proxies, and those of earlier studies."""
        own = tuple((t.stands_for.workload, t) for _, t in self.trials if t.stands_for is not None)
        return (*own, *self.problem.history)

    @property
    def standing(self) -> Standing:
        """The posterior of the target's configs given the trials so far."""
        return self._current[0]

    @property
    def _current(self) -> tuple[Standing, Posterior]:
        """`standing`, and the model of memory and failures behind it; cached until a trial ends."""
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
        """Probability of a stall, and the factor by which it lengthens the step, shape (N,) each.
        `mean`: log throughput without stalls."""
        stall_s = np.asarray(predicted.stalled_step_time_s) - np.asarray(predicted.step_time_s)
        step_s = (
            self.space.table.global_batch_size * float(self.space.workload.seq_len) / np.exp(mean)
        )
        return np.asarray(predicted.stall_probability), 1.0 + stall_s / step_s

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

    def _reason_for(self, index: int) -> str:
        rank = int(np.flatnonzero(self.standing.order == index)[0]) + 1
        if rank == 1:
            return "represents the top-ranked config of the target"
        return f"stands for the config ranked {rank} on the target, with an expected improvement of {self.standing.improvement[index]:.1%}"

    def _find_proxy(self, config: ParallelConfig) -> Proxy | str:
        try:
            proxy = self._stand_in(self.space.workload, config, self.at_hand)
        except (ConfigError, SpecError) as error:
            return error.message
        if refusal := self._refuse(proxy.workload, proxy.config):
            return refusal
        return proxy

    def _fit_probability(self, index: int) -> float:
        """Probability that the proxy of a config does not run out of memory, given the trials so
        far."""
        _, posterior = self._current
        if self._key(index) not in self._fits:
            # computed for all promising configs at once, which costs little more than for one;
            # workloads that differ only in the batch share a call, because memory does not depend
            # on it
            by_workload: dict[str, dict[str, Proxy]] = {}
            for i in {index, *self._by_improvement()}:
                proxy = self._proxy_ignoring_memory(i)
                if isinstance(proxy, Proxy):
                    workload = repr(replace(proxy.workload, global_batch_size=1))
                    by_workload.setdefault(workload, {})[self._key(i)] = proxy
            for by_key in by_workload.values():
                proxies = list(by_key.values())
                fits = posterior.fits(proxies[0].workload, [proxy.config for proxy in proxies])
                self._fits |= dict(zip(by_key, fits.tolist(), strict=True))
        return self._fits[self._key(index)]

    def _key(self, index: int) -> str:
        """Identifies the proxy of a config; empty if it has none."""
        if index not in self._keys:
            proxy = self._proxy_ignoring_memory(index)
            self._keys[index] = (
                _key_of(proxy.workload, proxy.config) if isinstance(proxy, Proxy) else ""
            )
        return self._keys[index]


def _key_of(workload: Workload, config: ParallelConfig) -> str:
    return fingerprint([workload.to_dict(), config.key])
