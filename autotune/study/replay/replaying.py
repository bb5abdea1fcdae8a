"""The replay of one study: controller by controller, up to the first decision that does not follow.

Choices of a searcher are made again where everything that it was told is still there and its libraries are the same. Where that is not so, and something else comes
out, the study is replayed with the choices as they are recorded: then all else must follow.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, final

from autotune.errors import AutotuneError, StoreError
from autotune.ports import HistoryEvent, Replayed, Store, StudyRecord, Unfollowed
from autotune.search import Searcher
from autotune.spec import StudyStatus, Trial, Wanted
from autotune.study.assembly import Assembly
from autotune.study.beginning import BEGAN, Beginning
from autotune.study.controller import decide
from autotune.study.environment import RELEASE, differences, environment
from autotune.study.replay.chapter import Chapter
from autotune.study.replay.facts import difference, shown
from autotune.study.replay.history import STATES, Decided, is_fact, steps
from autotune.study.replay.inputs import Inputs
from autotune.study.replay.known import Known
from autotune.study.target_findings import TargetFindings


def replay_study(
    store: Store, record: StudyRecord, trials: Sequence[Trial], events: Sequence[HistoryEvent]
) -> Replayed:
    """Replays a study of the store. `record`, `trials` (all, by number), `events` (all): as of one moment. The store is only read: for what the study learnt from."""
    run = _Run(store, record, trials, events)
    found = run.all()
    if found.unfollowed is None or not run.foreign:
        return found
    why = f"they were made elsewhere ({run.foreign}), and here the first one that is another is event {found.unfollowed.event}"
    run = _Run(store, record, trials, events, recorded=why)
    found = run.all()
    if found.unfollowed is None or not run.is_other_release:
        return found
    rest = f"event {found.unfollowed.event} and what follows: {run.foreign}; {found.unfollowed}"
    return replace(found, unfollowed=None, not_checked=(*found.not_checked, rest))


@final
class _Run:
    """One pass through the history."""

    def __init__(
        self,
        store: Store,
        record: StudyRecord,
        trials: Sequence[Trial],
        events: Sequence[HistoryEvent],
        *,
        recorded: str = "",
    ) -> None:
        """`recorded`: why the searcher's choices are taken as they are recorded; empty where they are made again."""
        self._record, self._events, self._recorded = record, events, recorded
        self._inputs = Inputs(store, record)
        self._known = Known(trials)
        self._chapter: Chapter | None = None
        self._not_checked: dict[str, None] = {}
        """in words, each once"""
        self._is_blind = False
        """whether the present controller cannot be replayed"""
        self._decisions = self._followed = 0
        self._rested = 0
        """number of the line of the status that the last decision set"""
        self._stop_reason: str | None = ""
        """as the study keeps it; None: not known, after a controller that was not replayed"""
        self.foreign = ""
        """what the last controller had that is not here, in words: release, libraries, processor"""
        self.is_other_release = False
        """whether its release is another"""

    def all(self) -> Replayed:
        """Replays all of it."""
        unfollowed = None
        for step in steps(self._events):
            try:
                unfollowed = self._take(step)
            except (AutotuneError, KeyError, TypeError, ValueError) as error:
                event = step.event if isinstance(step, Decided) else step.sequence
                unfollowed = Unfollowed(
                    event=event, recorded="what cannot be read", expected=f"no {type(error).__name__}: {error}"
                )
            if unfollowed is not None:
                break
        unfollowed = unfollowed or self._ending()
        if unfollowed is not None and (excuse := self._excuse(unfollowed)):
            self._note(f"event {unfollowed.event} and what follows: {excuse}")
            unfollowed = None
        if self._known.num_late:
            self._note(f"{self._known.num_late} reports of controllers that had been replaced")
        total = sum(event.kind == "study.decided" for event in self._events)
        return Replayed(
            decisions=total, followed=self._followed, unfollowed=unfollowed, not_checked=tuple(self._not_checked)
        )

    def _take(self, step: Decided | HistoryEvent) -> Unfollowed | None:
        if isinstance(step, HistoryEvent):
            return self._outside(step)
        if step.number != self._decisions + 1:
            return Unfollowed(
                event=step.event, recorded=f"decision {step.number}", expected=f"decision {self._decisions + 1}"
            )
        self._decisions += 1
        for line in step.lines:
            self._known.take(line)
        if beginnings := step.of(BEGAN):
            return self._begin(beginnings[0])
        if self._chapter is None:
            self._pass_over()
            return None
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
        begins = Beginning.from_dict(line.data)
        self.foreign = differences(begins.environment, environment())
        self.is_other_release = begins.environment.get(RELEASE) != environment()[RELEASE]
        if self._stop_reason is not None and begins.stop_reason != self._stop_reason:
            said = f"a controller that begins with the stop reason {begins.stop_reason!r}"
            return Unfollowed(event=line.sequence, recorded=said, expected=repr(self._stop_reason))
        try:
            self._chapter = Chapter(self._record, begins, *self._means(begins), self._known)
        except AutotuneError as error:
            self._chapter, self._stop_reason, self._is_blind = None, None, True
            self._note(f"decisions of controllers: {error.message}")
        else:
            self._followed += 1
        return None

    def _means(self, begins: Beginning) -> tuple[Assembly, Searcher]:
        """What the controller decides with. Raises `CatalogError` and others where that is not here."""
        assembly = self._inputs.assembly(begins)
        searcher = self._recorded or self._inputs.searcher(begins, assembly)
        if not isinstance(searcher, str):
            return assembly, searcher
        if self._record.study.at_hand is not None:
            raise StoreError(f"the choices of its proxies cannot be made again: {searcher}")
        self._note(f"choices of the searcher {self._record.study.searcher}, taken as they are recorded: {searcher}")
        return assembly, self._inputs.recorded(assembly)

    def _outside(self, line: HistoryEvent) -> Unfollowed | None:
        """A line that belongs to no decision."""
        self._known.take(line)
        if line.kind == "study.claimed":
            self._chapter, self._is_blind = None, False
        elif line.kind == "trial.adopted" and self._chapter is not None:
            self._chapter.adopt(line.data["number"], line.data["attempt"])
        elif line.kind in STATES and line.sequence != self._rested:
            return self._moved(line, STATES[line.kind])
        elif is_fact(line):
            if self._chapter is not None:
                return Unfollowed(event=line.sequence, recorded=f"{line.kind} outside of any decision", expected="none")
            self._pass_over()
        return None

    def _pass_over(self) -> None:
        """A controller that cannot be replayed decides."""
        if not self._is_blind:
            self._note("decisions of releases that did not keep what their controllers began with")
        self._is_blind, self._stop_reason = True, None

    def _moved(self, line: HistoryEvent, status: StudyStatus) -> Unfollowed | None:
        """The status changed without a decision: by people while nobody ran the study, or because its controller fell."""
        asked = {StudyStatus.CANCELLED: (Wanted.CANCEL, Wanted.STOP), StudyStatus.COMPLETED: (Wanted.STOP,)}
        if self._is_blind:
            return None
        if status is StudyStatus.FAILED:
            self._note("that it is FAILED: an error outside of its decisions ended it")
        elif status.is_terminal and self._known.wanted not in asked[status]:
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
            return Unfollowed(event=len(self._events) + 1, recorded=said, expected=f"{self._decisions}")
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
        elif record.status is StudyStatus.COMPLETED and not self._is_blind:
            winner = decide(self._known.final, record.study)  # people ended it while nobody ran it
            wanted = {"best": winner.best.number if winner.best else None, "speedup": winner.speedup}
        else:
            return None
        names = [name for name in wanted if name != "result"]
        found: dict[str, Any] = {name: getattr(record, name) for name in names}
        found |= {"result": {n: record.result.get(n) for n in wanted["result"]}} if "result" in wanted else {}
        if (differs := difference(found, wanted)) is None:
            return None
        where, was, should = differs
        return Unfollowed(
            event=len(self._events) + 1, recorded=f"{where} {shown(was)} of the study", expected=shown(should)
        )

    def _excuse(self, unfollowed: Unfollowed) -> str:
        """Why something that does not follow proves nothing, in words; empty where it does."""
        if not self._known.has_waited:
            return ""
        is_timed = self._record.study.budget.max_gpu_s is not None or "attempt.cancelled" in str(unfollowed)
        return "attempts waited for ranks, and for how long is not kept" if is_timed else ""

    def _note(self, text: str) -> None:
        self._not_checked[text] = None
