"""Failures with collectives that block for ever when a peer has failed, as NCCL's do: each is told
at once, by the right rank and kind."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator
from dataclasses import replace

import pytest

from autotune.ports import AttemptEnded, StepsReported, TrialRequest
from autotune.spec import Failure, FailureKind
from autotune.testing.runners import ended, events_until_ended
from autotune_workers.gang.ladder import Patience
from autotune_workers.runners.local import LocalRunner
from autotune_workers.training.faults import Fault
from tests.matrix import sampled
from tests.workers.blocking_groups import COLLECTIVES
from tests.workers.fault_table import with_small_memory
from tests.workers.rank_pids import rank_pids
from tests.workers.requests import PATIENT, failure_of, one, request

pytestmark = pytest.mark.alone

ENDLESS = replace(PATIENT, min_steps=10**6, max_steps=10**6)
HASTY = replace(ENDLESS, step_timeout_s=10.0)
PIPELINED = {"dp": 1, "pp": 2, "accumulation_steps": 4}
OOM, RAISED, KILLED, CANCELLED, HEALTHY, NAN, ASLEEP = *range(6), 10
CUTS = {"dp": {}, "dp, sharded": {"zero_stage": 3}, "pp": PIPELINED}
FAULTS = (
    Fault(kind="exhaust", rank=1, step=2, trial=OOM),
    Fault(kind="error", rank=1, step=2, trial=RAISED),
    Fault(kind="kill", rank=1, step=2, trial=KILLED),
    Fault(kind="sleep", rank=1, step=2, trial=CANCELLED),
    Fault(kind="spike", rank=1, step=2, trial=NAN, factor=math.nan),
    *(
        Fault(kind="sleep", rank=1, step=2, trial=ASLEEP + n, in_forward=True)
        for n in range(len(CUTS))
    ),
)
TOLD_S = PATIENT.step_timeout_s / 4
"""from the fault to the end of the attempt, at the most: a peer that was not told would wait for
all of the deadline of a step"""


@pytest.fixture(scope="module")
def runner() -> Iterator[LocalRunner]:
    patience = Patience(stop_s=0.5, abort_s=2.0)
    with LocalRunner(
        max_ranks=2, device="cpu", faults=FAULTS, patience=patience, collectives=COLLECTIVES
    ) as runner:
        yield runner


def failed(runner: LocalRunner, asked: TrialRequest) -> tuple[Failure, float]:
    """Why the attempt failed, and s since its last step."""
    runner.start(asked)
    last_s = time.monotonic()
    while True:
        for event in runner.poll(1.0):
            if isinstance(event, StepsReported):
                last_s = time.monotonic()
            elif isinstance(event, AttemptEnded):
                return failure_of(event), time.monotonic() - last_s


@pytest.mark.parametrize(
    ("asked", "kind", "rank", "says"),
    [
        (replace(with_small_memory(OOM), measure=ENDLESS), FailureKind.OUT_OF_MEMORY, 1, "memory"),
        pytest.param(
            request(RAISED, measure=ENDLESS),
            FailureKind.ERROR,
            1,
            "ValueError",
            marks=pytest.mark.thorough,
        ),
        (request(KILLED, measure=ENDLESS), FailureKind.WORKER_LOST, 1, "SIGKILL"),
    ],
    ids=["memory exhausted", "an exception", "killed"],
)
def test_a_failure_is_told_at_once_by_the_rank_that_failed_and_its_peer_stays_warm(
    runner: LocalRunner, asked: TrialRequest, kind: FailureKind, rank: int, says: str
) -> None:
    assert one(runner, request(HEALTHY)).failure is None
    before = set(rank_pids(runner))
    failure, told_s = failed(runner, asked)
    assert (failure.kind, failure.rank) == (kind, rank), failure
    assert says in failure.message
    assert told_s < TOLD_S
    assert len(before - set(rank_pids(runner))) == (kind is FailureKind.WORKER_LOST)


@pytest.mark.thorough
def test_numbers_that_are_none_are_told_at_once_and_the_ranks_stay_warm(
    runner: LocalRunner,
) -> None:
    before = set(rank_pids(runner))
    failure, told_s = failed(runner, request(NAN, measure=ENDLESS))
    assert failure.kind is FailureKind.DIVERGED, failure
    assert told_s < TOLD_S
    assert before <= set(rank_pids(runner))


@pytest.mark.parametrize("cut", sampled(CUTS, [*CUTS][:1]))
def test_the_rank_that_sleeps_in_a_forward_pass_is_named_and_replaced_and_its_peer_is_kept(
    runner: LocalRunner, cut: str
) -> None:
    number = ASLEEP + list(CUTS).index(cut)
    assert one(runner, request(HEALTHY)).failure is None
    before = rank_pids(runner)
    failure, _ = failed(runner, request(number, measure=HASTY, config=CUTS[cut]))
    assert (failure.kind, failure.rank) == (FailureKind.HANG, 1), failure
    assert failure.exception.endswith("time.sleep(3600)"), failure
    assert before[0] in rank_pids(runner)
    assert before[1] not in rank_pids(runner)


@pytest.mark.thorough
def test_a_trial_that_is_cancelled_while_a_rank_hangs_has_not_failed(runner: LocalRunner) -> None:
    asked = request(CANCELLED, measure=ENDLESS)
    runner.start(asked)
    steps = 0
    while steps < 2:
        steps += sum(len(e.step_times_s) for e in runner.poll(1.0) if isinstance(e, StepsReported))
    runner.cancel(asked.id)
    end = ended(events_until_ended(runner, [asked.id]))
    assert end.cancelled, end.failure
