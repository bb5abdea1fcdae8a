"""The fault table on the local runner, and what is left behind after each kind of death."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from autotune.spec import FailureKind
from autotune.testing.runners import ended, events_until_ended
from autotune_workers.process.machine import is_alive
from autotune_workers.runners.local import LocalRunner
from autotune_workers.training.faults import Fault
from tests.matrix import sampled
from tests.workers.fault_table import FAULTS, NUMBERS, ROWS, play
from tests.workers.rank_pids import rank_pids
from tests.workers.requests import failure_of, one, request
from tests.workers.unformed_groups import COLLECTIVES, FILE

pytestmark = pytest.mark.alone

LEAKY = 500
RANKS = 4


@pytest.fixture(scope="module")
def runner() -> Iterator[LocalRunner]:
    faults = (*FAULTS, Fault(kind="leak", rank=1, step=2, trial=LEAKY))
    with LocalRunner(max_ranks=RANKS, device="cpu", faults=faults) as runner:
        yield runner


@pytest.mark.parametrize("name", sampled(ROWS, ["memory exhausted in a step", "stopped"]))
def test_each_fault_gets_its_verdict_and_the_next_trial_runs(
    runner: LocalRunner, name: str
) -> None:
    before = set(rank_pids(runner))
    play(runner, name, ranks_after=RANKS)  # every place can be used again
    gone = before - set(rank_pids(runner))
    assert not any(is_alive(pid) for pid in gone)


@pytest.mark.thorough
def test_only_the_rank_that_failed_is_replaced(runner: LocalRunner) -> None:
    one(runner, request(2000))
    before = set(rank_pids(runner))
    play(runner, "killed in the middle of a step")
    assert len(before - set(rank_pids(runner))) == 1


@pytest.mark.thorough
def test_a_rank_whose_group_could_not_be_formed_is_replaced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else it names its next group otherwise than its peers do, and they would look for one another
    for ever."""
    file = tmp_path / "unformed"
    file.touch()
    monkeypatch.setenv(FILE, str(file))
    with LocalRunner(max_ranks=4, device="cpu", collectives=COLLECTIVES) as runner:
        failure = failure_of(one(runner, request(1)))
        assert "Connection closed by peer" in failure.message
        file.unlink()
        assert one(runner, request(2, dp=4)).failure is None


@pytest.mark.thorough
def test_a_rank_that_keeps_memory_is_replaced(runner: LocalRunner) -> None:
    one(runner, request(2001))
    before = set(rank_pids(runner))
    assert one(runner, request(LEAKY)).failure is None
    assert len(before - set(rank_pids(runner))) == 1


@pytest.mark.thorough
def test_a_fault_in_one_trial_leaves_another_at_its_side_alone(runner: LocalRunner) -> None:
    hit, beside = request(NUMBERS["killed in the first step"]), request(2002)
    runner.start(hit)
    runner.start(beside)
    events = events_until_ended(runner, [hit.id, beside.id])
    failure = failure_of(ended(events, hit.id))
    assert failure.kind is FailureKind.WORKER_LOST
    assert ended(events, beside.id).failure is None
