"""Nodes for programs on a Ray cluster: one placement group of whole nodes per attempt, with an
actor per node (`nodes.host`). Groups stay warm between attempts."""

from __future__ import annotations

import contextlib
import time
from functools import partial
from typing import Any

from autotune.trainers.base.torchrun import Placement
from autotune_workers.gang.attempt_runner import Place
from autotune_workers.gang.wire import Message
from autotune_workers.ray.actor_groups import ActorGroups, Shape
from autotune_workers.ray.nodes.handle import RayNode
from autotune_workers.ray.placement import place_nodes
from autotune_workers.ray.sent_folders import SentFolders

GONE_S = 10.0
"""longest wait for programs to end when the runner is closed, seconds; their keepers continue to
end them"""


class RayProgramPlaces:
    """Placement groups with an actor per node; implements `ProgramPlaces`."""

    def __init__(self, groups: ActorGroups, folders: SentFolders) -> None:
        self._groups, self._folders = groups, folders

    @property
    def is_local(self) -> bool:
        """Whether every node is this machine."""
        return self._groups.cluster.is_here

    @property
    def capacity(self) -> int:
        """Number of ranks that fit on the cluster, by the head's last answer."""
        return self._groups.capacity.ranks

    def form(self, *, nodes: int, ranks_per_node: int, study: str, folder: str) -> Place | None:
        """Allocates whole nodes, warm ones if possible; None if not enough are free. Raises
        `RunnerError` if the head is gone, or the folder is too large to be sent."""
        digest = self._folders.digest(folder) if folder else ""
        shape = Shape(kind="program", nodes=nodes, ranks_per_node=ranks_per_node, content=digest)
        place: Place | None = self._groups.form(shape, study, partial(self._place, shape))
        if place is not None:
            for node in place.handles:
                node.prepare()
        return place

    def _place(self, shape: Shape, name: str) -> Place:
        from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

        from autotune_workers.ray.nodes.host import remote_node_host

        groups = self._groups
        bundle = self._bundle(shape)
        package = [self._folders.reference(shape.content)] if shape.content else []
        group = place_nodes(
            shape.nodes,
            bundle,
            name=name,
            lifetime=groups.lifetime,
            left_out=groups.cluster.left_out,
        )
        host = remote_node_host()
        handles = []
        for index in range(shape.nodes):
            actor = host.options(
                name=f"{name}-node-{index}",
                num_cpus=bundle.get("CPU", 0),
                num_gpus=bundle.get("GPU", 0),
                max_restarts=0,
                lifetime=groups.lifetime,
                scheduling_strategy=PlacementGroupSchedulingStrategy(
                    placement_group=group, placement_group_bundle_index=index
                ),
            ).remote(
                owner=groups.owner,
                environment=groups.environment,
                package=package,
                abandoned_s=groups.abandoned_s,
            )
            handles.append(
                RayNode(f"{name}-node-{index}", actor, groups.owner, silence=groups.silence())
            )
        return Place(handles=handles, token=group)

    def _bundle(self, shape: Shape) -> dict[str, float]:
        return {
            name: amount * shape.ranks_per_node
            for name, amount in self._groups.capacity.bundle.items()
        }

    def wait(self, timeout_s: float) -> list[tuple[Any, Message]]:
        """Messages from the nodes, after at most `timeout_s`. Raises `RunnerError` if the head of
        the cluster is gone."""
        return self._groups.listen("program", timeout_s)

    def disband(self, place: Place, healthy: bool) -> None:
        """Keeps healthy nodes for the next attempt of their shape, unless others wait for them."""
        for node in place.handles:
            node.end()
        self._groups.disband(place, is_usable=healthy)

    def is_placed(self, place: Place) -> bool:
        """Whether Ray has placed the nodes."""
        return self._groups.is_placed(place)

    def shortage(self, placement: Placement) -> str:
        """Why such nodes can never be allocated; empty if the cluster has, or had, enough of
        them."""
        return self._groups.capacity.shortage(placement, whole=True)

    def absence(self, placement: Placement) -> str:
        """Which lost nodes such a program needs, as a message; empty if none."""
        return self._groups.capacity.absence(placement, whole=True)

    def close(self) -> None:
        """Ends all programs, waits for their end, and removes the groups."""
        end_s = time.monotonic() + GONE_S
        for node in self._groups.handles("program"):
            node.end()
        with contextlib.suppress(Exception):  # without a head the keepers end the programs
            while (
                any(node.is_running for node in self._groups.handles("program"))
                and time.monotonic() < end_s
            ):
                self.wait(0.1)
        self._groups.close()
        self._folders.close()
