"""The runner's handle of an actor: the call that waits for its messages, the orders sent to it, and
its heartbeat. `owned_actor` is the other end.

`Silence` measures how long an actor has not answered, and when its node therefore counts as lost.

An actor answers a `listen` call at least once a second, with or without messages. Ray itself
detects a frozen or disconnected node after 62 to 65 s. Time is measured on a clock that stops while
nobody listens, so that an owner that was stopped or busy does not take actors for lost.
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
"""seconds without an answer after which a node counts as lost"""
LONGEST_PAUSE_S = 1.0
"""longest time that the clock advances between two readings, seconds"""


@final
class ListeningClock:
    """A clock that counts the seconds its owner spent listening."""

    def __init__(self, read: Callable[[], float] = time.monotonic) -> None:
        """`read`: a clock that never stops, seconds."""
        self._read, self._now_s, self._last_reading_s = read, 0.0, read()

    def look(self) -> float:
        """The current time; at most `LONGEST_PAUSE_S` later than at the previous call."""
        looked_s, self._last_reading_s = self._last_reading_s, self._read()
        self._now_s += min(self._last_reading_s - looked_s, LONGEST_PAUSE_S)
        return self._now_s


@final
class Silence:
    """Silence of one actor. An actor that has never answered is still starting, and is not
    silent."""

    def __init__(self, lost_s: float = LOST_S) -> None:
        self._lost_s = lost_s
        self._last_answer_s: float | None = None

    def end(self, now_s: float) -> None:
        """Call when the actor answers."""
        self._last_answer_s = now_s

    def lasts_s(self, now_s: float) -> float:
        """Seconds since its last answer; 0 before the first one."""
        return 0.0 if self._last_answer_s is None else now_s - self._last_answer_s

    def lasts_too_long(self, now_s: float) -> bool:
        """Whether the actor's node counts as lost."""
        return self.lasts_s(now_s) >= self._lost_s

    def reason(self, address: str) -> str:
        """Why the node at that address is lost, as words for a message."""
        return f"node {address} was silent for {format_duration(self._lost_s)}, so the node is down, frozen or cut off"


RETRY_S = 1.0
"""wait after a call that Ray could not answer, seconds"""


class ActorHandle(ABC):
    """The runner's handle of one actor. Its methods do not raise if the actor is gone."""

    def __init__(
        self, name: str, actor: Any, owner: str, *, silence: Silence | None = None
    ) -> None:
        """`owner`: token that authorizes calls to the actor. `silence`: decides when its node
        counts as lost."""
        self.name = name
        self.actor = actor
        self.owner = owner
        self.address = ""
        """address of its node; empty until known"""
        self.silence = silence or Silence()
        self.dead = False
        """whether no more messages can arrive"""
        self.superseded = False
        """whether another owner has adopted it"""
        self.heard = 0
        """number of the last message received"""
        self.retry_at_s = 0.0
        """monotonic time of the next `listen` after a call that Ray could not answer"""
        self.calls: list[Any] = []
        """orders that Ray has not confirmed"""
        self._heartbeat_call: Any = None
        self.listen_call: Any = None
        """the pending `listen` call; None after one that Ray could not answer"""
        self.listen()

    @abstractmethod
    def accept(self, messages: list[Message]) -> list[Message]:
        """Updates the handle by new messages. Returns those for the runner."""

    @abstractmethod
    def loss(self, error: BaseException) -> str:
        """Why it is gone, as words for a message, given Ray's error."""

    def gone(self, why: str) -> Message:
        """The final message `gone`, made for the actor."""
        return {"event": "gone", "why": why}

    def lose(self, why: str) -> list[Message]:
        """Marks the actor as gone. Returns its final message."""
        self.dead, self.listen_call = True, None
        return [self.gone(why)]

    def listen(self) -> None:
        """Requests the next messages, and confirms those received."""
        self.listen_call = self.actor.listen.remote(self.owner, self.heard)

    def receive(self, now_s: float) -> list[Message]:
        """The messages of a completed `listen_call`; then listens again. `now_s`: on the clock of
        `silence`."""
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
        except Exception:  # Ray could not answer; the actor may be alive
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
        """Sends a heartbeat, unless the last one is still unanswered."""
        import ray

        with contextlib.suppress(Exception):
            if self._heartbeat_call is None or ray.wait([self._heartbeat_call], timeout=0)[0]:
                self._heartbeat_call = self.actor.heartbeat.remote(self.owner)

    def close(self) -> None:
        """Kills the actor and its processes."""
        import ray

        self.dead = True
        with contextlib.suppress(Exception):
            ray.kill(self.actor, no_restart=True)

    def call(self, method: Any, *arguments: Any) -> None:
        """Sends an order; orders arrive in sequence."""
        with contextlib.suppress(Exception):  # `listen` reports a dead actor
            self.calls.append(method.remote(self.owner, *arguments))
