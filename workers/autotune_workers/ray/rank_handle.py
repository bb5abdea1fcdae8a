"""A rank on a Ray cluster as the runner sees it: its actor, and the call that listens to it. See `_ray_host` for the other end."""

from __future__ import annotations

import contextlib
import time
from typing import Any

from autotune_workers.gang.wire import Message
from autotune_workers.ray.rank_host import HostState


class RayRank:
    """A rank as the runner sees it: its actor, and the call that listens to it."""

    def __init__(self, name: str, actor: Any, owner: str, state: HostState | None = None) -> None:
        """`owner`: the token that the actor obeys; `state`: of an actor that was adopted."""
        self.name = name
        self.actor = actor
        self.owner = owner
        self.ready = state.ready if state else False
        self.host = state.host if state else ""
        self.dead = False
        self.taken = False
        """whether it obeys another owner by now"""
        self.generation = state.generation if state else 0
        self.heard = 0
        """number of the last message that has come"""
        self.ear: Any = None
        self.listen()
        self.deaf_until_s = 0.0
        self.kill_asked_s: float | None = None
        self.given_up = False
        self.tail: tuple[str, ...] = ()
        self.calls: list[Any] = []
        self.kept: Any = None
        """the last call that told the actor that its owner lives"""

    def listen(self) -> None:
        """Asks for what it says next, and with that confirms what has come."""
        self.ear = self.actor.listen.remote(self.owner, self.heard)

    def send(self, message: Message) -> None:
        """Sends a message; order is kept."""
        self._call(self.actor.send, message)

    def begin(self) -> None:
        """A trial begins on it; the host learns it with the order to run."""
        self.tail = ()

    def terminate(self) -> None:
        """SIGTERM to the rank."""
        self._call(self.actor.terminate)

    def kill(self) -> None:
        """SIGKILL to the rank; its host follows when that does not help."""
        if self.kill_asked_s is None:
            self.kill_asked_s = time.monotonic()
        self._call(self.actor.kill)

    def replace(self) -> None:
        """Another process in the same place."""
        self.generation += 1
        self.ready, self.kill_asked_s = False, None
        self._call(self.actor.replace, self.generation)

    def log_tail(self) -> tuple[str, ...]:
        """Last lines of its log, as they came with its last word."""
        return self.tail

    def keep(self) -> None:
        """Tells the actor that its owner lives, unless it has not yet answered the last time."""
        import ray

        with contextlib.suppress(Exception):
            if self.kept is None or ray.wait([self.kept], timeout=0)[0]:
                self.kept = self.actor.keep.remote(self.owner)

    def end(self) -> None:
        """Kills the actor, and with it the rank."""
        import ray

        self.dead = True
        with contextlib.suppress(Exception):
            ray.kill(self.actor, no_restart=True)

    def _call(self, method: Any, *arguments: Any) -> None:
        with contextlib.suppress(Exception):  # of a dead actor: `listen` reports it
            self.calls.append(method.remote(self.owner, *arguments))
