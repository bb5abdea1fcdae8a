"""The fault table: what really happens to a rank, and the verdict that has to come of it. Both
runners inherit it.

Every row has a trial number of its own, under which the one runner of a module knows its fault.
After each row the next trial must run.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from autotune.ports import AttemptEnded, StepsReported, TrialRequest, TrialRunner
from autotune.spec import Failure, FailureKind, ModelSpec
from autotune.testing.runners import ended, events_until_ended
from autotune_workers.training.faults import Fault
from tests.workers.requests import PATIENT, request

HASTY = replace(PATIENT, step_timeout_s=10.0)
LONG_STEPS = {"accumulation_steps": 8}


@dataclass(frozen=True, kw_only=True)
class Row:
    """One fault and its verdict."""

    faults: tuple[Fault, ...]
    kind: FailureKind
    rank: int | None = 1
    says: str = ""
    """words of the message or the exception"""
    asks: Callable[[int], TrialRequest] = lambda number: request(number)
    knows_step: bool = True


def _fault(number: int, kind: str, **fields: Any) -> Fault:
    return Fault(kind=kind, rank=1, trial=number, **fields)


def _big_model(number: int) -> TrialRequest:
    """A model whose weights and moments exceed what the rank may hold."""
    asked = request(number, memory_bytes=256.0 * (1 << 20))
    model = ModelSpec(
        name="big",
        num_layers=2,
        hidden_size=512,
        num_attention_heads=4,
        vocab_size=50_000,
        max_positions=64,
    )
    return replace(asked, workload=replace(asked.workload, model=model))


def with_small_memory(number: int) -> TrialRequest:
    """Whose ranks may hold 512 MiB."""
    return request(number, memory_bytes=512.0 * (1 << 20))


def _hasty(number: int) -> TrialRequest:
    return request(number, measure=HASTY)


def _rate(rate: float) -> Callable[[int], TrialRequest]:
    def asks(number: int) -> TrialRequest:
        asked = request(number, trainer_options={"learning_rate": rate})
        measure = replace(PATIENT, min_steps=200, max_steps=200)
        return replace(asked, workload=replace(asked.workload, optimizer="sgd"), measure=measure)

    return asks


ROWS: dict[str, Row] = {
    "memory exhausted by the config": Row(
        faults=(),
        kind=FailureKind.OUT_OF_MEMORY,
        rank=None,
        says="memory",
        asks=_big_model,
        knows_step=False,
    ),
    "memory exhausted in a step": Row(
        faults=(_fault(1, "exhaust", step=2),),
        kind=FailureKind.OUT_OF_MEMORY,
        says="memory",
        asks=with_small_memory,
    ),
    "exploding loss": Row(
        faults=(),
        kind=FailureKind.DIVERGED,
        rank=None,
        says="the loss must stay under",
        asks=_rate(30.0),
    ),
    "loss not a number": Row(
        faults=(), kind=FailureKind.DIVERGED, rank=None, says="must be finite", asks=_rate(1e30)
    ),
    "killed in start": Row(
        faults=(_fault(4, "kill"),),
        kind=FailureKind.WORKER_LOST,
        says="rank 1 during start was killed by SIGKILL",
        knows_step=False,
    ),
    "killed in the first step": Row(
        faults=(_fault(5, "kill", step=0),),
        kind=FailureKind.WORKER_LOST,
        says="rank 1 in step 0 was killed by SIGKILL",
    ),
    "killed in the middle of a step": Row(
        faults=(_fault(6, "kill", step=2, delay_s=0.02),),
        kind=FailureKind.WORKER_LOST,
        says="SIGKILL",
        asks=lambda number: request(
            number, config=LONG_STEPS, measure=replace(PATIENT, min_steps=200, max_steps=200)
        ),
    ),
    "killed while its peer waits in a collective": Row(
        faults=(_fault(7, "kill", step=2, delay_s=1.0), _fault(7, "sleep", step=2)),
        kind=FailureKind.WORKER_LOST,
        says="SIGKILL",
    ),
    "stopped": Row(
        faults=(_fault(8, "freeze", step=2),), kind=FailureKind.HANG, says="heartbeat", asks=_hasty
    ),
    "asleep while its peer waits in a collective": Row(
        faults=(_fault(9, "sleep", step=2),), kind=FailureKind.HANG, says="collective", asks=_hasty
    ),
    "refused by the trainer": Row(
        faults=(),
        kind=FailureKind.INVALID,
        rank=None,
        says="tp must divide",
        asks=lambda number: request(number, dp=1, config={"tp": 3}),
        knows_step=False,
    ),
    "disk full": Row(
        faults=(_fault(11, "disk_full", step=2),), kind=FailureKind.ERROR, says="disk space"
    ),
    "metrics missing": Row(
        faults=(Fault(kind="silence", rank=0, trial=12),),
        kind=FailureKind.METRICS_MISSING,
        rank=0,
        says="measured step",
    ),
    "an exception": Row(
        faults=(_fault(13, "error", step=2),), kind=FailureKind.ERROR, says="ValueError"
    ),
    "left with a code": Row(
        faults=(_fault(14, "exit", step=2),), kind=FailureKind.ERROR, says="exit code 3"
    ),
    "longer than a trial may take": Row(
        faults=(),
        kind=FailureKind.TIMEOUT,
        rank=None,
        says="trial_timeout_s",
        asks=lambda number: request(
            number, measure=replace(PATIENT, min_steps=10**6, max_steps=10**6, trial_timeout_s=10.0)
        ),
        knows_step=False,
    ),
}
NUMBERS = {name: number for number, name in enumerate(ROWS)}
FAULTS = tuple(fault for row in ROWS.values() for fault in row.faults)
NEXT = 1000


def play(
    runner: TrialRunner, name: str, *, ranks_after: int = 2, deadline_s: float = 900.0
) -> tuple[AttemptEnded, list[StepsReported]]:
    """Runs the row and then a healthy trial on `ranks_after` ranks, and checks both; returns the
    row's end and steps."""
    row, number = ROWS[name], NUMBERS[name]
    asked = row.asks(number)
    runner.start(asked)
    events = events_until_ended(runner, [asked.id], deadline_s=deadline_s)
    end = ended(events)
    check(row, end.failure)
    after = request(NEXT + number, dp=ranks_after)
    runner.start(after)
    assert ended(events_until_ended(runner, [after.id], deadline_s=deadline_s)).failure is None
    return end, [e for e in events if isinstance(e, StepsReported)]


def check(row: Row, failure: Failure | None) -> None:
    """Class and evidence are those of the row."""
    assert failure is not None
    assert failure.kind is row.kind, failure
    assert row.says in failure.message or row.says in failure.exception, failure
    if row.rank is not None:
        assert failure.rank == row.rank, failure
    if row.knows_step:
        assert failure.step is not None, failure
    if row.faults and row.kind is not FailureKind.METRICS_MISSING:
        assert failure.log_tail, failure
