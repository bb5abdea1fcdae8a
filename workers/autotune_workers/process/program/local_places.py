"""Nodes for programs on this machine: one keeper for each node of an attempt, all at the loopback
address.

A config with several nodes runs here as on a cluster: each node has its own launcher and share of
the GPUs.
"""

from __future__ import annotations

import selectors
from collections.abc import Sequence
from typing import Any, final

from autotune.trainers.base.torchrun import Placement
from autotune_workers.gang.attempt_runner import Place
from autotune_workers.gang.gang_runner import too_many
from autotune_workers.gang.wire import Message
from autotune_workers.process.keeper.owner import KeeperProcess
from autotune_workers.process.machine import free_port
from autotune_workers.process.program.attempt import GONE_S
from autotune_workers.process.program.places import ProgramOrder

LOOPBACK = "127.0.0.1"


@final
class LocalNode:
    """A keeper on this machine in the role of a node."""

    def __init__(self, name: str, *, gpus: Sequence[str], folder: str) -> None:
        """`gpus`: GPUs visible to its program; empty: as in the environment. `folder`: the
        program's folder, if it would be sent to other nodes."""
        self.name, self.gpus, self._folder = name, list(gpus), folder
        self.ready, self.address, self.port = True, LOOPBACK, free_port(LOOPBACK)
        self.keeper = KeeperProcess(detached=False)

    def begin(self, order: ProgramOrder) -> None:
        """Starts the program."""
        visible = {"CUDA_VISIBLE_DEVICES": ",".join(self.gpus)} if self.gpus else {}
        self.keeper.begin(order, address=self.address, folder=self._folder, environment=visible)

    def end(self, *, hung: bool = False) -> None:
        """Ends the program."""
        self.keeper.end(hung=hung)


@final
class LocalPlaces:
    """Nodes on this machine, with as many ranks in all as it has room for."""

    is_local = True

    def __init__(self, capacity: int, *, gpus: Sequence[str] = ()) -> None:
        """`capacity`: number of ranks at once; `gpus`: names for CUDA_VISIBLE_DEVICES, one per
        rank; empty for CPU."""
        self.capacity, self._free, self._gpus = capacity, capacity, list(gpus)
        self._nodes: dict[int, LocalNode] = {}
        """nodes by descriptor of the keeper's channel"""
        self._selector = selectors.DefaultSelector()

    def form(self, *, nodes: int, ranks_per_node: int, study: str, folder: str) -> Place | None:
        """Starts a keeper for each node. Returns None if too few ranks are free."""
        ranks = nodes * ranks_per_node
        if ranks > self._free:
            return None
        self._free -= ranks
        handles = []
        for number in range(nodes):
            gpus, self._gpus = self._gpus[:ranks_per_node], self._gpus[ranks_per_node:]
            node = LocalNode(f"node-{number}", gpus=gpus, folder=folder)
            self._nodes[node.keeper.fileno()] = node
            self._selector.register(node.keeper, selectors.EVENT_READ)
            handles.append(node)
        return Place(handles=handles, token=ranks)

    def wait(self, timeout_s: float) -> list[tuple[Any, Message]]:
        """Messages from the keepers."""
        received: list[tuple[Any, Message]] = []
        for key, _ in self._selector.select(timeout_s):
            node = self._nodes[key.fd]
            received += [(node, message) for message in node.keeper.receive()]
            if node.keeper.fileno() < 0:
                self._forget(key.fd)
        return received

    def disband(self, place: Place, healthy: bool) -> None:
        """Frees the ranks and GPUs, and kills what still runs."""
        for node in place.handles:
            if (number := node.keeper.fileno()) >= 0:
                self._forget(number)
            node.keeper.close()
            self._gpus += node.gpus
        self._free += place.token

    def is_placed(self, place: Place) -> bool:
        """True: ranks of this machine are allocated at once."""
        return True

    def shortage(self, placement: Placement) -> str:
        """Why there can never be enough ranks; empty if there can."""
        return too_many(placement.world_size, self.capacity)

    def absence(self, placement: Placement) -> str:
        """Empty: no node can be missing."""
        return ""

    def close(self) -> None:
        """Ends all programs and waits for their end."""
        keepers = [node.keeper for node in self._nodes.values()]
        for keeper in keepers:
            keeper.end()
        for keeper in keepers:
            keeper.close(GONE_S)
        self._nodes.clear()
        self._selector.close()

    def _forget(self, number: int) -> None:
        self._selector.unregister(number)
        del self._nodes[number]
