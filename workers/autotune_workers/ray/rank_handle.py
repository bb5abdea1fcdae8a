"""A rank on a Ray cluster as the runner sees it: its actor, and the call that waits for its messages. `rank_host` is the other end."""

from __future__ import annotations

import contextlib
import time
from typing import Any

from autotune_workers.gang.wire import Message
from autotune_workers.ray.rank_host import HostState

HOST_KILL_S = 3.0
"""a rank that its actor does not report gone this long after SIGKILL is killed with its actor"""
RETRY_S = 1.0
"""after a call that Ray could not answer"""


class RayRank:
    """The runner's side of one rank actor."""

    def __init__(self, name: str, actor: Any, owner: str, state: HostState | None = None) -> None:
        """`owner`: the token that the actor obeys; `state`: of an actor that was adopted."""
        self.name = name
        self.actor = actor
        self.owner = owner
        self.ready = state.ready if state else False
        self.host = state.host if state else ""
        self.dead = False
        """whether no more messages can come"""
        self.superseded = False
        """whether another owner has adopted it"""
        self.generation = state.generation if state else 0
        self.heard = 0
        """number of the last message that has come"""
        self.listen_call: Any = None
        """the call that waits for messages; None after one that Ray could not answer"""
        self.listen()
        self.retry_at_s = 0.0
        """when to listen again after such a call"""
        self.kill_asked_s: float | None = None
        self.given_up = False
        """whether the actor had to be killed with its rank"""
        self.tail: tuple[str, ...] = ()
        self.calls: list[Any] = []
        """orders that Ray has not confirmed"""
        self._heartbeat_call: Any = None

    def listen(self) -> None:
        """Asks for the next messages, and confirms those that have come."""
        self.listen_call = self.actor.listen.remote(self.owner, self.heard)

    def receive(self) -> list[Message]:
        """The messages of a `listen_call` that has come back; listens again."""
        import ray
        from ray.exceptions import ActorDiedError, ActorUnavailableError, RayActorError

        call, self.listen_call = self.listen_call, None
        try:
            messages = ray.get(call, timeout=5.0)
        except ActorUnavailableError:
            self.retry_at_s = time.monotonic() + RETRY_S
            return []
        except (ActorDiedError, RayActorError) as error:
            self.dead = True
            place = f"its host on node {self.host or '(not yet placed)'}"
            words = f"is lost: {' '.join(str(error).split())[:500]}"
            return _gone(f"{place} {f'did not answer for {HOST_KILL_S:g} s' if self.given_up else words}")
        except Exception:  # Ray could not answer; whether the rank lives is another question
            self.retry_at_s = time.monotonic() + RETRY_S
            return []
        if any(m["event"] == "superseded" for m in messages):
            self.dead = self.superseded = True
            return _gone("was adopted by another controller of its study")
        last = max((m["number"] for m in messages), default=self.heard)
        messages = [m for m in messages if m.pop("number") > self.heard]
        self.heard = max(self.heard, last)
        self.listen()
        current = [m for m in messages if m.pop("generation") == self.generation]
        for message in current:
            if "log_tail" in message:
                self.tail = tuple(message.pop("log_tail"))
            if message["event"] == "ready":
                self.ready, self.host = True, message["host"]
            elif message["event"] == "gone":
                self.ready, self.kill_asked_s = False, None
        return current

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
        """Last lines of its log, as they came with its last message."""
        return self.tail

    def heartbeat(self) -> None:
        """Tells the actor that its owner lives, unless the last heartbeat is still unanswered."""
        import ray

        with contextlib.suppress(Exception):
            if self._heartbeat_call is None or ray.wait([self._heartbeat_call], timeout=0)[0]:
                self._heartbeat_call = self.actor.heartbeat.remote(self.owner)

    def end(self) -> None:
        """Kills the actor, and with it the rank."""
        import ray

        self.dead = True
        with contextlib.suppress(Exception):
            ray.kill(self.actor, no_restart=True)

    def _call(self, method: Any, *arguments: Any) -> None:
        with contextlib.suppress(Exception):  # of a dead actor: `listen` reports it
            self.calls.append(method.remote(self.owner, *arguments))


def _gone(why: str) -> list[Message]:
    """The last message of a rank, on its behalf."""
    return [{"event": "gone", "code": None, "kernel_oom": False, "why": why}]
