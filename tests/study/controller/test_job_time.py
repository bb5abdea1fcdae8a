"""The end of the study's job: a winner is named before, or the study rests in time; no trial begins
that cannot end."""

from __future__ import annotations

import pytest

from autotune.spec import MeasureSpec, StudyStatus, TrialPurpose
from autotune.study.controller import TIME_IS_OVER, StudyPhase
from tests.study.controller.world import World, begun, study

SETUP_S = 9.5
"""with five steps of 0.1 s a trial takes 10 s"""


def world(*, goes_on: bool = False) -> World:
    """A study whose first four trials have been measured, in a job without an end so far."""
    found = begun(
        study(max_trials=16, min_gain=0.0, measure=MeasureSpec(finalists=1, final_rounds=1)),
        goes_on=goes_on,
    )
    for _ in range(4):
        found.finish(found.only, setup_s=SETUP_S)
        found.tick()
    return found


def test_the_last_part_is_kept_for_the_finals() -> None:
    job = world()
    job.left_s = 25.0
    job.tick(0.1)
    job.finish(job.only, setup_s=SETUP_S)
    assert job.controller.phase is StudyPhase.FINALS
    assert "this job has 25 s left" in job.controller.stop_reason
    job.left_s = 18.0
    while job.running:
        job.finish(job.only, setup_s=SETUP_S)
    assert job.end.status is StudyStatus.COMPLETED


def test_finals_that_take_as_long_as_the_longest_trial_have_their_time() -> None:
    job = world()
    job.tick(30.0)
    job.finish(job.only, setup_s=SETUP_S)  # it waited for its nodes, or ran beside others
    job.left_s = 80.0
    job.tick(0.1)
    job.finish(job.only, setup_s=SETUP_S)
    assert job.controller.phase is StudyPhase.FINALS, "three trials of 10 s, but one has taken 30 s"


def test_with_time_for_more_the_search_goes_on() -> None:
    job = world()
    job.left_s = 500.0
    job.tick(0.1)
    job.finish(job.only, setup_s=SETUP_S)
    assert job.controller.phase is StudyPhase.SEARCH
    assert job.running


def test_a_study_whose_job_begins_again_keeps_nothing_for_finals_and_rests_in_time() -> None:
    job = world(goes_on=True)
    job.left_s = 25.0
    job.tick(0.1)
    job.finish(job.only, setup_s=SETUP_S)
    assert job.controller.phase is StudyPhase.SEARCH
    job.left_s = 9.0
    job.tick(0.1)
    assert job.running, "what runs may end"
    job.finish(job.only, setup_s=SETUP_S)
    assert (job.end.status, job.end.message) == (StudyStatus.PAUSED, TIME_IS_OVER)
    assert not job.running
    job.left_s = None
    job.resume()
    assert job.running, "the next job goes on"


def test_at_the_end_what_runs_is_ended_and_the_study_rests() -> None:
    job = world()
    number = job.only
    job.left_s = -1.0
    job.tick(0.1)
    assert job.cancelled
    job.cancel_confirmed(number)
    assert (job.end.status, job.end.message) == (StudyStatus.PAUSED, TIME_IS_OVER)


@pytest.mark.parametrize("left_s", [None, 1e9])
def test_a_long_job_changes_nothing(left_s: float | None) -> None:
    job = World(study(max_trials=3, min_gain=0.0))
    job.left_s = left_s
    assert job.run().status is StudyStatus.COMPLETED
    purposes = [trial.purpose for trial in job.trials.values()]
    assert purposes.count(TrialPurpose.SEARCH) == 3


@pytest.mark.parametrize(
    ("finals", "status"), [(1, StudyStatus.PAUSED), (12, StudyStatus.COMPLETED)]
)
def test_further_rounds_that_a_tie_asks_for_are_left_out_in_time_but_not_the_first(
    finals: int, status: StudyStatus
) -> None:
    job = begun(study(max_trials=2, min_gain=0.0, measure=MeasureSpec(finalists=2, final_rounds=2)))
    while not job.ends:
        measured = [
            t for t in job.trials.values() if t.purpose is TrialPurpose.FINAL and t.is_measured
        ]
        job.left_s = 5.0 if len(measured) >= finals - 1 else 1e6
        job.tick()
        job.finish(job.only, setup_s=SETUP_S)
    assert job.end.status is status


def test_time_for_all_that_are_tied_is_kept() -> None:
    job = world()
    left_s = 95.0
    while not job.ends:
        job.left_s = left_s
        job.tick(0.1)
        if job.running:
            job.finish(job.only, setup_s=SETUP_S)
        left_s -= 10.0
    assert job.end.status is StudyStatus.COMPLETED
    finals = [t for t in job.trials.values() if t.purpose is TrialPurpose.FINAL and t.is_measured]
    assert len(finals) > 2, "more than one finalist and the baseline race"
    assert job.end.result["final_rounds"] == 1
    assert not any("one measurement each" in note for note in job.end.result["notes"])
