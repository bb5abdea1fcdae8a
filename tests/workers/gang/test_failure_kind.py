"""Each kind of evidence leads to its failure kind; of several, the strongest decides."""

from __future__ import annotations

import errno

import pytest

from autotune.spec import Failure, FailureKind
from autotune_workers.gang.failure_kind import Evidence, of_death, of_exception, weigh

EXCEPTIONS = [
    ({"type": "MemoryError", "text": ""}, FailureKind.OUT_OF_MEMORY),
    (
        {"type": "OutOfMemoryError", "text": "CUDA out of memory. Tried to allocate 2 GiB"},
        FailureKind.OUT_OF_MEMORY,
    ),
    (
        {"type": "RuntimeError", "text": "DefaultCPUAllocator: can't allocate memory"},
        FailureKind.OUT_OF_MEMORY,
    ),
    (
        {"type": "RuntimeError", "text": "CUBLAS_STATUS_ALLOC_FAILED when calling"},
        FailureKind.OUT_OF_MEMORY,
    ),
    ({"type": "OSError", "text": "fork", "errno": errno.ENOMEM}, FailureKind.OUT_OF_MEMORY),
    (
        {"type": "OSError", "text": "No space left on device", "errno": errno.ENOSPC},
        FailureKind.ERROR,
    ),
    (
        {"type": "RuntimeError", "text": "[gloo/transport/tcp/pair.cc] Connection closed by peer"},
        FailureKind.WORKER_LOST,
    ),
    ({"type": "DistNetworkError", "text": "Connection reset by peer"}, FailureKind.WORKER_LOST),
    (
        {"type": "DistBackendError", "text": "NCCL communicator was aborted on rank 0"},
        FailureKind.WORKER_LOST,
    ),
    (
        {"type": "RuntimeError", "text": "Timed out waiting 5000ms for recv operation"},
        FailureKind.HANG,
    ),
    ({"type": "ValueError", "text": "Connection closed by peer"}, FailureKind.ERROR),
    ({"type": "RuntimeError", "text": "shape mismatch"}, FailureKind.ERROR),
]


@pytest.mark.parametrize(("said", "kind"), EXCEPTIONS)
def test_an_exception_speaks_for_its_class(said: dict, kind: FailureKind) -> None:
    evidence = of_exception({"step": 3, **said}, rank=1, log_tail=["last words"])
    assert evidence.kind is kind
    assert (evidence.rank, evidence.step) == (1, 3)
    assert "rank 1 in step 3" in evidence.message
    assert evidence.failure().log_tail == ("last words",)


def test_a_trainer_judges_itself() -> None:
    own = Failure(kind=FailureKind.DIVERGED, message="loss is nan")
    evidence = of_exception(
        {"type": "TrialFailed", "text": "", "failure": own.to_dict(), "step": 2}, rank=0
    )
    assert (evidence.weight, evidence.kind, evidence.step) == ("verdict", FailureKind.DIVERGED, 2)


DEATHS = [
    (-9, False, (), FailureKind.WORKER_LOST),
    (-9, True, (), FailureKind.OUT_OF_MEMORY),
    (-15, False, (), FailureKind.WORKER_LOST),
    (
        -6,
        False,
        ("terminate called after throwing an instance of 'std::bad_alloc'",),
        FailureKind.OUT_OF_MEMORY,
    ),
    (-6, False, ("assertion failed",), FailureKind.ERROR),
    (-11, False, (), FailureKind.ERROR),
    (3, False, (), FailureKind.ERROR),
    (0, False, (), FailureKind.WORKER_LOST),
    (None, False, (), FailureKind.WORKER_LOST),
]


@pytest.mark.parametrize(("code", "kernel_oom", "log", "kind"), DEATHS)
def test_a_death_speaks_for_its_class(
    code: int | None, kernel_oom: bool, log: tuple, kind: FailureKind
) -> None:
    assert of_death(rank=0, code=code, kernel_oom=kernel_oom, log_tail=log).kind is kind


def test_the_cause_outweighs_its_echoes() -> None:
    def evidence(weight: str) -> Evidence:
        return Evidence(weight=weight, kind=FailureKind.ERROR, message=weight)

    assert weigh([evidence("echo"), evidence("death"), evidence("memory")]).weight == "memory"
    assert weigh([evidence("timeout"), evidence("exception")]).weight == "exception"
    assert weigh([]) is None


def test_what_was_lost_is_said_with_when_and_why() -> None:
    why = "node 1 (10.0.0.8): was silent for 15 s"
    program, rank = of_death(rank=None, code=None, why=why), of_death(rank=3, code=None, step=5)
    assert (program.kind, program.message) == (
        FailureKind.WORKER_LOST,
        f"the program was lost during start: {why}",
    )
    assert rank.message == "rank 3 was lost in step 5: the host is lost"
