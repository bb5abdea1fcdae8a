"""Capacity of a cluster that others use too: how much there is, whether a placement group is placed yet, and whether others wait for theirs.

Ray places a group as soon as its resources are free, not in the order of asking, and a gang that stays warm never frees its own. The study
that came first would therefore keep the others waiting until it ends. So a runner which sees that somebody else's group has waited for
`WAITED_S` gives its gang back at the end of the trial, and asks again only after `YIELD_S`, so that the others can be placed.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterable, Mapping
from typing import Any

from autotune_workers.ray.connection import RayCluster

CACHED_S = 2.0
"""how long an answer of the head is used again"""
WAITED_S = 10.0
"""a group may be kept waiting this long: a cold gang costs seconds, so that gangs do not change hands after every short trial"""
YIELD_S = 3.0
"""after giving a gang back; Ray tries groups that did not fit again at least once a second"""


class ClusterCapacity:
    """What the cluster has, and whether others wait for it."""

    def __init__(self, cluster: RayCluster, *, bundle: Mapping[str, float], label: str) -> None:
        """`bundle`: resources of one rank; `label`: part of the names of our own groups."""
        self._cluster, self._label = cluster, label
        self.bundle = dict(bundle)
        self._totals: dict[str, float] = {}
        self._counted_s = self._looked_s = self._yielded_s = -1e9
        self._waiting_since_s: dict[str, float] = {}

    @property
    def ranks(self) -> int:
        """Ranks that fit on all nodes together, by their last answer. Raises nothing."""
        with contextlib.suppress(Exception):  # unreachable now: what was true before will do
            self.count()
        return min(int(self._totals.get(k, 0.0) / v + 1e-9) for k, v in self.bundle.items())

    def count(self, *, anew: bool = False) -> None:
        """Asks how large the cluster is, unless that was just done. Raises `RunnerError` when the head does not answer."""
        now_s = time.monotonic()
        if anew or now_s - self._counted_s > CACHED_S:
            self._counted_s = now_s
            self._totals = self._cluster.totals()

    def shortage(self, size: int) -> str:
        """Why `size` ranks can never be placed, when all nodes together are too small for them; else empty."""
        with contextlib.suppress(Exception):
            self.count(anew=True)
        if size <= self.ranks:
            return ""
        asks = " and ".join(f"{size * v:g} {k}" for k, v in self.bundle.items())
        has = " and ".join(f"{self._totals.get(k, 0.0):g} {k}" for k in self.bundle)
        return (
            f"{size} ranks can never be placed: they ask for {asks}, but all nodes together have {has}; "
            "use fewer ranks, or a larger cluster"
        )

    def is_placed(self, group: Any) -> bool:
        """Whether the group is placed. An unreachable head counts as no."""
        from ray.util.placement_group import placement_group_table

        with contextlib.suppress(Exception):
            return bool(self._cluster.ask(lambda: placement_group_table(group))["state"] == "CREATED")
        return False

    def is_wanted(self) -> bool:
        """Whether somebody else's group, which the cluster is large enough for, has waited for `WAITED_S`."""
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
        return all(amount <= self._totals.get(name, 0.0) for name, amount in asks.items())

    def yield_to_others(self) -> None:
        """A gang is given back so that others can be placed."""
        self._yielded_s = time.monotonic()

    @property
    def is_yielding(self) -> bool:
        """Whether the others still have time to be placed."""
        return time.monotonic() - self._yielded_s < YIELD_S
