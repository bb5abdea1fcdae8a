"""The Ray actor of one rank: holds its resources, keeps its process warm, and relays between it and the runner.

The rank itself is a child process, the same as the local runner's. So a rank can be limited, stopped, killed and replaced without losing
the actor or its place in the placement group, and its exit status is known. The actor ends with the driver's job, and the rank with the
actor.
"""

from __future__ import annotations

import os
import select
import threading
from collections import deque
from typing import Any

from autotune_workers.ranks import Births, RankProcess
from autotune_workers.wire import Message

LISTEN_S = 1.0
"""one call listens at most this long"""


class Unheard:
    """What a rank said, numbered from 1, until its runner confirms it: an answer that Ray loses on its way is given again."""

    def __init__(self) -> None:
        self._messages: deque[Message] = deque()
        self._told = 0

    def add(self, message: Message) -> None:
        """One more."""
        self._told += 1
        self._messages.append({**message, "number": self._told})

    def after(self, number: int) -> list[Message]:
        """Those beyond `number`; those up to it are forgotten."""
        while self._messages and self._messages[0]["number"] <= number:
            self._messages.popleft()
        return [dict(message) for message in self._messages]


class RankHost:
    """Methods run in two groups of one thread each, so that orders keep their order while `listen` waits."""

    def __init__(self, *, name: str, device: str, trial: str) -> None:
        """Starts the rank's process. `device`: cpu or cuda; Ray has set CUDA_VISIBLE_DEVICES."""
        import ray

        self._name = name
        self._births = Births(device=device, host=ray.util.get_node_ip_address(), trial=trial)
        self._lock = threading.Lock()
        self._generation = 0
        self._unheard = Unheard()
        self._rank = self._start()

    def _start(self) -> RankProcess:
        return RankProcess(self._births, name=self._name)

    def listen(self, heard: int = 0) -> list[Message]:
        """What the rank said, each with its `number` and the `generation` of its process; waits up to `LISTEN_S` for the first.

        `heard`: the last number that the caller has; everything beyond it is told.
        """
        if unheard := self._unheard.after(heard):
            return unheard
        with self._lock:
            rank, generation = self._rank, self._generation
        if rank.fileno() < 0:  # the process is gone and was reported: wait for its successor
            threading.Event().wait(0.05)
            return []
        select.select([rank.fileno()], [], [], LISTEN_S)
        for message in rank.receive():
            told: Message = {**message, "generation": generation}
            if message["say"] in ("failed", "gone"):
                told["log_tail"] = list(rank.log_tail())
            self._unheard.add(told)
        return self._unheard.after(heard)

    def send(self, message: Message) -> None:
        """Hands an order to the rank."""
        if message["do"] == "run":
            self._rank.begin()
        self._rank.send(message)

    def terminate(self) -> None:
        """SIGTERM to the rank."""
        self._rank.terminate()

    def kill(self) -> None:
        """SIGKILL to the rank."""
        self._rank.kill()

    def replace(self, generation: int) -> None:
        """Ends the rank's process and starts another, which carries this generation."""
        with self._lock:
            old = self._rank
            self._rank, self._generation = self._start(), generation
        old.close()

    def pids(self) -> tuple[int, int]:
        """Process numbers of the actor and of the rank."""
        return os.getpid(), self._rank.pid

    def __ray_terminate__(self) -> None:
        self._rank.close()


def remote_host() -> Any:
    """The actor class."""
    import ray

    methods = {
        "listen": "ears",
        "send": "hands",
        "terminate": "hands",
        "kill": "hands",
        "replace": "hands",
        "pids": "hands",
    }
    body: dict[str, Any] = {
        name: ray.method(concurrency_group=group)(_forward(name)) for name, group in methods.items()
    }
    actor = type("AutotuneRank", (RankHost,), body)
    return ray.remote(concurrency_groups={"ears": 1, "hands": 1})(actor)


def _forward(name: str) -> Any:
    original = getattr(RankHost, name)

    def method(self: RankHost, *arguments: Any) -> Any:
        return original(self, *arguments)

    method.__name__ = name
    return method
