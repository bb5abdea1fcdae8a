"""Owned actors: what the actors of ranks and of nodes share. An actor obeys one owner at a time,
known by a token, and keeps its messages for it.

On a cluster that outlives its drivers, actors outlive them too, for a while. An actor whose owner
gives no sign of life for `abandoned_s` ends what it started and removes its placement group.

The message log of an actor: its messages, numbered from 1, kept until nobody needs them any more.
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
    """Messages are kept until the owner of the actor confirms them, because an answer that Ray
    loses on its way is given again, and as long as their trial is the last one, for an owner that
    adopts a rank. Threads may share it."""

    def __init__(self, *, keeps_trial: bool = True) -> None:
        """`keeps_trial`: whether confirmed messages of the last trial are kept too."""
        self._keeps_trial = keeps_trial
        self._news = threading.Condition()
        self._messages: deque[Message] = deque()
        self._last = self._before = self._confirmed = 0

    def add(self, message: Message) -> None:
        """Appends a message and wakes up who waits for it."""
        with self._news:
            self._last += 1
            self._messages.append({**message, "number": self._last})
            self._news.notify_all()

    def begin(self) -> None:
        """A trial begins: earlier messages are dropped once they are confirmed."""
        with self._news:
            self._before = self._last

    @property
    def unheard(self) -> int:
        """How many messages are not confirmed."""
        with self._news:
            return self._last - self._confirmed

    def after(self, number: int, timeout_s: float = 0.0) -> list[Message]:
        """The messages after `number`, which confirms those up to it; waits up to `timeout_s` for
        the first."""
        with self._news:
            self._confirmed = max(self._confirmed, number)
            needless = min(self._before, self._confirmed) if self._keeps_trial else self._confirmed
            while self._messages and self._messages[0]["number"] <= needless:
                self._messages.popleft()
            self._news.wait_for(lambda: self._last > number, timeout_s)
            first = self._messages[0]["number"] if self._messages else 0
            return [
                dict(message)
                for message in islice(self._messages, max(0, number + 1 - first), None)
            ]


LISTEN_S = 1.0
"""longest wait of one `listen` call"""
TRY_AGAIN_S = 5.0
"""between two tries to remove the placement group of an abandoned actor; what it started is gone
already"""


class OwnedActor(ABC):
    """Methods run in groups of one thread each, so that orders keep their order while `listen`
    waits. All take the caller's token."""

    def _prepare(self, owner: str) -> None:
        self._owner, self._silent_s = owner, 0.0
        self._lock = threading.RLock()
        self._log = MessageLog()

    def _watch_owner(self, abandoned_s: float | None) -> None:
        """Has the actor end itself when it is abandoned. `abandoned_s`: None when it ends with its
        driver."""
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
        """The messages after number `heard`, each with its `number`; waits up to `LISTEN_S` for the
        first. Anybody but the owner gets the one message `superseded`."""
        if self._is_owner(owner):
            messages = self._log.after(heard, LISTEN_S)
            if self._is_owner(owner):
                return messages
        return [{"event": "superseded", "number": heard + 1, "generation": -1}]

    def heartbeat(self, owner: str) -> None:
        """The owner lives."""
        self._is_owner(owner)

    def release(self, owner: str) -> bool:
        """Whether the caller may end the actor: nobody else has adopted it, and from now on nobody
        can adopt it."""
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
        """Ends what the actor started: its owner is gone."""

    def _watch(self, abandoned_s: float, group: Any) -> None:
        """Ends the actor when its owner has sent no heartbeat for so long, counted in rounds: a
        machine that stood still counts as one round."""
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
            return  # its owner released it, and will end it
        self._abandon()
        while True:  # Ray ends this process with its group; the head may be away
            with contextlib.suppress(Exception):
                remove_placement_group(group)
            time.sleep(TRY_AGAIN_S)


def remote_actor(
    kind: type[OwnedActor], name: str, orders: tuple[str, ...], ownership: tuple[str, ...] = ()
) -> Any:
    """The actor class of `kind`, called `name` in Ray. `orders`: methods that run one after
    another; `ownership`: those that must not wait for an order."""
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
