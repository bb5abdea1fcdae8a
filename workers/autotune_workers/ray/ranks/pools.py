"""Rank pools on a Ray cluster: one placement group per gang with an actor per rank. `ranks.host` is
the actors' side; `adoption` takes over gangs of earlier runners.

Ranks of a one-node placement may run on any nodes with room, as close together as possible, because
a cluster described as one node may consist of several smaller ones. Placements of several nodes get
whole nodes (`placement`), with the same number of ranks on each.
"""

from __future__ import annotations

import contextlib
import time
from functools import partial
from typing import Any

from autotune.trainers.base.torchrun import Placement
from autotune_workers.gang.attempt_runner import Place
from autotune_workers.gang.wire import Message
from autotune_workers.ray.actor_groups import ActorGroups, Shape
from autotune_workers.ray.placement import avoiding, place_nodes
from autotune_workers.ray.ranks.adoption import AdoptedGang, adopt_gangs
from autotune_workers.ray.ranks.handle import HOST_KILL_S, RayRank
from autotune_workers.ray.sent_folders import SentFolders


class RayRankPools:
    """Placement groups with an actor per rank."""

    def __init__(self, groups: ActorGroups, folders: SentFolders, *, trial: str) -> None:
        """`folders`: folders to send with trials; `trial`: `module:function` of the training
        loop."""
        self._groups, self._folders, self._trial = groups, folders, trial

    @property
    def capacity(self) -> int:
        """Number of ranks that fit on the cluster, by the head's last answer."""
        return self._groups.capacity.ranks

    def form(self, placement: Placement, study: str) -> Place | None:
        """A warm gang of that shape, else a new placement group; None if not enough is free. Raises
        `RunnerError` if the head is gone."""
        return self._groups.form(_shape(placement), study, partial(self._place, placement))

    def _place(self, placement: Placement, name: str) -> Place:
        import ray
        from ray.util.placement_group import placement_group
        from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

        from autotune_workers.ray.ranks.host import remote_host

        groups, bundle = self._groups, self._groups.capacity.bundle
        nodes, size, ranks_per_bundle = placement.nnodes, placement.world_size, 1
        if nodes == 1:
            left_out = groups.cluster.left_out
            where = avoiding(ray.nodes(), left_out, size) if left_out else {}
            group = placement_group(
                [bundle] * size, strategy="PACK", name=name, lifetime=groups.lifetime, **where
            )
        else:
            ranks_per_bundle = placement.nproc_per_node
            whole = {resource: amount * ranks_per_bundle for resource, amount in bundle.items()}
            group = place_nodes(
                nodes, whole, name=name, lifetime=groups.lifetime, left_out=groups.cluster.left_out
            )
        host = remote_host()
        handles = []
        for index in range(size):
            actor = host.options(
                name=f"{name}-rank-{index}",
                num_cpus=bundle.get("CPU", 0),
                num_gpus=bundle.get("GPU", 0),
                max_restarts=0,
                lifetime=groups.lifetime,
                scheduling_strategy=PlacementGroupSchedulingStrategy(
                    placement_group=group, placement_group_bundle_index=index // ranks_per_bundle
                ),
            ).remote(
                owner=groups.owner,
                size=size,
                nodes=nodes,
                name=f"{name}-rank-{index}",
                device="cuda" if bundle.get("GPU") else "cpu",
                trial=self._trial,
                environment=groups.environment,
                abandoned_s=groups.abandoned_s,
            )
            handles.append(
                RayRank(
                    f"{name}-rank-{index}",
                    actor,
                    groups.owner,
                    self._folders,
                    silence=groups.silence(),
                )
            )
        return Place(handles=handles, token=group)

    def adopt(self, study: str) -> list[AdoptedGang]:
        """Adopts the complete gangs that other runners left for this study; none on a cluster that
        ends with its driver."""
        if self._groups.abandoned_s is None:
            return []
        return adopt_gangs(self._groups, self._folders, study)

    def take(self, gang: AdoptedGang, study: str, *, busy: bool) -> None:
        """Adds an adopted gang as busy or idle. One that should be idle, but is not, is removed."""
        if busy or gang.is_idle:
            ranks = len(gang.pool.handles) // gang.nodes
            shape = _shape(Placement(nnodes=gang.nodes, nproc_per_node=ranks))
            self._groups.take(gang.pool, shape, study, busy=busy)
        else:
            self._groups.remove(gang.pool)

    def wait(self, timeout_s: float) -> list[tuple[Any, Message]]:
        """Messages from the ranks, after at most `timeout_s`. Raises `RunnerError` if the head of
        the cluster is gone."""
        import ray

        now_s = time.monotonic()
        for rank in self._groups.handles("gang"):
            is_late = rank.kill_asked_s is not None and now_s - rank.kill_asked_s > HOST_KILL_S
            # a silent actor is not killed for its rank: it will count as lost
            if (
                is_late
                and not self._groups.cluster.is_silent
                and not self._groups.is_silent(rank, HOST_KILL_S)
            ):
                rank.kill_asked_s, rank.given_up = None, True
                with contextlib.suppress(Exception):
                    ray.kill(rank.actor, no_restart=True)
        return self._groups.listen("gang", timeout_s)

    def disband(self, pool: Place, healthy: frozenset[int]) -> None:
        """Keeps the gang for the next trial of its size, with new processes for ranks that are not
        healthy.

        The gang is removed if an actor is lost, or others wait for resources.
        """
        is_usable = any(h.ready or i in healthy for i, h in enumerate(pool.handles))
        if self._groups.disband(pool, is_usable=is_usable):
            for index, rank in enumerate(pool.handles):
                if index not in healthy:
                    rank.replace()

    def is_placed(self, pool: Place) -> bool:
        """Whether Ray has placed the gang; until then its ranks cannot start."""
        return self._groups.is_placed(pool)

    def shortage(self, placement: Placement) -> str:
        """Why such a gang can never be placed; empty if the cluster is, or was, large enough."""
        return self._groups.capacity.shortage(placement)

    def absence(self, placement: Placement) -> str:
        """Which lost nodes such a gang needs, as a message; empty if none."""
        return self._groups.capacity.absence(placement)

    def close(self) -> None:
        """Kills all actors and removes all placement groups, except those that another runner has
        adopted."""
        self._groups.close()


def _shape(placement: Placement) -> Shape:
    return Shape(kind="gang", nodes=placement.nnodes, ranks_per_node=placement.nproc_per_node)
