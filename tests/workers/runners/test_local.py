"""The local runner keeps the runner's contract, keeps its ranks warm, and runs trials side by
side."""

from __future__ import annotations

import os
import signal
import socket
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from autotune.errors import RunnerError, SpecError
from autotune.ports import AttemptEnded, AttemptQueued, AttemptStarted, NodePlace, TrialRequest
from autotune.spec import FailureKind
from autotune.testing.runners import RunnerContract, ended, events_until_ended
from autotune_workers.process import children
from autotune_workers.process.machine import descendants, is_alive
from autotune_workers.runners import turn_queue
from autotune_workers.runners.local import LocalRunner
from tests.workers.process.test_machine_turn import other
from tests.workers.processes import owner_that_runs, parent_of, until
from tests.workers.rank_pids import rank_pids
from tests.workers.requests import DOUBLE, failure_of, measurement_of, one, request
from tests.workers.requests import request as asking

pytestmark = pytest.mark.alone


@pytest.fixture(scope="module")
def warm() -> Iterator[LocalRunner]:
    with LocalRunner(max_ranks=8, device="cpu", trial=DOUBLE) as runner:
        yield runner


class TestLocalRunner(RunnerContract):
    @pytest.fixture
    def runner(self, request: pytest.FixtureRequest, warm: LocalRunner) -> Iterator[LocalRunner]:
        if "clos" not in request.node.name:  # importing torch anew for each law would take minutes
            yield warm
            return
        with LocalRunner(max_ranks=2, device="cpu", trial=DOUBLE) as runner:
            yield runner

    @pytest.fixture
    def request_for(self):
        return lambda number: asking(number, dp=1)


def test_ranks_stay_warm_between_trials(warm: LocalRunner) -> None:
    pids = []
    for number in range(3):
        assert one(warm, request(number, dp=2)).failure is None
        pids.append(rank_pids(warm))
    assert pids[0] == pids[1] == pids[2]


def test_trials_run_at_once_on_disjoint_ranks(warm: LocalRunner) -> None:
    one(warm, request(9, dp=4))  # all are up
    slow = {"step_s": 0.1}
    asked = [request(n, dp=2, trainer_options=slow) for n in range(2)]
    for trial in asked:
        warm.start(trial)
    events = events_until_ended(warm, [r.id for r in asked])
    started = [i for i, e in enumerate(events) if isinstance(e, AttemptStarted)]
    first_end = min(i for i, e in enumerate(events) if isinstance(e, AttemptEnded))
    assert len(started) == 2
    assert max(started) < first_end
    here = (NodePlace(node=socket.gethostname(), ranks=(0, 1)),)
    assert [e.places for e in events if isinstance(e, AttemptStarted)] == [here, here], (
        "also on warm ranks"
    )


@pytest.mark.thorough
def test_a_trial_waits_while_another_process_measures_and_says_so_again_and_again(
    warm: LocalRunner, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(turn_queue, "QUEUED_EVERY_S", 0.2)
    asked = request(dp=2)
    with other() as theirs:
        assert theirs.ask("take") == "held"
        warm.start(asked)
        waits = [*warm.poll(5.0), *warm.poll(5.0)]
        assert len(waits) == 2
        assert all(
            isinstance(event, AttemptQueued) and "study theirs" in event.reason for event in waits
        )
        theirs.ask("give back")
        events = events_until_ended(warm, [asked.id])
        started = next(i for i, event in enumerate(events) if isinstance(event, AttemptStarted))
        assert isinstance(events[started - 1], AttemptQueued), (
            "the deadlines of the trial begin when its turn begins"
        )
        assert ended(events).failure is None
        assert theirs.ask("take") == "held", "the trial gave its turn back"


@pytest.mark.thorough
def test_a_trial_that_is_cancelled_while_it_waits_leaves_the_turn_to_others(
    warm: LocalRunner,
) -> None:
    asked = request(dp=2)
    with other() as theirs:
        assert theirs.ask("take") == "held"
        warm.start(asked)
        warm.cancel(asked.id)
        assert ended(events_until_ended(warm, [asked.id])).cancelled
        theirs.ask("give back")
        assert theirs.ask("take") == "held"


@pytest.mark.thorough
def test_a_study_with_several_trials_at_once_lets_others_have_their_turn(warm: LocalRunner) -> None:
    slow = {"step_s": 0.1}
    first, second = (request(number, dp=2, trainer_options=slow) for number in range(2))
    with other() as theirs:
        warm.start(first)
        assert "study s " in theirs.ask("take")
        warm.start(second)
        assert (
            ended([e for e in events_until_ended(warm, [first.id]) if e.id == first.id]).failure
            is None
        )
        assert theirs.ask("take") == "held"
        assert all(isinstance(event, AttemptQueued) for event in warm.poll(0.3))
        theirs.ask("give back")
        assert (
            ended([e for e in events_until_ended(warm, [second.id]) if e.id == second.id]).failure
            is None
        )


@pytest.mark.thorough
def test_a_gang_of_eight_works_here(warm: LocalRunner) -> None:
    assert measurement_of(one(warm, request(0, dp=8))).num_ranks == 8


def test_a_config_that_is_larger_than_the_runner_is_invalid(warm: LocalRunner) -> None:
    failure = failure_of(one(warm, request(0, dp=16)))
    assert failure.kind is FailureKind.INVALID
    assert "16" in failure.message


def test_another_trainer_is_refused_at_once(warm: LocalRunner) -> None:
    with pytest.raises(RunnerError, match="nobody"):
        warm.start(request(0, trainer="nobody"))


def test_closing_leaves_no_process() -> None:
    runner = LocalRunner(max_ranks=2, device="cpu", trial=DOUBLE)
    asked: TrialRequest = request(0, dp=2, trainer_options={"step_s": 30.0})
    runner.start(asked)
    end = time.monotonic() + 6000
    while len(rank_pids(runner)) < 2 and time.monotonic() < end:
        runner.poll(0.1)
    pids = rank_pids(runner)
    assert len(pids) == 2
    runner.close()
    assert not any(is_alive(pid) for pid in pids)


@pytest.mark.thorough
def test_options_that_make_no_sense_are_refused() -> None:
    with pytest.raises(SpecError, match="max_ranks"):
        LocalRunner(max_ranks=0)
    with pytest.raises(SpecError, match="device"):
        LocalRunner(device="tpu")


_OWNER = """
from pathlib import Path
from autotune_workers.runners.local import LocalRunner
from tests.workers.processes import owner_that_runs, parent_of, until
from tests.workers.rank_pids import rank_pids
from tests.workers.requests import DOUBLE, request

def is_stopped(pid):
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "T"

if __name__ == "__main__":
    runner = LocalRunner(max_ranks=2, device="cpu", trial=DOUBLE, faults=[{"kind": "freeze", "rank": 1, "step": 0}])
    runner.start(request(0, dp=2))
    while not any(map(is_stopped, rank_pids(runner))):
        runner.poll(0.2)
    print(*rank_pids(runner), flush=True)
    while True:
        runner.poll(0.2)
"""


@pytest.mark.thorough
def test_ranks_end_with_their_owner_even_when_it_is_killed_and_one_is_stopped() -> None:
    with owner_that_runs(_OWNER) as (owner, said):
        pids = [int(word) for word in next(said).split()]
        assert len(pids) == 2
        owner.send_signal(signal.SIGKILL)
        owner.wait(timeout=600)
        until(lambda: not any(map(is_alive, pids)))


@pytest.mark.thorough
def test_a_fork_server_that_is_killed_while_ranks_start_is_a_lost_worker() -> None:
    """The kernel may take it when memory is short: the trial is tried again, on a new one."""
    with LocalRunner(max_ranks=2, device="cpu", trial=DOUBLE) as runner:
        before = set(descendants(os.getpid()))
        asked = request(0, dp=2)
        runner.start(asked)
        end = time.monotonic() + 600
        while not (
            server := [p for p in set(descendants(os.getpid())) - before if is_fork_server(p)]
        ):
            assert time.monotonic() < end
            runner.poll(0.01)
        os.kill(server[0], signal.SIGKILL)
        failure = failure_of(ended(events_until_ended(runner, [asked.id])))
        assert failure.kind is FailureKind.WORKER_LOST
        assert one(runner, request(1, dp=2)).failure is None


@pytest.mark.thorough
def test_a_fork_server_that_hangs_is_replaced(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Else no rank that has to be replaced would ever come up again, and every later trial would
    fail."""
    with LocalRunner(max_ranks=2, device="cpu", trial=DOUBLE) as runner:
        train(runner, request(0, dp=1))
        (rank,) = rank_pids(runner)
        server = parent_of(rank)
        monkeypatch.setattr(children, "ANSWER_S", 1.0)
        os.kill(server, signal.SIGSTOP)
        failure = failure_of(one(runner, request(1, dp=2)))  # one rank more than there is
        assert failure.kind is FailureKind.WORKER_LOST
        assert "did not answer for 1 s" in caplog.text
        assert not is_alive(server)
        monkeypatch.undo()  # the next one may take longer than a second where the machine is busy
        train(runner, request(2, dp=2))


def train(runner: LocalRunner, asked: TrialRequest) -> None:
    """Runs a trial that must end well."""
    assert one(runner, asked).failure is None


def is_fork_server(pid: int) -> bool:
    """Whether the process is the one that ranks are forked from."""
    try:
        return b"autotune_workers.process.fork_server" in Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return False
