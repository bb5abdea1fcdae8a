"""The base class of all searchers. Each config in the space is a candidate, and each candidate is
free, pending or done.

    ask       chooses a free candidate, which becomes pending
    tell      a terminal trial makes its candidate done; CANCELLED makes it free again; a running trial makes it pending
    correct   replaces trials, because the machine changed while they were measured
    score     the number that is maximized: reward.total if the trial has a reward, else log(tokens_per_s)

A searcher is a deterministic function of (space, seed, options, trials so far). It has no random
state that `ask` would advance, so a resumed study passes the same trials again and continues with
the same next config. Subclasses implement `propose` (the next free candidate, and why) and, if they
learn, `learn`.

Trials of configs outside the space, such as a baseline, may be passed too: searchers with a model
learn from them.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from autotune.cost import Calibration, estimate
from autotune.errors import ConfigError
from autotune.search.dominance import needs_as_much_memory
from autotune.space import SearchSpace
from autotune.spec import (
    Estimate,
    FailureKind,
    Objective,
    ParallelConfig,
    Trial,
    TrialStatus,
    Workload,
)

FREE, PENDING, DONE = 0, 1, 2
"""states of a candidate"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """A search problem: the space, its predictions, the objective and the history."""

    space: SearchSpace
    """the N candidates"""
    seed: int = 0
    """seed of all random choices"""
    estimate: Estimate | None = None
    """prediction for all N candidates; with None, the cost model computes it when needed"""
    calibration: Calibration | None = None
    """constants of the cost model, for configs outside the space and for the history; with None,
    each workload's own"""
    objective: Objective = field(default_factory=Objective)
    """what the reward measures"""
    history: tuple[tuple[Workload, Trial], ...] = ()
    """trials of earlier studies, each with its workload"""
    times_are_learnt: bool = False
    """whether the estimate already reflects the history's step times, so that they add nothing"""
    enqueue: tuple[ParallelConfig, ...] = ()
    """configs to try first"""
    options: Mapping[str, Any] = field(default_factory=dict)
    """options of the searcher"""

    def predict(self) -> Estimate:
        """The estimate of all N candidates, as arrays of shape (N,)."""
        if self.estimate is not None:
            return self.estimate

        return estimate(self.space.workload, self.space.table, calibration=self.calibration)


class Searcher(ABC):
    """Proposes configs of a space and learns from their trials."""

    LOOKAHEAD = 8
    """number of further trials over which the expected gain is computed. Among thousands of configs
    that differ by noise, some are always better than the best found, but searching for them is not
    worth the time."""

    options: ClassVar[tuple[str, ...]] = ()
    """names that `Problem.options` may hold"""
    variants: ClassVar[Mapping[str, str]] = {}
    """for a family of searchers, its members with one line about each: `FAMILY:VARIANT` is created
    with the keyword `variant`"""

    def __init__(self, problem: Problem) -> None:
        """Raises `ConfigError` if an enqueued config is not in the space."""
        self.problem = problem
        self.space = problem.space
        self.state: NDArray[np.int8] = np.full(len(problem.space), FREE, dtype=np.int8)
        self.ruled_out: NDArray[np.bool_] = np.zeros(len(problem.space), dtype=np.bool_)
        self.left_out: NDArray[np.bool_] = np.zeros(len(problem.space), dtype=np.bool_)
        """candidates that cannot be run here"""
        self.trials: list[tuple[int | None, Trial]] = []
        self._reasons: dict[int, str] = {}
        self._enqueued = self._indices_of(problem.enqueue)

    def ask(self, n: int = 1) -> list[ParallelConfig]:
        """Up to `n` configs to try next, best first. Fewer, or none, if no eligible candidate is
        left."""
        configs = []
        for _ in range(n):
            chosen = self._next_enqueued() or self.propose()
            if chosen is None:
                break
            index, reason = chosen
            self.state[index] = PENDING
            self._reasons[index] = reason
            configs.append(self.space[index])
        return configs

    def tell(self, trials: Iterable[Trial]) -> None:
        """Update the state of these trials, in this order. A trial that was passed before adds
        nothing."""
        for trial in trials:
            index = self.space.index_of(trial.config)
            if self._is_known(index, trial):
                continue
            if not trial.status.is_terminal or trial.status is TrialStatus.CANCELLED:
                self._set_state(index, FREE if trial.status.is_terminal else PENDING)
                continue
            self._set_state(index, DONE)
            if trial.status is TrialStatus.INFEASIBLE or (
                trial.status is not TrialStatus.FAILED and not _has_time(trial)
            ):
                continue
            self.trials.append((index, trial))
            if trial.failure is not None and trial.failure.kind is FailureKind.OUT_OF_MEMORY:
                self.ruled_out |= needs_as_much_memory(self.space.table, trial.config)
            self.learn(index, trial)

    def leave_out(self, candidates: NDArray[np.intp]) -> None:
        """Never propose these configs: they cannot run here."""
        self.state[candidates] = DONE
        self.left_out[candidates] = True

    def correct(self, trials: Iterable[Trial], *, without: Collection[int] = ()) -> None:
        """Replace these trials, matched by number, and drop those listed in `without`, because the
        machine changed while they were measured. The state of the candidates stays the same."""
        by_number = {trial.number: trial for trial in trials}
        self.trials = [
            (i, by_number.get(t.number, t)) for i, t in self.trials if t.number not in without
        ]
        self.relearn()

    @abstractmethod
    def propose(self) -> tuple[int, str] | None:
        """The index of the next candidate, with the reason as text; None if no candidate should be
        tried. It must not change any state."""

    def learn(self, index: int | None, trial: Trial) -> None:  # noqa: B027  most searchers do not learn
        """Learn from a measured or failed trial of candidate `index` (None: a config outside the
        space)."""

    def relearn(self) -> None:  # noqa: B027  most searchers look at `trials` whenever they propose
        """Learn that `trials` were corrected. A searcher that stores what it has learned must
        discard it and start again from `trials`."""

    def expected_gain(self, trials: int = LOOKAHEAD) -> float | None:
        """Expected relative gain of the best of the next `trials` over the best so far; None if
        this searcher cannot estimate it."""
        return None

    def nothing_left(self) -> str:
        """Why `ask` returns nothing, as text."""
        free = len(self.free())
        if not free:
            count = len(self.space) - int(self.left_out.sum())
            which = "in the space" if count == len(self.space) else "in the space that can run here"
            return (
                f"all {count:,} configs {which} were tried"
                if count > 1
                else f"the only config {which} was tried"
            )
        return f"the {free:,} untried configs need at least as much memory as a config that ran out of memory"

    def reason(self, config: ParallelConfig) -> str:
        """Why this config was proposed; empty if it was not."""
        index = self.space.index_of(config)
        return self._reasons.get(index, "") if index is not None else ""

    def free(self) -> NDArray[np.intp]:
        """Candidates that are neither pending nor done, in the order of the space."""
        return np.flatnonzero(self.state == FREE)

    def eligible(self) -> NDArray[np.intp]:
        """Free candidates that no out-of-memory failure rules out."""
        return np.flatnonzero((self.state == FREE) & ~self.ruled_out)

    def pending(self) -> NDArray[np.intp]:
        """Candidates whose trial was proposed or is running, in the order of the space."""
        return np.flatnonzero(self.state == PENDING)

    def _is_known(self, index: int | None, trial: Trial) -> bool:
        is_new = index is not None and self.state[index] != DONE
        return not is_new and any(i == index and known == trial for i, known in self.trials)

    def _set_state(self, index: int | None, state: int) -> None:
        if index is not None and self.state[index] != DONE:
            self.state[index] = state

    def _next_enqueued(self) -> tuple[int, str] | None:
        return next(
            ((i, "enqueued in the spec") for i in self._enqueued if self.state[i] == FREE), None
        )

    def _indices_of(self, enqueued: Sequence[ParallelConfig]) -> list[int]:
        indices = [self.space.index_of(config) for config in enqueued]
        errors = [
            ConfigError(
                f"an enqueued config must be in the space, but {config} is not: {self.space.why_not(config)}",
                remedy="change the enqueued config, or widen the space",
                field="enqueue",
            )
            for config, index in zip(enqueued, indices, strict=True)
            if index is None
        ]
        if errors:
            errors[0].others = tuple(errors[1:])
            raise errors[0]
        return [index for index in indices if index is not None]


def score(trial: Trial) -> float:
    """The number to maximize: the reward, or the log of tokens per second without a reward."""
    if trial.reward is not None:
        return trial.reward.total
    return math.log(trial.measurement.tokens_per_s) if trial.measurement is not None else math.nan


def permutation(length: int, seed: int) -> Sequence[int]:
    """A random order of 0 to length - 1 that depends only on the seed."""
    return np.random.default_rng(seed).permutation(length).tolist()  # type: ignore[no-any-return]


def _has_time(trial: Trial) -> bool:
    return trial.measured is not None and trial.measured.tokens_per_s > 0
