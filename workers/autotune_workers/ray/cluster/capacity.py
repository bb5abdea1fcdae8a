"""Capacity of a shared cluster: its size, whether a placement group is placed, and whether others
wait for theirs.

    sizes    number of ranks that fit on each living node, largest first, without nodes too small for one rank

A cluster may get lost nodes back, so a config that fitted once waits; only a config that never
fitted fails.

Ray places a group as soon as its resources are free, not in order of requests, and a warm gang
never frees its resources, so the first study would keep others waiting until it ends. Therefore a
runner that sees another's group waiting for `WAITED_S` gives its gang back at the end of the trial,
and requests resources again only after `YIELD_S`.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterable, Mapping
from typing import Any

from autotune.trainers.base.torchrun import Placement
from autotune_workers.ray.cluster.connection import RayCluster

CACHED_S = 2.0
"""time for which an answer of the head is reused, seconds"""
WAITED_S = 10.0
"""time that others' groups are kept waiting, seconds: starting a gang takes seconds, so gangs
should not be exchanged after every short trial"""
YIELD_S = 3.0
"""wait after giving a gang back, seconds; Ray retries waiting groups at least once a second"""


class ClusterCapacity:
    """Size of the cluster, and whether others wait for resources."""

    def __init__(self, cluster: RayCluster, *, bundle: Mapping[str, float], label: str) -> None:
        """`bundle`: resources of one rank. `label`: part of the names of this runner's groups."""
        self._cluster, self._label = cluster, label
        self.bundle = dict(bundle)
        self._nodes: list[dict[str, float]] = []
        self._sizes_seen: set[tuple[int, ...]] = set()
        """all distinct `_sizes` so far"""
        self._counted_s = self._last_search_s = self._yielded_s = -1e9
        self._waiting_since_s: dict[str, float] = {}

    @property
    def ranks(self) -> int:
        """Number of ranks that fit on all nodes together, by the head's last answer. Does not
        raise."""
        with contextlib.suppress(Exception):  # unreachable: the last answer is used
            self.count()
        return sum(self._sizes)

    def count(self, *, anew: bool = False) -> None:
        """Updates the size of the cluster, unless it is recent. `anew`: always. Raises
        `RunnerError` if the head does not answer."""
        now_s = time.monotonic()
        if anew or now_s - self._counted_s > CACHED_S:
            self._counted_s = now_s
            self._nodes = self._cluster.nodes()
            self._sizes_seen.add(self._sizes)

    def has_room_without(self, node: str, placement: Placement) -> bool:
        """Whether the placement fits as well without this node as with it; if so, the node is left
        out from now on. Raises `RunnerError` if the head does not answer."""
        cluster, sizes_seen, kinds = self._cluster, self._sizes_seen, (False, True)
        fitted_before, left_out_before = (
            [not self.shortage(placement, whole=whole) for whole in kinds],
            cluster.left_out,
        )
        cluster.left_out, self._sizes_seen = left_out_before | {node}, set()
        fits_now = [not self.shortage(placement, whole=whole) for whole in kinds]
        if fits_now == fitted_before:
            return True
        cluster.left_out, self._sizes_seen = left_out_before, sizes_seen
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
        """Why the placement can never fit, as a message, if the cluster never was large enough;
        otherwise empty.

        `whole`: whether ranks of a one-node placement need a single node; those of several nodes
        always need whole nodes.
        """
        with contextlib.suppress(Exception):
            self.count(anew=True)
        if any(_holds(sizes, placement, whole) for sizes in self._sizes_seen):
            return ""
        ranks, nodes = placement.world_size, placement.nnodes
        if nodes == 1 and not whole:
            needed = " and ".join(f"{ranks * v:g} {k}" for k, v in self.bundle.items())
            available = "all nodes together have " + " and ".join(
                f"{self._total(k):g} {k}" for k in self.bundle
            )
        else:
            each = " and ".join(
                f"{placement.nproc_per_node * v:g} {k}" for k, v in self.bundle.items()
            )
            needed = f"{nodes} nodes with {each} each" if nodes > 1 else f"one node with {each}"
            available = f"the cluster has {self._count_large_enough(placement) or 'no'} such node{'s' * (nodes > 1)}"
        return f"{ranks} ranks can never be placed, because they need {needed}, but {available}; use fewer ranks, or a larger cluster"

    def absence(self, placement: Placement, *, whole: bool = False) -> str:
        """Why the placement does not fit now although it did before, as a message; empty if it fits
        or never did."""
        with contextlib.suppress(Exception):
            self.count()
        if _holds(self._sizes, placement, whole) or not any(
            _holds(sizes, placement, whole) for sizes in self._sizes_seen
        ):
            return ""
        had, has = max(map(len, self._sizes_seen)), len(self._sizes)
        if has < had:
            return (
                f"{had - has} of the cluster's {had} nodes are unavailable"
                if had - has > 1
                else f"one of the cluster's {had} nodes is unavailable"
            )
        return "the cluster's nodes have become smaller"

    def _count_large_enough(self, placement: Placement) -> int:
        return sum(size >= placement.nproc_per_node for size in self._sizes)

    def is_placed(self, group: Any) -> bool:
        """Whether the group is placed; False if the head does not answer."""
        from ray.util.placement_group import placement_group_table

        with contextlib.suppress(Exception):
            return bool(
                self._cluster.ask(lambda: placement_group_table(group))["state"] == "CREATED"
            )
        return False

    def is_wanted(self) -> bool:
        """Whether another runner's group that fits on the cluster has waited for `WAITED_S`."""
        now_s = time.monotonic()
        if now_s - self._last_search_s > CACHED_S and not self._cluster.is_silent:
            self._last_search_s = now_s
            with contextlib.suppress(Exception):
                self._find_waiting(now_s)
        return any(now_s - since_s >= WAITED_S for since_s in self._waiting_since_s.values())

    def _find_waiting(self, now_s: float) -> None:
        from ray.util.placement_group import placement_group_table

        self.count()
        groups: Iterable[Mapping[str, Any]] = self._cluster.ask(placement_group_table).values()
        waiting = {str(g["placement_group_id"]) for g in groups if self._is_waiting(g)}
        self._waiting_since_s = {key: self._waiting_since_s.get(key, now_s) for key in waiting}

    def _is_waiting(self, group: Mapping[str, Any]) -> bool:
        if group["state"] != "PENDING" or self._label in str(group["name"]):
            return False
        totals: dict[str, float] = {}
        for bundle in group["bundles"].values():
            for name, amount in bundle.items():
                totals[name] = totals.get(name, 0.0) + amount
        return all(amount <= self._total(name) for name, amount in totals.items())

    def yield_to_others(self) -> None:
        """Call when a gang is given back for others."""
        self._yielded_s = time.monotonic()

    @property
    def is_yielding(self) -> bool:
        """Whether others still have time (`YIELD_S`) to be placed."""
        return time.monotonic() - self._yielded_s < YIELD_S


def _holds(sizes: Iterable[int], placement: Placement, whole: bool) -> bool:
    """Whether the placement fits on nodes of these sizes. A one-node placement may be spread over
    nodes unless it is `whole`."""
    if placement.nnodes == 1 and not whole:
        return sum(sizes) >= placement.world_size
    return sum(size >= placement.nproc_per_node for size in sizes) >= placement.nnodes
