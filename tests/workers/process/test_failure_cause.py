"""The cause of a failure is found in the logs of real programs, which lie in `failing_programs`; no
process is started here."""

from __future__ import annotations

import tracemalloc
from collections.abc import Sequence
from pathlib import Path

import pytest

from autotune.spec import Failure, FailureKind
from autotune.trainers.logs.formats import stock_reader
from autotune_workers.gang.failure_kind import Evidence, weigh
from autotune_workers.process.failure.cause import CauseReader
from autotune_workers.process.program.evidence import NodeEnd
from autotune_workers.process.program.state import ProgramTrial
from tests.workers.requests import failure_of, request

LOGS = Path(__file__).parent / "failing_programs"
ERROR, INVALID = FailureKind.ERROR, FailureKind.INVALID


def lines_of(name: str) -> list[str]:
    """A log that was recorded. Of `torchrun`, two gloo ranks, unless its name says otherwise."""
    return (LOGS / f"{name}.txt").read_text().splitlines()


def cause(lines: Sequence[str], steps_done: int = 0) -> Evidence | None:
    reader = CauseReader()
    for line in lines:
        reader.hear(line)
    return weigh(reader.evidence(steps_done))


def failure(*logs: Sequence[str], code: int = 1) -> Failure:
    """Of an attempt whose nodes wrote these logs and ended with this exit code."""
    trial = ProgramTrial(
        request(0, dp=2 * len(logs), trainer="command"), [stock_reader() for _ in logs], 0.0
    )
    for node, lines in enumerate(logs):
        for line in lines:
            trial.hear([(0.0, line)], 0.0, node)
    ends = [
        NodeEnd(node=node, code=code, log_tail=tuple(lines[-30:]))
        for node, lines in enumerate(logs)
    ]
    return failure_of(trial.end(ends))


RECORDED = [
    (
        "rank_raises",
        ERROR,
        1,
        "rank 1 during start raised ValueError: the batch has 7 sequences, but 8 were expected",
    ),
    (
        "rank_raises_tee",
        ERROR,
        1,
        "rank 1 during start raised ValueError: the batch has 7 sequences, but 8 were",
    ),
    (
        "direct_cause",
        ERROR,
        1,
        "raised RuntimeError: the dataset has no column tokens; first KeyError: 'tokens'",
    ),
    (
        "raised_while_handling",
        ERROR,
        1,
        "raised FileNotFoundError: [Errno 2] No such file or directory: '/data/train",
    ),
    (
        "missing_variable",
        ERROR,
        0,
        "raised KeyError: 'TRAIN_DATA' (the environment variable TRAIN_DATA is not set)",
    ),
    (
        "missing_module",
        ERROR,
        0,
        "raised ModuleNotFoundError: No module named 'nosuchmodule_flash'",
    ),
    ("wrong_python", ERROR, None, "raised ModuleNotFoundError: No module named 'torch'"),
    ("missing_script", ERROR, None, "Python found no file /home/user/nofile.py"),
    ("exit_code_3", ERROR, 1, "rank 1 during start ended with exit code 3"),
    ("rank_aborts", ERROR, 1, "rank 1 during start crashed with SIGABRT"),
    ("rank_killed", FailureKind.WORKER_LOST, 1, "rank 1 during start was killed by SIGKILL"),
    (
        "out_of_memory",
        FailureKind.OUT_OF_MEMORY,
        1,
        "rank 1 during start ran out of memory: [enforce fail",
    ),
    (
        "spawn",
        ERROR,
        1,
        "rank 1 during start raised ValueError: hidden size 65 must be divisible by 4 heads",
    ),
    (
        "accelerate",
        ERROR,
        None,
        "raised ValueError: Default process group has not been initialized",
    ),
    ("hugging_face_trainer", ERROR, None, "raised IndexError: index out of range in self"),
    (
        "lightning",
        ERROR,
        None,
        "raised RuntimeError: grad can be implicitly created only for scalar outputs",
    ),
    ("typer_box", ERROR, None, "raised ValueError: learning rate 1.0 is too high"),
    (
        "unknown_flag",
        INVALID,
        None,
        "rejected its command line: unrecognized arguments: --micro-batch 4",
    ),
    (
        "wrong_value",
        INVALID,
        None,
        "rejected its command line: argument --dtype: invalid choice: 'fp8'",
    ),
    (
        "hugging_face_flag",
        INVALID,
        None,
        "not used by the HfArgumentParser: ['--per_device_batch_size', '4']",
    ),
    (
        "hugging_face_flag_tee",
        INVALID,
        None,
        "not used by the HfArgumentParser: ['--per_device_batch_size', '3']",
    ),
    (
        "hugging_face_value",
        INVALID,
        None,
        "argument --max_steps/--max-steps: invalid int value: 'many'",
    ),
    ("click_flag", INVALID, None, "rejected its command line: No such option '--learning'"),
    ("typer_flag", INVALID, None, "rejected its command line: No such option: --learning"),
]


@pytest.mark.parametrize(
    ("name", "kind", "rank", "words"), RECORDED, ids=[name for name, *_ in RECORDED]
)
def test_the_cause_is_the_first_failing_ranks_and_not_the_launchers(
    name: str, kind: FailureKind, rank: int | None, words: str
) -> None:
    found = failure(lines_of(name))
    assert words in found.message
    assert (found.kind, found.rank) == (kind, rank)
    assert found.exception
    assert found.log_tail
    assert len(found.message.splitlines()) == 1
    assert not any(
        "ChildFailedError" in line or "elastic_launch" in line for line in found.log_tail
    )


def test_every_recorded_log_is_tested() -> None:
    assert {path.stem for path in LOGS.glob("*.txt")} == {name for name, *_ in RECORDED}


def test_the_evidence_is_the_traceback_with_what_came_before() -> None:
    found = failure(lines_of("rank_raises"))
    assert found.log_tail[5] == "step 2 loss 0.3333333333333333"
    assert found.log_tail[6] == "[rank1]: Traceback (most recent call last):"
    assert found.log_tail[-1] == "[rank1]: but 8 were expected"
    assert found.exception == "ValueError: the batch has 7 sequences, but 8 were expected"


def test_of_a_long_traceback_the_begin_and_the_end_are_kept() -> None:
    tail = failure(lines_of("lightning")).log_tail
    assert any(line.endswith('File "/home/user/li.py", line 7, in <module>') for line in tail)
    assert "..." in tail
    assert tail[-1] == "RuntimeError: grad can be implicitly created only for scalar outputs"
    assert len(tail) <= 36


def test_of_two_nodes_the_one_that_raised_counts_whichever_ended_first() -> None:
    echo = [
        line.replace("[rank0]", "[rank2]")
        for line in lines_of("rank_raises")
        if line.startswith("[rank0]")
    ]
    for logs in ((lines_of("rank_raises"), echo), (echo, lines_of("rank_raises"))):
        found = failure(*logs)
        assert found.kind is ERROR
        assert found.rank == 1
        assert "raised ValueError" in found.message
        assert "node" in found.message


def test_a_local_rank_is_told_as_the_rank_of_the_job() -> None:
    reader = CauseReader(first_rank=8)
    for line in (
        "[default3]:Traceback (most recent call last):",
        '[default3]:  File "t.py"',
        "[default3]:OSError: no",
    ):
        reader.hear(line)
    (found,) = reader.evidence()
    assert found.rank == 11


def test_a_traceback_that_training_went_on_after_is_no_cause() -> None:
    reader = CauseReader()
    for line in (
        "Traceback (most recent call last):",
        '  File "t.py"',
        "ImportError: no flash attention",
    ):
        reader.hear(line, steps_done=0)
    assert [e.exception for e in reader.evidence(1)] == ["ImportError: no flash attention"]
    assert reader.evidence(2) == []


def test_lines_of_other_ranks_between_those_of_a_traceback_do_no_harm() -> None:
    lines = [
        "Traceback (most recent call last):",
        "step 4",
        '  File "t.py", line 1',
        "loss: 2.3",
        "ValueError: bad",
        "loss: 2.2",
    ]
    found = cause(lines)
    assert found is not None
    assert found.exception == "ValueError: bad"


def test_what_the_cpp_runtime_says_before_it_aborts_is_an_exception() -> None:
    lines = [
        "terminate called after throwing an instance of 'c10::DistBackendError'",
        "  what():  [PG 0 Rank 1] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=5, OpType=ALLREDUCE)",
    ]
    found = cause(lines)
    assert found is not None
    assert (found.weight, found.kind) == ("timeout", FailureKind.HANG)
    thrown = cause(
        [
            lines[0].replace("c10::DistBackendError", "std::out_of_range"),
            "  what():  vector::_M_range_check",
        ]
    )
    assert thrown is not None
    assert thrown.message.endswith("raised std::out_of_range: vector::_M_range_check")
    assert cause(["terminate called without an active exception"]) is None, (
        "it says nothing of the cause"
    )


@pytest.mark.parametrize(
    "line",
    [
        "train.py: error: argument --lr: invalid float value: 'x'",
        "pretrain_gpt.py: error: unrecognized arguments: --micro-batch 4",
        "Unknown command line flag 'lr'. Did you mean: log_dir ?",
        "Could not override 'trainer.lr'.",
        "│ Unrecognized options: --training.lr                        │",
    ],
)
def test_other_parsers_refusals_are_invalid_configs(line: str) -> None:
    found = cause([line])
    assert found is not None
    assert found.kind is INVALID
    assert not found.exception.endswith("│")


@pytest.mark.parametrize(
    "line",
    [
        "kernel.cpp:12:3: error: expected ';'",
        "step 3: error: 0.5",
        "Error: Invalid value",
        "loss 2",
    ],
)
def test_other_lines_are_no_refusals(line: str) -> None:
    assert cause([line]) is None


def test_a_silent_program_whose_rank_raised_is_told_with_its_exception() -> None:
    trial = ProgramTrial(request(0, dp=2, trainer="command"), [stock_reader()], 0.0)
    for line in lines_of("rank_raises")[:11]:
        trial.hear([(0.0, line)], 0.0)
    trial.tick(1e6)
    found = failure_of(trial.end([NodeEnd(node=0, code=-15, was_told=True)]))
    assert found.kind in (FailureKind.HANG, FailureKind.TIMEOUT)
    assert "before that, rank 1 during start raised ValueError" in found.message


@pytest.mark.thorough
def test_memory_is_bounded_however_long_the_log_is() -> None:
    reader = CauseReader()
    tracemalloc.start()
    for number in range(20_000):
        rank = number % 200
        reader.hear(f"[rank{rank}]: Traceback (most recent call last):")
        reader.hear(f"[rank{rank}]:   frame {number} {'x' * 80}")
    used, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert used < 3e6
    assert reader.evidence() == []


def test_steps_of_a_peer_after_the_last_words_of_a_node_do_not_mean_that_it_survived() -> None:
    trial = ProgramTrial(request(0, dp=2, trainer="command"), [stock_reader(), stock_reader()], 0.0)
    for line in (
        "Traceback (most recent call last):",
        '  File "train.py", line 3, in <module>',
        "ValueError: no data",
    ):
        trial.hear([(0.0, line)], 0.0, 1)
    for step in range(4):
        trial.hear([(0.1 * step, f'{{"step": {step}, "step_time_s": 0.1}}')], 0.1 * step, 0)
    failure = failure_of(
        trial.end([NodeEnd(node=1, code=1), NodeEnd(node=0, code=-15, was_told=True)])
    )
    assert "raised ValueError: no data" in failure.message
