"""The contract of runners as a test suite. Inherit from `RunnerContract` and provide the `runner`
and `request_for` fixtures:

class TestMyRunner(RunnerContract):
    @pytest.fixture
    def runner(self): ...                         # a fresh runner, closed by the suite
    @pytest.fixture
    def request_for(self): ...                    # number -> TrialRequest that trains well within `deadline_s`
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any

import pytest

from autotune.errors import RunnerError
from autotune.ports import (
    AttemptEnded,
    AttemptId,
    AttemptStarted,
    RunnerEvent,
    StepsReported,
    TrialRequest,
    TrialRunner,
)

RequestFor = Callable[[int], TrialRequest]


def events_until_ended(
    runner: TrialRunner,
    ids: Iterable[Any],
    *,
    deadline_s: float = 900.0,
    every: Callable[[RunnerEvent], None] | None = None,
) -> list[RunnerEvent]:
    """Poll until each of these attempts has ended, and return all events. Fails the test after
    `deadline_s` seconds. `every`: called with each event."""
    waiting = set(ids)
    seen: list[RunnerEvent] = []
    end = time.monotonic() + deadline_s
    while waiting:
        left = end - time.monotonic()
        if left <= 0:
            pytest.fail(
                f"no end event for {sorted(waiting)} within {deadline_s} s; events so far: {seen}"
            )
        for event in runner.poll(min(left, 1.0)):
            seen.append(event)
            if every is not None:
                every(event)
            if isinstance(event, AttemptEnded):
                waiting.discard(event.id)
    return seen


def ended(events: Iterable[RunnerEvent], attempt: Any = None) -> AttemptEnded:
    """The end event of an attempt, by default of the only one."""
    (end,) = [e for e in events if isinstance(e, AttemptEnded) and attempt in (None, e.id)]
    return end


class RunnerContract:
    """Tests that every `autotune.ports.TrialRunner` must pass."""

    deadline_s = 900.0
    """deadline of one trial, seconds; generous, because test machines are shared"""

    def test_names_its_trainers_and_capacity(self, runner: TrialRunner) -> None:
        assert runner.capacity >= 1
        assert "native" in runner.trainers

    def test_a_trial_starts_reports_its_steps_and_ends_once(
        self, runner: TrialRunner, request_for: RequestFor
    ) -> None:
        request = request_for(0)
        runner.start(request)
        events = events_until_ended(runner, [request.id], deadline_s=self.deadline_s)
        assert isinstance(events[0], AttemptStarted), events[0]
        assert isinstance(events[-1], AttemptEnded)
        assert [type(e) for e in events].count(AttemptStarted) == 1
        assert all(e.id == request.id for e in events)
        end = ended(events)
        assert end.failure is None, end.failure
        assert end.measurement is not None
        assert not end.cancelled
        self._check_measurement(request, end, events)

    def _check_measurement(
        self, request: TrialRequest, end: AttemptEnded, events: list[RunnerEvent]
    ) -> None:
        measurement, measure = end.measurement, request.measure
        assert measurement is not None
        assert measure.min_steps <= len(measurement.step_times_s) <= measure.max_steps
        assert all(t > 0 for t in measurement.step_times_s)
        assert measurement.num_ranks == request.config.world_size
        assert (
            measurement.tokens_per_step
            == request.config.global_batch_size * request.workload.seq_len
        )
        reported = [e for e in events if isinstance(e, StepsReported)]
        position = 0
        for report in reported:
            assert report.first_step == position, "steps are reported in order and without gaps"
            assert len(report.step_times_s) == len(report.losses) == len(report.grad_norms) >= 1
            position += len(report.step_times_s)
        assert position >= len(measurement.step_times_s)
        times = [t for e in reported for t in e.step_times_s]
        counted = len(measurement.step_times_s)
        warmup = measure.warmup_steps
        assert tuple(times[warmup : warmup + counted]) == pytest.approx(measurement.step_times_s)

    def test_one_trial_after_another(self, runner: TrialRunner, request_for: RequestFor) -> None:
        for number in range(3):
            request = request_for(number)
            runner.start(request)
            end = ended(events_until_ended(runner, [request.id], deadline_s=self.deadline_s))
            assert end.failure is None, end.failure

    def test_polling_without_trials_returns_nothing(self, runner: TrialRunner) -> None:
        assert runner.poll(0.0) == []

    def test_start_returns_before_the_trial_ends(
        self, runner: TrialRunner, request_for: RequestFor
    ) -> None:
        requests = [request_for(number) for number in range(2)]
        for request in requests:
            runner.start(request)
        events = events_until_ended(
            runner, [r.id for r in requests], deadline_s=2 * self.deadline_s
        )
        for request in requests:
            assert ended(events, request.id).failure is None

    def test_a_cancelled_trial_ends_as_cancelled(
        self, runner: TrialRunner, request_for: RequestFor
    ) -> None:
        request = request_for(0)
        endless = replace(request, measure=replace(request.measure, min_steps=500, max_steps=500))
        runner.start(endless)
        runner.cancel(endless.id)
        end = ended(events_until_ended(runner, [endless.id], deadline_s=self.deadline_s))
        assert end.cancelled
        assert end.failure is None

    def test_the_next_trial_runs_after_a_cancelled_one(
        self, runner: TrialRunner, request_for: RequestFor
    ) -> None:
        self.test_a_cancelled_trial_ends_as_cancelled(runner, request_for)
        again = request_for(1)
        runner.start(again)
        assert (
            ended(events_until_ended(runner, [again.id], deadline_s=self.deadline_s)).failure
            is None
        )

    def test_cancelling_the_unknown_or_the_ended_does_nothing(
        self, runner: TrialRunner, request_for: RequestFor
    ) -> None:
        request = request_for(0)
        runner.cancel(AttemptId("nobody", 0, 1))
        runner.start(request)
        events_until_ended(runner, [request.id], deadline_s=self.deadline_s)
        runner.cancel(request.id)
        assert runner.poll(0.1) == []

    def test_a_closed_runner_starts_nothing(
        self, runner: TrialRunner, request_for: RequestFor
    ) -> None:
        runner.close()
        runner.close()
        with pytest.raises(RunnerError):
            runner.start(request_for(0))

    def test_closing_ends_a_running_trial(
        self, runner: TrialRunner, request_for: RequestFor
    ) -> None:
        request = request_for(0)
        runner.start(
            replace(request, measure=replace(request.measure, min_steps=500, max_steps=500))
        )
        runner.poll(0.0)
        runner.close()
