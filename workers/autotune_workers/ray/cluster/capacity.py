"""Capacity of a cluster that others use too: how much there is, whether a placement group is placed
yet, and whether others wait for theirs.

    sizes    ranks that fit on each living node, the largest first; without nodes for which one rank is too large

A cluster that loses nodes may get them back: what it was large enough for once can only wait. Never
large enough is a fact about the config.

Ray places a group as soon as its resources are free, not in the order of asking, and a gang that
stays warm never frees its own. The study that came first would therefore keep the others waiting
until it ends. So a runner which sees that somebody else's group has waited for `WAITED_S` gives its
gang back at the end of the trial, and asks again only after `YIELD_S`, so that the others can be
placed.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterable, Mapping
from typing import Any

from autotune.trainers.base.torchrun import Placement
from autotune_workers.ray.cluster.connection import RayCluster

CACHED_S = 2.0
"""how long an answer of the head is used again"""
WAITED_S = 10.0
"""a group may be kept waiting this long: a cold gang costs seconds, so that gangs do not change
hands after every short trial"""
YIELD_S = 3.0
"""after giving a gang back; Ray tries groups that did not fit again at least once a second"""


class ClusterCapacity:
    """What the cluster has, and whether others wait for it."""

    def __init__(self, cluster: RayCluster, *, bundle: Mapping[str, float], label: str) -> None:
        """`bundle`: resources of one rank; `label`: part of the names of our own groups."""
        self._cluster, self._label = cluster, label
        self.bundle = dict(bundle)
        self._nodes: list[dict[str, float]] = []
        self._seen: set[tuple[int, ...]] = set()
        """all sizes so far"""
        self._counted_s = self._looked_s = self._yielded_s = -1e9
        self._waiting_since_s: dict[str, float] = {}

    @property
    def ranks(self) -> int:
        """Ranks that fit on all nodes together, by their last answer. Raises nothing."""
        with contextlib.suppress(Exception):  # unreachable now: what was true before will do
            self.count()
        return sum(self._sizes)

    def count(self, *, anew: bool = False) -> None:
        """Asks how large the cluster is, unless that was just done. Raises `RunnerError` when the
        head does not answer."""
        now_s = time.monotonic()
        if anew or now_s - self._counted_s > CACHED_S:
            self._counted_s = now_s
            self._nodes = self._cluster.nodes()
            self._seen.add(self._sizes)

    def has_room_without(self, node: str, placement: Placement) -> bool:
        """Whether there is room for ranks that are placed like this without this node too, wherever
        with it there is; then the node counts no more. Raises `RunnerError` when the head does not
        answer."""
        cluster, seen, kinds = self._cluster, self._seen, (False, True)
        had, before = (
            [not self.shortage(placement, whole=whole) for whole in kinds],
            cluster.left_out,
        )
        cluster.left_out, self._seen = before | {node}, set()
        has = [not self.shortage(placement, whole=whole) for whole in kinds]
        if has == had:
            return True
        cluster.left_out, self._seen = before, seen
        self.count(anew=True)
        return False

    @property
    def _sizes(self) -> tuple[int, ...]:
        return tuple(sorted(filter(None, map(self._size, self._nodes)), reverse=True))

    def _size(self, node: Mapping[str, float]) -> int:
        return min(int(node.get(k, 0.0) / v + 1e-9) for k, v in self.bundle.items())

    def _total(self, resource: str) -> float:
        return sum(node.get(resource, 0.0) for node in self._nodes)

    def shortage(self, placement: Placement, *, whole: bool = False) -> str:
        """Why ranks can never be placed like this, when the cluster never was large enough for
        them; else empty.

        `whole`: whether ranks of one node need one node, as those of several nodes always do.
        """
        with contextlib.suppress(Exception):
            self.count(anew=True)
        if any(_holds(sizes, placement, whole) for sizes in self._seen):
            return ""
        ranks, nodes = placement.world_size, placement.nnodes
        if nodes == 1 and not whole:
            asks = " and ".join(f"{ranks * v:g} {k}" for k, v in self.bundle.items())
            has = "all nodes together have " + " and ".join(
                f"{self._total(k):g} {k}" for k in self.bundle
            )
        else:
            each = " and ".join(
                f"{placement.nproc_per_node * v:g} {k}" for k, v in self.bundle.items()
            )
            asks = f"{nodes} nodes with {each} each" if nodes > 1 else f"one node with {each}"
            has = f"the cluster has {self._large_enough(placement) or 'no'} such node{'s' * (nodes > 1)}"
        return f"{ranks} ranks can never be placed, because they need {asks}, but {has}; use fewer ranks, or a larger cluster"

    def absence(self, placement: Placement, *, whole: bool = False) -> str:
        """What the cluster has lost since it was large enough for ranks that are placed like this;
        empty when it is large enough."""
        with contextlib.suppress(Exception):
            self.count()
        if _holds(self._sizes, placement, whole) or not any(
            _holds(sizes, placement, whole) for sizes in self._seen
        ):
            return ""
        had, has = max(map(len, self._seen)), len(self._sizes)
        if has < had:
            return (
                f"{had - has} of the cluster's {had} nodes are unavailable"
                if had - has > 1
                else f"one of the cluster's {had} nodes is unavailable"
            )
        return "the cluster's nodes have become smaller"

    def _large_enough(self, placement: Placement) -> int:
        return sum(size >= placement.nproc_per_node for size in self._sizes)

    def is_placed(self, group: Any) -> bool:
        """Whether the group is placed. An unreachable head counts as no."""
        from ray.util.placement_group import placement_group_table

        with contextlib.suppress(Exception):
            return bool(
                self._cluster.ask(lambda: placement_group_table(group))["state"] == "CREATED"
            )
        return False

    def is_wanted(self) -> bool:
        """Whether somebody else's group, which the cluster is large enough for, has waited for
        `WAITED_S`."""
        now_s = time.monotonic()
        if now_s - self._looked_s > CACHED_S and not self._cluster.is_silent:
            self._looked_s = now_s
            with contextlib.suppress(Exception):
                self._find_waiting(now_s)
        return any(now_s - since_s >= WAITED_S for since_s in self._waiting_since_s.values())

    def _find_waiting(self, now_s: float) -> None:
        from ray.util.placement_group import placement_group_table

        self.count()
        groups: Iterable[Mapping[str, Any]] = self._cluster.ask(placement_group_table).values()
        waiting = {str(g["placement_group_id"]) for g in groups if self._waits(g)}
        self._waiting_since_s = {key: self._waiting_since_s.get(key, now_s) for key in waiting}

    def _waits(self, group: Mapping[str, Any]) -> bool:
        if group["state"] != "PENDING" or self._label in str(group["name"]):
            return False
        asks: dict[str, float] = {}
        for bundle in group["bundles"].values():
            for name, amount in bundle.items():
                asks[name] = asks.get(name, 0.0) + amount
        return all(amount <= self._total(name) for name, amount in asks.items())

    def yield_to_others(self) -> None:
        """A gang is given back so that others can be placed."""
        self._yielded_s = time.monotonic()

    @property
    def is_yielding(self) -> bool:
        """Whether the others still have time to be placed."""
        return time.monotonic() - self._yielded_s < YIELD_S


def _holds(sizes: Iterable[int], placement: Placement, whole: bool) -> bool:
    """Whether nodes of these sizes have room for ranks that are placed like this: on one node means
    wherever there is room, unless it is `whole`."""
    if placement.nnodes == 1 and not whole:
        return sum(sizes) >= placement.world_size
    return sum(size >= placement.nproc_per_node for size in sizes) >= placement.nnodes
