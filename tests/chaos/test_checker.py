"""The checker finds planted violations: a clean history passes, and each test breaks one rule and
expects its sentence."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from autotune.spec import StudyStatus, TrialPurpose, TrialStatus
from tests.chaos.arena import undisturbed
from tests.chaos.checker import Journal, Line, Seen, outcome, study_outcome, violations
from tests.chaos.schedule import study_spec
from tests.shortcuts import present

FIRST, SECOND = "host:1:1", "host:2:2"


@pytest.fixture(scope="module")
def truth() -> Seen:
    return undisturbed(study_spec(searcher="grid", seed=1))


def journal_of(seen: Seen, owner: str, numbers: range) -> Journal:
    """What a controller writes down that had these trials."""
    lines = []
    for trial in (seen.trials[n] for n in numbers):
        lines.append(
            Line(kind="asked", number=trial.number, said=f"{trial.purpose} {trial.config}")
        )
        lines += [
            Line(kind="started", number=trial.number, attempt=a + 1) for a in range(trial.attempts)
        ]
        lines.append(Line(kind="ended", number=trial.number, said=outcome(trial)))
    return Journal(owner=owner, lines=tuple(lines))


def taken_over(truth: Seen, at: int = 5) -> Seen:
    """The same study with a second controller from that trial on."""
    events: list[Any] = []
    for event in truth.events:
        if event.kind == "study.claimed":
            event = replace(event, data={"owner": FIRST, "fence": 1})
        if event.kind == "trial.asked" and event.data["number"] == at:
            events.append(replace(event, kind="study.claimed", data={"owner": SECOND, "fence": 2}))
        events.append(event)
    journals = (
        journal_of(truth, FIRST, range(at)),
        journal_of(truth, SECOND, range(at, len(truth.trials))),
    )
    return replace(truth, events=renumbered(events), journals=journals)


def renumbered(events: list[Any]) -> list[Any]:
    return [replace(event, sequence=n) for n, event in enumerate(events, 1)]


def with_trial(seen: Seen, number: int, **changes: Any) -> Seen:
    trials = list(seen.trials)
    trials[number] = replace(trials[number], **changes)
    return replace(seen, trials=trials)


def without_event(seen: Seen, kind: str, number: int) -> Seen:
    return replace(
        seen,
        events=renumbered(
            [e for e in seen.events if (e.kind, e.data.get("number")) != (kind, number)]
        ),
    )


def with_line(seen: Seen, line: Line, journal: int = 0) -> Seen:
    journals = list(seen.journals)
    journals[journal] = replace(journals[journal], lines=(*journals[journal].lines, line))
    return replace(seen, journals=journals)


def test_a_study_that_was_taken_over_passes(truth: Seen) -> None:
    assert violations(taken_over(truth), truth) == []


def test_the_undisturbed_study_has_something_of_everything(truth: Seen) -> None:
    assert truth.record.status is StudyStatus.COMPLETED
    assert {t.status for t in truth.trials} >= {TrialStatus.COMPLETED, TrialStatus.FAILED}
    assert max(t.attempts for t in truth.trials) == 2
    assert any(e.kind == "trial.late" for e in truth.events), "some report came twice"


def test_a_real_trial_that_came_to_no_measurement_is_found(truth: Seen) -> None:
    assert [said.split(" came to ")[0] for said in violations(truth, None)] == ["trial 4"]


def test_a_real_trial_that_was_cut_off_by_more_than_a_lost_worker_is_found(truth: Seen) -> None:
    events = [
        replace(e, data={**e.data, "failure": {"kind": "ERROR"}})
        if e.kind == "attempt.ended"
        else e
        for e in truth.events
    ]
    assert "attempt 1 of trial 2 was cut off by {'kind': 'ERROR'}" in violations(
        replace(truth, events=events), None
    )


def measured_twice(seen: Seen) -> Seen:
    measurement = present(seen.trials[1].measurement)
    return with_trial(
        seen, 1, measurement=replace(measurement, step_times_s=measurement.step_times_s[:-1])
    )


def shuffled_steps(seen: Seen) -> Seen:
    return replace(
        seen,
        steps={
            **seen.steps,
            1: {**seen.steps[1], "step": [0, 0, *list(seen.steps[1]["step"])[2:]]},
        },
    )


def fewer_steps(seen: Seen) -> Seen:
    return replace(
        seen, steps={**seen.steps, 1: {name: list(s)[:-1] for name, s in seen.steps[1].items()}}
    )


def twice_asked(seen: Seen) -> Seen:
    first, second = [t.number for t in seen.trials if t.purpose is TrialPurpose.SEARCH][:2]
    return with_trial(seen, second, config=seen.trials[first].config)


def test_a_config_that_is_searched_again_because_the_machine_changed_is_no_fault(
    truth: Seen,
) -> None:
    twice = twice_asked(truth)
    first = next(t.number for t in twice.trials if t.purpose is TrialPurpose.SEARCH)
    changed = replace(truth.events[-1], kind="machine.changed", data={"again": [first]})
    for seen, times in ((twice, 1), (replace(twice, events=[*twice.events, changed]), 0)):
        assert sum("was searched 2 times" in said for said in violations(seen, None)) == times


PLANTED: dict[str, tuple[Callable[[Seen], Seen], str]] = {
    "a gap in the history": (
        lambda s: replace(s, events=[*s.events[:9], *s.events[10:]]),
        "event 10 is numbered 11",
    ),
    "a trial that is lost": (
        lambda s: replace(s, trials=s.trials[:-1]),
        "acknowledged as ended but is lost",
    ),
    "an end that is lost": (
        lambda s: without_event(s, "trial.ended", 3),
        "trial 3 was acknowledged as ended but is lost",
    ),
    "a start that is lost": (
        lambda s: without_event(s, "trial.started", 3),
        "trial 3 was acknowledged as started but is lost",
    ),
    "a measurement that changed": (measured_twice, "trial 1 was acknowledged as"),
    "a terminal state that changed": (
        lambda s: with_trial(s, 3, status=TrialStatus.CANCELLED),
        "ended as COMPLETED but is CANCELLED",
    ),
    "another end of the study": (
        lambda s: with_line(s, Line(kind="rested", said=study_outcome(replace(s.record, best=99)))),
        "the study was acknowledged as",
    ),
    "another winner": (lambda s: replace(s, record=replace(s.record, best=99)), "undisturbed to"),
    "another speedup": (
        lambda s: replace(s, record=replace(s.record, speedup=9.0)),
        "undisturbed to",
    ),
    "a study that did not end": (
        lambda s: replace(s, record=replace(s.record, status=StudyStatus.RUNNING)),
        "is RUNNING but ended 1 time",
    ),
    "a config that was searched twice": (twice_asked, "was searched 2 times"),
    "a trial that was accepted twice": (
        lambda s: with_line(s, Line(kind="ended", number=7, said=outcome(s.trials[7]))),
        "trial 7 was accepted 2 times",
    ),
    "two results of one trial": (
        lambda s: with_line(s, Line(kind="ended", number=7, said="another")),
        "trial 7 was accepted with 2 different results",
    ),
    "a write of a fenced controller": (
        lambda s: with_line(s, Line(kind="started", number=6, attempt=1)),
        f"{FIRST} was told that trial 6 started, but that was written in the term of {SECOND}",
    ),
    "a write ahead of one's turn": (
        lambda s: with_line(s, Line(kind="started", number=1, attempt=1), journal=1),
        f"{SECOND} was told that trial 1 started, but that was written in the term of {FIRST}",
    ),
    "a fence that did not grow": (
        lambda s: replace(
            s,
            events=[
                replace(e, data={"owner": SECOND, "fence": 1}) if e.data.get("fence") == 2 else e
                for e in s.events
            ],
        ),
        "fencing numbers must grow",
    ),
    "steps that are counted twice": (shuffled_steps, "the steps of trial 1 are not counted once"),
    "steps that are lost": (fewer_steps, "the steps of trial 1 are others than undisturbed"),
    "a controller that fell over": (
        lambda s: with_line(s, Line(kind="fell", said="KeyError")),
        "fell over: KeyError",
    ),
}


@pytest.mark.parametrize("name", PLANTED)
def test_what_is_planted_is_found(truth: Seen, name: str) -> None:
    plant, sentence = PLANTED[name]
    found = violations(plant(taken_over(truth)), truth)
    assert any(sentence in said for said in found), found
