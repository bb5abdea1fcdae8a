"""Runs attempts on gangs of ranks: the common part of the `local` and the `ray` runner, which
provide the ranks (`RankPools`). Rank processes stay alive between attempts.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Protocol, final

from autotune.errors import ExportError, RunnerError
from autotune.ports import AttemptStarted, NodePlace, RunnerEvent, TrialRequest
from autotune.spec import FailureKind
from autotune.trainers.base.torchrun import Placement, place
from autotune_workers.gang.attempt_runner import AttemptRunner, Place, PlacementWait, Source
from autotune_workers.gang.gang import Gang
from autotune_workers.gang.ladder import Patience
from autotune_workers.gang.wire import Message
from autotune_workers.training.faults import Fault


class RankHandle(Protocol):
    """A rank process. No method raises if the process is gone."""

    name: str
    ready: bool
    address: str
    """address of its node, known once it is ready"""
    node: str
    """hostname of its node; empty until it is ready"""
    gpus: tuple[str, ...]
    """GPUs of the rank, as in its CUDA_VISIBLE_DEVICES"""

    def send(self, message: Message) -> None:
        """Sends a message."""
        ...

    def terminate(self) -> None:
        """Sends SIGTERM."""
        ...

    def kill(self) -> None:
        """Sends SIGKILL."""
        ...

    def begin(self) -> None:
        """Called when a trial begins on the rank."""
        ...

    def log_tail(self) -> tuple[str, ...]:
        """Last lines of its log."""
        ...


class RankPools(Source, Protocol):
    """Provides pools of ranks, and takes them back after an attempt; ranks that are not `healthy`
    are replaced. The last message of a rank is `gone`."""

    def form(self, placement: Placement, study: str) -> Place | None:
        """A pool of ranks with this placement, reused if possible; its ranks may still be starting.
        None if not enough ranks are free. `study`: part of the names of new ranks."""


NATIVE = "native"
"""name of the trainer that gangs of ranks run"""


@final
class GangAttempt:
    """A gang with its pool of ranks."""

    def __init__(self, gang: Gang, placement: Placement, pool: Place, now_s: float) -> None:
        count = len(pool.handles)
        self.gang, self.request = gang, gang.request
        self.placement, self.place, self.placed = placement, pool, False
        self.waiting = PlacementWait(
            gang.request, f"{count} {'rank' if count == 1 else 'ranks'}", now_s
        )
        self._rank_of = {handle: rank for rank, handle in enumerate(pool.handles)}

    @property
    def over(self) -> bool:
        """See `Attempt`, also for the members below."""
        return self.gang.over

    @property
    def healthy(self) -> frozenset[int]:
        return self.gang.healthy

    @property
    def needs_place(self) -> bool:
        return self.gang.is_unready and not self.placed

    def deadline_s(self) -> float:
        return self.gang.deadline_s()

    def begin(self, now_s: float) -> None:
        for rank, handle in enumerate(self.place.handles):
            handle.begin()
            if handle.ready:
                self.gang.hear(rank, {"event": "ready"}, now_s)

    def hear(self, handle: RankHandle, message: Message, now_s: float) -> None:
        rank, gang = self._rank_of[handle], self.gang
        if message["event"] == "gone":
            gang.lose(
                rank,
                now_s,
                code=message["code"],
                log_tail=handle.log_tail(),
                kernel_oom=message["kernel_oom"],
                why=message["why"],
                host_lost=message.get("host_lost", False),
            )
            return
        if (
            message["event"] == "ready"
            and gang.is_unready
            and all(h.ready for h in self.place.handles)
        ):
            self._group_by_node()
            rank = self._rank_of[handle]
        tail = handle.log_tail() if message["event"] == "failed" else ()
        gang.hear(rank, message, now_s, tail)

    def hold(self, now_s: float) -> None:
        self.gang.hold(now_s)

    def refuse(self, kind: FailureKind, message: str, now_s: float) -> None:
        self.gang.refuse(kind, message, now_s)

    def cancel(self, now_s: float) -> None:
        self.gang.cancel(now_s)

    def tick(self, now_s: float) -> None:
        self.gang.tick(now_s)

    def events(self) -> list[RunnerEvent]:
        for order in self.gang.orders():
            handle = self.place.handles[order.rank]
            if order.message is not None:
                handle.send(order.message)
            elif order.signal == "TERM":
                handle.terminate()
            else:
                handle.kill()
        return [
            replace(event, places=self._places()) if isinstance(event, AttemptStarted) else event
            for event in self.gang.events()
        ]

    def _group_by_node(self) -> None:
        """Renumbers the ranks so that ranks of one node are consecutive, because tensor-parallel
        groups must be within a node."""
        hosts = [h.address for h in self.place.handles]
        self.place.handles.sort(key=lambda h: hosts.index(h.address))
        self._rank_of = {handle: rank for rank, handle in enumerate(self.place.handles)}

    def _places(self) -> tuple[NodePlace, ...]:
        """Ranks and GPUs by node; empty if the node of a rank is unknown."""
        handles = self.place.handles
        ranks_of: dict[str, list[int]] = {}
        for rank, handle in enumerate(handles):
            ranks_of.setdefault(handle.node, []).append(rank)
        if "" in ranks_of:
            return ()
        return tuple(
            NodePlace(
                node=node,
                ranks=tuple(ranks),
                gpus=tuple(gpu for rank in ranks for gpu in handles[rank].gpus),
            )
            for node, ranks in ranks_of.items()
        )


class GangRunner(AttemptRunner[TrialRequest, GangAttempt]):
    """A `TrialRunner` that runs gangs on pools of ranks."""

    def __init__(
        self,
        pools: RankPools,
        *,
        faults: Iterable[Fault | Mapping[str, Any]] = (),
        patience: Patience | None = None,
    ) -> None:
        """`faults`: failures that ranks inject, for tests and drills."""
        super().__init__(pools, patience)
        self._pools = pools
        self._faults = [Fault.of(f) for f in faults]
        self._launches = 0

    @property
    def trainers(self) -> Sequence[str]:
        """Names of the trainers that this runner supports."""
        return (NATIVE,)

    def check(self, request: TrialRequest) -> None:
        """Raises `RunnerError` if this runner cannot run the attempt at all."""
        if self._closed:
            raise RunnerError("the runner is closed", remedy="create a new runner")
        if request.trainer not in self.trainers:
            raise RunnerError(
                f"this runner runs the trainers {', '.join(self.trainers)}, but the study uses {request.trainer!r}",
                remedy="use trainer: native, or runner: local, which starts the programs of other trainers",
                field="trainer",
            )

    def start(self, request: TrialRequest) -> None:
        """Begins the attempt, or queues it until ranks are free. Raises `RunnerError` if it cannot
        be run."""
        self.check(request)
        self._refuse_known(request.id)
        self._enqueue(request.id, request)

    def _form(self, job: TrialRequest) -> GangAttempt | str | None:
        try:
            placement = place(job.workload.cluster, job.config)
            pool = self._pools.form(placement, job.study)
        except ExportError as error:
            return str(error)
        if pool is None:
            return self._pools.shortage(placement) or None
        self._launches += 1
        gang = Gang(
            job,
            now_s=self._now_s,
            run=self._launches,
            patience=self._patience,
            faults=[f for f in self._faults if f.meets(job.number, job.attempt)],
        )
        return GangAttempt(gang, placement, pool, self._now_s)

    def _take_over(self, pool: Place, gang: Gang, run: int) -> None:
        """Continues an attempt that another runner launched on this pool. `run`: its launch
        number."""
        self._launches = max(self._launches, run)
        running = GangAttempt(
            gang, place(gang.request.workload.cluster, gang.request.config), pool, self._now_s
        )
        running.placed = True
        self._own(running)
        self._settle(running)


def too_many(ranks: int, capacity: int) -> str:
    """Why a config with this number of ranks can never run; empty if it can."""
    if ranks <= capacity:
        return ""
    return (
        "a config can use at most as many ranks as the runner has, but this config needs "
        f"{ranks} and the runner has {capacity}; use a smaller world size or more ranks"
    )
