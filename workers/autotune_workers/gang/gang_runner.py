"""Runs attempts on gangs: what the `local` and the `ray` runner share. They differ only in where ranks come from (`RankPools`).

One turn: receive the ranks' messages, pass them to their gangs, check the deadlines, carry out the gangs' orders, give the pools of
finished gangs back, start what waits. The clock that gangs see stands still while nobody polls (see `gang`).
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Self

from autotune.errors import ExportError, RunnerError
from autotune.ports import AttemptEnded, AttemptId, AttemptStarted, NodePlace, RunnerEvent, TrialRequest
from autotune.spec import Failure, FailureKind
from autotune.trainers.torchrun import Placement, place
from autotune_workers.gang.gang import Gang
from autotune_workers.gang.ladder import Patience
from autotune_workers.gang.placement_wait import PlacementWait
from autotune_workers.gang.rank_pool import RankHandle, RankPool, RankPools
from autotune_workers.gang.wire import Message
from autotune_workers.training.faults import Fault

NATIVE = "native"
"""the trainer that gangs of ranks run"""
LONGEST_TURN_S = 0.5
"""longest wait for messages in one turn; the gangs' clock advances by at most twice as much between two turns"""


@dataclass(slots=True, eq=False)
class _RunningGang:
    gang: Gang
    placement: Placement
    pool: RankPool
    waiting: PlacementWait
    rank_of: dict[int, int] = field(default_factory=dict)
    placed: bool = False

    def seat_by_node(self) -> None:
        """Gives neighbouring rank numbers to ranks of one node, where tensor-parallel groups belong."""
        hosts = [h.host for h in self.pool.handles]
        self.pool.handles.sort(key=lambda h: hosts.index(h.host))
        self.rank_of = {id(h): r for r, h in enumerate(self.pool.handles)}

    def places(self) -> tuple[NodePlace, ...]:
        """Where its ranks are; empty when that is not known of all."""
        ranks: dict[str, list[int]] = {}
        for rank, handle in enumerate(self.pool.handles):
            ranks.setdefault(handle.node, []).append(rank)
        if "" in ranks:
            return ()
        gpus = {node: tuple(gpu for r in own for gpu in self.pool.handles[r].gpus) for node, own in ranks.items()}
        return tuple(NodePlace(node=node, ranks=tuple(own), gpus=gpus[node]) for node, own in ranks.items())


class GangRunner:
    """A `TrialRunner` over a source of ranks."""

    def __init__(
        self, pools: RankPools, *, faults: Iterable[Fault | Mapping[str, Any]] = (), patience: Patience | None = None
    ) -> None:
        """`faults`: injected by the ranks, for tests and drills."""
        self._pools = pools
        self._faults = [Fault.of(f) for f in faults]
        self._patience = patience or Patience()
        self._waiting: deque[TrialRequest] = deque()
        self._running: dict[AttemptId, _RunningGang] = {}
        self._owner: dict[int, _RunningGang] = {}
        self._events: list[RunnerEvent] = []
        self._launches = 0
        self._now_s = 0.0
        self._turned_s = time.monotonic()
        self._closed = False

    @property
    def trainers(self) -> Sequence[str]:
        """Names of the trainers that it can really run."""
        return (NATIVE,)

    @property
    def capacity(self) -> int:
        """Ranks that can be in use at once."""
        return self._pools.capacity

    def check(self, request: TrialRequest) -> None:
        """Raises `RunnerError` when this runner cannot run the attempt at all."""
        if self._closed:
            raise RunnerError("the runner is closed", remedy="make a new one")
        if request.trainer not in self.trainers:
            raise RunnerError(
                f"this runner runs the trainers {', '.join(self.trainers)}, but the study asks for {request.trainer!r}",
                remedy="use trainer: native, or runner: local, which starts the programs of other trainers",
                field="trainer",
            )

    def start(self, request: TrialRequest) -> None:
        """Begins the attempt, or lets it wait until ranks are free. Raises `RunnerError` when nothing can be run."""
        self.check(request)
        if any(r.id == request.id for r in self._waiting) or request.id in self._running:
            raise RunnerError(f"attempt {request.id} is running already")
        self._waiting.append(request)
        self._launch_what_fits()

    def poll(self, timeout_s: float) -> list[RunnerEvent]:
        """Events since the last call; waits up to `timeout_s` for the first one."""
        end_s = time.monotonic() + timeout_s
        self._turn(0.0)
        while not self._events and not self._closed:
            left_s = end_s - time.monotonic()
            if left_s <= 0:
                break
            self._turn(min(left_s, LONGEST_TURN_S))
        events, self._events = self._events, []
        return events

    def cancel(self, attempt: AttemptId) -> None:
        """Ends the attempt: cooperative stop, then kill. Unknown ids are ignored."""
        for request in list(self._waiting):
            if request.id == attempt:
                self._waiting.remove(request)
                self._events.append(AttemptEnded(id=attempt, cancelled=True))
        if attempt in self._running:
            running = self._running[attempt]
            running.gang.cancel(self._now_s)
            self._carry_out(running)

    def close(self) -> None:
        """Kills what runs and frees everything."""
        if not self._closed:
            self._closed = True
            self._waiting.clear()
            self._running.clear()
            self._owner.clear()
            self._pools.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _turn(self, timeout_s: float) -> None:
        if self._closed:
            return
        for running in self._running.values():
            timeout_s = min(timeout_s, max(0.0, running.gang.deadline_s() - self._now_s))
        received = self._pools.wait(timeout_s)
        now_s = time.monotonic()
        self._now_s += min(now_s - self._turned_s, 2 * LONGEST_TURN_S)
        self._turned_s = now_s
        for handle, message in received:
            owner = self._owner.get(id(handle))
            if owner is not None:
                self._deliver(owner, handle, message)
        for running in list(self._running.values()):
            self._check(running)
            self._carry_out(running)
        self._launch_what_fits()

    def _deliver(self, running: _RunningGang, handle: RankHandle, message: Message) -> None:
        rank, gang = running.rank_of[id(handle)], running.gang
        if message["event"] == "gone":
            gang.lose(
                rank,
                self._now_s,
                code=message["code"],
                log_tail=handle.log_tail(),
                kernel_oom=message["kernel_oom"],
                why=message["why"],
                host_lost=message.get("host_lost", False),
            )
            return
        if message["event"] == "ready" and gang.is_unready and all(h.ready for h in running.pool.handles):
            running.seat_by_node()
            rank = running.rank_of[id(handle)]
        tail = handle.log_tail() if message["event"] == "failed" else ()
        gang.hear(rank, message, self._now_s, tail)

    def _check(self, running: _RunningGang) -> None:
        gang = running.gang
        if gang.is_unready and not running.placed:
            running.placed = self._pools.is_placed(running.pool)
            if not running.placed:
                self._wait_for_placement(running)
        gang.tick(self._now_s)

    def _wait_for_placement(self, running: _RunningGang) -> None:
        """Waits while others use the cluster. A config that asks for more than the cluster has is refused."""
        gang = running.gang
        said = running.waiting.look(
            self._now_s,
            placement_s=self._patience.placement_s,
            shortage=lambda: self._pools.shortage(running.placement),
            absence=lambda: self._pools.absence(running.placement),
        )
        if isinstance(said, Failure):
            gang.refuse(said.kind, said.message, self._now_s)
            return
        gang.hold(self._now_s)
        if said is not None:
            self._events.append(said)

    def _carry_out(self, running: _RunningGang) -> None:
        gang, pool = running.gang, running.pool
        for order in gang.orders():
            handle = pool.handles[order.rank]
            if order.message is not None:
                handle.send(order.message)
            elif order.signal == "TERM":
                handle.terminate()
            else:
                handle.kill()
        if gang.over:
            del self._running[gang.request.id]
            for handle in pool.handles:
                self._owner.pop(id(handle), None)
            self._pools.disband(pool, gang.healthy)
        for event in gang.events():
            self._events.append(replace(event, places=running.places()) if isinstance(event, AttemptStarted) else event)

    def _launch_what_fits(self) -> None:
        """Starts waiting attempts in their order, until one does not fit."""
        while self._waiting:
            request = self._waiting[0]
            why, pool = "", None
            try:
                placement = place(request.workload.cluster, request.config)
                pool = self._pools.form(placement, request.study)
                if pool is None and not (why := self._pools.shortage(placement)):
                    return
            except ExportError as error:
                why = str(error)
            self._waiting.popleft()
            if pool is None:
                failure = Failure(kind=FailureKind.INVALID, message=why)
                self._events.append(AttemptEnded(id=request.id, failure=failure))
            else:
                self._launch(request, placement, pool)

    def _launch(self, request: TrialRequest, placement: Placement, pool: RankPool) -> None:
        self._launches += 1
        gang = Gang(
            request,
            now_s=self._now_s,
            run=self._launches,
            patience=self._patience,
            faults=[f for f in self._faults if f.meets(request.number, request.attempt)],
        )
        running = self._run(gang, placement, pool)
        for rank, handle in enumerate(pool.handles):
            handle.begin()
            if handle.ready:
                gang.hear(rank, {"event": "ready"}, self._now_s)
        self._carry_out(running)

    def _take_over(self, pool: RankPool, gang: Gang, run: int) -> None:
        """Goes on with an attempt that another runner launched on this pool, with launch number `run`."""
        self._launches = max(self._launches, run)
        running = self._run(gang, place(gang.request.workload.cluster, gang.request.config), pool)
        running.placed = True
        self._carry_out(running)

    def _run(self, gang: Gang, placement: Placement, pool: RankPool) -> _RunningGang:
        rank_of = {id(h): r for r, h in enumerate(pool.handles)}
        count = len(pool.handles)
        waiting = PlacementWait(gang.request, f"{count} {'rank' if count == 1 else 'ranks'}", self._now_s)
        running = _RunningGang(gang=gang, placement=placement, pool=pool, waiting=waiting, rank_of=rank_of)
        self._running[gang.request.id] = running
        self._owner.update({id(handle): running for handle in pool.handles})
        return running


def too_many(ranks: int, capacity: int) -> str:
    """Why so many ranks can never be had; empty when they can."""
    if ranks <= capacity:
        return ""
    return (
        "a config may use as many ranks as the runner has, but this one needs "
        f"{ranks} and there are {capacity}; use a smaller world size or more ranks"
    )
