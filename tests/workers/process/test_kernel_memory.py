"""The kernel's out-of-memory killer: met for real where a small memory group can be made (root),
inferred from its counters anywhere."""

from __future__ import annotations

import contextlib
import os
import subprocess
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from autotune.ports import StepsReported
from autotune.spec import FailureKind
from autotune.testing.runners import ended, events_until_ended
from autotune_workers.process.machine import EXPENDABLE, be_expendable, oom_kills
from autotune_workers.runners.local import LocalRunner
from autotune_workers.training.faults import Fault
from tests.workers.fault_table import with_small_memory
from tests.workers.process.test_program_runner import request as program
from tests.workers.rank_pids import rank_pids
from tests.workers.requests import PATIENT, failure_of, one, request

pytestmark = [pytest.mark.thorough, pytest.mark.alone]

LIMIT_BYTES = 96 << 20
GROUPS = (
    ("/sys/fs/cgroup", "cgroup.controllers", "memory.max"),
    ("/sys/fs/cgroup/memory", "memory.limit_in_bytes", "memory.limit_in_bytes"),
)
"""Where the system's version of memory groups (2, 1) has them, the file that shows it, and the file
of a limit."""


@pytest.fixture(scope="module")
def runner() -> Iterator[LocalRunner]:
    faults = [Fault(kind="exhaust", rank=1, step=2, trial=number) for number in (1, 11)]
    with LocalRunner(max_ranks=2, device="cpu", faults=faults) as runner:
        yield runner


@pytest.fixture
def small_group() -> Iterator[Path]:
    """A group of processes that may hold little memory; skips where this machine does not let us
    make one."""
    for root, shows, limit in GROUPS:
        if not Path(root, shows).exists():
            continue
        group = Path(root, f"autotune-test-{os.getpid()}")
        try:
            group.mkdir()
        except OSError:
            continue
        try:
            (group / limit).write_text(str(LIMIT_BYTES))
            with contextlib.suppress(OSError):
                (group / "memory.swap.max").write_text("0")
        except OSError:
            group.rmdir()
            continue
        try:
            yield group
        finally:
            end = time.monotonic() + 60
            while group.exists() and time.monotonic() < end:
                with contextlib.suppress(OSError):
                    group.rmdir()
                time.sleep(0.1)
        return
    pytest.skip("no memory group can be made here: not root, or the system does not let us")


def test_a_rank_that_the_kernel_kills_is_out_of_memory(
    runner: LocalRunner, small_group: Path
) -> None:
    assert one(runner, request(0)).failure is None
    (small_group / "cgroup.procs").write_text(str(rank_pids(runner)[1]))
    failure = failure_of(one(runner, request(1)))
    assert (failure.kind, failure.rank) == (FailureKind.OUT_OF_MEMORY, 1), failure
    assert "killed by the kernel" in failure.message
    assert one(runner, request(2)).failure is None


def test_a_program_that_the_kernel_kills_is_out_of_memory(
    runner: LocalRunner, small_group: Path
) -> None:
    arguments = ("--fault=hold@2", f"--group={small_group / 'cgroup.procs'}")
    failure = failure_of(
        one(runner, program(3, *arguments, measure=replace(PATIENT, precision=0.0)))
    )
    assert failure.kind is FailureKind.OUT_OF_MEMORY, failure
    assert "killed by the kernel" in failure.message
    assert one(runner, program(4)).failure is None


def test_the_kernel_is_offered_ranks_and_programs_before_their_owner(runner: LocalRunner) -> None:
    own = Path("/proc/self/oom_score_adj")
    if not own.exists():
        pytest.skip("this system has no such score")
    before = int(own.read_text())
    assert one(runner, request(5)).failure is None
    for pid in rank_pids(runner):
        assert int(Path(f"/proc/{pid}/oom_score_adj").read_text()) >= EXPENDABLE
    started = subprocess.Popen(["sleep", "60"], preexec_fn=be_expendable)
    try:
        assert int(Path(f"/proc/{started.pid}/oom_score_adj").read_text()) >= EXPENDABLE
    finally:
        started.kill()
        started.wait()
    assert int(own.read_text()) == before


def test_kills_are_counted_in_every_file_that_tells_them(tmp_path: Path) -> None:
    machine, group = tmp_path / "vmstat", tmp_path / "memory.events"
    machine.write_text("pgfault 12\noom_kill 3\noom_kill_disable 9\n")
    assert oom_kills((machine, group)) == 3, "a file that is not there says nothing"
    group.write_text("oom 1\noom_kill 1\noom_group_kill 0\n")
    assert oom_kills((machine, group)) == 4
    group.write_text("oom_kill many\n")
    assert oom_kills((machine, group)) == 3


def test_running_out_of_memory_waits_for_no_deadline(runner: LocalRunner) -> None:
    """Ranks say at once what happened; the loser's peers are woken up, not waited for."""
    asked = with_small_memory(11)
    runner.start(asked)
    stepped_s: list[float] = []

    def note(event: object) -> None:
        if isinstance(event, StepsReported):
            stepped_s.append(time.monotonic())

    failure = failure_of(ended(events_until_ended(runner, [asked.id], every=note)))
    cost_s = time.monotonic() - stepped_s[-1]
    assert failure.kind is FailureKind.OUT_OF_MEMORY
    assert cost_s < PATIENT.step_timeout_s / 2, (
        "under a second on an idle machine, the failing step included"
    )
