"""The attempts that hold ranks, with their start times and deadlines.

    capacity   number of ranks that may be in use at once
    live       attempts that have not ended
    lost       attempts given up because their end was never confirmed; they hold their ranks until the runner reports it

The runner has its own deadlines and reports the attempts that it ended. The deadlines here are a
backstop for a runner that stops responding: an attempt is cancelled `DEADLINE_GRACE_S` after the
trial's maximum time, and given up if its end is not confirmed within `CANCEL_GRACE_S`. Its ranks are
not reused before its end is reported, because they may still be busy.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from autotune.ports import AttemptId
from autotune.spec import Failure, FailureKind, MeasureSpec, Trial, TrialStatus

DEADLINE_GRACE_S = 60.0
"""time after start and trial timeout before the controller cancels an attempt, s"""
CANCEL_GRACE_S = 60.0
"""time from the request to end an attempt until it is given up, s"""
MAX_LOST = 2
"""maximum number of lost attempts of a trial that are retried"""
MAX_ATTEMPTS = 10
"""maximum number of launches of a trial, including those after restarts of the controller: a config
that crashes its machine must not be retried forever"""
CUT_OFF = Failure(
    kind=FailureKind.WORKER_LOST,
    message="the study's controller ended while this attempt was running",
)
"""failure of an attempt that was not adopted by the next controller; not counted as lost"""
PROGRAM_DEFAULTS = Failure(
    kind=FailureKind.WORKER_LOST, message="the runner ended the attempt without a request"
)
OVERDUE = "the attempt exceeded the trial timeout, and the runner did not stop it"
SILENT = "the runner never confirmed that the attempt had ended"


@dataclass(slots=True, kw_only=True)
class Attempt:
    """One launch that has not ended."""

    id: AttemptId
    ranks: int
    since_s: float
    deadline_s: float
    cancelled: str = ""
    """why its end was requested; empty if it was not"""
    overdue: bool = False
    """whether its end was requested because of its deadline"""
    queued: bool = False
    """whether it waited for ranks that were in use"""

    @property
    def number(self) -> int:
        """Trial number."""
        return self.id.trial

    def end_of(self, trial: Trial) -> Trial:
        """The terminal trial that results from the requested end of this attempt."""
        if self.overdue:
            failure = Failure(kind=FailureKind.TIMEOUT, message=self.cancelled)
            return replace(trial, status=TrialStatus.FAILED, failure=failure)
        return replace(trial, status=TrialStatus.CANCELLED, reason=self.cancelled)


class Attempts:
    """Live and lost attempts, and the ranks that they hold."""

    def __init__(self, capacity: int, lost: Mapping[int, int]) -> None:
        """`lost`: number of attempts lost under earlier controllers, by trial number."""
        self.capacity = capacity
        self.live: dict[AttemptId, Attempt] = {}
        self.lost: dict[AttemptId, Attempt] = {}
        self._gpu_s = 0.0
        self._times_lost = dict(lost)

    @property
    def free(self) -> int:
        """Number of free ranks."""
        return self.capacity - sum(a.ranks for a in (*self.live.values(), *self.lost.values()))

    def begin(self, attempt: AttemptId, ranks: int, now_s: float, measure: MeasureSpec) -> None:
        """Reserve ranks for an attempt that is launched."""
        longest = measure.start_timeout_s + measure.trial_timeout_s + DEADLINE_GRACE_S
        self.live[attempt] = Attempt(
            id=attempt, ranks=ranks, since_s=now_s, deadline_s=now_s + longest
        )

    def queue(self, attempt: AttemptId, now_s: float) -> bool:
        """The runner has no free ranks for the attempt yet: restart its time and deadline now.
        Returns whether this is the first such report."""
        entry = self.live[attempt]
        if not entry.cancelled:
            entry.deadline_s += now_s - entry.since_s
        entry.since_s = now_s
        is_first, entry.queued = not entry.queued, True
        return is_first

    def end(self, attempt: AttemptId, now_s: float) -> Attempt | None:
        """Free the ranks of an attempt and return it; None if it was given up before or is
        unknown."""
        late = self.lost.pop(attempt, None)
        entry = self.live.pop(attempt, None)
        if (ended := entry or late) is not None:
            self._gpu_s += ended.ranks * (now_s - ended.since_s)
        return entry

    def ask_end(self, attempt: Attempt, why: str, now_s: float, *, overdue: bool = False) -> bool:
        """Note that the end of the attempt is requested. Returns whether it was not before."""
        if attempt.cancelled:
            return False
        attempt.cancelled, attempt.overdue, attempt.deadline_s = (
            why,
            overdue,
            now_s + CANCEL_GRACE_S,
        )
        return True

    def may_retry(self, trial: Trial, failure: Failure) -> bool:
        """Count a lost attempt, and return whether the trial gets another one. Call it once per
        loss."""
        lost = self._times_lost[trial.number] = self._times_lost.get(trial.number, 0) + (
            failure is not CUT_OFF
        )
        return lost <= MAX_LOST and trial.attempts < MAX_ATTEMPTS

    def late(self, now_s: float) -> list[Attempt]:
        """Live attempts whose deadline has passed."""
        return [a for a in self.live.values() if now_s >= a.deadline_s]

    def give_up(self, attempt: Attempt) -> None:
        """Give up an attempt; its ranks stay reserved."""
        self.lost[attempt.id] = self.live.pop(attempt.id)

    def gpu_s(self, now_s: float) -> float:
        """Rank-seconds of all attempts until `now_s`."""
        return self._gpu_s + sum(
            a.ranks * (now_s - a.since_s) for a in (*self.live.values(), *self.lost.values())
        )
