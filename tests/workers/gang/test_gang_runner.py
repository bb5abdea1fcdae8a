"""A trial may wait for resources that others use; one that asks for more than the cluster has is
refused. Rank pools without processes."""

from __future__ import annotations

import time
from dataclasses import replace
from typing import Any

import pytest

from autotune.ports import AttemptQueued, AttemptStarted, NodePlace, RunnerEvent
from autotune.spec import FailureKind, MeasureSpec
from autotune.testing.runners import ended
from autotune.trainers.base.torchrun import Placement
from autotune_workers.gang import attempt_runner
from autotune_workers.gang.attempt_runner import Place
from autotune_workers.gang.gang_runner import GangRunner
from autotune_workers.gang.ladder import Patience
from autotune_workers.gang.wire import Message
from tests.workers.requests import PATIENT, failure_of, request


class Rank:
    """Ready when its pool is placed."""

    def __init__(self) -> None:
        self.name, self.ready, self.address = "rank", False, "here"
        self.node, self.gpus = "here", ()
        self.sent: list[Message] = []
        self.ended = self.reported = False

    def send(self, message: Message) -> None:
        self.sent.append(message)

    def terminate(self) -> None:
        self.ended = True

    def kill(self) -> None:
        pass

    def begin(self) -> None:
        pass

    def log_tail(self) -> tuple[str, ...]:
        return ()


class Elsewhere:
    """Four places that somebody else uses until `free`."""

    capacity = 4

    def __init__(self) -> None:
        self.free, self.asked = False, 0
        self.away = ""
        self.placements: list[Placement] = []
        self.disbanded: list[Place] = []
        self._pools: list[Place] = []

    def form(self, placement: Placement, study: str) -> Place:
        self.placements.append(placement)
        self._pools.append(Place(handles=[Rank() for _ in range(placement.world_size)]))
        return self._pools[-1]

    def wait(self, timeout_s: float) -> list[tuple[Any, Message]]:
        time.sleep(min(timeout_s, 0.005))
        unready = (
            [r for pool in self._pools for r in pool.handles if not r.ready] if self.free else []
        )
        for rank in unready:
            rank.ready = True
        gone = [r for pool in self._pools for r in pool.handles if r.ended and not r.reported]
        for rank in gone:
            rank.reported = True
        death: Message = {"event": "gone", "code": -15, "kernel_oom": False, "why": ""}
        return [
            *((rank, {"event": "ready"}) for rank in unready),
            *((rank, death) for rank in gone),
        ]

    def is_placed(self, pool: Place) -> bool:
        self.asked += 1
        return self.free

    def shortage(self, placement: Placement) -> str:
        return "too large" if placement.world_size > self.capacity else ""

    def absence(self, placement: Placement) -> str:
        return self.away

    def disband(self, pool: Place, healthy: frozenset[int]) -> None:
        self.disbanded.append(pool)

    def close(self) -> None:
        pass


@pytest.fixture(autouse=True)
def eager(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(attempt_runner, "QUEUED_EVERY_S", 0.02)


def heard(runner: GangRunner, seconds: float) -> list[RunnerEvent]:
    end, events = time.monotonic() + seconds, []
    while time.monotonic() < end:
        events += runner.poll(0.01)
    return events


HASTY = replace(PATIENT, start_timeout_s=0.05)


def test_waiting_for_others_outlasts_every_deadline_and_is_reported() -> None:
    pools = Elsewhere()
    with GangRunner(pools) as runner:
        runner.start(request(measure=replace(HASTY, trial_timeout_s=0.1)))
        events = heard(runner, 0.4)
        assert len(events) > 1
        assert all(isinstance(e, AttemptQueued) and "2 ranks" in e.reason for e in events)
        pools.free = True
        end = time.monotonic() + 300
        events = []
        while not pools._pools[0].handles[0].sent and time.monotonic() < end:
            events += runner.poll(0.01)
        (start,) = [e for e in events if isinstance(e, AttemptStarted)]
        assert start.places == (NodePlace(node="here", ranks=(0, 1)),)
        assert [r.sent[0]["command"] for r in pools._pools[0].handles] == ["run", "run"]
        asked = pools.asked
        runner.poll(0.0)
        assert pools.asked == asked


@pytest.mark.parametrize(
    ("dp", "measure", "patience", "kind", "says"),
    [
        pytest.param(
            8, HASTY, Patience(), FailureKind.INVALID, "too large", id="more than the cluster has"
        ),
        pytest.param(
            16,
            PATIENT,
            Patience(),
            FailureKind.INVALID,
            "16 ranks do not fit on 1 node with 8 ranks each",
            id="more than the cluster that is described",
        ),
        pytest.param(
            2,
            PATIENT,
            Patience(placement_s=0.1),
            FailureKind.WORKER_LOST,
            "other programs use the cluster",
            id="others use it for too long",
        ),
    ],
)
def test_a_config_that_gets_no_place_ends_with_the_reason(
    dp: int, measure: MeasureSpec, patience: Patience, kind: FailureKind, says: str
) -> None:
    pools = Elsewhere()
    with GangRunner(pools, patience=patience) as runner:
        runner.start(request(dp=dp, measure=measure))
        failure = failure_of(ended(heard(runner, 0.5)))
    assert failure.kind is kind
    assert says in failure.message
    assert pools.disbanded == pools._pools


def test_a_config_of_several_nodes_is_placed_on_whole_nodes() -> None:
    pools = Elsewhere()
    with GangRunner(pools) as runner:
        runner.start(request(dp=4))
        runner.start(request(1, dp=4, cluster={"num_nodes": 2, "gpus_per_node": 2}))
    shapes = [(placement.nnodes, placement.nproc_per_node) for placement in pools.placements]
    assert shapes == [(1, 4), (2, 2)]


def test_a_config_waits_for_nodes_that_are_away() -> None:
    pools = Elsewhere()
    pools.away = "one of the cluster's 2 nodes is unavailable"
    with GangRunner(pools, patience=Patience(placement_s=0.3)) as runner:
        runner.start(request(measure=HASTY))
        *waits, end = heard(runner, 0.6)
        assert waits
        assert all(isinstance(e, AttemptQueued) and pools.away in e.reason for e in waits)
        failure = failure_of(ended([end]))
        assert failure.kind is FailureKind.WORKER_LOST
        assert pools.away in failure.message
