"""Room on a cluster that others use too: how much there is, whether a placement group has its place yet, and who waits for theirs.

Ray places a group as soon as its resources are free, not in the order of asking, and a gang that stays warm never frees its own. Without
manners the study that came first would keep the others waiting until it ends. So whoever sees that somebody else's group has
been waiting for `PATIENT_S` gives its gang back at the end of the trial, and asks again only when the others had `COURTESY_S` to move in.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterable, Mapping
from typing import Any

from autotune_workers.ray.connection import RayCluster

KEPT_S = 2.0
"""an answer of the head is as good as new this long"""
PATIENT_S = 10.0
"""a group may be kept waiting this long: a cold gang costs seconds, so that gangs do not change hands after every short trial"""
COURTESY_S = 3.0
"""after giving a gang back; Ray tries groups that did not fit again at least once a second"""


class Room:
    """What the cluster has, and what of it is waited for."""

    def __init__(self, cluster: RayCluster, *, bundle: Mapping[str, float], label: str) -> None:
        """`bundle`: what one rank takes; `label`: what names of our own groups hold."""
        self._cluster, self._label = cluster, label
        self.bundle = dict(bundle)
        self._totals: dict[str, float] = {}
        self._counted_s = self._looked_s = self._yielded_s = -1e9
        self._waiting_since_s: dict[str, float] = {}

    @property
    def capacity(self) -> int:
        """Ranks that all nodes together have room for, as far as they last said. Raises nothing."""
        with contextlib.suppress(Exception):  # unreachable now: what was true before will do
            self.count()
        return min(int(self._totals.get(k, 0.0) / v + 1e-9) for k, v in self.bundle.items())

    def count(self, *, anew: bool = False) -> None:
        """Asks how large the cluster is, unless that was just done. Raises `RunnerError` when nobody answers."""
        now_s = time.monotonic()
        if anew or now_s - self._counted_s > KEPT_S:
            self._counted_s = now_s
            self._totals = self._cluster.totals()

    def shortage(self, size: int) -> str:
        """Says so when all nodes together are smaller than what `size` ranks ask for; else empty."""
        with contextlib.suppress(Exception):
            self.count(anew=True)
        if size <= self.capacity:
            return ""
        asks = " and ".join(f"{size * v:g} {k}" for k, v in self.bundle.items())
        has = " and ".join(f"{self._totals.get(k, 0.0):g} {k}" for k in self.bundle)
        return f"the placement group of {size} ranks can never be placed: it asks for {asks}, all nodes together have {has}"

    def is_placed(self, group: Any) -> bool:
        """Whether the group has its place. An unreachable head counts as no."""
        from ray.util.placement_group import placement_group_table

        with contextlib.suppress(Exception):
            return bool(self._cluster.ask(lambda: placement_group_table(group))["state"] == "CREATED")
        return False

    def is_wanted(self) -> bool:
        """Whether somebody else's group, of a size that the cluster has, has been waiting for `PATIENT_S`."""
        now_s = time.monotonic()
        if now_s - self._looked_s > KEPT_S and not self._cluster.is_silent:
            self._looked_s = now_s
            with contextlib.suppress(Exception):
                self._look(now_s)
        return any(now_s - since_s >= PATIENT_S for since_s in self._waiting_since_s.values())

    def _look(self, now_s: float) -> None:
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

    def give_way(self) -> None:
        """A gang is given back for the sake of others."""
        self._yielded_s = time.monotonic()

    @property
    def is_giving_way(self) -> bool:
        """Whether the others still have time to move in."""
        return time.monotonic() - self._yielded_s < COURTESY_S
