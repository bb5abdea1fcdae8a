"""Base class of the actors of ranks and nodes. An actor obeys one owner at a time, identified by a
token, and keeps its messages for it.

On a cluster that outlives its drivers, actors outlive them for a while. An actor without a
heartbeat from its owner for `abandoned_s` ends its processes and removes its placement group.

An actor's message log has its messages, numbered from 1, until they are no longer needed.
"""

from __future__ import annotations

import contextlib
import threading
import time
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Mapping
from itertools import islice
from typing import Any

from autotune_workers.gang.wire import Message


class MessageLog:
    """Messages of an actor. They are kept until its owner confirms them, because Ray may lose an
    answer, and messages of the last trial also for a later owner that adopts the rank.
    Thread-safe."""

    def __init__(self, *, keeps_trial: bool = True) -> None:
        """`keeps_trial`: whether confirmed messages of the last trial are kept too."""
        self._keeps_trial = keeps_trial
        self._has_messages = threading.Condition()
        self._messages: deque[Message] = deque()
        self._last = self._last_before_trial = self._confirmed = 0

    def add(self, message: Message) -> None:
        """Appends a message and wakes up waiting threads."""
        with self._has_messages:
            self._last += 1
            self._messages.append({**message, "number": self._last})
            self._has_messages.notify_all()

    def begin(self) -> None:
        """Call when a trial begins: earlier messages are dropped once confirmed."""
        with self._has_messages:
            self._last_before_trial = self._last

    @property
    def unheard(self) -> int:
        """Number of unconfirmed messages."""
        with self._has_messages:
            return self._last - self._confirmed

    def after(self, number: int, timeout_s: float = 0.0) -> list[Message]:
        """The messages after `number`, and confirms those up to it. Waits up to `timeout_s` for the
        first."""
        with self._has_messages:
            self._confirmed = max(self._confirmed, number)
            dropped_up_to = (
                min(self._last_before_trial, self._confirmed)
                if self._keeps_trial
                else self._confirmed
            )
            while self._messages and self._messages[0]["number"] <= dropped_up_to:
                self._messages.popleft()
            self._has_messages.wait_for(lambda: self._last > number, timeout_s)
            first = self._messages[0]["number"] if self._messages else 0
            return [
                dict(message)
                for message in islice(self._messages, max(0, number + 1 - first), None)
            ]


LISTEN_S = 1.0
"""longest wait of one `listen` call, seconds"""
TRY_AGAIN_S = 5.0
"""interval of tries to remove the placement group of an abandoned actor, whose processes have
already ended, seconds"""


class OwnedActor(ABC):
    """Base class of an owned actor. Ray runs its methods in groups with one thread each, so that
    orders keep their order while `listen` waits. All methods take the caller's token."""

    def _prepare(self, owner: str) -> None:
        self._owner, self._silent_s = owner, 0.0
        self._lock = threading.RLock()
        self._log = MessageLog()

    def _watch_owner(self, abandoned_s: float | None) -> None:
        """Makes the actor end itself when it is abandoned. `abandoned_s`: seconds without a
        heartbeat; None if it ends with its driver."""
        import ray

        if abandoned_s is not None:
            group = ray.util.get_current_placement_group()
            watch = threading.Thread(
                target=self._watch,
                args=(abandoned_s, group),
                name="autotune-owner-watch",
                daemon=True,
            )
            watch.start()

    def listen(self, owner: str, heard: int = 0) -> list[Message]:
        """The messages after number `heard`, each with its `number`. Waits up to `LISTEN_S` for the
        first. Callers other than the owner get a single message `superseded`."""
        if self._is_owner(owner):
            messages = self._log.after(heard, LISTEN_S)
            if self._is_owner(owner):
                return messages
        return [{"event": "superseded", "number": heard + 1, "generation": -1}]

    def heartbeat(self, owner: str) -> None:
        """Called by the owner while it is alive."""
        self._is_owner(owner)

    def release(self, owner: str) -> bool:
        """Releases the actor if the caller is its owner, so that nobody can adopt it any more.
        Returns whether the caller may end it."""
        with self._lock:
            if owner != self._owner:
                return False
            self._owner = ""
            return True

    def _is_owner(self, owner: str) -> bool:
        with self._lock:
            if owner == self._owner:
                self._silent_s = 0.0
            return owner == self._owner

    @abstractmethod
    def _abandon(self) -> None:
        """Ends the actor's processes, because its owner is gone."""

    def _watch(self, abandoned_s: float, group: Any) -> None:
        """Ends the actor when its owner has sent no heartbeat for `abandoned_s`. Counted in rounds,
        so that a suspension of the machine counts as one round."""
        from ray.util.placement_group import remove_placement_group

        round_s = min(1.0, abandoned_s / 4)
        while self._owner:
            time.sleep(round_s)
            with self._lock:
                self._silent_s += round_s
                if self._silent_s >= abandoned_s:
                    self._owner = ""
                    break
        else:
            return  # released by its owner, which will end it
        self._abandon()
        while True:  # Ray ends this process with its group; the head may be unreachable
            with contextlib.suppress(Exception):
                remove_placement_group(group)
            time.sleep(TRY_AGAIN_S)


def remote_actor(
    kind: type[OwnedActor], name: str, orders: tuple[str, ...], ownership: tuple[str, ...] = ()
) -> Any:
    """The Ray actor class of `kind`, named `name` in Ray. `orders`: methods that run one after
    another. `ownership`: methods that must not wait for orders."""
    import ray

    groups: Mapping[str, tuple[str, ...]] = {
        "listen": ("listen",),
        "orders": orders,
        "ownership": ("heartbeat", "release", *ownership),
    }
    body: dict[str, Any] = {
        method: ray.method(concurrency_group=group)(_forward(kind, method))
        for group, methods in groups.items()
        for method in methods
    }
    return ray.remote(concurrency_groups=dict.fromkeys(groups, 1))(type(name, (kind,), body))


def _forward(kind: type[OwnedActor], name: str) -> Any:
    original = getattr(kind, name)

    def method(self: OwnedActor, *arguments: Any) -> Any:
        return original(self, *arguments)

    method.__name__ = name
    return method
