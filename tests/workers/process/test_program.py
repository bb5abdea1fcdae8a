"""An attempt of a program that logs no time is timed by the arrival of its step lines; no process is started here."""

from __future__ import annotations

import math
from collections.abc import Iterable

import pytest

from autotune.ports import StepsReported
from autotune.reward import diverged
from autotune.spec import FailureKind, Measurement
from autotune.trainers.log_formats import pattern_reader, stock_reader
from autotune.trainers.trainer import LineReader, StepMetrics
from autotune_workers.process.program import ProgramTrial
from autotune_workers.process.program_evidence import NodeEnd
from autotune_workers.process.step_arrivals import RESOLUTION_S, StepArrivals
from tests.workers.requests import request


def told(read: LineReader, lines: Iterable[tuple[float, str]]) -> tuple[ProgramTrial, list[StepsReported]]:
    trial = ProgramTrial(request(0, dp=1, trainer="command"), [read], 0.0)
    return trial, [step for at_s, line in lines for step in trial.hear(line, at_s, at_s)]


def measured(trial: ProgramTrial) -> Measurement:
    end = trial.end([NodeEnd(node=0, code=0)])
    assert end.measurement is not None, end.failure
    return end.measurement


def test_the_first_line_starts_the_clock_and_each_next_one_ends_a_step() -> None:
    arrivals = StepArrivals()
    assert [arrivals.time_of(None, at_s) for at_s in (5.0, 5.5, 6.5)] == [None, 0.5, 1.0]


def test_numbers_say_how_many_steps_lie_between_two_lines() -> None:
    arrivals = StepArrivals()
    found = [arrivals.time_of(step, at_s) for step, at_s in ((10, 1.0), (20, 6.0), (15, 6.5), (None, 6.7), (21, 7.0))]
    assert found == [None, 0.5, None, None, 1.0]


@pytest.mark.parametrize("numbered", [False, True])
def test_lines_that_arrive_at_once_share_the_time_until_the_next(numbered: bool) -> None:
    arrivals = StepArrivals()
    at = [0.0, *[2.0] * 4, *[4.0] * 4]
    found = [arrivals.time_of(i if numbered else None, at_s) for i, at_s in enumerate(at)]
    assert found[1:] == [2.0, None, None, None, 0.5, None, None, None]


def test_the_stock_trainers_bar_and_dictionaries_make_a_measurement() -> None:
    lines = []
    for step in range(40):
        lines.append((10.0 + 0.25 * step, f"  1%|# | {step}/40 [00:01<00:01,  4.0it/s]"))
        lines.append((10.1 + 0.25 * step, f"{{'loss': {3.0 - step / 100}, 'grad_norm': 1.0, 'epoch': 0.1}}"))
    trial, steps = told(stock_reader(), lines)
    assert all(step.step_times_s == pytest.approx((0.25,)) for step in steps)
    assert all(math.isfinite(step.losses[0]) for step in steps)
    found = measured(trial)
    assert (found.time_from, found.time_resolution_s) == ("arrival", RESOLUTION_S)


def test_steps_whose_loss_the_log_does_not_say_are_no_divergence() -> None:
    """As with a Trainer that logs its loss every few steps beside its progress bar."""
    lines = []
    for step in range(40):
        lines.append((10.0 + 0.25 * step, f"  1%|# | {step}/40 [00:01<00:01,  4.0it/s]"))
        if step % 3 == 0:
            lines.append((10.1 + 0.25 * step, f"{{'loss': {3.0 - step / 100}, 'grad_norm': 1.0, 'epoch': 0.1}}"))
    trial, _ = told(stock_reader(), lines)
    found = measured(trial)
    assert any(map(math.isnan, found.losses))
    assert diverged(found) is None


def test_a_time_in_the_log_is_taken_and_arrivals_beside_it_are_not() -> None:
    lines = []
    for step in range(40):
        lines.append((1.0 * step, f'{{"step": {step}, "loss": 2.0}}'))
        lines.append((1.0 * step + 0.5, '{"step_time_s": 0.3}'))
    trial, steps = told(stock_reader(), lines)
    assert {step.step_times_s for step in steps} == {(0.3,)}
    assert measured(trial).time_from == "log"


def test_the_speed_of_the_whole_run_does_not_join_steps_that_were_timed_by_arrival() -> None:
    lines = [(0.5 * step, "{'loss': 2.0}") for step in range(4)]
    _, steps = told(stock_reader(), [*lines, (9.0, "{'train_runtime': 9.0, 'train_samples_per_second': 0.001}")])
    assert [step.step_times_s for step in steps] == [(0.5,)] * 3


def test_rounding_is_part_of_the_spread() -> None:
    read = pattern_reader({"step": r"step (\d+)", "step_time_s": r"time ([\d.]+)"})
    trial, _ = told(read, [(step, f"step {step} time 0.4") for step in range(40)])
    found = measured(trial)
    assert found.time_resolution_s == pytest.approx(0.1)
    assert found.step_time_spread == pytest.approx(0.1 / math.sqrt(12) / 0.4)


def test_a_log_without_steps_is_said_to_have_none() -> None:
    trial, _ = told(stock_reader(), [(1.0, "hello"), (2.0, "{'loss': 2.0}")])
    failure = trial.end([NodeEnd(node=0, code=0)]).failure
    assert failure is not None
    assert failure.kind is FailureKind.METRICS_MISSING


def test_another_row_of_a_step_is_no_step() -> None:
    """Composer's console: the rate of the job and then that of one device, each on a line of its own, below the line that has the number."""

    def read(line: str) -> StepMetrics | None:
        name, _, value = line.partition(" ")
        return StepMetrics(step=int(value)) if name == "batch" else StepMetrics(steps_per_s=float(value))

    lines = [(1.0 * step, text) for step in range(12) for text in (f"batch {step}", "rate 8", "device 1")]
    _, steps = told(read, lines)
    assert {step.step_times_s for step in steps} == {(0.125,)}
