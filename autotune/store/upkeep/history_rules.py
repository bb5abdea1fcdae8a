"""The rules of every study's history, which hold even if a process was killed while writing it.

1. Events are numbered from 1 without gaps, trials from 0.
2. A trial was added once. A terminal trial ended once, with its status; an open trial did not end.
3. Attempts of a trial do not overlap: each began after the previous one was closed, and none began
   after the trial's end. Only a running attempt was adopted.
4. A measured trial was started, and a failed trial has a failure.
5. Fencing numbers increase.
6. A study that has ended has no open trial, ended once, and did not change its status afterwards.
"""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Iterable, Sequence

from autotune.ports import EventKind, HistoryEvent, StudyRecord, status_kind
from autotune.spec import StudyStatus, Trial, TrialStatus, number_of

_ENDINGS = {status_kind(status) for status in StudyStatus if status.is_terminal}
_STATES = {status_kind(status) for status in StudyStatus}


def rule_violations(
    record: StudyRecord, trials: Sequence[Trial], events: Sequence[HistoryEvent]
) -> list[str]:
    """Return a message for each violated rule; empty if there are none. `trials` and `events`: all
    of the study's, in order."""
    return [f"study {record.id}: {fault}" for fault in _faults(record, trials, events)]


def _faults(
    record: StudyRecord, trials: Sequence[Trial], events: Sequence[HistoryEvent]
) -> Iterable[str]:
    """Yield the rule_violations of a study."""
    for index, event in enumerate(events, 1):
        if event.sequence != index:
            yield f"event {index} is numbered {event.sequence}"
            break
    for index, trial in enumerate(trials):
        if trial.number != index:
            yield f"trial {index} is numbered {trial.number}"
            break
    by_trial: dict[int, list[HistoryEvent]] = defaultdict(list)
    for event in events:
        if event.kind in (
            EventKind.TRIAL_ASKED,
            EventKind.TRIAL_STARTED,
            EventKind.TRIAL_ADOPTED,
            EventKind.ATTEMPT_ENDED,
            EventKind.TRIAL_ENDED,
        ):
            by_trial[event.data["number"]].append(event)
    for trial in trials:
        for fault in _trial_faults(trial, by_trial.pop(trial.number, [])):
            yield f"trial {trial.number} {fault}"
    for number in by_trial:
        yield f"trial {number} is in the history but not in the trials table"
    fences = [event.data["fence"] for event in events if event.kind == EventKind.CLAIMED]
    if any(later <= earlier for earlier, later in itertools.pairwise(fences)):
        yield f"fencing numbers must grow from lease to lease, but are {fences}"
    yield from _study_faults(record, trials, events)


def _trial_faults(trial: Trial, events: Sequence[HistoryEvent]) -> Iterable[str]:
    """Yield the rule_violations of a trial, given its events."""
    kinds = [event.kind for event in events]
    if kinds.count(EventKind.TRIAL_ASKED) != 1 or kinds[0] != EventKind.TRIAL_ASKED:
        yield f"must have exactly one trial.asked event, at the start, but has {kinds.count('trial.asked')}, and its history begins with {kinds[:1]}"
    ended = [event for event in events if event.kind == EventKind.TRIAL_ENDED]
    if len(ended) != (1 if trial.status.is_terminal else 0):
        yield f"is {trial.status} but ended {number_of(len(ended), 'time')}"
    elif ended and ended[0].data["status"] != trial.status:
        yield f"ended as {ended[0].data['status']} but is {trial.status}"
    started = [event.data["attempt"] for event in events if event.kind == EventKind.TRIAL_STARTED]
    if started != list(range(1, trial.attempts + 1)):
        yield f"has {number_of(trial.attempts, 'attempt')} but started {started}"
    is_open = False
    for kind in kinds:
        if kind == EventKind.TRIAL_STARTED:
            if is_open:
                yield "was started again while an attempt was running"
            is_open = True
        elif kind == EventKind.TRIAL_ADOPTED and not is_open:
            yield "was adopted while no attempt was running"
        elif kind == EventKind.ATTEMPT_ENDED:
            is_open = False
    if ended and kinds[-1] != EventKind.TRIAL_ENDED:
        yield f"has the event {kinds[-1]} after its end"
    if trial.status in (TrialStatus.COMPLETED, TrialStatus.STOPPED) and not (
        trial.attempts and trial.is_measured
    ):
        yield f"is {trial.status} with {number_of(trial.attempts, 'attempt')} and {'a' if trial.is_measured else 'no'} measurement"
    if trial.status is TrialStatus.FAILED and trial.failure is None:
        yield "is FAILED without a failure"


def _study_faults(
    record: StudyRecord, trials: Sequence[Trial], events: Sequence[HistoryEvent]
) -> Iterable[str]:
    """Yield the rule_violations of the study's status (rule 6)."""
    still_open = [trial.number for trial in trials if not trial.status.is_terminal]
    if record.status.is_terminal and still_open:
        yield f"is {record.status} but trials {still_open} are open"
    states = [event.kind for event in events if event.kind in _STATES]
    endings = [kind for kind in states if kind in _ENDINGS]
    if len(endings) != (1 if record.status.is_terminal else 0):
        yield f"is {record.status} but ended {number_of(len(endings), 'time')}"
    elif endings and states[-1] != endings[0]:
        yield f"has the event {states[-1]} after its end"
    if states and states[-1] != status_kind(record.status):
        yield f"is {record.status} but its history says {states[-1]}"
