"""Rank pools on a Ray cluster: one placement group with an actor per rank. `ranks.host` is the
actors' side, `adoption` what others left behind.

Ranks of one node may run on any nodes that have room, as near to one another as possible: a cluster
that is described as one node may consist of several smaller ones. Ranks of several nodes have whole
nodes (`placement`), with equally many ranks on each.
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
        """`folders`: what is sent along; `trial`: `module:function` of the training loop."""
        self._groups, self._folders, self._trial = groups, folders, trial

    @property
    def capacity(self) -> int:
        """Ranks that fit on the cluster, by its last answer."""
        return self._groups.capacity.ranks

    def form(self, placement: Placement, study: str) -> Place | None:
        """A warm gang of that shape, else a new placement group. Raises `RunnerError` when the head
        is gone."""
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
        """The complete gangs that others left behind for this study; none on a cluster that ends
        with its driver."""
        if self._groups.abandoned_s is None:
            return []
        return adopt_gangs(self._groups, self._folders, study)

    def take(self, gang: AdoptedGang, study: str, *, busy: bool) -> None:
        """Takes an adopted gang among the busy ones or the idle ones; one that shall be idle, but
        is not, is removed."""
        if busy or gang.is_idle:
            ranks = len(gang.pool.handles) // gang.nodes
            shape = _shape(Placement(nnodes=gang.nodes, nproc_per_node=ranks))
            self._groups.take(gang.pool, shape, study, busy=busy)
        else:
            self._groups.remove(gang.pool)

    def wait(self, timeout_s: float) -> list[tuple[Any, Message]]:
        """Messages of the ranks, after `timeout_s` at the latest, whatever Ray does. Raises
        `RunnerError` when the head of the cluster is gone."""
        import ray

        now_s = time.monotonic()
        for rank in self._groups.handles("gang"):
            is_late = rank.kill_asked_s is not None and now_s - rank.kill_asked_s > HOST_KILL_S
            # an actor that itself is silent is not to blame for its rank: it will be found lost
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

        It is removed when an actor is lost, or when others wait for its place.
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
        """Why such a gang can never be placed; empty when the cluster is, or was, large enough."""
        return self._groups.capacity.shortage(placement)

    def absence(self, placement: Placement) -> str:
        """What the cluster has lost that such a gang needs."""
        return self._groups.capacity.absence(placement)

    def close(self) -> None:
        """Kills all actors and removes all placement groups, except those that somebody else has
        adopted."""
        self._groups.close()


def _shape(placement: Placement) -> Shape:
    return Shape(kind="gang", nodes=placement.nnodes, ranks_per_node=placement.nproc_per_node)
