"""The replay of one study: controller by controller, up to the first decision that does not follow.

It runs in the release, on the machine and with the libraries of the study: choices of searchers are
made again.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, final

from autotune.cost import Calibration
from autotune.errors import AutotuneError
from autotune.ports import EventKind, HistoryEvent, Store, StudyRecord
from autotune.spec import StudyStatus, Trial, Wanted
from autotune.study.assembly import assemble_with, history_of
from autotune.study.beginning import Beginning
from autotune.study.controller import decide
from autotune.study.target_findings import TargetFindings
from tests.chaos.replay.chapter import Chapter
from tests.chaos.replay.facts import difference, shown
from tests.chaos.replay.found import Replayed, Unfollowed
from tests.chaos.replay.history import STATES, Decided, is_fact, steps
from tests.chaos.replay.known import Known


def replay_study(
    store: Store, record: StudyRecord, trials: Sequence[Trial], events: Sequence[HistoryEvent]
) -> Replayed:
    """Replays a study of the store. `record`, `trials` (all, by number), `events` (all): as of one
    moment. The store is only read: for what the study learnt from."""
    return _Run(store, record, trials, events).all()


@final
class _Run:
    """One pass through the history."""

    def __init__(
        self,
        store: Store,
        record: StudyRecord,
        trials: Sequence[Trial],
        events: Sequence[HistoryEvent],
    ):
        self._store, self._record, self._events = store, record, events
        self._known = Known(trials)
        self._chapter: Chapter | None = None
        self._decisions = self._followed = 0
        self._rested = 0
        """number of the line of the status that the last decision set"""
        self._stop_reason = ""
        """as the study keeps it"""

    def all(self) -> Replayed:
        """Replays all of it."""
        unfollowed = None
        for step in steps(self._events):
            try:
                unfollowed = self._take(step)
            except (AutotuneError, KeyError, TypeError, ValueError) as error:
                event = step.event if isinstance(step, Decided) else step.sequence
                unfollowed = Unfollowed(
                    event=event,
                    recorded="what cannot be read",
                    expected=f"no {type(error).__name__}: {error}",
                )
            if unfollowed is not None:
                break
        unfollowed = unfollowed or self._ending()
        if unfollowed is not None and self._is_timed(unfollowed):
            unfollowed = None
        total = sum(event.kind == "study.decided" for event in self._events)
        return Replayed(decisions=total, followed=self._followed, unfollowed=unfollowed)

    def _take(self, step: Decided | HistoryEvent) -> Unfollowed | None:
        if isinstance(step, HistoryEvent):
            return self._outside(step)
        if step.number != self._decisions + 1:
            return Unfollowed(
                event=step.event,
                recorded=f"decision {step.number}",
                expected=f"decision {self._decisions + 1}",
            )
        self._decisions += 1
        for line in step.lines:
            self._known.take(line)
        if beginnings := step.of(EventKind.CONTROLLER_BEGAN):
            return self._begin(beginnings[0])
        if self._chapter is None:
            return Unfollowed(
                event=step.event, recorded="a decision", expected="that its controller began"
            )
        before = self._chapter.end
        unfollowed = self._chapter.decide(step)
        self._known.wishes = {self._known.wanted}
        if unfollowed is None:
            self._followed += 1
            self._stop_reason = self._chapter.stop_reason
            if self._chapter.end is not before and step.then is not None:
                self._rested = step.then.sequence
        return unfollowed

    def _begin(self, line: HistoryEvent) -> Unfollowed | None:
        """A controller begins from what is kept."""
        losses = {int(tokens): tuple(losses) for tokens, losses in line.data["fp32_losses"].items()}
        begins = Beginning(**{**line.data, "fp32_losses": losses})
        if begins.stop_reason != self._stop_reason:
            said = f"a controller that begins with the stop reason {begins.stop_reason!r}"
            return Unfollowed(event=line.sequence, recorded=said, expected=repr(self._stop_reason))
        record = self._record
        constants = None if begins.constants is None else Calibration.from_dict(begins.constants)
        assembly = assemble_with(record.study, constants)
        searcher = assembly.searcher(
            history_of(record.study, self._store, before=record.created_at)
        )
        self._chapter = Chapter(record, begins, assembly, searcher, self._known)
        self._followed += 1
        return None

    def _outside(self, line: HistoryEvent) -> Unfollowed | None:
        """A line that belongs to no decision."""
        self._known.take(line)
        if line.kind == "study.claimed":
            self._chapter = None
        elif line.kind == "trial.adopted" and self._chapter is not None:
            self._chapter.adopt(line.data["number"], line.data["attempt"])
        elif line.kind in STATES and line.sequence != self._rested:
            return self._moved(line, STATES[line.kind])
        elif is_fact(line):
            return Unfollowed(
                event=line.sequence,
                recorded=f"{line.kind} outside of any decision",
                expected="none",
            )
        return None

    def _moved(self, line: HistoryEvent, status: StudyStatus) -> Unfollowed | None:
        """The status changed without a decision: by people while nobody ran the study, or because
        its controller fell."""
        asked = {
            StudyStatus.CANCELLED: (Wanted.CANCEL, Wanted.STOP),
            StudyStatus.COMPLETED: (Wanted.STOP,),
        }
        if (
            status.is_terminal
            and status is not StudyStatus.FAILED
            and self._known.wanted not in asked[status]
        ):
            return Unfollowed(
                event=line.sequence,
                recorded=f"the study is {status}",
                expected=f"no end: no decision ended it, and what people want is to {self._known.wanted}",
            )
        return None

    def _ending(self) -> Unfollowed | None:
        """Whether the study's record says what its last decision came to."""
        record, chapter = self._record, self._chapter
        if record.decisions != self._decisions:
            said = f"a study of {record.decisions} decisions"
            return Unfollowed(
                event=len(self._events) + 1, recorded=said, expected=f"{self._decisions}"
            )
        wanted: dict[str, Any]
        if (
            chapter is not None
            and chapter.end is not None
            and record.status in (chapter.end.status, StudyStatus.RUNNING)
        ):
            end = chapter.end
            infeasible = {"infeasible": dict(chapter.controller.infeasible)}
            wanted = {"baseline": end.baseline, "best": end.best, "speedup": end.speedup}
            wanted |= {"result": {**end.result, **infeasible, **TargetFindings(chapter.searcher)()}}
            wanted |= {"message": end.message} if end.status.is_terminal else {}
        elif record.status is StudyStatus.COMPLETED:
            winner = decide(self._known.final, record.study)  # people ended it while nobody ran it
            wanted = {
                "best": winner.best.number if winner.best else None,
                "speedup": winner.speedup,
            }
        else:
            return None
        names = [name for name in wanted if name != "result"]
        found: dict[str, Any] = {name: getattr(record, name) for name in names}
        found |= (
            {"result": {n: record.result.get(n) for n in wanted["result"]}}
            if "result" in wanted
            else {}
        )
        if (differs := difference(found, wanted)) is None:
            return None
        where, was, should = differs
        return Unfollowed(
            event=len(self._events) + 1,
            recorded=f"{where} {shown(was)} of the study",
            expected=shown(should),
        )

    def _is_timed(self, unfollowed: Unfollowed) -> bool:
        """Whether it hangs on how long attempts waited for ranks, which is not kept."""
        is_timed = self._record.study.budget.max_gpu_s is not None or "attempt.cancelled" in str(
            unfollowed
        )
        return bool(self._known.has_waited) and is_timed
