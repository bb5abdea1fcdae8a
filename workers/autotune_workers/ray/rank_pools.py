"""Rank pools on a Ray cluster: one placement group with an actor per rank. `rank_host` is the actors' side, `adoption` what others left behind."""

from __future__ import annotations

import contextlib
import secrets
import threading
import time
from collections.abc import Mapping
from typing import Any

from autotune.errors import RunnerError
from autotune_workers.gang.rank_pool import RankPool
from autotune_workers.gang.wire import Message
from autotune_workers.ray.adoption import ADOPT_S, AdoptedGang, adopt_gangs, study_prefix
from autotune_workers.ray.capacity import ClusterCapacity
from autotune_workers.ray.connection import RayCluster
from autotune_workers.ray.janitor import JanitorHandle
from autotune_workers.ray.rank_handle import HOST_KILL_S, RayRank

HEARTBEAT_S = 3.0
"""between two heartbeats to the actors"""


class RayRankPools:
    """Placement groups with their actors."""

    def __init__(self, cluster: RayCluster, *, bundle: Mapping[str, float], trial: str, abandoned_s: float) -> None:
        """`bundle`: resources of one rank; `trial`: `module:function` of the training loop; `abandoned_s`: see `RankHost`."""
        self._cluster, self._trial = cluster, trial
        self._idle: list[RankPool] = []
        self._busy: list[RankPool] = []
        self._owner = secrets.token_hex(16)
        self._label = f"{secrets.token_hex(8)}-gang-"
        self._cluster_capacity = ClusterCapacity(cluster, bundle=bundle, label=self._label)
        self._formed = 0
        self._abandoned_s = abandoned_s if cluster.outlives_us else None
        self._janitor = JanitorHandle(self._label, abandoned_s)
        self._closed = threading.Event()
        if cluster.outlives_us:
            threading.Thread(target=self._send_heartbeats, name="autotune-ray-heartbeat", daemon=True).start()

    @property
    def capacity(self) -> int:
        """Ranks that fit on the cluster, by its last answer."""
        return self._cluster_capacity.ranks

    def form(self, size: int, study: str) -> RankPool | None:
        """A warm gang of that size, else a new placement group; idle gangs are removed to free its resources. Raises `RunnerError` when the head is gone."""
        self._cluster_capacity.count()
        busy = sum(len(c.handles) for c in self._busy)
        if self._cluster_capacity.is_yielding or (busy and busy + size > self.capacity >= size):
            return None
        for pool in self._idle:
            if len(pool.handles) == size and self._is_of(pool, study):
                self._idle.remove(pool)
                self._busy.append(pool)
                return pool
        while self._idle and sum(len(c.handles) for c in self._busy + self._idle) + size > self.capacity:
            self._remove(self._idle.pop(0))
        pool = self._cluster.ask(lambda: self._place(size, study))
        self._busy.append(pool)
        return pool

    def _is_of(self, pool: RankPool, study: str) -> bool:
        """Whether the gang may run trials of that study: on a cluster that goes on, the next controller finds its gangs by the study's name."""
        return self._abandoned_s is None or pool.handles[0].name.startswith(study_prefix(study))

    def _place(self, size: int, study: str) -> RankPool:
        from ray.util.placement_group import placement_group
        from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

        from autotune_workers.ray.rank_host import remote_host

        self._formed += 1
        name = f"{study_prefix(study)}{self._label}{self._formed}"
        lifetime = None if self._abandoned_s is None else "detached"
        if self._abandoned_s is not None:
            self._janitor.ensure()
        group = placement_group([self._cluster_capacity.bundle] * size, strategy="PACK", name=name, lifetime=lifetime)
        if self._closed.is_set():  # meanwhile
            remove_group(group)
            raise RunnerError("the runner is closed", remedy="make a new one")
        device = "cuda" if self._cluster_capacity.bundle.get("GPU") else "cpu"
        host = remote_host()
        handles = []
        for index in range(size):
            actor = host.options(
                name=f"{name}-rank-{index}",
                num_cpus=self._cluster_capacity.bundle.get("CPU", 0),
                num_gpus=self._cluster_capacity.bundle.get("GPU", 0),
                max_restarts=0,
                lifetime=lifetime,
                scheduling_strategy=PlacementGroupSchedulingStrategy(
                    placement_group=group, placement_group_bundle_index=index
                ),
            ).remote(
                owner=self._owner,
                size=size,
                name=f"{name}-rank-{index}",
                device=device,
                trial=self._trial,
                abandoned_s=self._abandoned_s,
            )
            handles.append(RayRank(f"{name}-rank-{index}", actor, self._owner))
        return RankPool(handles=handles, token=group)

    def adopt(self, study: str) -> list[AdoptedGang]:
        """The complete gangs that others left behind for this study; none on a cluster that ends with its driver."""
        if self._abandoned_s is None:
            return []
        return adopt_gangs(self._cluster, study, owner=self._owner, label=self._label)

    def take(self, pool: RankPool, *, busy: bool, keep: bool = True) -> None:
        """Takes an adopted gang among the busy ones or the idle ones, or removes it."""
        if not keep:
            self._remove(pool)
        else:
            (self._busy if busy else self._idle).append(pool)

    def _send_heartbeats(self) -> None:
        while not self._closed.wait(HEARTBEAT_S):
            self._janitor.heartbeat()
            for pool in [*self._busy, *self._idle]:
                for rank in pool.handles:
                    if not rank.dead:
                        rank.heartbeat()

    def wait(self, timeout_s: float) -> list[tuple[RayRank, Message]]:
        """Messages of the ranks, after `timeout_s` at the latest, whatever Ray does. Raises `RunnerError` when the head of the cluster is gone."""
        import ray

        self._cluster.check()
        if self._idle and self._cluster_capacity.is_wanted():
            self._remove(self._idle.pop(0))
        ranks = [h for pool in self._busy + self._idle for h in pool.handles if not h.dead]
        now_s = time.monotonic()
        for rank in ranks:
            if rank.listen_call is None and now_s >= rank.retry_at_s:
                rank.listen()
            is_late = rank.kill_asked_s is not None and now_s - rank.kill_asked_s > HOST_KILL_S
            if is_late and not self._cluster.is_silent:
                rank.kill_asked_s, rank.given_up = None, True
                with contextlib.suppress(Exception):
                    ray.kill(rank.actor, no_restart=True)
            if rank.calls:
                rank.calls = ray.wait(rank.calls, num_returns=len(rank.calls), timeout=0)[1]
        calls = {rank.listen_call: rank for rank in ranks if rank.listen_call is not None}
        if not calls:
            time.sleep(timeout_s)
            return []
        ready, pending = ray.wait(list(calls), num_returns=1, timeout=timeout_s)
        if pending:
            ready += ray.wait(pending, num_returns=len(pending), timeout=0)[0]
        received: list[tuple[RayRank, Message]] = []
        for call in ready:
            received += [(calls[call], message) for message in calls[call].receive()]
        return received

    def disband(self, pool: RankPool, healthy: frozenset[int]) -> None:
        """Keeps the gang for the next trial of its size, with new processes for ranks that are not healthy.

        It is removed when an actor is lost, or when others wait for its place.
        """
        self._busy.remove(pool)
        if self._cluster_capacity.is_wanted():
            self._cluster_capacity.yield_to_others()
            self._remove(pool)
            return
        if any(h.dead for h in pool.handles) or not any(h.ready or i in healthy for i, h in enumerate(pool.handles)):
            self._remove(pool)
            return
        for index, rank in enumerate(pool.handles):
            if index not in healthy:
                rank.replace()
        self._idle.append(pool)

    def is_placed(self, pool: RankPool) -> bool:
        """Whether Ray has placed the gang; until then its ranks cannot start, and idle gangs are removed to free resources."""
        placed = self._cluster_capacity.is_placed(pool.token)
        if not placed and self._idle:
            self._remove(self._idle.pop(0))
        return placed

    def shortage(self, pool: RankPool) -> str:
        """Why the gang can never be placed; empty when the cluster is large enough."""
        return self._cluster_capacity.shortage(len(pool.handles))

    def close(self) -> None:
        """Kills all actors and removes all placement groups, except those that somebody else has adopted."""
        self._closed.set()
        for pool in self._busy + self._idle:
            self._remove(pool)
        self._busy.clear()
        self._idle.clear()
        self._janitor.dismiss(self._cluster)

    def _remove(self, pool: RankPool) -> None:
        def remove() -> None:
            if self._abandoned_s is None or self._may_end(pool):
                for rank in pool.handles:
                    rank.end()
                remove_group(pool.token)
            for rank in pool.handles:
                rank.dead = True

        with contextlib.suppress(Exception):  # without a head there is nothing to remove
            self._cluster.ask(remove)

    def _may_end(self, pool: RankPool) -> bool:
        """Whether nobody else has adopted the gang. An actor that does not answer is not ended here: without heartbeats it ends by itself."""
        import ray
        from ray.exceptions import RayActorError
        from ray.util.placement_group import placement_group_table

        if any(rank.superseded for rank in pool.handles):
            return False
        if placement_group_table(pool.token)["state"] == "PENDING":
            return True  # nothing lives there yet
        asked = [rank.actor.release.remote(self._owner) for rank in pool.handles if not rank.dead]
        answers, silent = ray.wait(asked, num_returns=len(asked), timeout=ADOPT_S) if asked else ([], [])
        may = not silent
        for answer in answers:
            with contextlib.suppress(RayActorError):  # the dead are nobody's
                may = ray.get(answer) and may
        return may


def remove_group(group: Any) -> None:
    """Removes a placement group; the actors that run there end."""
    from ray.util.placement_group import remove_placement_group

    remove_placement_group(group)
