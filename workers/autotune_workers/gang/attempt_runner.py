"""Runs attempts: what gangs of ranks and programs on nodes share. They differ in what an attempt is
(`Attempt`) and where its processes come from (`Source`).

One turn: receive the processes' messages, pass them to their attempts, look for a place for those
that have none, check the deadlines, take what attempts say, give the places of ended ones back,
start what waits. The clock that attempts see stands still while nobody polls.

The wait of one attempt for its place on a cluster that others use, or that has lost nodes. All
times in seconds on the runner's clock.
"""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Generic, Protocol, Self, TypeVar, final

from autotune.errors import RunnerError
from autotune.ports import AttemptEnded, AttemptId, AttemptQueued, RunnerEvent, TrialRequest
from autotune.spec import Failure, FailureKind
from autotune.spec.texts.as_text import format_duration
from autotune.trainers.base.torchrun import Placement
from autotune_workers.gang.ladder import Patience
from autotune_workers.gang.wire import Message

QUEUED_EVERY_S = 5.0
"""time between two `AttemptQueued` of an attempt that waits for its placement"""

OCCUPIED = "other programs use the cluster, or a lost node has not been released yet"
"""why there is no room on a cluster that is large enough: what ran on a lost node keeps its
resources until Ray calls that node dead"""


@final
class PlacementWait:
    """Ends with a failure when the cluster never was large enough, or when others use it, or nodes
    are away, for too long."""

    def __init__(self, request: TrialRequest, what: str, now_s: float) -> None:
        """`what`: is to be placed, in words, such as "4 ranks", which may stand after "its"."""
        self._request, self._what = request, what
        self._began_s = self._said_s = now_s

    def look(
        self,
        now_s: float,
        *,
        placement_s: float,
        shortage: Callable[[], str],
        absence: Callable[[], str],
    ) -> Failure | AttemptQueued | None:
        """What there is to say of an attempt that has no place yet. `placement_s`: longest wait;
        `shortage`: why it can never be placed; `absence`: what is missing of nodes that were
        there."""
        waited_s = now_s - self._began_s
        if waited_s >= self._request.measure.start_timeout_s and (why := shortage()):
            return Failure(kind=FailureKind.INVALID, message=why)
        if waited_s >= placement_s:
            message = (
                f"{self._what} must be placed within {format_duration(placement_s)}, but {absence() or 'other programs use the cluster'}; "
                "use fewer ranks, or a larger cluster"
            )
            return Failure(kind=FailureKind.WORKER_LOST, message=message)
        if now_s - self._said_s < QUEUED_EVERY_S:
            return None
        self._said_s = now_s
        reason = f"the cluster cannot fit the study's {self._what} right now, because {absence() or OCCUPIED}"
        return AttemptQueued(id=self._request.id, reason=reason)


LONGEST_TURN_S = 0.5
"""longest wait for messages in one turn; the attempts' clock advances by at most twice as much
between two turns"""


@dataclass(slots=True, eq=False)
class Place:
    """Where one attempt runs."""

    handles: list[Any]
    """of its processes: `RankHandle`s in the order of their ranks, or `NodeHandle`s in the order of
    their node ranks"""
    token: Any = None
    """by which its source knows it"""


class Source(Protocol):
    """Where places for attempts come from: `RankPools` or `ProgramPlaces`."""

    @property
    def capacity(self) -> int:
        """Ranks that can be in use at once."""

    def wait(self, timeout_s: float) -> list[tuple[Any, Message]]:
        """Messages with the handles of the processes that sent them; waits up to `timeout_s` for
        the first."""

    def is_placed(self, place: Place, /) -> bool:
        """Whether the place is there, so that processes can start; asked until the first yes."""

    def shortage(self, placement: Placement) -> str:
        """Why there can never be such a place, in words; empty when it is only a matter of time."""

    def absence(self, placement: Placement) -> str:
        """What is missing now of nodes that were there, in words; empty when all others are."""

    def disband(self, place: Place, healthy: Any, /) -> None:
        """Takes the place back."""

    def close(self) -> None:
        """Ends everything."""


class Attempt(Protocol):
    """One attempt on its place."""

    placed: bool
    """whether its place is there"""
    place: Place
    waiting: PlacementWait

    @property
    def request(self) -> TrialRequest:
        """What is run."""

    @property
    def placement(self) -> Placement:
        """How its processes are placed."""

    @property
    def healthy(self) -> Any:
        """What of its place can be used again."""

    @property
    def over(self) -> bool:
        """Whether it has ended, and all its processes with it."""

    @property
    def needs_place(self) -> bool:
        """Whether its place is still looked for."""

    def deadline_s(self) -> float:
        """When it must be looked at again."""

    def begin(self, now_s: float) -> None:
        """It has been given its place."""

    def hear(self, handle: Any, message: Message, now_s: float) -> None:
        """A message of one of its processes."""

    def hold(self, now_s: float) -> None:
        """The time until now does not count: it is not placed yet."""

    def refuse(self, kind: FailureKind, message: str, now_s: float) -> None:
        """Ends it before anything ran."""

    def cancel(self, now_s: float) -> None:
        """Ends it: cooperative stop, then kill."""

    def tick(self, now_s: float) -> None:
        """Looks at the deadlines."""

    def events(self) -> list[RunnerEvent]:
        """Events since the last call, after what it orders is carried out; the last one of all is
        `AttemptEnded`."""


Job = TypeVar("Job")
"""an attempt that waits"""
Running = TypeVar("Running", bound=Attempt)


class AttemptRunner(ABC, Generic[Job, Running]):
    """Most of a `TrialRunner` over a source of places."""

    def __init__(self, source: Source, patience: Patience | None) -> None:
        self._source, self._patience = source, patience or Patience()
        self._waiting: deque[tuple[AttemptId, Job]] = deque()
        self._running: dict[AttemptId, Running] = {}
        self._owner: dict[Any, Running] = {}
        """attempts by the handles of their processes"""
        self._events: list[RunnerEvent] = []
        self._now_s = 0.0
        self._turned_s = time.monotonic()
        self._closed = False

    @property
    def capacity(self) -> int:
        """Ranks that can be in use at once."""
        return self._source.capacity

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @abstractmethod
    def _form(self, job: Job) -> Running | str | None:
        """The attempt on its place; why it can never have one, in words; None when there is no room
        now."""

    def _passed_on(self, attempt: Running, event: RunnerEvent) -> RunnerEvent:
        """The event as it is passed on."""
        return event

    @property
    def busy(self) -> bool:
        """Whether there is anything to poll for."""
        return bool(self._waiting or self._running or self._events)

    def poll(self, timeout_s: float) -> list[RunnerEvent]:
        """Events since the last call; waits up to `timeout_s` for the first one."""
        end_s = time.monotonic() + timeout_s
        self._turn(0.0)
        while not self._events and not self._closed and (left_s := end_s - time.monotonic()) > 0:
            self._turn(min(left_s, LONGEST_TURN_S))
        events, self._events = self._events, []
        return events

    def cancel(self, attempt: AttemptId) -> None:
        """Ends the attempt: cooperative stop, then kill. Unknown ids are ignored."""
        if any(waits == attempt for waits, _ in self._waiting):
            self._waiting = deque((waits, job) for waits, job in self._waiting if waits != attempt)
            self._events.append(AttemptEnded(id=attempt, cancelled=True))
        if attempt in self._running:
            running = self._running[attempt]
            running.cancel(self._now_s)
            self._settle(running)

    def close(self) -> None:
        """Kills what runs and frees everything."""
        if not self._closed:
            self._closed = True
            self._waiting.clear()
            self._running.clear()
            self._owner.clear()
            self._source.close()

    def _refuse_known(self, attempt: AttemptId) -> None:
        """Raises `RunnerError` for an attempt that was started already."""
        if attempt in self._running or any(waits == attempt for waits, _ in self._waiting):
            raise RunnerError(f"attempt {attempt} is running already")

    def _enqueue(self, attempt: AttemptId, job: Job) -> None:
        self._waiting.append((attempt, job))
        self._launch_what_fits()

    def _turn(self, timeout_s: float) -> None:
        if self._closed:
            return
        for running in self._running.values():
            timeout_s = min(timeout_s, max(0.0, running.deadline_s() - self._now_s))
        received = self._source.wait(timeout_s)
        now_s = time.monotonic()
        self._now_s += min(now_s - self._turned_s, 2 * LONGEST_TURN_S)
        self._turned_s = now_s
        for handle, message in received:
            if (owner := self._owner.get(handle)) is not None:
                owner.hear(handle, message, self._now_s)
        for running in list(self._running.values()):
            if running.needs_place:
                self._look_for_place(running)
            running.tick(self._now_s)
            self._settle(running)
        self._launch_what_fits()

    def _look_for_place(self, attempt: Running) -> None:
        """Waits while others use the cluster. A config that asks for more than the cluster has is
        refused."""
        attempt.placed = self._source.is_placed(attempt.place)
        if attempt.placed:
            return
        said = attempt.waiting.look(
            self._now_s,
            placement_s=self._patience.placement_s,
            shortage=lambda: self._source.shortage(attempt.placement),
            absence=lambda: self._source.absence(attempt.placement),
        )
        if isinstance(said, Failure):
            attempt.refuse(said.kind, said.message, self._now_s)
            return
        attempt.hold(self._now_s)
        if said is not None:
            self._events.append(said)

    def _settle(self, attempt: Running) -> None:
        """Takes the attempt's events, and its place back once it is over."""
        events = attempt.events()
        if attempt.over:
            del self._running[attempt.request.id]
            for handle in attempt.place.handles:
                self._owner.pop(handle, None)
            self._source.disband(attempt.place, attempt.healthy)
        self._events += [self._passed_on(attempt, event) for event in events]

    def _launch_what_fits(self) -> None:
        """Starts waiting attempts in their order, until one does not fit."""
        while self._waiting:
            waits, job = self._waiting[0]
            found = self._form(job)
            if found is None:
                return
            self._waiting.popleft()
            if isinstance(found, str):
                failure = Failure(kind=FailureKind.INVALID, message=found)
                self._events.append(AttemptEnded(id=waits, failure=failure))
                continue
            self._own(found)
            found.begin(self._now_s)
            self._settle(found)

    def _own(self, attempt: Running) -> None:
        self._running[attempt.request.id] = attempt
        self._owner.update(dict.fromkeys(attempt.place.handles, attempt))
