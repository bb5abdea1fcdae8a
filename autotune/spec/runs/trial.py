"""A trial: one configuration tried in a study, with its measurement or its failure.

    PENDING -> RUNNING -> COMPLETED     measured to the requested precision
                          STOPPED       measured, and ended early because it can no longer win
                          FAILED        with a `Failure`
                          CANCELLED     no result; the config may be retried
    INFEASIBLE                          terminal without running

Terminal states never change.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum

from autotune.spec.config import ParallelConfig
from autotune.spec.estimate import Estimate
from autotune.spec.plain import Plain
from autotune.spec.runs.measurement import Measurement
from autotune.spec.workload import Workload

MAX_LISTED = 12
"""maximum number of trials that a sentence lists"""


class TrialStatus(StrEnum):
    """The state of a trial."""

    PENDING = "PENDING"
    RUNNING = "RUNNING"
    COMPLETED = "COMPLETED"
    STOPPED = "STOPPED"
    FAILED = "FAILED"
    CANCELLED = "CANCELLED"
    INFEASIBLE = "INFEASIBLE"

    @property
    def is_terminal(self) -> bool:
        """Whether this state never changes."""
        return self not in (TrialStatus.PENDING, TrialStatus.RUNNING)


class FailureKind(StrEnum):
    """Why a trial failed. Only WORKER_LOST is retried; all other failures are final for the
    config."""

    OUT_OF_MEMORY = "OUT_OF_MEMORY"
    DIVERGED = "DIVERGED"
    HANG = "HANG"
    TIMEOUT = "TIMEOUT"
    INVALID = "INVALID"
    METRICS_MISSING = "METRICS_MISSING"
    WORKER_LOST = "WORKER_LOST"
    ERROR = "ERROR"

    @property
    def is_retried(self) -> bool:
        """Whether another attempt may succeed, because the machine, not the config, caused the
        failure."""
        return self is FailureKind.WORKER_LOST

    @property
    def words(self) -> str:
        """The kind in messages and pages: `out of memory`."""
        return self.lower().replace("_", " ")


@dataclass(frozen=True, slots=True, kw_only=True)
class Failure(Plain):
    """How an attempt failed, with the evidence."""

    kind: FailureKind
    """the kind of failure"""
    message: str
    """what happened, in one sentence"""
    exception: str = ""
    """type and text of the exception, or the signal"""
    log_tail: tuple[str, ...] = ()
    """last log lines of the rank that failed first"""
    rank: int | None = None
    """the rank that failed first, if any"""
    step: int | None = None
    """the optimizer step in which the attempt failed, counted from 0 with warm-up"""

    def __str__(self) -> str:
        """Return kind and message: `out of memory: tried to allocate 2 GiB`."""
        return f"{self.kind.words}: {self.message}"

    @property
    def evidence(self) -> str:
        """Kind and message, the exception and the last log lines, as text."""
        lines = (str(self), self.exception, *self.log_tail)
        return "\n".join(line for line in lines if line)


@dataclass(frozen=True, slots=True, kw_only=True)
class Reward(Plain):
    """The reward of a trial: dimensionless, higher is better. Only differences between trials of
    the same study are meaningful."""

    total: float
    """what the study maximizes"""
    throughput: float
    """log of throughput (or goodput, or tokens per unit of cost) relative to the baseline, whose
    value is 0"""
    stability: float
    """0 to 1"""
    parts: Mapping[str, float] = field(default_factory=dict)
    """the parts of stability by name, each 0 to 1, and other terms in the reward"""


class TrialPurpose(StrEnum):
    """Why a trial is run."""

    BASELINE = "baseline"
    """the baseline, measured first; rewards are relative to it"""
    REFERENCE = "reference"
    """the baseline in fp32, if the baseline itself is not fp32; the reference for losses in other
    precisions"""
    SEARCH = "search"
    """proposed by the searcher"""
    FINAL = "final"
    """a finalist or the baseline, re-measured side by side before a winner is named"""
    PROXY = "proxy"
    """a small job that represents a config of the target; a proxy is not compared with other trials
    and cannot be the best trial"""


@dataclass(frozen=True, slots=True, kw_only=True)
class StandsFor(Plain):
    """The config that a proxy trial represents, and the workload that it ran instead."""

    config: ParallelConfig
    """the config of the target (the study's own workload) that the proxy represents"""
    workload: Workload
    """the workload of the trial itself, on the cluster you have"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Trial(Plain):
    """One config tried in a study, with state and outcome."""

    study: str = ""
    """id of the study"""
    number: int = 0
    """number within the study, from 0"""
    config: ParallelConfig
    """the config being tried"""
    seed: int = 0
    """seed of weights and data"""
    status: TrialStatus = TrialStatus.PENDING
    """state of the trial"""
    purpose: TrialPurpose = TrialPurpose.SEARCH
    """why the trial is run"""
    attempts: int = 0
    """launches so far"""
    estimate: Estimate | None = None
    """the prediction at the time of the proposal"""
    measurement: Measurement | None = None
    """the measurement; for a failed trial, the steps before the failure"""
    reward: Reward | None = None
    """the trial's reward, if the trial was measured"""
    failure: Failure | None = None
    """how the trial failed; None if it did not fail"""
    reason: str = ""
    """why the trial was proposed, or why it was stopped, as text"""
    stands_for: StandsFor | None = None
    """for a proxy trial, the config that it represents and the workload that it ran; None if the
    trial ran the study's workload"""
    created_at: datetime | None = None
    """UTC"""
    started_at: datetime | None = None
    """start of the first attempt, in UTC"""
    ended_at: datetime | None = None
    """UTC"""

    @property
    def is_measured(self) -> bool:
        """Whether the trial ended with a valid step time."""
        return (
            self.status in (TrialStatus.COMPLETED, TrialStatus.STOPPED)
            and self.measurement is not None
            and bool(self.measurement.step_times_s)
        )

    @property
    def measured(self) -> Measurement | None:
        """The trial's measurement, if the trial ended with a valid step time."""
        return self.measurement if self.is_measured else None

    @property
    def peak_memory_bytes(self) -> float | None:
        """Highest measured memory peak of any rank, even if the trial failed; None if unknown."""
        return self.measurement.peak_memory_bytes if self.measurement else None


def trial_numbers(numbers: Sequence[int]) -> str:
    """Return `trial 7`, `trials 7 and 9`, `trials 3, 7 and 9`; if there are many, the first
    `MAX_LISTED`: `trials 3, 7, 9 and 5,312 others`."""
    rest = len(numbers) - MAX_LISTED
    *first, last = (
        [*map(str, numbers[:MAX_LISTED]), f"{rest:,} others"] if rest > 1 else map(str, numbers)
    )
    return f"trials {', '.join(first)} and {last}" if first else f"trial {last}"
