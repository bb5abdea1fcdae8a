"""An actor as the runner sees it: the call that waits for its messages, the orders that were sent,
and its heartbeat. `owned_actor` is the other end.

Silence: for how long an actor has given no sign of life, and when its node therefore counts as
lost.

An actor answers a `listen` call at least once a second, with messages or without. Ray itself
notices a node that is frozen or cut off after 62 to 65 s. Time is counted on a clock that stands
still while nobody listens: an owner that was stopped or busy for a while takes nobody for lost.
"""

from __future__ import annotations

import contextlib
import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any, final

from autotune.spec.texts.as_text import format_duration
from autotune_workers.gang.wire import Message

LOST_S = 15.0
"""without a sign of life, after which a node is lost"""
LONGEST_PAUSE_S = 1.0
"""most time that passes between two looks at the clock"""


@final
class ListeningClock:
    """Seconds that its owner spent listening."""

    def __init__(self, read: Callable[[], float] = time.monotonic) -> None:
        """`read`: a clock that never stands still, s."""
        self._read, self._now_s, self._looked_s = read, 0.0, read()

    def look(self) -> float:
        """The time now; since the last look at most `LONGEST_PAUSE_S` later."""
        looked_s, self._looked_s = self._looked_s, self._read()
        self._now_s += min(self._looked_s - looked_s, LONGEST_PAUSE_S)
        return self._now_s


@final
class Silence:
    """Of one actor. One that was never heard is still being started, and is not silent."""

    def __init__(self, lost_s: float = LOST_S) -> None:
        self._lost_s = lost_s
        self._heard_s: float | None = None

    def end(self, now_s: float) -> None:
        """A sign of life."""
        self._heard_s = now_s

    def lasts_s(self, now_s: float) -> float:
        """For how long; 0 before the first sign of life."""
        return 0.0 if self._heard_s is None else now_s - self._heard_s

    def lasts_too_long(self, now_s: float) -> bool:
        """Whether the node of the actor is lost."""
        return self.lasts_s(now_s) >= self._lost_s

    def reason(self, address: str) -> str:
        """Why the node at that address is lost, in words."""
        return f"node {address} was silent for {format_duration(self._lost_s)}, so the node is down, frozen or cut off"


RETRY_S = 1.0
"""after a call that Ray could not answer"""


class ActorHandle(ABC):
    """The runner's side of one actor. None of its methods raises when the actor is gone."""

    def __init__(
        self, name: str, actor: Any, owner: str, *, silence: Silence | None = None
    ) -> None:
        """`owner`: the token that the actor obeys; `silence`: when its node counts as lost."""
        self.name = name
        self.actor = actor
        self.owner = owner
        self.address = ""
        """of its node; empty until it is known"""
        self.silence = silence or Silence()
        self.dead = False
        """whether no more messages can come"""
        self.superseded = False
        """whether another owner has adopted it"""
        self.heard = 0
        """number of the last message that has come"""
        self.retry_at_s = 0.0
        """when to listen again after a call that Ray could not answer"""
        self.calls: list[Any] = []
        """orders that Ray has not confirmed"""
        self._heartbeat_call: Any = None
        self.listen_call: Any = None
        """the call that waits for messages; None after one that Ray could not answer"""
        self.listen()

    @abstractmethod
    def accept(self, messages: list[Message]) -> list[Message]:
        """Takes note of new messages, and returns those that concern the runner."""

    @abstractmethod
    def loss(self, error: BaseException) -> str:
        """Why it is gone, in words, when Ray says so with this error."""

    def gone(self, why: str) -> Message:
        """Its last message, on its behalf."""
        return {"event": "gone", "why": why}

    def lose(self, why: str) -> list[Message]:
        """It is gone: nothing more is expected from it."""
        self.dead, self.listen_call = True, None
        return [self.gone(why)]

    def listen(self) -> None:
        """Asks for the next messages, and confirms those that have come."""
        self.listen_call = self.actor.listen.remote(self.owner, self.heard)

    def receive(self, now_s: float) -> list[Message]:
        """The messages of a `listen_call` that has come back; listens again. `now_s`: on the clock
        of its silence."""
        import ray
        from ray.exceptions import ActorUnavailableError, RayActorError

        call, self.listen_call = self.listen_call, None
        try:
            messages = ray.get(call, timeout=5.0)
        except ActorUnavailableError:
            self.retry_at_s = time.monotonic() + RETRY_S
            return []
        except RayActorError as error:
            return self.lose(self.loss(error))
        except Exception:  # Ray could not answer; whether the actor lives is another question
            self.retry_at_s = time.monotonic() + RETRY_S
            return []
        self.silence.end(now_s)
        if any(m["event"] == "superseded" for m in messages):
            self.superseded = True
            return self.lose("was adopted by another controller for the study")
        last = max((m["number"] for m in messages), default=self.heard)
        messages = [m for m in messages if m.pop("number") > self.heard]
        self.heard = max(self.heard, last)
        self.listen()
        return self.accept(messages)

    def heartbeat(self) -> None:
        """Tells the actor that its owner lives, unless the last heartbeat is still unanswered."""
        import ray

        with contextlib.suppress(Exception):
            if self._heartbeat_call is None or ray.wait([self._heartbeat_call], timeout=0)[0]:
                self._heartbeat_call = self.actor.heartbeat.remote(self.owner)

    def close(self) -> None:
        """Kills the actor, and with it what it started."""
        import ray

        self.dead = True
        with contextlib.suppress(Exception):
            ray.kill(self.actor, no_restart=True)

    def call(self, method: Any, *arguments: Any) -> None:
        """Sends an order; order is kept."""
        with contextlib.suppress(Exception):  # of a dead actor: `listen` reports it
            self.calls.append(method.remote(self.owner, *arguments))
