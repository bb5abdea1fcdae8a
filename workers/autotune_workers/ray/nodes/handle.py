"""The runner's side of a node for programs on a Ray cluster. `nodes.host` is the other end."""

from __future__ import annotations

from typing import final

from autotune_workers.gang.wire import Message
from autotune_workers.process.program.places import ProgramOrder
from autotune_workers.ray.actor_handle import ActorHandle


@final
class RayNode(ActorHandle):
    """Handle of one node actor; implements `NodeHandle`."""

    ready = False
    """whether the node can start this attempt's program"""
    port = 0
    """a free port at `address`, for this attempt"""
    is_running = False
    """whether a program was started and its last message has not arrived"""
    _attempt = 0
    """number of attempts it has served, including this one"""

    def prepare(self) -> None:
        """Call for each new attempt; `ready` becomes true again later."""
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
        """The messages of this attempt. Updates the handle by them."""
        current = [message for message in messages if message.pop("attempt") == self._attempt]
        for message in current:
            if message["event"] == "ready":
                self.ready, self.address, self.port = True, message["address"], message["port"]
            elif message["event"] in ("refused", "ended", "gone"):
                self.is_running = False
        return current

    def loss(self, error: BaseException) -> str:
        """Why the actor is gone, as words for a message."""
        return f"node {self.address or '(not yet placed)'} is lost: {' '.join(str(error).split())[:500]}"
