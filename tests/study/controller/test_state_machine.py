from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from autotune.ports import AttemptEnded, AttemptQueued, CloseAttempt, EndTrial, StartAttempt
from autotune.spec import (
    Estimate,
    FailureKind,
    MeasureSpec,
    Objective,
    ParallelConfig,
    StudyStatus,
    Trial,
    TrialPurpose,
    TrialStatus,
)
from autotune.study.controller import (
    PAUSED_ON_REQUEST,
    AttemptAdopted,
    CancelAsked,
    CancelAttempt,
    EnterPhase,
    InterruptAsked,
    NoteQueued,
    NoteRest,
    PauseAsked,
    ResumeAsked,
    StopAsked,
)
from autotune.study.controller.attempts import CANCEL_GRACE_S, DEADLINE_GRACE_S, MAX_ATTEMPTS
from autotune.testing.stores import an_estimate
from tests.shortcuts import present
from tests.study.controller.world import BASELINE, CONFIGS, World, begun, measured, study

FAST = CONFIGS[5]
LOSSES = (5.0, 4.8, 4.6, 4.4, 4.2)


def purposes(world: World) -> list[str]:
    return [str(t.purpose) for _, t in sorted(world.trials.items())]


def speed(config: ParallelConfig) -> float:
    return 0.05 if config == FAST else 0.1


def finish(world: World, runs: int = 1) -> None:
    """So many trials, one after the other, each at its speed."""
    for _ in range(runs):
        world.finish(world.only, speed(world.request(world.only).config))


def test_a_study_measures_the_baseline_then_searches_then_measures_the_best_again() -> None:
    world = World(study(max_trials=7))
    end = world.run(speed)
    assert purposes(world) == ["baseline"] + ["search"] * 7 + ["final"] * 6
    assert end.status is StudyStatus.COMPLETED
    assert world.trials[end.best or 0].config == FAST
    assert end.speedup == pytest.approx(2.0)
    assert end.result["final_rounds"] == 2
    assert end.message == "the budget of 7 trials is spent"


def test_a_guess_that_cannot_fit_is_not_launched() -> None:
    def predict(config: ParallelConfig) -> Estimate:
        return replace(an_estimate(), oom_probability=0.999 if config == FAST else 0.9)

    world = World(replace(study(max_trials=7), enqueue=(FAST, CONFIGS[4])), predict=predict)
    world.run(speed)
    assert FAST not in [t.config for t in world.trials.values()]
    assert world.controller.infeasible == {
        "an enqueued config is predicted to run out of memory": 1
    }
    assert next(t for t in world.trials.values() if t.config == CONFIGS[4]).is_measured


def test_finals_go_in_turn_and_backwards_in_every_other_round() -> None:
    world = World(study(max_trials=7))
    world.run(speed)
    finals = [t.config for _, t in sorted(world.trials.items()) if t.purpose is TrialPurpose.FINAL]
    assert finals[0] == BASELINE
    assert finals[3:] == finals[:3][::-1]


def test_only_the_last_final_round_is_profiled() -> None:
    world = World(study(max_trials=3))
    world.run()
    profiled = [
        c.request.number
        for c in world.commands
        if isinstance(c, StartAttempt) and c.request.profile
    ]
    finals = [n for n, t in sorted(world.trials.items()) if t.purpose is TrialPurpose.FINAL]
    configs = {world.trials[n].config for n in finals}
    assert profiled == finals[len(configs) : 2 * len(configs)]


def test_a_finalist_that_fails_when_measured_again_cannot_win() -> None:
    world = begun(study(max_trials=7))
    while not world.ends:
        trial = world.trials[world.only]
        if trial.purpose is TrialPurpose.FINAL and trial.config == FAST:
            world.fail(world.only, FailureKind.OUT_OF_MEMORY)
        else:
            world.finish(world.only, speed(trial.config))
    assert world.winner != FAST
    assert any(str(FAST) in note for note in world.end.result["notes"])


def test_the_last_final_round_is_long_and_who_diverges_in_it_cannot_win() -> None:
    world = World(
        study(max_trials=7, measure=MeasureSpec(finalists=2, final_rounds=2, stability_steps=200))
    )
    steps = []
    world.tick()
    while not world.ends:
        request = world.request(world.only)
        steps.append(request.measure.max_steps)
        long = request.measure.min_steps == 200
        if long and request.config == FAST:
            world.finish(request.number, 0.05, losses=tuple(2.0 + 0.1 * i for i in range(200)))
        else:
            world.finish(request.number, speed(request.config))
    finalists = len({t.config for t in world.trials.values() if t.purpose is TrialPurpose.FINAL})
    assert steps[: 8 + finalists + finalists] == [30] * (8 + finalists) + [200] * finalists
    diverged = [t for t in world.trials.values() if t.failure is not None]
    assert [(t.config, t.purpose) for t in diverged] == [(FAST, TrialPurpose.FINAL)]
    assert diverged[0].failure is not None
    assert diverged[0].failure.kind is FailureKind.DIVERGED
    assert "the loss grew" in diverged[0].failure.message
    assert world.winner != FAST


def test_the_search_leaves_time_for_the_long_round() -> None:
    def searched(stability_steps: int) -> int:
        measure = MeasureSpec(finalists=2, final_rounds=2, stability_steps=stability_steps)
        world = World(study(max_trials=15, max_wall_s=20.0, measure=measure))
        world.run()
        return sum(t.purpose is TrialPurpose.SEARCH for t in world.trials.values())

    assert searched(60) < searched(0)


def test_the_baseline_wins_when_nothing_beats_it() -> None:
    end = World(study(max_trials=4)).run(lambda config: 0.1 if config == BASELINE else 0.2)
    assert (end.best, end.speedup) == (end.baseline, 1.0)


@pytest.mark.parametrize("kind", [k for k in FailureKind if not k.is_retried])
def test_a_failed_baseline_is_final_and_said_and_the_study_goes_on(kind: FailureKind) -> None:
    world = begun(study(max_trials=3))
    world.fail(0, kind)
    assert (world.trials[0].status, world.trials[0].attempts) == (TrialStatus.FAILED, 1)
    end = world.run()
    assert end.baseline is None
    assert end.speedup is None
    assert end.best is not None
    assert present(world.trials[1].reward).throughput == 0.0


def test_a_baseline_that_surely_does_not_fit_is_not_tried() -> None:
    from autotune.cost import estimate

    def predict(config: ParallelConfig) -> Any:
        found = estimate(study().workload, config)
        return replace(found, oom_probability=1.0) if config == BASELINE else found

    world = begun(study(max_trials=2), predict=predict)
    assert world.trials[world.only].purpose is TrialPurpose.SEARCH
    assert BASELINE not in [t.config for t in world.trials.values()]
    assert world.controller.infeasible == {"the baseline is predicted to run out of memory": 1}
    told = next(c.message for c in world.commands if isinstance(c, EnterPhase))
    assert told.startswith(
        "the baseline is not measured (the baseline is predicted to run out of memory)"
    )


def test_a_lost_worker_is_tried_again_twice_and_then_is_final() -> None:
    world = begun(study(max_trials=3))
    for attempt in (1, 2):
        commands = world.fail(0, FailureKind.WORKER_LOST)
        assert [type(c) for c in commands] == [CloseAttempt, StartAttempt]
        assert world.request(0).attempt == attempt + 1
    world.fail(0, FailureKind.WORKER_LOST)
    assert world.trials[0].status is TrialStatus.FAILED


def test_parallel_trials_share_the_ranks() -> None:
    world = begun(study(max_trials=8, parallel_trials=3), after=1)
    ranks = sorted(r.config.world_size for r in world.running.values())
    assert len(ranks) > 1
    assert sum(ranks) <= world.capacity


def test_baseline_and_finals_run_alone() -> None:
    world = begun(study(max_trials=4, parallel_trials=4))
    while not world.ends:
        alone = {world.trials[r.number].purpose for r in world.running.values()} & {
            TrialPurpose.BASELINE,
            TrialPurpose.FINAL,
        }
        assert not alone or len(world.running) == 1
        world.finish(min(r.number for r in world.running.values()))


def test_configs_that_need_too_many_ranks_are_counted_and_never_asked() -> None:
    world = World(study(max_trials=12), capacity=2, baseline=CONFIGS[0])
    end = world.run()
    too_large = [c for c in CONFIGS if c.world_size > 2]
    assert not {t.config for t in world.trials.values()} & set(too_large)
    assert world.controller.infeasible == {"more ranks than the runner's 2": len(too_large)}
    assert end.status is StudyStatus.COMPLETED
    assert (
        end.message
        == f"all {len(CONFIGS) - len(too_large)} configs in the space that can run here were tried"
    )


def test_a_default_config_with_too_many_ranks_is_counted_once_and_a_restart_counts_the_same() -> (
    None
):
    world = begun(study(max_trials=2), capacity=2)
    before = world.controller.infeasible
    assert world.trials[world.only].purpose is TrialPurpose.SEARCH
    world.resume()
    assert world.controller.infeasible == before == {"more ranks than the runner's 2": 8}


def test_a_study_that_can_run_nothing_says_why() -> None:
    world = World(study(max_trials=2), refuse=lambda config: "the trainer has no pipelines")
    end = world.run()
    assert world.trials == {}
    assert end.status is StudyStatus.FAILED
    assert (
        "16 configs cannot run here, 16 of them for this reason: the trainer has no pipelines"
        in end.message
    )


def test_what_the_trainer_refuses_is_not_run_for_ever() -> None:
    world = World(
        study(max_trials=1),
        refuse=lambda config: "" if config == BASELINE else "not with this trainer",
    )
    end = world.run()
    assert end.best == end.baseline
    assert {t.config for t in world.trials.values()} == {BASELINE}


def test_failed_trials_end_the_search_when_their_budget_is_spent() -> None:
    world = begun(study(max_trials=10, max_failed_trials=2), after=1)
    world.fail(1, FailureKind.OUT_OF_MEMORY)
    world.finish(2)
    world.fail(3, FailureKind.ERROR)
    assert world.trials[4].purpose is TrialPurpose.FINAL
    assert "failed" in world.controller.stop_reason


def test_a_study_in_which_nothing_could_be_measured_fails_and_says_why() -> None:
    world = begun(study(max_trials=10, max_failed_trials=3))
    while not world.ends:
        world.fail(world.only, FailureKind.OUT_OF_MEMORY)
    assert world.end.status is StudyStatus.FAILED
    assert world.end.message == "no config could be measured: 3 out of memory"


@pytest.mark.parametrize(
    ("budget", "gain", "reason"),
    [
        pytest.param(
            {"min_gain": 0.02},
            0.01,
            "the next trials, of about 500 ms each, are expected to gain 1.00%, less than min_gain (2.00%)",
            id="less than min_gain",
        ),
        pytest.param(
            {"min_gain": 0.0, "train_tokens": 50_000},
            0.01,
            "a further trial takes about 500 ms and would save 193 ms of a training run of 19.5 s",
            id="a step of 256 tokens takes 0.1 s: 20 s of training do not pay for a trial of 0.5 s",
        ),
        pytest.param(
            {"min_gain": 0.0, "train_tokens": 150_000}, 0.01, "", id="a minute of training does"
        ),
        pytest.param(
            {"min_gain": None},
            0.005,
            "a further trial takes about 500 ms and would save 498 ms of a training run of 1m 40s (200 trials long; set budget.train_tokens for another length)",
            id="nothing is said about the training",
        ),
        pytest.param({"min_gain": None}, 0.0051, "", id="just enough to be gained"),
    ],
)
def test_the_search_ends_when_what_is_left_would_gain_too_little(
    budget: dict[str, Any], gain: float, reason: str
) -> None:
    world = begun(study(max_trials=10, **budget), after=1)
    world.searcher.gain = gain
    world.finish(1)
    assert (world.trials[2].purpose is TrialPurpose.FINAL) == bool(reason)
    assert world.controller.stop_reason == reason


def test_a_space_that_was_tried_to_its_end_says_so() -> None:
    world = World(study(max_trials=50))
    end = world.run(lambda config: 0.1)
    assert end.message == f"all {len(CONFIGS)} configs in the space were tried"
    world = begun(study(max_trials=50, min_gain=0.02), after=1)
    world.searcher.gain = 0.0
    world.searcher.ruled_out[:] = True
    world.finish(1)
    assert world.controller.stop_reason == (
        f"the {len(CONFIGS) - 2} untried configs need at least as much memory as a config that ran out of memory"
    )


def test_min_gain_zero_never_ends_the_search() -> None:
    world = begun(study(max_trials=5, min_gain=0.0))
    world.searcher.gain = 0.0
    world.run()
    assert purposes(world).count("search") == 5


def test_wall_time_keeps_a_part_for_the_finals_and_is_never_overrun() -> None:
    world = begun(study(max_trials=1000, max_wall_s=60.0))
    while not world.ends:
        world.tick(4.0)
        if world.running and not world.cancelled:
            config = world.trials[world.only].config
            world.finish(world.only, 0.4 * 1.08 ** CONFIGS.index(config), setup_s=1.5)
        for number in [i[1] for i in world.cancelled]:
            world.cancel_confirmed(number)
    assert world.controller.elapsed_s <= 64.0
    assert world.end.result["final_rounds"] == 2
    assert "reserved for the finals" in world.end.message


def test_pauses_are_not_counted_as_wall_time() -> None:
    world = begun(study(max_trials=3, max_wall_s=1000.0))
    world.tick(10.0)
    world.do(PauseAsked())
    world.finish(0)
    assert world.end.status is StudyStatus.PAUSED
    world.now_s += 5000.0
    world.resume()
    assert world.controller.elapsed_s == pytest.approx(10.0)


def test_what_runs_when_the_wall_time_ends_is_cancelled_and_the_rest_counts() -> None:
    world = begun(study(max_trials=10, max_wall_s=50.0), after=1)
    world.finish(1, 0.05)
    commands = world.tick(60.0)
    assert [type(c) for c in commands] == [CancelAttempt, NoteRest]
    world.cancel_confirmed(2)
    assert world.trials[2].status is TrialStatus.CANCELLED
    assert world.end.status is StudyStatus.COMPLETED
    assert world.end.best == 1


def test_rank_seconds_are_counted_and_limited() -> None:
    world = begun(study(max_trials=10, max_gpu_s=100.0))
    world.tick(20.0)
    world.finish(0)
    assert world.controller.spent.gpu_s == pytest.approx(80.0)
    world.tick(60.0)
    world.cancel_confirmed(1)
    assert world.end.status is StudyStatus.COMPLETED
    assert "rank-seconds" in world.end.message


def test_rank_seconds_go_on_from_the_checkpoint_whatever_the_clock_on_the_wall_did() -> None:
    world = begun(study(max_trials=10, max_gpu_s=1000.0))
    world.tick(20.0)
    world.finish(0)
    day = datetime(2026, 1, 1, tzinfo=UTC)
    # an outage in between
    world.trials[0] = replace(world.trials[0], started_at=day, ended_at=day + timedelta(days=1))
    world.restart()
    assert world.controller.spent.gpu_s == pytest.approx(80.0)
    world.gpu_s = None
    world.restart()
    assert 0 < world.controller.spent.gpu_s < 1000, "without a checkpoint the measurements count"


def test_a_silent_runner_is_cancelled_then_given_up_on_and_its_ranks_stay_taken() -> None:
    world = begun(
        study(max_trials=3, measure=MeasureSpec(trial_timeout_s=100.0, start_timeout_s=10.0))
    )
    assert world.tick(110.0 + DEADLINE_GRACE_S - 1.0) == []
    assert [type(c) for c in world.tick(1.0)] == [CancelAttempt]
    world.tick(CANCEL_GRACE_S)
    assert world.trials[0].status is TrialStatus.FAILED
    assert present(world.trials[0].failure).kind is FailureKind.TIMEOUT
    assert world.end.status is StudyStatus.FAILED
    assert world.controller.attempts.free == 0


def test_waiting_for_ranks_that_others_use_counts_for_no_deadline_and_no_rank_seconds() -> None:
    world = begun(study(max_trials=1, max_gpu_s=1e9, max_wall_s=1e9))
    (request,) = world.running.values()
    longest = request.measure.start_timeout_s + request.measure.trial_timeout_s
    for _ in range(5):
        world.tick(longest)
        world.do(AttemptQueued(id=request.id, reason="others use the cluster"))
    assert not world.cancelled
    assert world.controller.spent.gpu_s == 0.0
    assert [c.number for c in world.commands if isinstance(c, NoteQueued)] == [request.number]
    world.tick(10.0)
    assert world.controller.spent.gpu_s == 10.0 * request.config.world_size
    world.tick(2 * longest)
    assert world.cancelled == {request.id}


def test_a_late_end_gives_the_ranks_back_and_changes_nothing() -> None:
    measure = MeasureSpec(trial_timeout_s=100.0, start_timeout_s=10.0)
    world = begun(study(max_trials=3, measure=measure), baseline=CONFIGS[0])
    stuck = world.request(0).id
    world.tick(110.0 + DEADLINE_GRACE_S)
    world.tick(CANCEL_GRACE_S)
    failed = world.trials[0]
    assert world.controller.attempts.free < world.capacity
    world.report(AttemptEnded(id=stuck, measurement=measured(CONFIGS[0])))
    assert world.trials[0] == failed
    assert len(world.late) == 1
    assert stuck not in world.controller.attempts.lost


def test_pause_lets_the_running_trial_finish_and_resume_takes_it_back() -> None:
    world = begun(study(max_trials=3))
    world.do(PauseAsked())
    world.do(ResumeAsked())
    world.finish(0)
    assert world.only == 1
    world.do(PauseAsked())
    world.finish(1)
    assert (world.end.status, world.end.message) == (StudyStatus.PAUSED, PAUSED_ON_REQUEST)


def test_stop_lets_the_running_trial_finish_and_names_a_winner_without_finals() -> None:
    world = begun(study(max_trials=9), after=1)
    world.do(StopAsked())
    world.finish(1, 0.05)
    assert world.end.status is StudyStatus.COMPLETED
    assert world.end.best == 1
    assert any("no final round finished" in note for note in world.end.result["notes"])


def test_cancel_kills_and_ends() -> None:
    world = begun(study(max_trials=9))
    assert [type(c) for c in world.do(CancelAsked())] == [NoteRest, CancelAttempt]
    world.cancel_confirmed(0)
    assert world.trials[0].status is TrialStatus.CANCELLED
    assert world.end.status is StudyStatus.CANCELLED


def test_an_interrupted_trial_counts_for_nothing_and_is_asked_again() -> None:
    world = begun(study(max_trials=3), after=1)
    config = world.trials[1].config
    world.do(InterruptAsked())
    world.cancel_confirmed(1)
    assert world.end.status is StudyStatus.PAUSED
    world.resume()
    assert world.trials[1].status is TrialStatus.CANCELLED
    assert world.trials[2].config == config
    world.run()
    assert (
        sum(t.purpose is TrialPurpose.SEARCH and t.is_measured for t in world.trials.values()) == 3
    )


def test_what_was_measured_before_the_interrupt_reached_it_is_kept() -> None:
    world = begun(study(max_trials=3))
    world.do(InterruptAsked())
    world.finish(0)
    assert world.trials[0].status is TrialStatus.COMPLETED


def test_a_trial_cut_off_by_the_controllers_death_gets_another_attempt() -> None:
    world = begun(study(max_trials=3), after=1)
    commands = world.resume()
    assert [type(c) for c in commands] == [CloseAttempt, StartAttempt]
    assert (world.only, world.request(1).attempt) == (1, 2)


def test_a_stored_trial_that_the_runner_has_too_few_ranks_for_by_now_ends_infeasible() -> None:
    """As after a move to a smaller machine, or of a store whose release kept such trials."""
    too_big = replace(CONFIGS[-1], dp=8, accumulation_steps=1, micro_batch_size=1)
    configs = (too_big, *CONFIGS[:4])
    undisturbed = World(study(max_trials=3), configs=configs)
    expected = undisturbed.run(speed)
    world = begun(study(max_trials=3), configs=configs, after=1)
    world.trials = {0: world.trials[0], 1: Trial(config=too_big, number=1, study="s")}
    world.restart()
    end = world.run(speed)
    assert (world.trials[1].status, world.trials[1].attempts) == (TrialStatus.INFEASIBLE, 0)
    assert (end.status, end.speedup) == (expected.status, expected.speedup)


def test_a_trial_that_was_cut_off_on_more_ranks_than_there_are_now_is_cancelled_and_the_search_goes_on() -> (
    None
):
    world = begun(study(max_trials=30))
    while world.trials[world.only].config.world_size < 4 or world.only == 0:
        world.finish(world.only)
    cut_off = world.only
    world.capacity = 2
    world.restart()
    end = world.run()
    assert (world.trials[cut_off].status, world.trials[cut_off].attempts) == (
        TrialStatus.CANCELLED,
        1,
    )
    assert world.trials[cut_off].reason == "more ranks than the runner's 2"
    small = {c for c in CONFIGS if c.world_size <= 2}
    assert small <= {t.config for t in world.trials.values() if t.is_measured}
    assert end.message.startswith("all ")


@pytest.mark.parametrize("finals", [0, 1, 3])
def test_finals_that_need_more_ranks_than_there_are_now_end(finals: int) -> None:
    world = begun(study(max_trials=16))
    while world.trials[world.only].purpose is not TrialPurpose.FINAL:
        finish(world)
    finish(world, finals)
    world.do(InterruptAsked())
    world.cancel_confirmed(world.only)
    world.capacity = 2
    world.restart()
    end = world.run(speed)
    assert end.status is StudyStatus.COMPLETED
    assert world.trials[end.best or 0].config == FAST
    (refused,) = (t for t in world.trials.values() if t.status is TrialStatus.INFEASIBLE)
    note = f"{refused.config} could not be re-measured: more ranks than the runner's 2"
    assert note in end.result["notes"]


def test_a_pause_on_request_takes_nothing_back_of_an_interrupt() -> None:
    world = begun(study(max_trials=3))
    assert any(isinstance(c, NoteRest) for c in world.do(PauseAsked()))
    assert [c.reason for c in world.do(InterruptAsked()) if isinstance(c, NoteRest)] == [
        "interrupted"
    ]
    for asked in (
        PauseAsked(),
        InterruptAsked(),
        ResumeAsked(),
        InterruptAsked(reason="shut down"),
    ):
        assert world.do(asked) == []
    world.cancel_confirmed(world.only)
    assert (world.end.status, world.end.message) == (StudyStatus.PAUSED, "interrupted")


def test_a_config_that_takes_its_machine_down_is_given_up_in_the_end() -> None:
    world = begun(study(max_trials=3))
    for _ in range(MAX_ATTEMPTS):
        assert world.trials[0].status is TrialStatus.RUNNING
        world.resume()
    assert world.trials[0].status is TrialStatus.FAILED


def test_an_attempt_that_ends_as_cancelled_without_being_asked_counts_as_lost() -> None:
    world = begun(study(max_trials=3))
    for _ in range(3):
        world.cancel_confirmed(0)
    assert world.trials[0].status is TrialStatus.FAILED
    assert present(world.trials[0].failure).kind is FailureKind.WORKER_LOST


@pytest.mark.parametrize("at", range(14))
def test_a_restart_at_any_point_ends_as_the_undisturbed_run(at: int) -> None:
    undisturbed, disturbed = World(study(max_trials=7)), World(study(max_trials=7))
    undisturbed.run(speed)
    disturbed.tick()
    finish(disturbed, at)
    if not disturbed.ends:
        disturbed.restart()
        disturbed.run(speed)
    assert disturbed.end == undisturbed.end
    configs = [[t.config for _, t in sorted(w.trials.items())] for w in (disturbed, undisturbed)]
    assert configs[0] == configs[1]


@pytest.mark.parametrize("at", [0, 1, 4, 9])
def test_what_the_runner_adopts_goes_on_and_is_not_launched_again(at: int) -> None:
    undisturbed, world = World(study(max_trials=7)), World(study(max_trials=7))
    undisturbed.run(speed)
    world.tick()
    finish(world, at)
    number = world.only
    (attempt,) = world.running
    world.restart([attempt])
    assert world.tick() == []
    assert world.controller.attempts.live[attempt].since_s == world.now_s
    world.tick(5.0)
    assert world.controller.spent.gpu_s > 0
    world.run(speed)
    assert world.trials[number].attempts == 1
    assert world.end == replace(undisturbed.end, result=world.end.result)
    assert [t.config for t in world.trials.values()] == [
        t.config for t in undisturbed.trials.values()
    ]


def test_only_what_was_cut_off_can_be_adopted() -> None:
    world = begun(study(max_trials=3), after=1)
    world.restart()
    for stranger in (("s", 0, 1), ("s", 1, 2), ("another", 1, 1)):
        world.do(AttemptAdopted(id=stranger))
    world.tick()
    assert [r.attempt for r in world.running.values()] == [2]
    world.do(AttemptAdopted(id=("s", 1, 2)))  # too late
    assert [a for _, _, a in world.controller.attempts.live] == [2]


def test_a_measurement_without_steps_is_no_result() -> None:
    world = begun(study(max_trials=3))
    world.report(AttemptEnded(id=world.request(0).id))
    assert present(world.trials[0].failure).kind is FailureKind.METRICS_MISSING


def test_a_loss_that_is_not_finite_fails_the_trial_with_its_evidence() -> None:
    world = begun(study(max_trials=3))
    world.finish(0, losses=(5.0, 4.0, float("nan"), float("nan"), 3.0))
    failure = present(world.trials[0].failure)
    warmup = world.study.measure.warmup_steps
    assert (failure.kind, failure.step) == (FailureKind.DIVERGED, 2 + warmup)
    assert world.trials[0].measurement is not None


def test_an_fp32_baseline_is_the_reference_of_later_losses() -> None:
    world = begun(study(max_trials=3))
    world.finish(0, losses=LOSSES)
    world.finish(1, losses=(*LOSSES[::-1][:3], 4.0, 4.1))
    kept = present(world.trials[1].measurement)
    assert kept.reference_losses == LOSSES
    assert present(world.trials[1].reward).parts["fidelity"] < 1.0


def test_without_an_fp32_baseline_a_reference_is_measured_once() -> None:
    low = replace(BASELINE, precision="bf16")
    world = begun(study(max_trials=2), baseline=low, references={8: BASELINE})
    world.finish(0, losses=LOSSES)
    assert world.trials[1].purpose is TrialPurpose.REFERENCE
    assert world.trials[1].config == BASELINE
    world.resume()
    world.finish(1, losses=LOSSES)
    world.finish(2, losses=LOSSES)
    assert present(world.trials[2].reward).parts["fidelity"] == 1.0
    assert purposes(world).count("reference") == 1


def two_batches(parallel: int = 1) -> World:
    """bf16 at global batches of 8 (as the baseline) and 16, with a reference for each."""
    low = [replace(c, precision="bf16") for c in CONFIGS[:2]]
    large = [replace(c, accumulation_steps=2 * c.accumulation_steps) for c in low]
    base = study(max_trials=4, parallel_trials=parallel)
    return World(
        replace(base, workload=replace(base.workload, global_batch_size=(8, 16))),
        configs=[*low, *large],
        baseline=replace(BASELINE, precision="bf16"),
        references={8: BASELINE, 16: replace(BASELINE, accumulation_steps=4)},
    )


@pytest.mark.parametrize("restarts", [False, True])
def test_every_batch_has_a_reference_of_its_own_when_it_is_first_tried(restarts: bool) -> None:
    world = two_batches()
    while not world.ends:
        if restarts:
            world.restart()
        world.tick()
        for request in list(world.running.values()):
            batch = request.config.global_batch_size
            world.finish(request.number, losses=tuple(8 / batch * x for x in LOSSES))
    assert purposes(world)[:7] == [
        "baseline",
        "reference",
        "search",
        "search",
        "reference",
        "search",
        "search",
    ]
    assert [world.trials[n].config.global_batch_size for n in (1, 4)] == [8, 16]
    held = [
        t for t in world.trials.values() if t.purpose in (TrialPurpose.SEARCH, TrialPurpose.FINAL)
    ]
    assert all(t.reward is not None and t.reward.parts["fidelity"] == 1.0 for t in held)


def test_a_reference_runs_as_long_as_any_trial() -> None:
    world = two_batches()
    world.tick()
    world.finish(0, losses=LOSSES)
    measure = world.request(1).measure
    assert measure.min_steps == measure.max_steps == world.study.measure.max_steps


def test_no_trial_runs_beside_the_reference_that_it_is_held_against() -> None:
    world = two_batches(parallel=4)
    world.tick()
    while not world.ends:
        running = [world.trials[r.number] for r in world.running.values()]
        for reference in (t for t in running if t.purpose is TrialPurpose.REFERENCE):
            batch = reference.config.global_batch_size
            assert [t for t in running if t.config.global_batch_size == batch] == [reference]
        world.finish(running[-1].number, losses=LOSSES)


def test_a_trainer_without_losses_needs_no_reference() -> None:
    world = two_batches()
    world.run(lambda _: 0.1)
    assert "reference" not in purposes(world)


def test_losses_that_are_known_already_are_the_reference() -> None:
    low = replace(BASELINE, precision="bf16")
    world = begun(study(max_trials=2), baseline=low, fp32_losses={8 * 32: LOSSES})
    world.finish(0, losses=LOSSES)
    assert present(world.trials[0].reward).parts["fidelity"] == 1.0


def test_trials_are_told_what_they_must_beat_even_at_perfect_stability() -> None:
    base = study(max_trials=3)
    world = begun(replace(base, objective=Objective(stability_weight=0.5)))
    jittery = measured(BASELINE)
    world.report(
        AttemptEnded(
            id=world.request(0).id,
            measurement=replace(jittery, step_times_s=(0.05, 0.1, 0.2, 0.1, 0.02)),
        )
    )
    best = present(world.trials[0].reward)
    assert best.stability < 1.0
    beat = present(world.request(1).beat_step_time_s)
    assert beat > 0.1


def test_a_trial_that_was_stopped_early_is_told_as_measured() -> None:
    world = begun(study(max_trials=3), after=1)
    request = world.request(1)
    world.report(
        AttemptEnded(id=request.id, measurement=measured(request.config), stopped="it cannot win")
    )
    assert world.trials[1].status is TrialStatus.STOPPED
    assert world.trials[1].reason == "it cannot win"


def test_no_event_before_the_first_tick_starts_anything() -> None:
    world = World(study(max_trials=3))
    assert [type(c) for c in world.do(StopAsked())] == [NoteRest]
    commands = world.tick()
    assert not any(isinstance(c, StartAttempt | EndTrial) for c in commands)
    assert world.end.status is StudyStatus.CANCELLED
