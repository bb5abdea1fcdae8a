"""Decisions as plain values, as they were kept and as they are expected; what differs, in words.

Numbers are the same when they agree to nine digits: sums of floating-point numbers may differ in
the last ones.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from autotune.ports import (
    AttemptEnded,
    CloseAttempt,
    EndTrial,
    HistoryEvent,
    KeepTrial,
    StartAttempt,
)
from autotune.spec import Trial, TrialStatus
from autotune.spec.plain import finite
from autotune.study.controller import (
    CancelAttempt,
    Command,
    KeepLate,
    NoteMachineChange,
    NoteQueued,
)
from tests.chaos.replay.known import Known

SAME = 1e-9
"""relative difference of numbers that are the same"""

Fact = dict[str, Any]
"""`kind` as in the history, with all that is compared"""


def kept(line: HistoryEvent, known: Known) -> Fact:
    """A line of a decision, with what the tables hold of its trial."""
    data = {name: value for name, value in line.data.items() if name not in _UNCOMPARED}
    fact = {"kind": line.kind, **data}
    if line.kind == "trial.asked":
        return fact | {"kept": _as_asked(known.trial(data["number"]))}
    if line.kind == "trial.ended":
        return fact | {"kept": _as_ended(known.trial(data["number"]), known)}
    if line.kind == "trial.late":
        return {"kind": line.kind, "number": data["number"]}
    return fact


def expected(
    command: Command, known: Known, num_gpus: int, is_late: Callable[[AttemptEnded], bool]
) -> Fact | None:
    """The same of a command of the controller; None where nothing of it is kept in a line.
    `is_late`: whether such a report is kept."""
    match command:
        case KeepTrial(trial=trial):
            asked = {
                "number": trial.number,
                "config": str(trial.config),
                "purpose": str(trial.purpose),
            }
            stands_for = {"stands_for": str(trial.stands_for.config)} if trial.stands_for else {}
            return {
                "kind": "trial.asked",
                **asked,
                "reason": trial.reason,
                **stands_for,
                "kept": _as_asked(trial),
            }
        case StartAttempt(request=request):
            return {"kind": "trial.started", "number": request.number, "attempt": request.attempt}
        case CloseAttempt(number=number, attempt=attempt, failure=failure):
            return {
                "kind": "attempt.ended",
                "number": number,
                "attempt": attempt,
                "failure": failure.to_dict(),
            }
        case EndTrial(trial=trial):
            return _ending(trial, known, num_gpus)
        case KeepLate(event=event) if is_late(event):
            return {"kind": "trial.late", "number": event.id[1]}
        case NoteMachineChange(again=again):
            return {"kind": "machine.changed", "again": list(again)}
        case NoteQueued(number=number, reason=reason):
            return {"kind": "attempt.queued", "number": number, "reason": reason}
        case CancelAttempt(id=(_, number, attempt), reason=reason):
            return {
                "kind": "attempt.cancelled",
                "number": number,
                "attempt": attempt,
                "reason": reason,
            }
    return None


_UNCOMPARED = ("message", "attempts")
"""of lines: the words about a change of the machine, which name times of day; the attempts of an
end, which the table of trials holds"""


def _ending(trial: Trial, known: Known, num_gpus: int) -> Fact:
    fact: Fact = {"kind": "trial.ended", "number": trial.number, "status": str(trial.status)}
    if trial.is_measured and trial.measurement is not None and trial.stands_for is None:
        speed = finite(trial.measurement.tokens_per_s / num_gpus)
        if speed:
            whole = trial.measurement.tokens_per_s
            fact |= {"tokens_per_s_per_gpu": speed, "tokens_per_s": whole}
    if trial.status is TrialStatus.STOPPED and trial.reason:
        fact["reason"] = trial.reason
    if trial.failure is not None:
        fact["failure"] = {"kind": str(trial.failure.kind), "message": trial.failure.message}
    if trial.reward is not None:
        fact["reward"] = trial.reward.total
    return fact | {"kept": _as_ended(trial, known)}


def _as_asked(trial: Trial) -> dict[str, Any]:
    values = trial.to_dict()
    return {name: values[name] for name in ("config", "seed", "purpose", "estimate", "stands_for")}


def _as_ended(trial: Trial, known: Known) -> dict[str, Any]:
    values = trial.to_dict()
    found = {
        name: values[name]
        for name in ("status", "attempts", "measurement", "reward", "failure", "config")
    }
    return {**found, "reason": trial.reason or known.reason_of(trial.number)}


def difference(recorded: Any, expected: Any, where: str = "") -> tuple[str, Any, Any] | None:
    """The first value that differs: its name, and both; None when there is none."""
    if isinstance(recorded, Mapping) and isinstance(expected, Mapping):
        for name in [*recorded, *(n for n in expected if n not in recorded)]:
            found = difference(
                recorded.get(name), expected.get(name), f"{where}.{name}" if where else str(name)
            )
            if found is not None:
                return found
        return None
    if (
        isinstance(recorded, list | tuple)
        and isinstance(expected, list | tuple)
        and len(recorded) == len(expected)
    ):
        pairs = zip(recorded, expected, strict=True)
        differ = (
            difference(ours, theirs, f"{where}[{i}]") for i, (ours, theirs) in enumerate(pairs)
        )
        return next((found for found in differ if found is not None), None)
    return None if _same(recorded, expected) else (where, recorded, expected)


def _same(recorded: Any, expected: Any) -> bool:
    recorded, expected = finite(recorded), finite(expected)
    if isinstance(recorded, float) or isinstance(expected, float):
        if (
            recorded is None
            or expected is None
            or isinstance(recorded, str)
            or isinstance(expected, str)
        ):
            return False
        return math.isclose(recorded, expected, rel_tol=SAME, abs_tol=SAME)
    return bool(recorded == expected)


def differ_in_words(recorded: Sequence[Fact], wanted: Sequence[Fact]) -> tuple[str, str] | None:
    """What is recorded and what is expected of the first fact that differs; None when all are the
    same."""
    for at in range(max(len(recorded), len(wanted))):
        ours = recorded[at] if at < len(recorded) else None
        theirs = wanted[at] if at < len(wanted) else None
        if ours is None or theirs is None or _subject(ours) != _subject(theirs):
            return _in_words(ours), _in_words(theirs)
        if (found := difference(ours, theirs)) is not None:
            where, was, should = found
            what = f"{_subject(ours)}: {where.removeprefix('kept.')} "
            return what + shown(was), what + shown(should)
    return None


def _subject(fact: Fact) -> str:
    of = f"trial {fact['number']}" if "number" in fact else "the study"
    return f"{fact['kind']} of {of}" + (f", attempt {fact['attempt']}" if "attempt" in fact else "")


def _in_words(fact: Fact | None) -> str:
    if fact is None:
        return "nothing more"
    said = ", ".join(str(fact[name]) for name in ("config", "status", "reason") if fact.get(name))
    return f"{_subject(fact)}{f' ({said})' if said else ''}"


def shown(value: Any) -> str:
    """A value, cut where it is long."""
    text = f"{value:.9g}" if isinstance(value, float) else str(value)
    return text if len(text) <= LONGEST else f"{text[:LONGEST]}..."


LONGEST = 120
"""characters of a value that are shown"""
