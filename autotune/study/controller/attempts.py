"""The attempts that hold ranks: since when, and which are overdue.

    capacity   ranks that may be in use at once
    live       attempts whose end is awaited
    lost       attempts whose end was never confirmed: they hold their ranks until the runner reports it

The runner keeps its own deadlines and reports what it ended. Those here are a backstop for a runner
that falls silent: after `DEADLINE_GRACE_S` beyond what a trial may take at most the attempt is
cancelled, and when that is not confirmed within `CANCEL_GRACE_S` it is given up on. Its ranks are
not handed out again before its end is reported: they may still be busy.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from autotune.ports import AttemptId
from autotune.spec import Failure, FailureKind, MeasureSpec, Trial, TrialStatus

DEADLINE_GRACE_S = 60.0
"""given to the runner beyond start and trial timeout, s"""
CANCEL_GRACE_S = 60.0
"""from asking for an end to giving up on it, s"""
MAX_LOST = 2
"""attempts of a trial that may be lost and tried again"""
MAX_ATTEMPTS = 10
"""launches of a trial in all, restarts of the controller included: a config that takes its machine
down must not do so for ever"""
CUT_OFF = Failure(
    kind=FailureKind.WORKER_LOST,
    message="the study's controller ended while this attempt was running",
)
"""of an attempt that nobody adopted; it does not count among those that may be lost"""
UNASKED = Failure(
    kind=FailureKind.WORKER_LOST, message="the runner ended the attempt without a request"
)
OVERDUE = "the attempt exceeded the trial timeout, and the runner did not stop it"
SILENT = "the runner never confirmed that the attempt had ended"


@dataclass(slots=True, kw_only=True)
class Attempt:
    """One launch whose end is awaited."""

    id: AttemptId
    ranks: int
    since_s: float
    deadline_s: float
    cancelled: str = ""
    """why its end was asked for, in words; empty while it may run"""
    overdue: bool = False
    """whether that was its deadline"""
    queued: bool = False
    """whether it waited for ranks that others use"""

    @property
    def number(self) -> int:
        """Trial number."""
        return self.id.trial

    def end_of(self, trial: Trial) -> Trial:
        """The trial made terminal by the end that was asked of this attempt."""
        if self.overdue:
            failure = Failure(kind=FailureKind.TIMEOUT, message=self.cancelled)
            return replace(trial, status=TrialStatus.FAILED, failure=failure)
        return replace(trial, status=TrialStatus.CANCELLED, reason=self.cancelled)


class Attempts:
    """Live and lost attempts, and the ranks that they hold."""

    def __init__(self, capacity: int, lost: Mapping[int, int]) -> None:
        """`lost`: attempts of each trial that were lost under earlier controllers of the study."""
        self.capacity = capacity
        self.live: dict[AttemptId, Attempt] = {}
        self.lost: dict[AttemptId, Attempt] = {}
        self._gpu_s = 0.0
        self._times_lost = dict(lost)

    @property
    def free(self) -> int:
        """Ranks that may be handed out."""
        return self.capacity - sum(a.ranks for a in (*self.live.values(), *self.lost.values()))

    def begin(self, attempt: AttemptId, ranks: int, now_s: float, measure: MeasureSpec) -> None:
        """Hands out ranks."""
        longest = measure.start_timeout_s + measure.trial_timeout_s + DEADLINE_GRACE_S
        self.live[attempt] = Attempt(
            id=attempt, ranks=ranks, since_s=now_s, deadline_s=now_s + longest
        )

    def queue(self, attempt: AttemptId, now_s: float) -> bool:
        """The runner has no ranks for it yet: what it may take begins now, and it has taken nothing
        so far. Whether that is news."""
        entry = self.live[attempt]
        if not entry.cancelled:
            entry.deadline_s += now_s - entry.since_s
        entry.since_s = now_s
        is_news, entry.queued = not entry.queued, True
        return is_news

    def end(self, attempt: AttemptId, now_s: float) -> Attempt | None:
        """Takes the ranks back; the attempt when its end was awaited, None when that comes too late
        or is unknown."""
        late = self.lost.pop(attempt, None)
        entry = self.live.pop(attempt, None)
        if (over := entry or late) is not None:
            self._gpu_s += over.ranks * (now_s - over.since_s)
        return entry

    def ask_end(self, attempt: Attempt, why: str, now_s: float, *, overdue: bool = False) -> bool:
        """Notes that the attempt is to end; whether that is new."""
        if attempt.cancelled:
            return False
        attempt.cancelled, attempt.overdue, attempt.deadline_s = (
            why,
            overdue,
            now_s + CANCEL_GRACE_S,
        )
        return True

    def may_retry(self, trial: Trial, failure: Failure) -> bool:
        """Whether the trial gets another attempt after this one was lost; to be asked once for each
        loss."""
        lost = self._times_lost[trial.number] = self._times_lost.get(trial.number, 0) + (
            failure is not CUT_OFF
        )
        return lost <= MAX_LOST and trial.attempts < MAX_ATTEMPTS

    def late(self, now_s: float) -> list[Attempt]:
        """Live attempts whose deadline has passed."""
        return [a for a in self.live.values() if now_s >= a.deadline_s]

    def give_up(self, attempt: Attempt) -> None:
        """No longer awaits the end; the ranks stay taken."""
        self.lost[attempt.id] = self.live.pop(attempt.id)

    def gpu_s(self, now_s: float) -> float:
        """Rank-seconds of all attempts, up to now."""
        return self._gpu_s + sum(
            a.ranks * (now_s - a.since_s) for a in (*self.live.values(), *self.lost.values())
        )
