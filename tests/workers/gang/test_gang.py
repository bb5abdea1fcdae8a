"""The gang's life as a state machine: no process, no clock."""

from __future__ import annotations

from dataclasses import replace

import pytest

from autotune.ports import AttemptEnded, AttemptStarted, StepsReported
from autotune.spec import Failure, FailureKind, Measurement
from autotune_workers.gang.gang import Gang, Patience
from tests.workers.requests import PATIENT, request

RUN = 7
MEASURE = replace(PATIENT, start_timeout_s=20.0, step_timeout_s=10.0, trial_timeout_s=100.0)
PATIENCE = Patience(stop_s=5.0, abort_s=2.0, terminate_s=1.0, evidence_s=1.0, gone_s=10.0)


def gang() -> Gang:
    return Gang(request(dp=2, measure=MEASURE), now_s=0.0, run=RUN, patience=PATIENCE)


def running() -> Gang:
    it = gang()
    for rank in range(2):
        it.hear(rank, {"event": "ready"}, 1.0)
    it.orders(), it.events()
    return it


def step(it: Gang, number: int, now_s: float) -> None:
    said = {
        "event": "step",
        "run": RUN,
        "step": number,
        "time_s": 0.1,
        "loss": 1.0,
        "grad_norm": 1.0,
    }
    for rank in range(2):
        it.hear(rank, said, now_s)


def steps_together(it: Gang, now_s: float) -> None:
    """Three steps, which are one report."""
    for number in range(3):
        step(it, number, now_s)


def one_report(it: Gang) -> None:
    (report,) = it.events()
    assert isinstance(report, StepsReported)
    assert (report.first_step, len(report.step_times_s)) == (0, 3)


def train_too_long(it: Gang) -> None:
    for second in range(2, 101):
        step(it, second - 2, float(second))
        it.tick(float(second))


def idle(it: Gang, *ranks: int, now_s: float = 5.0, leaks: bool = False) -> None:
    for rank in ranks:
        it.hear(rank, {"event": "idle", "run": RUN, "leaks": leaks}, now_s)


def done(it: Gang, now_s: float) -> None:
    measurement = Measurement(step_times_s=(0.1,) * 4, tokens_per_step=32, num_ranks=2).to_dict()
    for rank in range(2):
        it.hear(
            rank, {"event": "done", "run": RUN, "measurement": measurement, "stopped": ""}, now_s
        )


def end(it: Gang) -> AttemptEnded:
    (last,) = [e for e in it.events() if isinstance(e, AttemptEnded)]
    return last


def failure_of(it: Gang) -> Failure:
    found = end(it).failure
    assert found is not None
    return found


def measured(it: Gang) -> Measurement:
    last = end(it)
    assert last.measurement is not None
    assert last.failure is None or last.failure.kind is FailureKind.WORKER_LOST
    return last.measurement


def doings(it: Gang) -> list[tuple[int, str]]:
    return [(o.rank, o.message["command"] if o.message else o.signal) for o in it.orders()]


def adopted(begun: set[int], joined: set[int]) -> Gang:
    asked = request(dp=2, measure=MEASURE)
    return Gang.adopted(asked, now_s=50.0, run=RUN, patience=PATIENCE, begun=begun, joined=joined)


@pytest.mark.parametrize("begun", [{0, 1}, {0}, {1}])
def test_an_adopted_attempt_is_given_the_orders_that_it_did_not_get(begun: set[int]) -> None:
    it = adopted(begun, {0})
    assert doings(it) == [(rank, "run") for rank in (0, 1) if rank not in begun]
    it.hear(0, {"event": "store", "run": RUN, "host": "h", "port": 1}, 50.0)
    assert doings(it) == [(1, "store")]


def test_an_adopted_attempt_hears_all_again_orders_nothing_and_ends_as_the_first_would() -> None:
    it = adopted({0, 1}, {0, 1})
    assert it.events() == [AttemptStarted(id=it.request.id)]
    it.hear(0, {"event": "store", "run": RUN, "host": "h", "port": 1}, 50.0)
    steps_together(it, 50.0)
    it.tick(59.0)
    assert doings(it) == []
    one_report(it)
    done(it, 59.5)
    idle(it, 0, 1, now_s=59.6)
    assert measured(it).setup_s == 0.0
    assert it.healthy == {0, 1}


def test_an_adopted_attempt_that_hangs_ends_by_deadlines_that_begin_anew() -> None:
    it = adopted({0, 1}, {0, 1})
    step(it, 0, 50.0)
    it.tick(59.9)
    assert doings(it) == []
    it.tick(60.1)
    assert doings(it) == [(0, "where"), (1, "where")]


def test_it_starts_when_all_ranks_are_ready() -> None:
    it = gang()
    it.hear(1, {"event": "ready"}, 1.0)
    assert it.events() == []
    it.hear(0, {"event": "ready"}, 2.0)
    assert it.events() == [AttemptStarted(id=it.request.id)]
    assert doings(it) == [(0, "run"), (1, "run")]


def test_the_store_of_rank_0_reaches_the_others() -> None:
    it = running()
    it.hear(0, {"event": "store", "run": RUN, "host": "127.0.0.1", "port": 5}, 1.0)
    assert doings(it) == [(1, "store")]


def test_a_measured_trial_ends_when_all_ranks_are_idle() -> None:
    it = running()
    for number in range(5):
        step(it, number, 2.0 + number)
    done(it, 8.0)
    idle(it, 0)
    assert not any(isinstance(e, AttemptEnded) for e in it.events())
    idle(it, 1)
    last = end(it)
    assert last.measurement is not None
    assert last.failure is None
    assert it.healthy == {0, 1}


def test_steps_that_come_together_are_one_report() -> None:
    it = running()
    steps_together(it, 2.0)
    one_report(it)


def test_messages_of_another_launch_are_ignored() -> None:
    it = running()
    it.hear(0, {"event": "failed", "run": RUN - 1, "type": "ValueError", "text": ""}, 2.0)
    assert it.orders() == []


def test_a_silent_rank_is_blamed_killed_and_replaced_and_its_peer_kept() -> None:
    it = running()
    step(it, 0, 2.0)
    for second in range(3, 12):
        it.hear(0, {"event": "heartbeat", "run": RUN, "phase": "step", "step": 1}, float(second))
    it.tick(11.9)
    assert it.orders() == []
    it.tick(12.1)
    assert doings(it) == [(0, "where"), (1, "where")]
    it.hear(0, {"event": "where", "run": RUN, "stack": ['File "torch/distributed/c10d.py"']}, 12.2)
    it.tick(13.2)
    assert (1, "KILL") in doings(it)
    it.lose(1, 13.3, code=-9, log_tail=["its last line"])
    echo = {"event": "failed", "run": RUN, "type": "RuntimeError", "text": "whatever", "step": 1}
    it.hear(0, echo, 13.4)
    idle(it, 0)
    failure = failure_of(it)
    assert (failure.kind, failure.rank, failure.step) == (FailureKind.HANG, 1, 1)
    assert "heartbeat" in failure.message
    assert failure.log_tail == ("its last line",)
    assert it.healthy == {0}


def test_the_ladder_ends_with_sigkill_and_even_that_is_not_waited_for_without_end() -> None:
    it = running()
    it.tick(20.1)
    seen: list[tuple[int, str]] = []
    now_s = 20.1
    while not it.over:
        now_s += 0.5
        it.tick(now_s)
        seen += doings(it)
        assert now_s < 60
    whats = [what for rank, what in seen if rank == 1]
    assert whats == sorted(whats, key=["where", "stop", "abort", "TERM", "KILL"].index)
    assert whats[-1] == "KILL"
    assert failure_of(it).kind is FailureKind.HANG
    assert it.healthy == frozenset()


def test_a_long_trial_times_out() -> None:
    it = running()
    train_too_long(it)
    assert doings(it) == [(0, "stop"), (1, "stop")], "it trains on: nobody is to blame"
    done(it, 100.5)
    idle(it, 0, 1)
    failure = failure_of(it)
    assert (failure.kind, failure.rank, failure.step) == (FailureKind.TIMEOUT, None, 99)
    assert it.healthy == {0, 1}


def test_a_long_trial_that_does_not_stop_is_ended() -> None:
    it = running()
    train_too_long(it)
    for second in range(101, 120):
        it.tick(float(second))
    assert {(0, "KILL"), (1, "KILL")} <= set(doings(it))
    for rank in range(2):
        it.lose(rank, 120.0, code=-9)
    assert failure_of(it).kind is FailureKind.TIMEOUT


def test_cancelling_a_running_trial_asks_first_and_keeps_the_ranks() -> None:
    it = running()
    it.cancel(3.0)
    assert doings(it) == [(0, "stop"), (1, "stop")]
    done(it, 3.5)
    idle(it, 0, 1)
    assert end(it).cancelled
    assert it.healthy == {0, 1}


def test_cancelling_before_the_ranks_are_up_leaves_them_to_start() -> None:
    it = gang()
    it.cancel(0.5)
    assert it.orders() == []
    assert end(it).cancelled
    assert it.healthy == {0, 1}


def test_ranks_that_never_come_up_are_a_lost_worker() -> None:
    it = gang()
    it.hear(0, {"event": "ready"}, 1.0)
    it.tick(20.1)
    assert doings(it) == [(1, "TERM")]
    it.lose(1, 20.2, code=-15)
    failure = failure_of(it)
    assert failure.kind is FailureKind.WORKER_LOST
    assert "1 of 2" in failure.message
    assert it.healthy == {0}


def test_a_leaking_rank_is_not_kept() -> None:
    it = running()
    done(it, 3.0)
    idle(it, 0)
    idle(it, 1, leaks=True)
    assert it.healthy == {0}


def test_a_trial_without_measured_steps_misses_its_metrics() -> None:
    it = running()
    for rank in range(2):
        it.hear(rank, {"event": "done", "run": RUN, "measurement": None, "stopped": ""}, 3.0)
    idle(it, 0, 1)
    assert failure_of(it).kind is FailureKind.METRICS_MISSING


@pytest.mark.parametrize("late", [0.5, 5.0])
def test_a_failed_trial_keeps_what_it_measured(late: float) -> None:
    it = running()
    steps_together(it, 2.0 + late)
    it.lose(1, 3.0 + late, code=-9)
    idle(it, 0)
    assert len(measured(it).step_times_s) == 2


@pytest.mark.parametrize(
    "host_lost", [True, False], ids=["its node was lost", "its actor was ended by us"]
)
def test_a_lost_node_is_the_cause_of_a_hang_that_was_noticed_first(host_lost: bool) -> None:
    it = running()
    step(it, 0, 2.0)
    it.hear(0, {"event": "heartbeat", "run": RUN, "phase": "step", "step": 1}, 11.5)
    it.tick(12.5)
    assert (1, "where") in doings(it)
    it.lose(1, 13.0, code=None, why="node n was silent", host_lost=host_lost)
    it.tick(13.6)
    idle(it, 0, now_s=14.0)
    assert failure_of(it).kind is (FailureKind.WORKER_LOST if host_lost else FailureKind.HANG)


def raised(it: Gang, rank: int, name: str, text: str, now_s: float, **more: object) -> None:
    it.hear(
        rank, {"event": "failed", "run": RUN, "type": name, "text": text, "step": 1, **more}, now_s
    )


def test_what_our_own_abort_provokes_never_fails_a_cancelled_trial() -> None:
    it = running()
    it.cancel(3.0)
    it.tick(8.5)
    assert (0, "abort") in doings(it)
    raised(
        it,
        0,
        "ValueError",
        "Default process group has not been initialized, please make sure to call",
        8.6,
    )
    it.lose(1, 8.7, code=-6)
    idle(it, 0, now_s=8.8)
    assert end(it).cancelled


@pytest.mark.parametrize(
    ("first", "lost", "kind", "rank", "says"),
    [
        pytest.param(
            {"type": "RuntimeError", "text": "Connection closed by peer"},
            -9,
            FailureKind.WORKER_LOST,
            1,
            "SIGKILL",
            id="an echo does not hide the cause that comes after it",
        ),
        pytest.param(
            {"type": "ValueError", "text": "no such token"},
            -6,  # NCCL's watchdog ends the process of a rank whose peer is gone by SIGABRT
            FailureKind.ERROR,
            0,
            "ValueError: no such token",
            id="the death of a peer does not displace the exception that caused it",
        ),
        pytest.param(
            {"type": "RuntimeError", "text": "an error that nobody knows", "waited": True},
            -9,
            FailureKind.WORKER_LOST,
            1,
            "SIGKILL",
            id="a death counts more than what its peer raised in a collective",
        ),
    ],
)
def test_of_an_exception_and_the_death_of_the_peer_after_it_the_cause_is_told(
    first: dict[str, object], lost: int, kind: FailureKind, rank: int, says: str
) -> None:
    it = running()
    step(it, 0, 2.0)
    it.hear(0, {"event": "failed", "run": RUN, "step": 1, **first}, 3.0)
    it.lose(1, 3.1, code=lost)
    idle(it, 0, now_s=3.2)
    failure = failure_of(it)
    assert (failure.kind, failure.rank) == (kind, rank)
    assert says in failure.message or says == failure.exception
    assert it.healthy == {0}


def test_what_a_rank_raises_after_it_was_aborted_is_no_cause() -> None:
    it = running()
    raised(it, 0, "DistBackendError", "NCCL error of a kind that nobody knows", 3.0)
    raised(it, 1, "ValueError", "Default process group has not been initialized", 3.1, aborted=True)
    idle(it, 0, 1, now_s=3.2)
    assert failure_of(it).rank == 0
