"""Programs that misbehave, on one node and on two: the kind of the failure and its cause in words,
in time, with bounded disk and memory, and nothing left of them.
"""

from __future__ import annotations

import sys
import time
import venv
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from autotune.errors import RunnerError
from autotune.ports import TrialRequest, TrialRunner
from autotune.spec import FailureKind, MeasureSpec
from autotune_workers.process.attempt_logs import FIRST_CHARACTERS, LAST_CHARACTERS
from autotune_workers.process.machine import status_bytes
from autotune_workers.runners.local import LocalRunner
from tests.workers.process import misbehaving_program
from tests.workers.processes import running
from tests.workers.program_requests import METRICS
from tests.workers.requests import DOUBLE, PATIENT, failure_of, measurement_of, one
from tests.workers.requests import request as asking

pytestmark = pytest.mark.alone

MIB = 1 << 20
SCRIPT = Path(misbehaving_program.__file__)
BRIEF = replace(PATIENT, min_steps=8, max_steps=8, precision=0.0)
HASTY = replace(BRIEF, start_timeout_s=20.0, step_timeout_s=10.0)
"""for programs that hang: steps of the others come every few milliseconds"""
EVERYWHERE = -1
"""in place of the node that misbehaves"""
LOG_BYTES = 4 * (FIRST_CHARACTERS + LAST_CHARACTERS)
"""on disk for one node's log: a character that stands for a byte that is no text takes three"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """What a program does, and what a trial of it must come to."""

    does: str
    """a function of the program"""
    kind: FailureKind
    """of the failure"""
    says: str
    """in its message"""
    arguments: tuple[str, ...] = ()
    """of the program, besides"""

    @property
    def hangs(self) -> bool:
        """Whether a deadline must pass before it is known."""
        return self.kind is FailureKind.HANG

    @property
    def measure(self) -> MeasureSpec:
        """The deadlines of its trial."""
        return HASTY if self.hangs else BRIEF


CASES = (
    Case(does="nothing", kind=FailureKind.HANG, says="_timeout_s"),
    Case(does="garbage", kind=FailureKind.HANG, says="_timeout_s"),
    Case(does="silence", kind=FailureKind.HANG, says="step_timeout_s"),
    Case(does="stubborn", kind=FailureKind.HANG, says="step_timeout_s"),
    Case(does="untrained", kind=FailureKind.METRICS_MISSING, says="If the program continues what an earlier trial saved"),
    Case(does="early", kind=FailureKind.ERROR, says="exit code 1"),
    Case(does="children", kind=FailureKind.ERROR, says="exit code 1"),
    Case(does="flood", kind=FailureKind.ERROR, says="raised ValueError: the last words"),
    Case(
        does="early", kind=FailureKind.INVALID, says="unrecognized arguments: --fused", arguments=("--fused",)
    ),
    Case(does="variable", kind=FailureKind.ERROR, says="the environment variable TRAIN_DATA is not set"),
)  # fmt: skip
SLOW = ("nothing", "stubborn", "variable")
"""cases whose like the others show too"""


def asked(
    number: int, does: str, *arguments: str, nodes: int = 1, at: int | None = None, **options: Any
) -> TrialRequest:
    """A trial with one rank on each of so many nodes; the last one misbehaves."""
    argv = [
        options.pop("program", sys.executable),
        str(SCRIPT),
        "--node={node_rank}",
        "--micro-batch={micro_batch_size}",
        "--ranks={dp}",
    ]
    argv += [f"--do={does}", f"--at={nodes - 1 if at is None else at}", *arguments]
    chosen = {"argv": argv, "metrics": METRICS, **options}
    return asking(
        number,
        dp=nodes,
        trainer="command",
        trainer_options=chosen,
        config={"precision": "bf16"},
        measure=BRIEF,
        cluster={"num_nodes": nodes, "gpus_per_node": 1},
    )


@pytest.fixture(scope="module")
def runner() -> Iterator[LocalRunner]:
    with LocalRunner(max_ranks=2, device="cpu", trial=DOUBLE) as runner:
        yield runner


def check_failure(runner: TrialRunner, case: Case, nodes: int, *, within_s: float) -> None:
    """Kind, cause and time of the failure, after which nothing of the program runs."""
    began_s = time.monotonic()
    request = replace(asked(1, case.does, *case.arguments, nodes=nodes), measure=case.measure)
    failure = failure_of(one(runner, request))
    took_s = time.monotonic() - began_s
    assert failure.kind is case.kind, failure
    assert case.says in failure.message
    assert took_s >= HASTY.step_timeout_s if case.hangs else took_s < within_s
    assert running(SCRIPT.name) == []


def size_of(folder: Path) -> int:
    """Bytes of the files below it."""
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


def of_cases(nodes: int) -> list[Any]:
    """Parameters: slow ones are those whose like the others show too; of the others every round
    runs one."""

    def marks(case: Case) -> list[Any]:
        if case.does in SLOW:
            return [pytest.mark.slow]
        return [] if (nodes, case.does) == (1, "children") else [pytest.mark.thorough]

    return [
        pytest.param(
            nodes, case, id=f"{nodes}-{case.does}{''.join(case.arguments)}", marks=marks(case)
        )
        for case in CASES
    ]


@pytest.mark.parametrize(("nodes", "case"), [*of_cases(1), *of_cases(2)])
def test_a_program_that_misbehaves_fails_with_its_kind_and_cause_and_leaves_nothing(
    runner: LocalRunner,
    own_house: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    nodes: int,
    case: Case,
) -> None:
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    monkeypatch.setenv("TMPDIR", str(scratch))  # of the keepers
    held = status_bytes("VmRSS") or 0
    check_failure(runner, case, nodes, within_s=BRIEF.step_timeout_s / 2)
    assert list(scratch.iterdir()) == []
    assert size_of(own_house) <= nodes * LOG_BYTES
    assert (status_bytes("VmRSS") or 0) - held < 64 * MIB


@pytest.mark.parametrize("nodes", [1, 2])
def test_garbage_between_good_steps_does_no_harm(runner: LocalRunner, nodes: int) -> None:
    seen = measurement_of(one(runner, asked(1, "noise", nodes=nodes, at=EVERYWHERE)))
    assert seen.step_time_s == pytest.approx(0.05, abs=0.002)  # node 1 says 51 ms


@pytest.mark.parametrize("nodes", [1, pytest.param(2, marks=pytest.mark.slow)])
def test_a_python_without_the_module_is_the_cause(
    runner: LocalRunner, tmp_path: Path, nodes: int
) -> None:
    venv.create(tmp_path / "bare", symlinks=True)
    failure = failure_of(
        one(runner, asked(1, "torch", nodes=nodes, program="python", python=str(tmp_path / "bare")))
    )
    assert failure.kind is FailureKind.ERROR
    assert "ModuleNotFoundError: No module named 'torch'" in failure.message


def test_a_python_that_is_not_there_is_never_silently_another_one(runner: LocalRunner) -> None:
    with pytest.raises(RunnerError, match="the Python of '/no/such/environment'"):
        runner.start(asked(1, "early", program="python", python="/no/such/environment"))
