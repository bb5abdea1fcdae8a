"""Base class of the runners of gangs and of programs. Subclasses define what an attempt is
(`Attempt`) and where its processes come from (`Source`).

One turn of a runner: receive messages from processes and pass them to their attempts, check whether
waiting attempts have been placed, check deadlines, collect events, return the places of ended
attempts, start queued ones.

All times are seconds on the runner's own clock, which is stopped while nobody polls.
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
"""interval between `AttemptQueued` events of an attempt that waits for its placement"""

OCCUPIED = "other programs use the cluster, or a lost node has not been released yet"
"""why a cluster that is large enough has no room; Ray does not release the resources of a lost node
until it declares the node dead"""


@final
class PlacementWait:
    """The wait of one attempt for its placement. Fails if the cluster is too small, or if other
    programs or missing nodes delay the placement for too long."""

    def __init__(self, request: TrialRequest, what: str, now_s: float) -> None:
        """`what`: what is placed, for messages, such as "4 ranks"."""
        self._request, self._what = request, what
        self._began_s = self._reported_s = now_s

    def look(
        self,
        now_s: float,
        *,
        placement_s: float,
        shortage: Callable[[], str],
        absence: Callable[[], str],
    ) -> Failure | AttemptQueued | None:
        """Call while the attempt is not placed. Returns a failure that ends the wait, an event to
        pass on, or None.

        `placement_s`: longest wait; `shortage`: returns why it can never be placed, `absence`:
        which nodes are missing; both empty if nothing.
        """
        waited_s = now_s - self._began_s
        if waited_s >= self._request.measure.start_timeout_s and (why := shortage()):
            return Failure(kind=FailureKind.INVALID, message=why)
        if waited_s >= placement_s:
            message = (
                f"{self._what} must be placed within {format_duration(placement_s)}, but {absence() or 'other programs use the cluster'}; "
                "use fewer ranks, or a larger cluster"
            )
            return Failure(kind=FailureKind.WORKER_LOST, message=message)
        if now_s - self._reported_s < QUEUED_EVERY_S:
            return None
        self._reported_s = now_s
        reason = f"the cluster cannot fit the study's {self._what} right now, because {absence() or OCCUPIED}"
        return AttemptQueued(id=self._request.id, reason=reason)


LONGEST_TURN_S = 0.5
"""longest wait for messages in one turn; the runner's clock advances by at most twice as much
between two turns"""


@dataclass(slots=True, eq=False)
class Place:
    """The processes of one attempt."""

    handles: list[Any]
    """`RankHandle`s in the order of ranks, or `NodeHandle`s in the order of node ranks"""
    token: Any = None
    """identifies the place to its source"""


class Source(Protocol):
    """Provides places for attempts: `RankPools` or `ProgramPlaces`."""

    @property
    def capacity(self) -> int:
        """Number of ranks that can be in use at once."""

    def wait(self, timeout_s: float) -> list[tuple[Any, Message]]:
        """Messages with the handles of the processes that sent them; waits up to `timeout_s` for
        the first."""

    def is_placed(self, place: Place, /) -> bool:
        """Whether the resources of the place are allocated, so that processes can start. Called
        until it is true."""

    def shortage(self, placement: Placement) -> str:
        """Why such a place can never be allocated; empty if it can."""

    def absence(self, placement: Placement) -> str:
        """Which nodes are missing now, as words for a message; empty if none is."""

    def disband(self, place: Place, healthy: Any, /) -> None:
        """Takes the place back. `healthy`: see `Attempt.healthy`."""

    def close(self) -> None:
        """Ends all processes."""


class Attempt(Protocol):
    """One attempt with its place."""

    placed: bool
    """whether the resources of its place are allocated"""
    place: Place
    waiting: PlacementWait

    @property
    def request(self) -> TrialRequest:
        """The request of the attempt."""

    @property
    def placement(self) -> Placement:
        """How its processes are placed."""

    @property
    def healthy(self) -> Any:
        """The part of its place that can be reused."""

    @property
    def over(self) -> bool:
        """Whether it has ended, and all its processes with it."""

    @property
    def needs_place(self) -> bool:
        """Whether it waits for its placement."""

    def deadline_s(self) -> float:
        """When `tick` must be called at the latest."""

    def begin(self, now_s: float) -> None:
        """Called once when the attempt has got its place."""

    def hear(self, handle: Any, message: Message, now_s: float) -> None:
        """Takes a message from one of its processes."""

    def hold(self, now_s: float) -> None:
        """Restarts its deadlines, as it is not placed yet."""

    def refuse(self, kind: FailureKind, message: str, now_s: float) -> None:
        """Ends it with this failure before anything ran."""

    def cancel(self, now_s: float) -> None:
        """Ends it: cooperative stop, then kill."""

    def tick(self, now_s: float) -> None:
        """Checks the deadlines."""

    def events(self) -> list[RunnerEvent]:
        """Carries out pending orders and returns the events since the last call. The last event of
        all is `AttemptEnded`."""


Job = TypeVar("Job")
"""a queued attempt"""
Running = TypeVar("Running", bound=Attempt)


class AttemptRunner(ABC, Generic[Job, Running]):
    """Base class of a `TrialRunner` that gets its processes from a source of places."""

    def __init__(self, source: Source, patience: Patience | None) -> None:
        self._source, self._patience = source, patience or Patience()
        self._waiting: deque[tuple[AttemptId, Job]] = deque()
        self._running: dict[AttemptId, Running] = {}
        self._owner: dict[Any, Running] = {}
        """attempts by handle of their processes"""
        self._events: list[RunnerEvent] = []
        self._now_s = 0.0
        self._turned_s = time.monotonic()
        self._closed = False

    @property
    def capacity(self) -> int:
        """Number of ranks that can be in use at once."""
        return self._source.capacity

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @abstractmethod
    def _form(self, job: Job) -> Running | str | None:
        """The attempt with a place; a string if it can never have one (the reason); None if there
        is no room now."""

    def _passed_on(self, attempt: Running, event: RunnerEvent) -> RunnerEvent:
        """The event to return from `poll`; subclasses may change it."""
        return event

    @property
    def busy(self) -> bool:
        """Whether attempts are queued or running, or events have not been polled."""
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
        if any(queued == attempt for queued, _ in self._waiting):
            self._waiting = deque(item for item in self._waiting if item[0] != attempt)
            self._events.append(AttemptEnded(id=attempt, cancelled=True))
        if attempt in self._running:
            running = self._running[attempt]
            running.cancel(self._now_s)
            self._settle(running)

    def close(self) -> None:
        """Kills running attempts and frees everything."""
        if not self._closed:
            self._closed = True
            self._waiting.clear()
            self._running.clear()
            self._owner.clear()
            self._source.close()

    def _refuse_known(self, attempt: AttemptId) -> None:
        """Raises `RunnerError` if the attempt is queued or running."""
        if attempt in self._running or any(queued == attempt for queued, _ in self._waiting):
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
        """Checks whether the attempt has been placed; if it cannot be, or not in time, refuses
        it."""
        attempt.placed = self._source.is_placed(attempt.place)
        if attempt.placed:
            return
        result = attempt.waiting.look(
            self._now_s,
            placement_s=self._patience.placement_s,
            shortage=lambda: self._source.shortage(attempt.placement),
            absence=lambda: self._source.absence(attempt.placement),
        )
        if isinstance(result, Failure):
            attempt.refuse(result.kind, result.message, self._now_s)
            return
        attempt.hold(self._now_s)
        if result is not None:
            self._events.append(result)

    def _settle(self, attempt: Running) -> None:
        """Collects the attempt's events; returns its place once it is over."""
        events = attempt.events()
        if attempt.over:
            del self._running[attempt.request.id]
            for handle in attempt.place.handles:
                self._owner.pop(handle, None)
            self._source.disband(attempt.place, attempt.healthy)
        self._events += [self._passed_on(attempt, event) for event in events]

    def _launch_what_fits(self) -> None:
        """Starts queued attempts in order, until one does not fit."""
        while self._waiting:
            attempt_id, job = self._waiting[0]
            formed = self._form(job)
            if formed is None:
                return
            self._waiting.popleft()
            if isinstance(formed, str):
                failure = Failure(kind=FailureKind.INVALID, message=formed)
                self._events.append(AttemptEnded(id=attempt_id, failure=failure))
                continue
            self._own(formed)
            formed.begin(self._now_s)
            self._settle(formed)

    def _own(self, attempt: Running) -> None:
        self._running[attempt.request.id] = attempt
        self._owner.update(dict.fromkeys(attempt.place.handles, attempt))
