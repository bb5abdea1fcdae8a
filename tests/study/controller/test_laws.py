"""Whatever happens, in whatever order: never over capacity or budget, one terminal state per trial,
everything asked is told once."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from autotune.ports import AttemptEnded, AttemptQueued, AttemptStarted, StepsReported
from autotune.spec import Failure, FailureKind, MeasureSpec, StudyStatus, TrialPurpose, TrialStatus
from autotune.study.controller import (
    CancelAsked,
    InterruptAsked,
    PauseAsked,
    ResumeAsked,
    StopAsked,
)
from autotune.study.controller.finals.finalists import contenders
from autotune.study.controller.finals.rounds import baseline_of
from tests.matrix import examples
from tests.study.controller.world import BASELINE, CONFIGS, World, measured, study

PAST_ALL_DEADLINES_S = 2000.0


class AnyOrder(RuleBasedStateMachine):
    @initialize(
        trials=st.integers(1, 6),
        failed=st.integers(1, 5),
        parallel=st.integers(1, 4),
        finalists=st.integers(0, 3),
        rounds=st.integers(0, 2),
        wall_s=st.sampled_from([500.0, 1e6]),
        gpu_s=st.sampled_from([None, 1000.0]),
        with_baseline=st.booleans(),
        lower=st.booleans(),
    )
    def begin(
        self,
        trials: int,
        failed: int,
        parallel: int,
        finalists: int,
        rounds: int,
        wall_s: float,
        gpu_s: float | None,
        with_baseline: bool,
        lower: bool,
    ) -> None:
        budget: dict[str, Any] = {
            "max_trials": trials,
            "max_failed_trials": failed,
            "parallel_trials": parallel,
            "max_wall_s": wall_s,
            "max_gpu_s": gpu_s,
            "measure": MeasureSpec(finalists=finalists, final_rounds=rounds),
        }
        options: dict[str, Any] = {} if with_baseline else {"baseline": None}
        if lower:
            low = [replace(config, precision="bf16") for config in (BASELINE, *CONFIGS)]
            options = (
                {"baseline": low[0]} | options | {"configs": low[1:], "references": {8: BASELINE}}
            )
        self.world = World(study(**budget), **options)
        self.world.tick()

    def pick(self, data: st.DataObject) -> Any:
        return data.draw(st.sampled_from(sorted(self.world.running.values(), key=lambda r: r.id)))

    @rule(seconds=st.floats(0.0, 30.0))
    def time_passes(self, seconds: float) -> None:
        self.world.tick(seconds)

    @rule()
    def much_time_passes(self) -> None:
        self.world.tick(PAST_ALL_DEADLINES_S)

    @precondition(lambda self: self.world.running)
    @rule(data=st.data(), step_time_s=st.floats(0.01, 1.0), stopped=st.booleans())
    def measured(self, data: st.DataObject, step_time_s: float, stopped: bool) -> None:
        request = self.pick(data)
        why = "it cannot win" if stopped else ""
        seen = measured(request.config, step_time_s, losses=(5.0, 4.8, 4.6, 4.4, 4.2))
        self.world.report(AttemptEnded(id=request.id, measurement=seen, stopped=why))

    @precondition(lambda self: self.world.running)
    @rule(data=st.data())
    def measured_nothing(self, data: st.DataObject) -> None:
        self.world.report(AttemptEnded(id=self.pick(data).id))

    @precondition(lambda self: self.world.running)
    @rule(data=st.data(), kind=st.sampled_from(list(FailureKind)))
    def failed(self, data: st.DataObject, kind: FailureKind) -> None:
        self.world.fail(self.pick(data).number, kind)

    @precondition(lambda self: self.world.running)
    @rule(data=st.data())
    def ended_as_cancelled(self, data: st.DataObject) -> None:
        self.world.cancel_confirmed(self.pick(data).number)

    @precondition(lambda self: self.world.running)
    @rule(data=st.data(), steps=st.booleans())
    def shows_life(self, data: st.DataObject, steps: bool) -> None:
        at = self.pick(data).id
        report = StepsReported(
            id=at, first_step=0, step_times_s=(0.1,), losses=(1.0,), grad_norms=(1.0,)
        )
        self.world.do(report if steps else AttemptStarted(id=at))

    @precondition(lambda self: self.world.running)
    @rule(data=st.data())
    def waits_for_room(self, data: st.DataObject) -> None:
        self.world.do(AttemptQueued(id=self.pick(data).id, reason="others use the cluster"))

    @rule(number=st.integers(0, 20), attempt=st.integers(1, 3), fails=st.booleans())
    def reports_out_of_the_blue(self, number: int, attempt: int, fails: bool) -> None:
        at = ("s", number, attempt)
        if at in self.world.running:
            return
        lost = Failure(kind=FailureKind.WORKER_LOST, message="late") if fails else None
        event = AttemptEnded(
            id=at, failure=lost, measurement=None if fails else measured(CONFIGS[0])
        )
        before = dict(self.world.trials)
        late = len(self.world.late)
        self.world.do(event)
        ended = {n for n, t in before.items() if t.status.is_terminal}
        assert all(self.world.trials[n] == before[n] for n in ended)
        assert len(self.world.late) == late + 1

    @rule(
        asked=st.sampled_from(
            [PauseAsked(), ResumeAsked(), StopAsked(), CancelAsked(), InterruptAsked()]
        )
    )
    def people_ask(self, asked: Any) -> None:
        self.world.do(asked)

    @rule(data=st.data())
    def controller_dies(self, data: st.DataObject) -> None:
        """Of what it ran, its successor's runner adopts some."""
        if not any(end.status.is_terminal for end in self.world.ends):
            running = sorted(self.world.running)
            kept = data.draw(st.sets(st.sampled_from(running))) if running else set()
            launches = {n: self.world.trials[n].attempts for _, n, _ in kept}
            self.world.restart(kept)
            self.world.tick()
            assert all(self.world.trials[n].attempts == launches[n] for n in launches), (
                "nothing adopted is launched again"
            )

    @invariant()
    def budget_holds(self) -> None:
        trials = self.world.trials.values()
        searched = [
            t
            for t in trials
            if t.purpose is TrialPurpose.SEARCH and t.status is not TrialStatus.CANCELLED
        ]
        assert len(searched) <= self.world.study.budget.max_trials
        assert sum(t.status is TrialStatus.FAILED for t in searched) <= (
            self.world.study.budget.max_failed_trials + self.world.study.budget.parallel_trials
        )
        assert len(self.world.controller.attempts.live) <= max(
            1, self.world.study.budget.parallel_trials
        )

    @invariant()
    def nothing_goes_on_when_time_is_spent(self) -> None:
        controller, budget = self.world.controller, self.world.study.budget
        spent = controller.spent
        over = spent.wall_s >= budget.max_wall_s or (
            budget.max_gpu_s is not None and spent.gpu_s >= budget.max_gpu_s
        )
        if over:
            assert all(attempt.cancelled for attempt in controller.attempts.live.values())

    @invariant()
    def deaths_forget_little_of_the_time_that_passed(self) -> None:
        world = self.world
        assert -1e-6 <= world.passed_s - world.controller.elapsed_s <= world.forgotten_s + 1e-6

    @invariant()
    def everything_that_ended_was_told_once(self) -> None:
        searched = {
            n
            for n, t in self.world.trials.items()
            if t.purpose is TrialPurpose.SEARCH and t.status.is_terminal
        }
        assert set(self.world.searcher.told) == searched
        assert set(self.world.searcher.told.values()) <= {1}

    @invariant()
    def the_index_is_right(self) -> None:
        index, trials = self.world.controller.index, list(self.world.trials.values())
        searched = [
            t
            for t in trials
            if t.purpose is TrialPurpose.SEARCH and t.status is not TrialStatus.CANCELLED
        ]
        assert index.asked == len(searched)
        assert all(t.status is not TrialStatus.INFEASIBLE for t in trials)
        assert index.failed == sum(t.status is TrialStatus.FAILED for t in trials)
        assert index.best == next(iter(contenders(trials, self.world.study)), None)
        assert index.baseline == baseline_of(trials)

    @invariant()
    def no_config_is_searched_twice_on_a_machine_that_stays_the_same(self) -> None:
        counted = [
            t.config
            for t in self.world.trials.values()
            if t.purpose is TrialPurpose.SEARCH and t.status is not TrialStatus.CANCELLED
        ]
        assert len(counted) == len(set(counted)) or self.world.controller.index.levels.is_uneven

    def teardown(self) -> None:
        """From wherever it got to, the study comes to an end when the runner does its work."""
        world = getattr(self, "world", None)
        if world is None:
            return
        if not any(end.status.is_terminal for end in world.ends):
            world.resume()
        for _ in range(200):
            if world.ends:
                break
            for request in list(world.running.values()):
                if request.id in world.running:
                    world.finish(request.number)
            world.tick(1.0)
        assert len(world.ends) == 1
        assert world.end.status in (
            StudyStatus.COMPLETED,
            StudyStatus.CANCELLED,
            StudyStatus.FAILED,
        )
        if world.end.best is not None:
            assert world.trials[world.end.best].is_measured


TestAnyOrder = AnyOrder.TestCase
TestAnyOrder.settings = settings(
    deadline=None, derandomize=True, max_examples=examples(80), stateful_step_count=40
)
