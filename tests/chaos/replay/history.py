"""The lines of a history as the steps of its controllers."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from autotune.ports import EventKind, HistoryEvent
from autotune.spec import StudyStatus, TrialStatus

FACTS = frozenset(
    {
        "trial.asked",
        "trial.started",
        "trial.ended",
        "trial.late",
        "attempt.ended",
        "attempt.queued",
        "attempt.cancelled",
        "machine.changed",
        EventKind.CONTROLLER_BEGAN,
    }
)
"""kinds of lines that belong to a decision"""
STATES = {f"study.{status.lower()}": status for status in StudyStatus}
"""the status that a line of this kind sets"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Decided:
    """A decision that was kept."""

    event: int
    """number of its first line"""
    number: int
    """its own"""
    cause: Mapping[str, Any]
    """the event that caused it"""
    lines: tuple[HistoryEvent, ...]
    """its facts"""
    then: HistoryEvent | None
    """the line of the study's status that follows, if any; it may belong to the decision"""

    @property
    def elapsed_s(self) -> float:
        """Running time of the study then, s."""
        return float(self.cause["elapsed_s"])

    def of(self, kind: str) -> list[HistoryEvent]:
        """Its lines of that kind."""
        return [line for line in self.lines if line.kind == kind]


Step = Decided | HistoryEvent
"""a decision, or a line outside of any"""


def steps(events: Sequence[HistoryEvent]) -> Iterator[Step]:
    """The history in its order."""
    at = 0
    while at < len(events):
        line = events[at]
        at += 1
        if line.kind != "study.decided":
            yield line
            continue
        first = at
        while at < len(events) and is_fact(events[at]):
            at += 1
        then = events[at] if at < len(events) and events[at].kind in STATES else None
        yield Decided(
            event=line.sequence,
            number=int(line.data["decision"]),
            cause=line.data["cause"],
            lines=tuple(events[first:at]),
            then=then,
        )


def is_fact(line: HistoryEvent) -> bool:
    """Whether the line belongs to a decision: not what a fenced controller reported, nor what ends
    with the study."""
    if line.kind == "trial.ended":
        return line.data["status"] != TrialStatus.CANCELLED or "reason" not in line.data
    return line.kind in FACTS and line.data.get("why") != "the lease was taken over"
