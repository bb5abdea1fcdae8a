"""On a real GPU: memory is free again however a rank ended."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from dataclasses import replace

import pytest

from autotune.ports import TrialRequest
from autotune.spec import FailureKind
from autotune_workers.runners.local import LocalRunner
from autotune_workers.runners.machine_limits import visible_gpus
from autotune_workers.training.faults import Fault
from tests.workers.processes import until
from tests.workers.requests import PATIENT, failure_of, one
from tests.workers.requests import request as asking

pytestmark = pytest.mark.gpu

SLACK_BYTES = 256 << 20
"""what contexts of equal processes may differ by"""
FAULTS = {
    "kill": (1, FailureKind.WORKER_LOST),
    "exhaust": (2, FailureKind.OUT_OF_MEMORY),
    "sleep": (3, FailureKind.HANG),
}


def request(number: int) -> TrialRequest:
    return asking(number, dp=1, measure=replace(PATIENT, step_timeout_s=20.0))


def used_bytes() -> int:
    """Memory of the first visible GPU that is in use, by the driver; makes no context."""
    command = [
        "nvidia-smi",
        f"--id={visible_gpus()[0]}",
        "--query-gpu=memory.used",
        "--format=csv,noheader,nounits",
    ]
    return (
        int(
            subprocess.run(
                command, check=True, capture_output=True, text=True, timeout=60
            ).stdout.split()[0]
        )
        << 20
    )


def until_it_falls_to(level_bytes: int) -> None:
    """The driver needs a moment after a process has ended."""
    until(lambda: used_bytes() <= level_bytes, 60)


@pytest.fixture(scope="module")
def before() -> int:
    """Memory in use before any rank was started."""
    return used_bytes()


@pytest.fixture(scope="module")
def runner(before: int) -> Iterator[LocalRunner]:
    faults = [Fault(kind=kind, step=2, trial=number) for kind, (number, _) in FAULTS.items()]
    with LocalRunner(max_ranks=1, device="cuda", faults=faults) as runner:
        yield runner
    until_it_falls_to(before + SLACK_BYTES)  # a closed runner leaves nothing on the GPU


@pytest.mark.parametrize("kind", FAULTS)
def test_memory_is_free_after_each_end_of_a_rank(runner: LocalRunner, kind: str) -> None:
    number, verdict = FAULTS[kind]
    assert one(runner, request(100 + number)).failure is None
    warm = used_bytes()
    failure = failure_of(one(runner, request(number)))
    assert failure.kind is verdict
    until_it_falls_to(warm + SLACK_BYTES)
    assert one(runner, request(200 + number)).failure is None
    until_it_falls_to(warm + SLACK_BYTES)
