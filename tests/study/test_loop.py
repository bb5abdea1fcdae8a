from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from autotune.errors import ConflictError, RunnerError, StoreUnavailableError
from autotune.ports import (
    AttemptEnded,
    AttemptId,
    AttemptQueued,
    AttemptStarted,
    NodePlace,
    ProgramSeen,
    RunnerEvent,
    StepsReported,
    Store,
    StudyRecord,
    TrialRequest,
)
from autotune.report.notes import placement_lines
from autotune.results.answers import result_of, study_document
from autotune.search.grid import GridSearcher
from autotune.search.searcher import Problem
from autotune.service.pages.trial_page import events_of_trial
from autotune.space import SearchSpace
from autotune.spec import Failure, FailureKind, StudyStatus, TrialPurpose, TrialStatus, Wanted
from autotune.study.controller import Controller
from autotune.study.lease import StudyLease
from autotune.study.loop import CHECKPOINT_S, Loop
from autotune.study.progress import (
    BestChanged,
    LoopEvent,
    Notice,
    PhaseEntered,
    StudyRested,
    TrialAsked,
    TrialEnded,
    TrialStepped,
)
from tests.benchmarks.drift import prediction
from tests.study.controller.world import BASELINE, CAPACITY, CONFIGS, measured, study

LONG_S = 60.0


class InstantRunner:
    """Measures everything at once; `trouble` may get in the way of each start."""

    trainers: Sequence[str] = ("native",)
    capacity = CAPACITY

    def __init__(
        self, trouble: Any = lambda request: None, slowness: Any = lambda number: 1.0
    ) -> None:
        self.trouble, self.slowness = trouble, slowness
        self.events: list[RunnerEvent] = []
        self.started: list[TrialRequest] = []

    def start(self, request: TrialRequest) -> None:
        self.trouble(request)
        self.started.append(request)
        steps = StepsReported(
            id=request.id,
            first_step=0,
            step_times_s=(0.1,) * 5,
            losses=(1.0,) * 5,
            grad_norms=(1.0,) * 5,
        )
        speed = (0.05 if request.config == CONFIGS[3] else 0.1) * self.slowness(request.number)
        end = AttemptEnded(id=request.id, measurement=measured(request.config, speed))
        self.events += [AttemptStarted(id=request.id), steps, end]

    def poll(self, timeout_s: float) -> list[RunnerEvent]:
        events, self.events = self.events, []
        return events

    def cancel(self, attempt: AttemptId) -> None:
        self.events = [AttemptEnded(id=attempt, cancelled=True)]

    def close(self) -> None:
        self.events = []


def loop_on(
    store: Any,
    lease: StudyLease,
    runner: InstantRunner,
    *,
    predict: Any = lambda _: None,
    **options: Any,
) -> Loop:
    asked = study(max_trials=5)
    space = SearchSpace.of(asked.workload, CONFIGS)
    controller = Controller(
        study_id=lease.study_id,
        study=asked,
        searcher=GridSearcher(Problem(space=space)),
        capacity=runner.capacity,
        baseline=BASELINE,
        predict=predict,
        past=lease.told_in_order(),
        gpu_s=lease.record().result.get("gpu_s"),
        stop_reason=str(lease.record().result.get("stop_reason", "")),
    )
    return Loop(controller, runner, lease, **options)


def begun(store: Store) -> str:
    return store.submit(study(max_trials=5), {}).id


def ran(store: Any, study_id: str, runner: InstantRunner, **options: Any) -> StudyRecord:
    """One controller runs the study, until it rests or the controller dies of an error."""
    with StudyLease.claim(store, study_id, lease_s=LONG_S) as lease:
        lease.move(StudyStatus.RUNNING)
        return loop_on(store, lease, runner, **options).run()


def test_everything_is_kept_and_told(store: Store) -> None:
    study_id, heard = begun(store), list[LoopEvent]()
    record = ran(store, study_id, InstantRunner(), on_event=heard.append)
    trials = store.trials(study_id)
    assert record.status is StudyStatus.COMPLETED
    assert record.speedup == pytest.approx(2.0)
    assert trials[record.best or 0].config == CONFIGS[3]
    assert len(trials) == 1 + 5 + 6
    assert store.steps(study_id, 3)["step_time_s"] == [0.1] * 5
    kinds = [type(e) for e in heard]
    assert kinds.count(TrialAsked) == kinds.count(TrialEnded) == kinds.count(TrialStepped) == 12
    assert kinds.count(PhaseEntered) == 2
    assert kinds.count(BestChanged) == 2
    assert kinds[-1] is StudyRested
    assert record.result["stop_reason"] == "the budget of 5 trials is spent"


def test_the_study_says_which_job_runs_it_and_where_its_ranks_are(store: Store) -> None:
    class Placed(InstantRunner):
        def start(self, request: TrialRequest) -> None:
            super().start(request)
            there = NodePlace(node="gpu-7", ranks=(0, 1), gpus=("2", "3"))
            self.events[-3] = AttemptStarted(id=request.id, places=(there,))

    study_id, job = begun(store), {"ray": {"job": "abc", "url": "http://head:8265/#/jobs/abc"}}
    record = ran(store, study_id, Placed(), about=job)
    told = study_document(record)
    assert told["ray"] == job["ray"]
    last = store.trials(study_id)[-1].number
    assert told["placed"] == [{"trial": last, "node": "gpu-7", "ranks": [0, 1], "gpus": ["2", "3"]}]
    assert placement_lines(told) == [f"trial {last} had ranks 0 to 1 on gpu-7 with GPUs 2, 3"]


def test_what_was_seen_of_a_program_is_told_once_and_kept_for_each_trial(store: Store) -> None:
    class Chatty(InstantRunner):
        def start(self, request: TrialRequest) -> None:
            super().start(request)
            self.events.insert(
                -1, ProgramSeen(id=request.id, facts={}, left_out="9 lines (3.0 MiB)")
            )

    study_id, heard = begun(store), list[LoopEvent]()
    ran(store, study_id, Chatty(), on_event=heard.append)
    assert [e.message for e in heard if isinstance(e, Notice)] == [
        "trial 0: not read from the program's log: 9 lines (3.0 MiB)"
    ]
    for number in range(12):
        said = [
            e.data["message"]
            for e in events_of_trial(store, study_id, number)
            if e.kind == "trial.remark"
        ]
        assert said == ["not read from the program's log: 9 lines (3.0 MiB)"]


def test_a_trial_that_waits_says_why_and_not_where_its_lost_attempt_was(store: Store) -> None:
    class Crowded(InstantRunner):
        def start(self, request: TrialRequest) -> None:
            super().start(request)
            if request.number == 3:
                there = AttemptStarted(
                    id=request.id, places=(NodePlace(node="gpu-7", ranks=(0, 1), gpus=()),)
                )
                lost = Failure(kind=FailureKind.WORKER_LOST, message="gpu-7 was silent")
                first = [there, AttemptEnded(id=request.id, failure=lost)]
                self.events[-3:] = (
                    first
                    if request.attempt == 1
                    else [AttemptQueued(id=request.id, reason="no room")]
                )

        def poll(self, timeout_s: float) -> list[RunnerEvent]:
            if not self.events and self.started[-1].number == 3:
                told.append(study_document(store.study(study_id)))
                super().start(self.started[-1])  # now there is room
            return super().poll(timeout_s)

    study_id, told = begun(store), list[dict[str, Any]]()
    record = ran(store, study_id, Crowded())
    assert [(t["placed"], t["waiting"]) for t in told] == [
        ([], [{"trial": 3, "reason": "no room"}])
    ]
    assert placement_lines(told[0]) == ["trial 3 waits: no room"]
    assert record.status is StudyStatus.COMPLETED
    assert study_document(record)["waiting"] == []


def test_a_changed_machine_is_told_kept_and_shown(store: Store) -> None:
    study_id, heard = begun(store), list[LoopEvent]()
    runner = InstantRunner(slowness=lambda number: 4.0 if number >= 2 else 1.0)
    ran(store, study_id, runner, predict=lambda _: prediction(0.1, 0.1), on_event=heard.append)
    (kept,) = [
        e for e in store.events(study_id, after=0, limit=1000) if e.kind == "machine.changed"
    ]
    (told,) = [e.message for e in heard if isinstance(e, Notice)]
    assert kept.data["message"] == told
    assert told.startswith("The machine became 4 times slower between ")
    assert "UTC (baseline: 2,560 -> 640 tokens/s at its median step)." in told
    result = result_of(store, study_id)
    assert told.startswith(result.notes[0])
    assert result.speedup == pytest.approx(2.0)
    searched = {
        t.config: t for t in result.shown if t.purpose is TrialPurpose.SEARCH and t.measurement
    }
    speeds = {c: t.measurement.tokens_per_s for c, t in searched.items() if t.measurement}
    assert (
        speeds[CONFIGS[3]]
        == pytest.approx(2 * speeds[CONFIGS[0]])
        == pytest.approx(2 * speeds[CONFIGS[1]])
    )


def test_a_trial_is_kept_before_it_is_run(store: Store) -> None:
    study_id = begun(store)

    def look(request: TrialRequest) -> None:
        assert store.trials(study_id)[request.number].status is TrialStatus.RUNNING

    ran(store, study_id, InstantRunner(look))


@pytest.mark.parametrize("at", [0, 3, 7, 11])
def test_a_loop_that_dies_is_replaced_and_ends_the_same(store: Store, at: int) -> None:
    class DeathError(Exception):
        pass

    def die(request: TrialRequest) -> None:
        if request.number == at and request.attempt == 1:
            raise DeathError

    study_id = begun(store)
    with pytest.raises(DeathError):
        ran(store, study_id, InstantRunner(die))
    record = ran(store, study_id, InstantRunner())
    trials = store.trials(study_id)
    assert [t.attempts for t in trials] == [2 if n == at else 1 for n in range(12)]
    assert trials[record.best or 0].config == CONFIGS[3]
    assert record.result["stop_reason"] == "the budget of 5 trials is spent"


def test_the_rank_seconds_that_were_spent_are_kept_beside_what_else_is_known(store: Store) -> None:
    study_id = begun(store)
    now_s = 0.0

    def monotonic() -> float:
        nonlocal now_s
        now_s += 2 * CHECKPOINT_S
        return now_s

    with StudyLease.claim(store, study_id, lease_s=LONG_S) as lease:
        lease.move(StudyStatus.RUNNING)
        loop = loop_on(store, lease, InstantRunner(), monotonic=monotonic)
        record = loop.run()
    assert record.result["gpu_s"] == loop.controller.spent.gpu_s > 0
    assert {"phase", "stop_reason", "finals"} <= set(record.result)
    with StudyLease.claim(store, begun(store), lease_s=LONG_S) as lease:
        lease.move(StudyStatus.RUNNING, result={"gpu_s": 7.5})
        assert loop_on(store, lease, InstantRunner()).controller.spent.gpu_s == 7.5


@pytest.mark.parametrize(
    ("wanted", "status"), [(Wanted.RUN, StudyStatus.RUNNING), (Wanted.PAUSE, StudyStatus.PAUSED)]
)
def test_a_service_that_ends_leaves_the_study_as_people_want_it(
    store: Store, wanted: Wanted, status: StudyStatus
) -> None:
    with StudyLease.claim(store, begun(store), lease_s=LONG_S) as lease:
        lease.move(StudyStatus.RUNNING)

        def interrupted() -> bool:
            store.want(lease.study_id, wanted)
            return True

        record = loop_on(store, lease, InstantRunner(), interrupted=interrupted, leave=True).run()
        assert record.status is status
        assert not [
            e
            for e in store.events(lease.study_id)
            if e.kind == "study.paused" and wanted is Wanted.RUN
        ]


def test_a_controller_whose_lease_was_taken_over_stops_and_changes_nothing(store: Store) -> None:
    study_id = begun(store)

    def usurp(request: TrialRequest) -> None:
        if request.number == 2:
            store.release(lease._lease)
            assert store.claim(study_id, "another", lease_s=LONG_S) is not None

    with StudyLease.claim(store, study_id, lease_s=LONG_S) as lease:
        lease.move(StudyStatus.RUNNING)
        with pytest.raises(ConflictError):
            loop_on(store, lease, InstantRunner(usurp)).run()
    assert [t.status for t in store.trials(study_id)] == [TrialStatus.COMPLETED] * 2 + [
        TrialStatus.RUNNING
    ]


def test_a_study_cancelled_under_the_loop_ends_it_quietly(store: Store) -> None:
    study_id = begun(store)

    def cancel(request: TrialRequest) -> None:
        if request.number == 2:
            store.set_status(
                study_id, StudyStatus.CANCELLED, expect=[StudyStatus.RUNNING], lease=lease._lease
            )

    with StudyLease.claim(store, study_id, lease_s=LONG_S) as lease:
        lease.move(StudyStatus.RUNNING)
        assert loop_on(store, lease, InstantRunner(cancel)).run().status is StudyStatus.CANCELLED
    assert store.trials(study_id)[2].status is TrialStatus.CANCELLED


def test_a_store_that_stays_away_ends_the_loop_and_nothing_acknowledged_is_lost(
    store: Store,
) -> None:
    from tests.study.test_lease import Away

    study_id, away = begun(store), Away(store)

    def unplug(request: TrialRequest) -> None:
        if request.number == 4:
            away.calls_away = 10**6

    with StudyLease.claim(away, study_id, lease_s=LONG_S, patience_s=0.3) as lease:
        lease.move(StudyStatus.RUNNING)
        with pytest.raises(StoreUnavailableError):
            loop_on(away, lease, InstantRunner(unplug)).run()
        away.calls_away = 0
    record = ran(store, study_id, InstantRunner())
    assert record.status is StudyStatus.COMPLETED
    assert store.trials(study_id)[record.best or 0].config == CONFIGS[3]


def test_a_store_that_comes_back_in_time_is_not_noticed_in_the_result(store: Store) -> None:
    from tests.study.test_lease import Away

    study_id, away = begun(store), Away(store)

    def unplug(request: TrialRequest) -> None:
        away.calls_away = 2

    record = ran(away, study_id, InstantRunner(unplug))
    assert record.status is StudyStatus.COMPLETED
    assert all(t.attempts == 1 for t in store.trials(study_id))


def test_a_runner_that_can_run_nothing_is_the_callers_matter(store: Store) -> None:
    def refuse(request: TrialRequest) -> None:
        raise RunnerError("gone")

    study_id = begun(store)
    with pytest.raises(RunnerError):
        ran(store, study_id, InstantRunner(refuse))
