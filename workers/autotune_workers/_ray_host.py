"""The Ray actor of one rank: holds its resources, keeps its process warm, and relays between it and the runner.

The rank itself is a child process, the same as the local runner's. So a rank can be limited, stopped, killed and replaced without losing
the actor or its place in the placement group, and its exit status is known. The rank ends with the actor.

An actor obeys one owner at a time, known by a token. On a cluster that outlives its drivers it outlives them too, for a while: whoever runs the
study next adopts it, with the trial that is running and all that it said since it began; the one before is no longer heard. An actor whose owner
gives no sign of life for `abandoned_s` ends its gang.
"""

from __future__ import annotations

import contextlib
import os
import select
import threading
import time
from collections import deque
from dataclasses import dataclass
from itertools import islice
from typing import Any

from autotune_workers.ranks import Births, RankProcess
from autotune_workers.wire import Message

LISTEN_S = 1.0
"""one call listens at most this long"""


GIVE_UP_S = 5.0
"""for the head to take an abandoned gang's place back, before its actors end anyhow"""


class Said:
    """What a rank said, numbered from 1. Kept until its owner confirms it, for an answer that Ray loses on its way is given again, and as long as its
    trial is the last, for an owner that comes later. Threads may share it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._messages: deque[Message] = deque()
        self._told = self._before = self._confirmed = 0

    def add(self, message: Message) -> None:
        """One more."""
        with self._lock:
            self._told += 1
            self._messages.append({**message, "number": self._told})

    def begin(self) -> None:
        """A trial begins: what was said before it is forgotten once it is confirmed."""
        with self._lock:
            self._before = self._told

    def after(self, number: int) -> list[Message]:
        """Those beyond `number`, up to which the caller has them."""
        with self._lock:
            self._confirmed = max(self._confirmed, number)
            while self._messages and self._messages[0]["number"] <= min(self._before, self._confirmed):
                self._messages.popleft()
            first = self._messages[0]["number"] if self._messages else 0
            return [dict(message) for message in islice(self._messages, max(0, number + 1 - first), None)]


@dataclass(frozen=True, slots=True, kw_only=True)
class HostState:
    """What a new owner wants to know of an actor."""

    size: int
    """of its gang"""
    generation: int
    """of its rank's process"""
    ready: bool
    host: str
    trial: Message | None
    """the order to run the last trial; None: this process ran none"""
    knows_store: bool
    """whether it was told how the ranks of that trial find each other"""
    is_idle: bool
    """whether it has cleaned up after it"""
    is_lost: bool
    """whether its process has ended"""
    was_replaced: bool
    """whether it is not the process that the trial before was given to"""


class RankHost:
    """Methods run in groups of one thread each, so that orders keep their order while `listen` waits. All take the token of whoever calls."""

    def __init__(
        self, *, owner: str, size: int, name: str, device: str, trial: str, abandoned_s: float | None = None
    ) -> None:
        """Starts the rank's process. `device`: cpu or cuda; Ray has set CUDA_VISIBLE_DEVICES. `abandoned_s`: None when it ends with its driver."""
        import ray

        self._owner, self._size, self._name = owner, size, name
        self._births = Births(device=device, host=ray.util.get_node_ip_address(), trial=trial)
        self._lock = threading.Lock()
        self._generation = 0
        self._said = Said()
        self._ready, self._host = False, ""
        self._trial: Message | None = None
        self._knows_store = self._idle = self._lost = self._replaced = False
        self._rank = self._start()
        self._sign_of_life_s = time.monotonic()
        if abandoned_s is not None:
            group = ray.util.get_current_placement_group()
            watch = threading.Thread(target=self._watch, args=(abandoned_s, group), name="autotune-owner", daemon=True)
            watch.start()

    def _start(self) -> RankProcess:
        return RankProcess(self._births, name=self._name)

    def listen(self, owner: str, heard: int = 0) -> list[Message]:
        """What the rank said, each with its `number` and the `generation` of its process; waits up to `LISTEN_S` for the first. To anybody but the
        owner: `taken`.

        `heard`: the last number that the caller has; everything beyond it is told.
        """
        if not self._is_owner(owner):
            return [{"say": "taken", "number": heard + 1, "generation": -1}]
        if said := self._said.after(heard):
            return said
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
            self._note(message, generation)
            self._said.add(told)
        return self._said.after(heard) if self._is_owner(owner) else []

    def _note(self, message: Message, generation: int) -> None:
        """What an owner that comes later will ask for first."""
        with self._lock:
            if generation != self._generation:
                return
            if message["say"] == "ready":
                self._ready, self._host = True, message["host"]
            elif message["say"] == "gone":
                self._ready, self._lost = False, True
            elif message["say"] == "idle":
                self._idle = True

    def send(self, owner: str, message: Message) -> None:
        """Hands an order to the rank."""
        if not self._is_owner(owner):
            return
        if message["do"] == "run":
            self._said.begin()
            self._trial, self._knows_store, self._idle, self._replaced = message, message["rank"] == 0, False, False
            self._rank.begin()
        elif message["do"] == "store":
            self._knows_store = True
        self._rank.send(message)

    def terminate(self, owner: str) -> None:
        """SIGTERM to the rank."""
        if self._is_owner(owner):
            self._rank.terminate()

    def kill(self, owner: str) -> None:
        """SIGKILL to the rank."""
        if self._is_owner(owner):
            self._rank.kill()

    def replace(self, owner: str, generation: int) -> None:
        """Ends the rank's process and starts another, which carries this generation."""
        if not self._is_owner(owner):
            return
        with self._lock:
            old = self._rank
            self._rank, self._generation = self._start(), generation
            self._ready, self._trial, self._lost, self._replaced = False, None, False, True
        old.close()

    def keep(self, owner: str) -> None:
        """The owner lives."""
        self._is_owner(owner)

    def adopt(self, owner: str) -> HostState | None:
        """From now on this is the owner. None when the last one has just given the actor up."""
        with self._lock:
            if not self._owner:
                return None
            self._owner, self._sign_of_life_s = owner, time.monotonic()
            return HostState(
                size=self._size,
                generation=self._generation,
                ready=self._ready,
                host=self._host,
                trial=self._trial,
                knows_store=self._knows_store,
                is_idle=self._idle,
                is_lost=self._lost,
                was_replaced=self._replaced,
            )

    def leave(self, owner: str) -> bool:
        """Whether the caller may end the actor: nobody else has adopted it, and from now on nobody can."""
        with self._lock:
            if owner != self._owner:
                return False
            self._owner = ""
            return True

    def _is_owner(self, owner: str) -> bool:
        with self._lock:
            if owner == self._owner:
                self._sign_of_life_s = time.monotonic()
            return owner == self._owner

    def _watch(self, abandoned_s: float, group: Any) -> None:
        from ray.util.placement_group import remove_placement_group

        while time.monotonic() - self._sign_of_life_s < abandoned_s:
            time.sleep(min(1.0, abandoned_s / 4))
        self._rank.kill()

        def remove() -> None:
            with contextlib.suppress(Exception):
                remove_placement_group(group)

        threading.Thread(target=remove, daemon=True).start()
        time.sleep(GIVE_UP_S)  # Ray ends this process with its place
        os._exit(1)

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
        "keep": "owners",
        "adopt": "owners",
        "leave": "owners",
    }
    body: dict[str, Any] = {
        name: ray.method(concurrency_group=group)(_forward(name)) for name, group in methods.items()
    }
    actor = type("AutotuneRank", (RankHost,), body)
    return ray.remote(concurrency_groups={"ears": 1, "hands": 1, "owners": 1})(actor)


def _forward(name: str) -> Any:
    original = getattr(RankHost, name)

    def method(self: RankHost, *arguments: Any) -> Any:
        return original(self, *arguments)

    method.__name__ = name
    return method
