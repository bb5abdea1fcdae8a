"""A node on a Ray cluster as the runner of programs sees it. `nodes.host` is the other end."""

from __future__ import annotations

from typing import final

from autotune_workers.gang.wire import Message
from autotune_workers.process.program.places import ProgramOrder
from autotune_workers.ray.actor_handle import ActorHandle


@final
class RayNode(ActorHandle):
    """The runner's side of one node actor; a `NodeHandle`."""

    ready = False
    """whether the node can start the program of this attempt"""
    port = 0
    """free at `address`, for this attempt"""
    is_running = False
    """whether a keeper has the order, and has not said its last word"""
    _attempt = 0
    """how many attempts it has served, with this one"""

    def prepare(self) -> None:
        """Another attempt uses it; it will be ready again."""
        self._attempt += 1
        self.ready = False
        self.call(self.actor.prepare, self._attempt)

    def begin(self, order: ProgramOrder) -> None:
        """Starts the program."""
        self.is_running = True
        self.call(self.actor.begin, self._attempt, order)

    def end(self, *, hung: bool = False) -> None:
        """Ends the program; the message `ended` follows."""
        self.call(self.actor.end, hung)

    def accept(self, messages: list[Message]) -> list[Message]:
        """The messages of this attempt."""
        current = [message for message in messages if message.pop("attempt") == self._attempt]
        for message in current:
            if message["event"] == "ready":
                self.ready, self.address, self.port = True, message["address"], message["port"]
            elif message["event"] in ("refused", "ended", "gone"):
                self.is_running = False
        return current

    def loss(self, error: BaseException) -> str:
        """Why its actor is gone."""
        return f"node {self.address or '(not yet placed)'} is lost: {' '.join(str(error).split())[:500]}"
