"""The Ray actor of one rank: holds its resources, keeps its process warm, and relays messages
between it and the runner.

The rank is a child process, as in the local runner. So it can be limited, stopped, killed and
replaced without losing the actor's place in the placement group, and its exit status is known. The
rank ends with the actor.

It is an `OwnedActor`: the study's next controller adopts it with the running trial and all its
messages so far, and calls of the previous owner are then ignored. If abandoned, it ends its gang.
"""

from __future__ import annotations

import contextlib
import os
import select
import sys
import threading
from dataclasses import dataclass
from typing import Any

from autotune_workers.gang.wire import Message
from autotune_workers.process.rank_processes import RankProcess, RankStarter
from autotune_workers.ray.nodes.environment import NOTHING_ADDED, NodeEnvironment
from autotune_workers.ray.owned_actor import LISTEN_S, OwnedActor, remote_actor
from autotune_workers.ray.sent_folders import UnpackedFolder, with_folder


@dataclass(frozen=True, slots=True, kw_only=True)
class HostState:
    """State of an actor for a new owner."""

    size: int
    """number of ranks of its gang"""
    nodes: int
    """number of whole nodes of the gang; 1: its ranks were placed wherever there was room"""
    generation: int
    """number of its rank's process, counted by the owner"""
    ready: bool
    host: str
    node: str
    """hostname of its node; empty until it is ready"""
    gpus: tuple[str, ...]
    """its GPUs, as in CUDA_VISIBLE_DEVICES of its node"""
    trial: Message | None
    """the last order `run`; None if this process had none"""
    knows_store: bool
    """whether it knows the address of that trial's rendezvous store"""
    is_ending: bool
    """whether it was ordered to end that trial early"""
    is_idle: bool
    """whether it has cleaned up after that trial"""
    is_lost: bool
    """whether its process has ended"""
    was_replaced: bool
    """whether its process replaced the one that ran the previous trial"""


class RankHost(OwnedActor):
    """The actor's class. A thread reads the rank's messages, so that the rank never blocks on an
    owner that does not listen. Each message has the `generation` of its process."""

    def __init__(
        self,
        *,
        owner: str,
        size: int,
        name: str,
        device: str,
        trial: str,
        environment: NodeEnvironment = NOTHING_ADDED,
        abandoned_s: float | None = None,
        nodes: int = 1,
    ) -> None:
        """Starts the rank's process. `size`, `nodes`: see `HostState`. `device`: cpu or cuda; Ray
        has set CUDA_VISIBLE_DEVICES. `abandoned_s`: see `OwnedActor`; None if the actor ends with
        its driver."""
        import ray

        self._size, self._nodes, self._name = size, nodes, name
        address = ray.util.get_node_ip_address()
        self._environment = environment.on(address)
        self._folder: UnpackedFolder | None = None
        self._package: Any = None
        self._starter = RankStarter(device=device, host=address, trial=trial)
        self._prepare(owner)
        self._rank = self._start(0)
        self._watch_owner(abandoned_s)

    def _prepare(self, owner: str) -> None:
        super()._prepare(owner)
        self._generation = 0
        self._ready, self._host = False, ""
        self._trial: Message | None = None
        self._knows_store = self._ending = self._idle = self._lost = self._replaced = False

    def _start(self, generation: int) -> RankProcess:
        rank = RankProcess(self._starter, name=self._name, environment=self._environment)
        threading.Thread(
            target=self._read, args=(rank, generation), name="autotune-rank-reader", daemon=True
        ).start()
        return rank

    def _read(self, rank: RankProcess, generation: int) -> None:
        """Adds the messages of that process to the log until it has ended."""
        with contextlib.suppress(ValueError):  # closed, because another process replaces it
            while rank.fileno() >= 0:
                select.select([rank.fileno()], [], [], LISTEN_S)
                for message in rank.receive():
                    logged: Message = {**message, "generation": generation}
                    if message["event"] in ("failed", "gone"):
                        logged["log_tail"] = list(rank.log_tail())
                    self._note(message, generation)
                    self._log.add(logged)

    def _note(self, message: Message, generation: int) -> None:
        """Updates the state for a new owner."""
        with self._lock:
            if generation != self._generation:
                return
            if message["event"] == "ready":
                self._ready, self._host = True, message["host"]
            elif message["event"] == "gone":
                self._ready, self._lost = False, True
            elif (
                message["event"] == "idle"
                and self._trial is not None
                and message["run"] == self._trial["run"]
            ):
                self._idle = True

    def send(self, owner: str, message: Message) -> None:
        """Passes an order to the rank. A folder sent with it is unpacked here, and its path is set
        in the order."""
        package = message.pop("package", None)
        order = (
            message
            if package is None
            else {**message, "request": self._unpacked(message["request"], package[0])}
        )
        with self._lock:
            if not self._is_owner(owner):
                return
            if message["command"] == "run":
                self._log.begin()
                self._trial, self._knows_store = message, message["rank"] == 0
                self._ending = self._idle = self._replaced = False
                self._rank.begin()
            elif message["command"] == "store":
                self._knows_store = True
            else:
                self._ending = True
            self._rank.send(order)

    def _unpacked(self, request: dict[str, Any], package: Any) -> dict[str, Any]:
        """The request with the path of the unpacked folder, which is unpacked once while the runner
        sends the same one. If it cannot be written, the request is unchanged, and the rank reports
        that it cannot import the module."""
        import ray

        if self._folder is None or self._package != package:
            if self._folder is not None:
                self._folder.close()
                self._folder = None
            try:
                self._folder, self._package = UnpackedFolder(ray.get(package)), package
            except OSError as error:
                print(f"the sent folder cannot be unpacked: {error}", file=sys.stderr, flush=True)
                return request
        return with_folder(request, self._folder.path)

    def terminate(self, owner: str) -> None:
        """Sends SIGTERM to the rank."""
        with self._lock:
            if self._is_owner(owner):
                self._ending = True
                self._rank.terminate()

    def kill(self, owner: str) -> None:
        """Sends SIGKILL to the rank."""
        with self._lock:
            if self._is_owner(owner):
                self._ending = True
                self._rank.kill()

    def replace(self, owner: str, generation: int) -> None:
        """Replaces the rank's process by a new one with this generation."""
        with self._lock:
            if not self._is_owner(owner):
                return
            old, self._generation = self._rank, generation
            self._ready, self._trial, self._lost, self._replaced = False, None, False, True
            self._rank = self._start(generation)
        old.close()

    def adopt(self, owner: str) -> HostState | None:
        """Makes the caller the owner. Returns None if the last owner released the actor, or it was
        abandoned."""
        with self._lock:
            if not self._owner:
                return None
            self._owner, self._silent_s = owner, 0.0
            return HostState(
                size=self._size,
                nodes=self._nodes,
                generation=self._generation,
                ready=self._ready,
                host=self._host,
                node=self._rank.node,
                gpus=self._rank.gpus,
                trial=self._trial,
                knows_store=self._knows_store,
                is_ending=self._ending,
                is_idle=self._idle,
                is_lost=self._lost,
                was_replaced=self._replaced,
            )

    def _abandon(self) -> None:
        self._rank.close()
        self._starter.close()

    def pids(self) -> tuple[int, int]:
        """Process numbers of the actor and of the rank."""
        return os.getpid(), self._rank.pid

    def __ray_terminate__(self) -> None:
        self._rank.close()


def remote_host() -> Any:
    """The Ray actor class."""
    orders = ("send", "terminate", "kill", "replace", "pids")
    return remote_actor(RankHost, "AutotuneRank", orders, ownership=("adopt",))
