"""The runner's side of a rank on a Ray cluster. `ranks.host` is the other end."""

from __future__ import annotations

import time
from typing import Any

from autotune.spec.texts.as_text import format_duration
from autotune_workers.gang.wire import Message
from autotune_workers.ray.actor_handle import ActorHandle, Silence
from autotune_workers.ray.ranks.host import HostState
from autotune_workers.ray.sent_folders import SentFolders, folder_of_module

HOST_KILL_S = 3.0
"""a rank not reported as ended this many seconds after SIGKILL is killed with its actor"""


class RayRank(ActorHandle):
    """Handle of one rank actor."""

    def __init__(
        self,
        name: str,
        actor: Any,
        owner: str,
        folders: SentFolders,
        state: HostState | None = None,
        *,
        silence: Silence | None = None,
    ) -> None:
        """`owner`: token that authorizes calls to the actor. `folders`: folders to send with
        trials. `state`: of an adopted actor."""
        super().__init__(name, actor, owner, silence=silence)
        self._folders = folders
        self.ready = state.ready if state else False
        self.address = state.host if state else ""
        self.node, self.gpus = (state.node, state.gpus) if state else ("", ())
        self.generation = state.generation if state else 0
        self.kill_asked_s: float | None = None
        self.given_up = False
        """whether the actor had to be killed with its rank"""
        self.tail: tuple[str, ...] = ()

    def loss(self, error: BaseException) -> str:
        """Why the actor is gone, as words for a message."""
        place = f"the host on node {self.address or '(not yet placed)'}"
        words = f"is lost: {' '.join(str(error).split())[:500]}"
        return f"{place} {f'did not answer for {format_duration(HOST_KILL_S)}' if self.given_up else words}"

    def gone(self, why: str) -> Message:
        """The final message `gone` for the actor. `host_lost`: whether the host was lost, not
        killed by the runner."""
        return {
            "event": "gone",
            "code": None,
            "kernel_oom": False,
            "why": why,
            "host_lost": not self.given_up,
        }

    def accept(self, messages: list[Message]) -> list[Message]:
        """The messages of the current process. Updates the handle by them."""
        current = [m for m in messages if m.pop("generation") == self.generation]
        for message in current:
            if "log_tail" in message:
                self.tail = tuple(message.pop("log_tail"))
            if message["event"] == "ready":
                self.ready, self.address = True, message["host"]
                self.node, self.gpus = message["hostname"], tuple(message["gpus"])
            elif message["event"] == "gone":
                self.ready, self.kill_asked_s = False, None
        return current

    def send(self, message: Message) -> None:
        """Sends a message, in order. The folder of the model's module is sent with the order `run`,
        if it is to be uploaded."""
        if message["command"] == "run" and (folder := folder_of_module(message["request"])):
            message = {
                **message,
                "package": [self._folders.reference(self._folders.digest(folder))],
            }
        self.call(self.actor.send, message)

    def begin(self) -> None:
        """Call when a trial begins; the host learns of it by the order `run`."""
        self.tail = ()

    def terminate(self) -> None:
        """Sends SIGTERM to the rank."""
        self.call(self.actor.terminate)

    def kill(self) -> None:
        """Sends SIGKILL to the rank; its actor is killed if that does not help (`HOST_KILL_S`)."""
        if self.kill_asked_s is None:
            self.kill_asked_s = time.monotonic()
        self.call(self.actor.kill)

    def replace(self) -> None:
        """Replaces the rank's process, in the same place."""
        self.generation += 1
        self.ready, self.kill_asked_s = False, None
        self.call(self.actor.replace, self.generation)

    def log_tail(self) -> tuple[str, ...]:
        """The last lines of its log, from its last message."""
        return self.tail
