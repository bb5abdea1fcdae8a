"""An attempt of a program that logs no time is timed by the arrival of its step lines; no process
is started here."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable
from typing import Any

import pytest

from autotune.ports import StepsReported
from autotune.reward import diverged
from autotune.spec import FailureKind, Measurement, MeasureSpec
from autotune.trainers.base.trainer import LineReader, StepMetrics
from autotune.trainers.logs.formats import pattern_reader, stock_reader
from autotune_workers.process.program.evidence import NodeEnd
from autotune_workers.process.program.log import RESOLUTION_S
from autotune_workers.process.program.state import ProgramTrial
from tests.workers.requests import failure_of, measurement_of, request


def told(
    read: LineReader, lines: Iterable[tuple[float, str]]
) -> tuple[ProgramTrial, list[StepsReported]]:
    trial = ProgramTrial(request(0, dp=1, trainer="command"), [read], 0.0)
    return trial, [step for at_s, line in lines for step in trial.hear([(at_s, line)], at_s)]


def measured(trial: ProgramTrial) -> Measurement:
    return measurement_of(trial.end([NodeEnd(node=0, code=0)]))


LOSS = "{'loss': 2.0}"


def numbered(step: int) -> str:
    return f'{{"step": {step}, "loss": {3.0 - step / 100}}}'


def patient(**fields: Any) -> ProgramTrial:
    """One that is not measured after a few steps."""
    measure = MeasureSpec(warmup_steps=0, min_steps=100, max_steps=1000)
    return ProgramTrial(
        request(0, dp=1, trainer="command", measure=measure, **fields), [stock_reader()], 0.0
    )


def in_bursts(
    sizes: Iterable[int], every_s: float, line: Callable[[int], str]
) -> list[list[tuple[float, str]]]:
    """Lines of consecutive steps, so many at once every so many seconds."""
    numbers = itertools.count()
    return [
        [(burst * every_s, line(next(numbers))) for _ in range(size)]
        for burst, size in enumerate(sizes)
    ]


def test_the_first_line_starts_the_clock_and_each_next_one_ends_a_step() -> None:
    _, steps = told(stock_reader(), [(5.0, LOSS), (5.5, LOSS), (6.5, LOSS)])
    assert [step.step_times_s for step in steps] == [(0.5,), (1.0,)]


def test_numbers_say_how_many_steps_lie_between_two_lines() -> None:
    lines = [
        (1.0, numbered(10)),
        (6.0, numbered(20)),
        (6.5, numbered(15)),
        (6.7, LOSS),
        (7.0, numbered(21)),
    ]
    _, steps = told(stock_reader(), lines)
    assert [step.step_times_s for step in steps] == [(0.5,), (1.0,)]


@pytest.mark.parametrize("line", [lambda _: LOSS, numbered], ids=["plain", "numbered"])
@pytest.mark.parametrize("sizes", [(4, 4, 4, 4), (1, 7, 4, 2), (12, 3)], ids=str)
def test_steps_that_arrive_at_once_each_have_their_mean(
    line: Callable[[int], str], sizes: tuple[int, ...]
) -> None:
    trial = patient()
    bursts = in_bursts(sizes, 2.0, line)
    steps = [step for burst in bursts for step in trial.hear(burst, burst[0][0])]
    assert [step.step_times_s[0] for step in steps] == [
        2.0 / size for size in sizes[1:] for _ in range(size)
    ]
    assert all(math.isfinite(step.losses[0]) for step in steps)
    assert trial.seen().together == max(sizes[1:])


def test_a_burst_that_comes_in_several_messages_loses_no_step() -> None:
    trial = patient()
    pieces = [[line] for burst in in_bursts((2, 4, 4), 2.0, numbered) for line in burst]
    steps = [step for piece in pieces for step in trial.hear(piece, 0.0)]
    assert len(steps) == 5  # three of the last burst wait for a later line
    steps += trial.hear([(6.0, numbered(10))], 6.0)
    assert len(steps) == 9
    assert math.fsum(step.step_times_s[0] for step in steps) == pytest.approx(6.0)


def test_a_message_with_lines_of_several_times_has_the_steps_of_each() -> None:
    """As when the owner was busy for a while."""
    trial = patient()
    steps = trial.hear(
        [line for burst in in_bursts((1, 1, 2, 1), 2.0, numbered) for line in burst], 9.0
    )
    assert [step.step_times_s[0] for step in steps] == [2.0, 1.0, 1.0, 2.0]


def test_steps_that_share_a_time_count_as_one_for_what_is_known_of_the_median() -> None:
    measure = MeasureSpec(warmup_steps=0, min_steps=8, max_steps=100, precision=0.02)
    trial = ProgramTrial(
        request(0, dp=1, trainer="command", measure=measure), [stock_reader()], 0.0
    )
    bursts = in_bursts([10] * 11, 2.0, numbered)
    for number, burst in enumerate(bursts):
        assert not trial.ending, number
        trial.hear(burst, burst[0][0])
        if number >= 6:
            break
    assert trial.ending
    found = measured(trial)
    assert (found.steps_together, found.time_from) == (10, "arrival")
    assert found.step_time_s == pytest.approx(0.2)


def test_micro_batches_that_arrive_at_once_make_whole_steps() -> None:
    per_step = 2
    trial = patient(
        trainer_options={"counts": "micro-batches"}, config={"accumulation_steps": per_step}
    )
    bursts = in_bursts([3 * per_step] * 3, 2.0, lambda _: LOSS)
    steps = [step for burst in bursts for step in trial.hear(burst, burst[0][0])]
    assert [step.step_times_s[0] for step in steps] == pytest.approx([2.0 / 3] * 6)
    assert trial.seen().together == 3


def test_a_log_that_comes_at_once_says_no_time_and_what_to_do() -> None:
    trial = patient()
    ((*burst,),) = in_bursts([40], 0.0, numbered)
    assert trial.hear(burst, 5.0) == []
    failure = failure_of(trial.end([NodeEnd(node=0, code=0)]))
    assert failure.kind is FailureKind.METRICS_MISSING
    assert "the lines of all 40 steps arrived at once" in failure.message
    assert "flush" in failure.message


def test_the_stock_trainers_bar_and_dictionaries_make_a_measurement() -> None:
    lines = []
    for step in range(40):
        lines.append((10.0 + 0.25 * step, f"  1%|# | {step}/40 [00:01<00:01,  4.0it/s]"))
        lines.append(
            (10.1 + 0.25 * step, f"{{'loss': {3.0 - step / 100}, 'grad_norm': 1.0, 'epoch': 0.1}}")
        )
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
            lines.append(
                (
                    10.1 + 0.25 * step,
                    f"{{'loss': {3.0 - step / 100}, 'grad_norm': 1.0, 'epoch': 0.1}}",
                )
            )
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
    _, steps = told(
        stock_reader(), [*lines, (9.0, "{'train_runtime': 9.0, 'train_samples_per_second': 0.001}")]
    )
    assert [step.step_times_s for step in steps] == [(0.5,)] * 3


def test_rounding_is_part_of_the_spread() -> None:
    read = pattern_reader({"step": r"step (\d+)", "step_time_s": r"time ([\d.]+)"})
    trial, _ = told(read, [(step, f"step {step} time 0.4") for step in range(40)])
    found = measured(trial)
    assert found.time_resolution_s == pytest.approx(0.1)
    assert found.step_time_spread == pytest.approx(0.1 / math.sqrt(12) / 0.4)


def test_a_log_without_steps_is_said_to_have_none() -> None:
    trial, _ = told(stock_reader(), [(1.0, "hello"), (2.0, "{'loss': 2.0}")])
    failure = failure_of(trial.end([NodeEnd(node=0, code=0)]))
    assert failure.kind is FailureKind.METRICS_MISSING


def test_another_row_of_a_step_is_no_step() -> None:
    """Composer's console: the rate of the job and then that of one device, each on a line of its
    own, below the line that has the number."""

    def read(line: str) -> StepMetrics | None:
        name, _, value = line.partition(" ")
        return (
            StepMetrics(step=int(value))
            if name == "batch"
            else StepMetrics(steps_per_s=float(value))
        )

    lines = [
        (1.0 * step, text) for step in range(12) for text in (f"batch {step}", "rate 8", "device 1")
    ]
    _, steps = told(read, lines)
    assert {step.step_times_s for step in steps} == {(0.125,)}
