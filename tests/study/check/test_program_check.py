"""A checked program: what is understood of its log, when it is ended, and what the verdict says, on
a runner that plays a log."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any

import pytest

from autotune import api
from autotune.ports import (
    AttemptEnded,
    AttemptId,
    AttemptQueued,
    AttemptStarted,
    LogRead,
    RunnerEvent,
    StepsReported,
    TrialRequest,
)
from autotune.spec import Failure, FailureKind, Measurement, ParallelConfig, Study
from autotune.study.check.program_check import (
    KEPT_LINES,
    LogLine,
    ProgramCheck,
    check_program,
    request_of,
)
from autotune.study.check.verdict import in_one_line, verdict_of
from tests.small_studies import spec

CONFIG = ParallelConfig(accumulation_steps=64, precision="fp32")
PRINTED = [f"iter {i}: loss {10 - i / 10:.2f}, time 120.5ms" for i in range(20)]
PATTERNS = {"step": "iter ([0-9]+)", "step_time_ms": "time ([0-9.]+)ms", "loss": "loss ([0-9.]+)"}


class PlayedLog:
    """A runner that plays one attempt: the given events, a few at each poll, then silence until the
    attempt is cancelled or ends."""

    trainers: Sequence[str] = ("command", "native")
    capacity = 8

    def __init__(self, *played: RunnerEvent) -> None:
        self.played, self.requests, self.cancelled = list(played), list[TrialRequest](), False

    def start(self, request: TrialRequest) -> None:
        self.requests.append(request)

    def poll(self, timeout_s: float) -> list[RunnerEvent]:
        if self.played:
            return [self.played.pop(0)]
        return [AttemptEnded(id=ID, cancelled=True)] if self.cancelled else []

    def cancel(self, attempt: AttemptId) -> None:
        assert attempt == ID
        self.cancelled = True

    def close(self) -> None:
        raise AssertionError("who made the runner closes it")


ID = AttemptId("check", 0, 0)


def log(*lines: str, node: int = 0) -> LogRead:
    return LogRead(id=ID, node=node, lines=lines)


def steps(count: int, loss: float = 2.0) -> StepsReported:
    values = {"losses": (loss,) * count, "grad_norms": (math.nan,) * count}
    return StepsReported(id=ID, first_step=0, step_times_s=(9.0,) + (0.1,) * (count - 1), **values)


def ended(failure: Failure | None = None, **measured: Any) -> AttemptEnded:
    measurement = Measurement(step_times_s=(0.1,) * 4, tokens_per_step=64, num_ranks=1, **measured)
    return AttemptEnded(id=ID, failure=failure, measurement=None if failure else measurement)


def failed(kind: FailureKind, message: str = "it failed", **evidence: Any) -> AttemptEnded:
    return ended(Failure(kind=kind, message=message, **evidence))


def study(**options: Any) -> Study:
    command = {
        "kind": "command",
        "argv": ["train", "--batch={micro_batch_size}", "--accum={accumulation_steps}"],
    }
    space = {"world_sizes": [1], "micro_batch_size": [1, 2], "precision": ["fp32"]}
    return api.load_study(spec(trainer=command | options, runner="local", space=space))


def check(runner: PlayedLog, **options: Any) -> ProgramCheck:
    return check_program(study(**options), runner, CONFIG)


def test_five_steps_are_asked_for_and_the_program_is_told_as_many_as_in_a_trial() -> None:
    asked = study()
    request = request_of(asked, CONFIG)
    assert (request.measure.warmup_steps, request.measure.min_steps, request.measure.max_steps) == (
        1,
        4,
        4,
    )
    assert (
        request.trainer_options["steps"]
        == asked.measure.warmup_steps + asked.measure.max_steps
        == 32
    )
    assert request.with_log
    assert request.attempt == 0, "no trial's: they count from 1"
    assert request_of(study(steps=7), CONFIG).trainer_options["steps"] == 7, (
        "the study's own choice"
    )


def test_a_log_that_is_understood_is_ready_and_says_what_was_read() -> None:
    heard: list[LogLine] = []
    runner = PlayedLog(
        AttemptQueued(id=ID, reason="others"),
        AttemptStarted(id=ID),
        log("loading", PRINTED[0]),
        log(PRINTED[1]),
        steps(5),
        ended(time_from="log", peak_memory_bytes=2.0**30),
    )
    waited: list[str] = []
    found = check_program(
        study(metrics=PATTERNS, counts="steps"),
        runner,
        CONFIG,
        on_line=heard.append,
        on_wait=waited.append,
    )
    assert [dict(line.metrics) for line in heard] == [
        {},
        {"step": 0, "step_time_s": 0.1205, "loss": 10.0},
        {"step": 1, "step_time_s": 0.1205, "loss": 9.9},
    ]
    assert found.lines == tuple(heard)
    assert found.metrics == ("step", "step_time_s", "loss")
    assert waited == ["others"]
    assert found.step_time_s == 0.1, "the first step is not representative"
    assert not found.proposal
    verdict = verdict_of(found)
    assert verdict.ready
    assert (
        verdict.message
        == "ready: read 5 steps, 100 ms each by its log, with losses, peak memory 1 GiB"
    )
    silent = verdict_of(check(PlayedLog(steps(5, math.nan), ended(time_from="arrival"))))
    assert (
        "by arrival of its lines, without losses, so stability follows only from time and memory"
        in silent.message
    )
    before = verdict_of(
        check(PlayedLog(steps(5, math.nan), ended(losses=(math.nan, 4.7, 4.3, 3.8))))
    )
    assert "with losses" in before.message, "each was printed before its step ended"


def test_a_program_whose_steps_are_plainly_printed_but_not_understood_is_ended_at_once() -> None:
    runner = PlayedLog(log("loading"), *(log(line) for line in PRINTED))
    found = check(runner)
    assert runner.cancelled
    assert set(found.proposal) == {"step", "step_time_ms", "loss"}
    assert found.is_programs_fault
    verdict = verdict_of(found)
    assert not verdict.ready
    assert (
        verdict.message == "none of the 21 lines that the program printed was recognized as a step"
    )
    assert (
        verdict.remedy
        == "add the proposed patterns, which read these lines, to the spec under `trainer`"
    )
    assert r"metrics: {step: '\biter ([0-9]+)', step_time_ms: '" in in_one_line(found.proposal)


def test_what_a_program_prints_while_it_is_ended_is_left_out() -> None:
    """torchrun answers the signal with a traceback of its own on every node, which is no fault of
    the program."""
    traceback = log(
        "Traceback (most recent call last):", "SignalException: Process 183 got signal: 15", node=1
    )
    found = check(
        PlayedLog(log(PRINTED[0]), steps(4), log(PRINTED[1]), steps(1), traceback, ended()),
        metrics=PATTERNS,
    )
    assert [line.text for line in found.lines] == PRINTED[:2]

    class WithLastWords(PlayedLog):
        def cancel(self, attempt: AttemptId) -> None:
            super().cancel(attempt)
            self.played.append(traceback)

    unread = check(WithLastWords(*(log(line) for line in PRINTED)))
    assert [line.text for line in unread.lines] == PRINTED


def test_patterns_that_read_nothing_of_a_log_that_needs_none() -> None:
    lines = [f'{{"step": {i}, "step_time_s": 0.1, "loss": 2.0}}' for i in range(3)]
    verdict = verdict_of(
        check(PlayedLog(log(*lines), failed(FailureKind.METRICS_MISSING)), metrics=PATTERNS)
    )
    assert verdict.remedy == "remove trainer.metrics; these lines are understood without it"


def test_a_trainer_that_takes_no_patterns_is_named_another_way() -> None:
    other = api.load_study(
        spec(
            trainer={"kind": "torchtitan"}, runner="local", space={"tp": [1], "precision": ["bf16"]}
        )
    )
    found = check_program(
        other, PlayedLog(log(*PRINTED), failed(FailureKind.METRICS_MISSING)), CONFIG
    )
    assert "use `kind: command` with the proposed patterns" in verdict_of(found).remedy
    assert set(found.proposal) == {"step", "step_time_ms", "loss"}


@pytest.mark.parametrize(
    ("played", "words", "is_programs_fault"),
    [
        ([failed(FailureKind.HANG, "no first step within 120 s")], "printed nothing: no first step within 120 s", True),
        ([log("hello"), failed(FailureKind.HANG, "no first step")], "none of the 1 line that the program printed belongs to a step: no first step", True),
        ([log("hello"), failed(FailureKind.METRICS_MISSING)], "print one JSON object per step", True),
        ([steps(2), failed(FailureKind.METRICS_MISSING)], "only 2 steps, and a trial must measure at least 7", True),
        ([failed(FailureKind.OUT_OF_MEMORY)], "set `baseline` to a config that fits", False),
        ([steps(2), failed(FailureKind.OUT_OF_MEMORY)], "the baseline runs out of memory", False),
        ([steps(2), failed(FailureKind.DIVERGED, "loss nan")], "failed after 2 steps: loss nan", False),
        ([steps(2), failed(FailureKind.HANG)], "failed after 2 steps", False),
        ([steps(2), failed(FailureKind.ERROR, "exit code 1")], "failed after 2 steps: exit code 1", True),
        ([failed(FailureKind.ERROR, exception="ModuleNotFoundError: No module named 'x'")], "install the module for the Python", True),
        ([failed(FailureKind.INVALID, log_tail=("error: unrecognized arguments: --x",))], "correct trainer.argv", True),
        ([failed(FailureKind.ERROR, log_tail=("KeyError: 'WANDB_KEY'",))], "under trainer.env", True),
        ([failed(FailureKind.ERROR, log_tail=("can't open file '/x/train.py'",))], "set trainer.cwd", True),
        ([failed(FailureKind.ERROR, "exit code 1")], "see the last lines of the log", True),
        ([failed(FailureKind.WORKER_LOST)], "before its first step", False),
    ],
)  # fmt: skip
def test_what_is_wrong_is_said_with_the_remedy(
    played: list[RunnerEvent], words: str, is_programs_fault: bool
) -> None:
    found = check(PlayedLog(*played))
    verdict = verdict_of(found)
    assert not verdict.ready
    assert words in str(verdict)
    assert found.is_programs_fault is is_programs_fault


def test_the_log_of_a_failure_stands_in_where_the_runner_reports_no_lines() -> None:
    found = check(PlayedLog(failed(FailureKind.METRICS_MISSING, log_tail=tuple(PRINTED[:6]))))
    assert len(found.lines) == 6
    assert "loss" in found.proposal


def test_each_node_has_a_reader_of_its_own_and_long_logs_are_cut() -> None:
    bars = [f"{i * 10}%|#| {i}/10 [00:01<00:09, 1.0it/s]" for i in range(1, 4)]
    found = check(
        PlayedLog(*(log(bar, node=node) for node in range(2) for bar in bars), steps(5), ended())
    )
    assert [(line.node, line.metrics["step"]) for line in found.lines] == [
        (n, i) for n in range(2) for i in range(1, 4)
    ]
    long = check(PlayedLog(log(*["x"] * (KEPT_LINES + 5)), steps(5), ended()))
    assert len(long.lines) == KEPT_LINES


def test_an_interrupted_check_is_no_ones_fault() -> None:
    answers: Iterator[bool] = iter([False, True])
    runner = PlayedLog(log("loading"), log("still loading"))
    found = check_program(study(), runner, CONFIG, interrupted=lambda: next(answers, True))
    assert runner.cancelled
    assert found.interrupted
    assert not found.is_programs_fault
    assert not verdict_of(found).ready


def test_the_native_trainers_steps_need_no_log() -> None:
    native = api.load_study(spec(runner="local"))
    found = check_program(native, PlayedLog(steps(5), ended(time_from="device")), CONFIG)
    assert verdict_of(found).ready
    assert "steps" not in request_of(native, CONFIG).trainer_options


def test_what_torchrun_prints_of_a_failure_is_neither_a_pattern_nor_a_variable_that_is_missing() -> (
    None
):
    banner = "Setting OMP_NUM_THREADS environment variable for each process to be 1 in default"
    trailer = "  time      : 2026-11-22_19:18:01"
    message = "rank 0 during start raised RuntimeError: [enforce fail] ifa != nullptr. Unable to find address for: ib7"
    failure = failed(FailureKind.ERROR, message, log_tail=(banner, trailer))
    found = check(PlayedLog(log(banner, trailer), failure))
    assert not found.proposal
    assert "to one of the node's network interfaces" in verdict_of(found).remedy
    other = check(
        PlayedLog(
            log(banner, trailer),
            failed(FailureKind.ERROR, "it crashed", log_tail=(banner, trailer)),
        )
    )
    assert verdict_of(other).remedy == "see the last lines of the log"
    missing = failed(
        FailureKind.ERROR, "rank 0 raised KeyError: 'WANDB_PROJECT'", log_tail=(banner,)
    )
    assert (
        verdict_of(check(PlayedLog(log(banner), missing))).remedy
        == "set the variable under trainer.env"
    )
