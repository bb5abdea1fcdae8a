"""Checks a disturbed study: a pure function from observations to a list of violations, each a
sentence.

    journal     what one controller was told after its writes were acknowledged, in order; written outside the database
    term        the part of the history from one claim to the next: whoever claimed, and nobody else, may have written there
    outcome     what a trial came to, without the times at which it happened

1. The rules of `autotune.store.upkeep.history_rules`: no gaps, one end for each trial that nothing follows, fencing numbers that grow.
2. Nothing acknowledged is lost: every line of a journal is in the history, and the trial is still as it was acknowledged.
3. Nobody wrote out of turn: each acknowledged line stands in a term of the controller that wrote it. Only the end of a lost attempt may have
   been written before: whoever wrote it was killed before it began the next one, and its successor asks again.
4. Nothing ran twice as accepted: no config was searched twice, no trial ended in two ways, no step was counted twice.
5. The study came to the same end as the undisturbed run: the same trials in the same order with the same measurements, the same winner and speedup.
   Real trials, which never take the same time twice: each was measured, and what was cut off before was a lost worker.
6. No controller fell over: it ended its study, was fenced, was killed, or gave up on a database that stayed away.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from zlib import crc32

from autotune.ports import HistoryEvent, StudyRecord
from autotune.spec import FailureKind, Trial, TrialPurpose
from autotune.store.upkeep.history_rules import rule_violations


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """One acknowledged fact."""

    kind: str
    """asked, started, retried, ended, rested; waits: for the database; or fell: the controller met
    an error that nobody foresaw"""
    number: int = -1
    attempt: int = 0
    said: str = ""
    """config and purpose of what was asked, outcome of what ended, end of the study, or the
    error"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Journal:
    """What one controller process wrote down."""

    owner: str
    """its name on leases"""
    lines: tuple[Line, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """A study as it was found, with everything that its controllers had been told."""

    record: StudyRecord
    trials: Sequence[Trial]
    events: Sequence[HistoryEvent]
    steps: Mapping[int, Mapping[str, Sequence[float]]]
    """by trial number: the series of its last attempt"""
    journals: Sequence[Journal] = ()


IN_HISTORY = {
    "asked": "trial.asked",
    "started": "trial.started",
    "retried": "attempt.ended",
    "ended": "trial.ended",
}


def outcome(trial: Trial) -> str:
    """What a trial came to."""
    measurement, failure = trial.measurement, trial.failure
    what = f"{trial.purpose} {trial.config} {trial.status}"
    if measurement is not None:
        series = (
            measurement.step_times_s,
            measurement.losses,
            measurement.grad_norms,
            measurement.peak_memory_bytes,
        )
        return f"{what} {measurement.step_time_s!r} s in {len(series[0])} steps, checksum {crc32(repr(series).encode())}"
    return f"{what} {failure.kind}" if failure else what


def study_outcome(record: StudyRecord) -> str:
    """What a study came to."""
    named = {
        name: record.result.get(name) for name in ("stop_reason", "final_rounds", "finals", "notes")
    }
    winner = f"best {record.best}, baseline {record.baseline}, speedup {record.speedup!r}"
    return f"{record.status}, {winner}, checksum {crc32(repr(sorted(named.items())).encode())}"


def violations(seen: Seen, undisturbed: Seen | None) -> list[str]:
    """Everything that is wrong, in sentences; nothing when all laws hold. `undisturbed` None: real
    trials."""
    return [
        *rule_violations(seen.record, seen.trials, seen.events),
        *_lost(seen),
        *_out_of_turn(seen),
        *_twice(seen),
        *(_different(seen, undisturbed) if undisturbed else _hurt(seen)),
        *(
            f"{j.owner} fell over: {line.said}"
            for j in seen.journals
            for line in j.lines
            if line.kind == "fell"
        ),
    ]


def _lost(seen: Seen) -> Iterator[str]:
    kept = {trial.number: trial for trial in seen.trials}
    written = {_mark(event) for event in seen.events}
    for journal in seen.journals:
        for line in journal.lines:
            trial = kept.get(line.number)
            if line.kind in IN_HISTORY and (trial is None or _place(line) not in written):
                yield f"trial {line.number} was acknowledged as {line.kind} but is lost"
            elif (
                trial is not None
                and line.kind == "asked"
                and line.said != f"{trial.purpose} {trial.config}"
            ):
                yield f"trial {line.number} was asked as {line.said} but is {trial.purpose} {trial.config}"
            elif trial is not None and line.kind == "ended" and line.said != outcome(trial):
                yield f"trial {line.number} was acknowledged as {line.said} but is {outcome(trial)}"
            elif line.kind == "rested" and line.said != study_outcome(seen.record):
                yield f"the study was acknowledged as {line.said} but is {study_outcome(seen.record)}"


def _out_of_turn(seen: Seen) -> Iterator[str]:
    writer, writers = "", defaultdict[tuple[str, int, int], set[str]](set)
    for event in seen.events:
        if event.kind == "study.claimed":
            writer = str(event.data["owner"])
        elif event.kind == "study.released":
            writer = ""
        elif event.kind == "trial.adopted":  # a start that is told again, to another
            writers["trial.started", event.data["number"], event.data["attempt"]].add(writer)
        else:
            writers[_mark(event)].add(writer)
    for journal in seen.journals:
        for line in journal.lines:
            by = writers.get(_place(line), {journal.owner})
            if line.kind in IN_HISTORY and line.kind != "retried" and journal.owner not in by:
                names = " and ".join(name or "nobody" for name in sorted(by))
                yield f"{journal.owner} was told that trial {line.number} {line.kind}, but that was written in the term of {names}"


def _twice(seen: Seen) -> Iterator[str]:
    searched = Counter(str(t.config) for t in seen.trials if t.purpose is TrialPurpose.SEARCH)
    changes = (event.data["again"] for event in seen.events if event.kind == "machine.changed")
    unfair = Counter(str(seen.trials[number].config) for numbers in changes for number in numbers)
    for config, times in searched.items():
        if times > 1 + unfair[config]:  # the machine had changed: real ones do
            yield f"{config} was searched {times} times"
    accepted = Counter(
        (line.number, line.said) for j in seen.journals for line in j.lines if line.kind == "ended"
    )
    for number, endings in Counter(number for number, _ in accepted).items():
        if endings > 1:
            yield f"trial {number} was accepted with {endings} different results"
    for (number, _), times in accepted.items():
        if times > 1:
            yield f"trial {number} was accepted {times} times"
    for number, series in seen.steps.items():
        if list(series.get("step", [])) != list(range(len(series.get("step", [])))):
            yield f"the steps of trial {number} are not counted once each from 0: {series['step']}"


def _different(seen: Seen, undisturbed: Seen) -> Iterator[str]:
    if study_outcome(seen.record) != study_outcome(undisturbed.record):
        yield f"the study came to {study_outcome(seen.record)}, undisturbed to {study_outcome(undisturbed.record)}"
    if len(seen.trials) != len(undisturbed.trials):
        yield f"there are {len(seen.trials)} trials, undisturbed {len(undisturbed.trials)}"
    for found, expected in zip(seen.trials, undisturbed.trials, strict=False):
        if outcome(found) != outcome(expected):
            yield f"trial {found.number} came to {outcome(found)}, undisturbed to {outcome(expected)}"
        elif found.is_measured and seen.steps.get(found.number) != undisturbed.steps.get(
            found.number
        ):
            yield f"the steps of trial {found.number} are others than undisturbed"


def _hurt(seen: Seen) -> Iterator[str]:
    for event in seen.events:
        if (
            event.kind == "attempt.ended"
            and event.data["failure"]["kind"] != FailureKind.WORKER_LOST
        ):
            yield f"attempt {event.data['attempt']} of trial {event.data['number']} was cut off by {event.data['failure']}"
    for trial in seen.trials:
        if not trial.is_measured:
            yield f"trial {trial.number} came to {outcome(trial)}, though no more than workers were lost"


def _mark(event: HistoryEvent) -> tuple[str, int, int]:
    number, attempt = event.data.get("number", -1), event.data.get("attempt", 0)
    return (event.kind, number, attempt if event.kind in ("trial.started", "attempt.ended") else 0)


def _place(line: Line) -> tuple[str, int, int]:
    return (IN_HISTORY.get(line.kind, ""), line.number, line.attempt)


def terms(events: Iterable[HistoryEvent]) -> int:
    """How many controllers had the study, one after the other."""
    return sum(event.kind == "study.claimed" for event in events)
