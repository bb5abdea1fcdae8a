"""The `ray` runner: gangs of rank actors on a Ray cluster, one placement group per gang.

A gang's actors stay in their placement group between trials, so that a trial of the same size starts warm; a group whose place is needed
for another size is removed. The runner never waits for Ray without a deadline: it listens to all ranks at once with `ray.wait`,
and a call that Ray cannot answer now (unreachable is not dead) is asked again; its host keeps what it said until it is confirmed.
"""

from __future__ import annotations

import contextlib
import secrets
import time
from collections.abc import Iterable, Mapping
from typing import Any

from autotune.spec.checks import positive, positive_int
from autotune_workers._ray_cluster import RayCluster
from autotune_workers._ray_rank import RayRank
from autotune_workers._ray_room import Room
from autotune_workers.faults import Fault
from autotune_workers.gang import Patience
from autotune_workers.gang_runner import Crew, GangRunner
from autotune_workers.local import MIN_CPU_RANKS
from autotune_workers.machine import cpu_count
from autotune_workers.ranks import TRIAL
from autotune_workers.wire import Message

HOST_KILL_S = 3.0
"""a rank that its host does not report gone this long after SIGKILL is killed with its host"""
ASK_AGAIN_S = 1.0
"""after a call that Ray could not answer"""


class RayRunner(GangRunner):
    """Runs trials on a Ray cluster."""

    def __init__(
        self,
        *,
        address: str | None = None,
        num_cpus: int | None = None,
        num_gpus: int | None = None,
        cpus_per_rank: float = 1.0,
        gpus_per_rank: float | None = None,
        dashboard: bool = False,
        faults: Iterable[Fault | Mapping[str, Any]] = (),
        patience: Patience | None = None,
        trial: str = TRIAL,
    ) -> None:
        """Joins the cluster at `address` (or in RAY_ADDRESS), else starts one on this machine with `num_cpus` and `num_gpus`.

        `gpus_per_rank`: None means 1 where the cluster has GPUs, else 0. `dashboard`: also start Ray's dashboard, on loopback. Raises
        `RunnerError` when Ray cannot be joined or started.
        """
        positive("runner.cpus_per_rank", cpus_per_rank, zero=True)
        for name, count in (("num_cpus", num_cpus), ("num_gpus", num_gpus)):
            if count is not None:
                positive_int(f"runner.{name}", count, least=0)
        cpus = max(MIN_CPU_RANKS, cpu_count()) if num_cpus is None else num_cpus
        self._cluster = RayCluster(address=address, num_cpus=cpus, num_gpus=num_gpus, dashboard=dashboard)
        gpus = gpus_per_rank if gpus_per_rank is not None else float(self._cluster.totals().get("GPU", 0.0) >= 1)
        bundle = {k: v for k, v in (("CPU", cpus_per_rank), ("GPU", gpus)) if v}
        super().__init__(RayCrews(self._cluster, bundle=bundle, trial=trial), faults=faults, patience=patience)

    @property
    def address(self) -> str:
        """Where the cluster is."""
        return self._cluster.address

    def close(self) -> None:
        """Kills what runs and frees everything; ends the cluster when it was started here."""
        super().close()
        self._cluster.close()


class RayCrews:
    """Placement groups with their actors."""

    def __init__(self, cluster: RayCluster, *, bundle: Mapping[str, float], trial: str) -> None:
        """`bundle`: what one rank takes."""
        self._cluster, self._trial = cluster, trial
        self._idle: list[Crew] = []
        self._busy: list[Crew] = []
        self._label = f"autotune-{secrets.token_hex(2)}"
        self._room = Room(cluster, bundle=bundle, label=self._label)
        self._formed = 0

    @property
    def capacity(self) -> int:
        """Ranks that the cluster has room for, as far as it last said."""
        return self._room.capacity

    def form(self, size: int) -> Crew | None:
        """A warm gang of that size, else a new placement group; idle gangs make room. Raises `RunnerError` when the head is gone."""
        self._room.count()
        busy = sum(len(c.handles) for c in self._busy)
        if self._room.is_giving_way or (busy and busy + size > self.capacity >= size):
            return None
        for crew in self._idle:
            if len(crew.handles) == size:
                self._idle.remove(crew)
                self._busy.append(crew)
                return crew
        while self._idle and sum(len(c.handles) for c in self._busy + self._idle) + size > self.capacity:
            self._remove(self._idle.pop(0))
        crew = self._cluster.ask(lambda: self._place(size))
        self._busy.append(crew)
        return crew

    def _place(self, size: int) -> Crew:
        from ray.util.placement_group import placement_group
        from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

        from autotune_workers._ray_host import remote_host

        self._formed += 1
        name = f"{self._label}-gang-{self._formed}"
        group = placement_group([self._room.bundle] * size, strategy="PACK", name=name)
        device = "cuda" if self._room.bundle.get("GPU") else "cpu"
        host = remote_host()
        handles = []
        for index in range(size):
            actor = host.options(
                name=f"{name}-rank-{index}",
                num_cpus=self._room.bundle.get("CPU", 0),
                num_gpus=self._room.bundle.get("GPU", 0),
                max_restarts=0,
                scheduling_strategy=PlacementGroupSchedulingStrategy(
                    placement_group=group, placement_group_bundle_index=index
                ),
            ).remote(name=f"{name}-rank-{index}", device=device, trial=self._trial)
            handles.append(RayRank(f"{name}-rank-{index}", actor))
        return Crew(handles=handles, token=group)

    def wait(self, timeout_s: float) -> list[tuple[RayRank, Message]]:
        """What ranks say. Never longer than `timeout_s`, whatever Ray does. Raises `RunnerError` when the head of the cluster is gone."""
        import ray

        self._cluster.check()
        if self._idle and self._room.is_wanted():
            self._remove(self._idle.pop(0))
        ranks = [h for crew in self._busy + self._idle for h in crew.handles if not h.dead]
        now_s = time.monotonic()
        for rank in ranks:
            if rank.ear is None and now_s >= rank.deaf_until_s:
                rank.listen()
            is_late = rank.kill_asked_s is not None and now_s - rank.kill_asked_s > HOST_KILL_S
            if is_late and not self._cluster.is_silent:
                rank.kill_asked_s, rank.given_up = None, True
                with contextlib.suppress(Exception):
                    ray.kill(rank.actor, no_restart=True)
            if rank.calls:
                rank.calls = ray.wait(rank.calls, num_returns=len(rank.calls), timeout=0)[1]
        ears = {rank.ear: rank for rank in ranks if rank.ear is not None}
        if not ears:
            time.sleep(timeout_s)
            return []
        ready, pending = ray.wait(list(ears), num_returns=1, timeout=timeout_s)
        if pending:
            ready += ray.wait(pending, num_returns=len(pending), timeout=0)[0]
        spoken: list[tuple[RayRank, Message]] = []
        for ear in ready:
            spoken += [(ears[ear], message) for message in self._hear(ears[ear])]
        return spoken

    def _hear(self, rank: RayRank) -> list[Message]:
        """The messages of a call that has come back; asks anew."""
        import ray
        from ray.exceptions import ActorDiedError, ActorUnavailableError, RayActorError

        ear, rank.ear = rank.ear, None
        try:
            messages = ray.get(ear, timeout=5.0)
        except ActorUnavailableError:
            rank.deaf_until_s = time.monotonic() + ASK_AGAIN_S
            return []
        except (ActorDiedError, RayActorError) as error:
            rank.dead = True
            place = f"its host on node {rank.host or '(not yet placed)'}"
            words = f"is lost: {' '.join(str(error).split())[:500]}"
            why = f"{place} {f'did not answer for {HOST_KILL_S:g} s' if rank.given_up else words}"
            return [{"say": "gone", "code": None, "kernel_oom": False, "why": why}]
        except Exception:  # Ray could not answer; whether the rank lives is another question
            rank.deaf_until_s = time.monotonic() + ASK_AGAIN_S
            return []
        messages = [m for m in messages if m.pop("number") > rank.heard]
        rank.heard += len(messages)
        rank.listen()
        current = [m for m in messages if m.pop("generation") == rank.generation]
        for message in current:
            if "log_tail" in message:
                rank.tail = tuple(message.pop("log_tail"))
            if message["say"] == "ready":
                rank.ready, rank.host = True, message["host"]
            elif message["say"] == "gone":
                rank.ready, rank.kill_asked_s = False, None
        return current

    def disband(self, crew: Crew, healthy: frozenset[int]) -> None:
        """Keeps the gang for the next trial of its size, with new processes for ranks that are not healthy.

        It goes without its hosts, and when others wait for its place.
        """
        self._busy.remove(crew)
        if self._room.is_wanted():
            self._room.give_way()
            self._remove(crew)
            return
        if any(h.dead for h in crew.handles) or not any(h.ready or i in healthy for i, h in enumerate(crew.handles)):
            self._remove(crew)
            return
        for index, rank in enumerate(crew.handles):
            if index not in healthy:
                rank.replace()
        self._idle.append(crew)

    def is_placed(self, crew: Crew) -> bool:
        """Whether Ray has found room for the gang; until then its ranks cannot start, and idle gangs go to make room."""
        placed = self._room.is_placed(crew.token)
        if not placed and self._idle:
            self._remove(self._idle.pop(0))
        return placed

    def shortage(self, crew: Crew) -> str:
        """Says so when all nodes together are smaller than what the gang asks for."""
        return self._room.shortage(len(crew.handles))

    def close(self) -> None:
        """Kills all actors and removes all placement groups."""
        for crew in self._busy + self._idle:
            self._remove(crew)
        self._busy.clear()
        self._idle.clear()

    def _remove(self, crew: Crew) -> None:
        from ray.util.placement_group import remove_placement_group

        def remove() -> None:
            for rank in crew.handles:
                rank.end()
            remove_placement_group(crew.token)

        with contextlib.suppress(Exception):  # without a head there is nothing to be given back to
            self._cluster.ask(remove)
