"""The `ray` runner: gangs of rank actors on a Ray cluster, one placement group per gang.

A gang's actors stay in their placement group between trials, so that a trial of the same size starts warm; a group whose place is needed
for another size is removed. The runner never waits for Ray without a deadline: it listens to all ranks at once with `ray.wait`,
and a call that Ray cannot answer now (unreachable is not dead) is asked again.
"""

from __future__ import annotations

import contextlib
import secrets
import time
from collections.abc import Iterable, Mapping
from typing import Any

from autotune.spec.checks import positive, positive_int
from autotune_workers._ray_cluster import RayCluster
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
TOTAL_KEPT_S = 2.0
"""the size of the cluster is asked for at most this often"""


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


class RayRank:
    """A rank as the runner sees it: its actor, and the call that listens to it."""

    def __init__(self, name: str, actor: Any) -> None:
        self.name = name
        self.actor = actor
        self.ready = False
        self.host = ""
        self.dead = False
        self.generation = 0
        self.ear: Any = actor.listen.remote()
        self.deaf_until_s = 0.0
        self.kill_asked_s: float | None = None
        self.given_up = False
        self.tail: tuple[str, ...] = ()
        self.calls: list[Any] = []

    def send(self, message: Message) -> None:
        """Sends a message; order is kept."""
        self._call(self.actor.send, message)

    def begin(self) -> None:
        """A trial begins on it; the host learns it with the order to run."""
        self.tail = ()

    def terminate(self) -> None:
        """SIGTERM to the rank."""
        self._call(self.actor.terminate)

    def kill(self) -> None:
        """SIGKILL to the rank; its host follows when that does not help."""
        if self.kill_asked_s is None:
            self.kill_asked_s = time.monotonic()
        self._call(self.actor.kill)

    def replace(self) -> None:
        """Another process in the same place."""
        self.generation += 1
        self.ready, self.kill_asked_s = False, None
        self._call(self.actor.replace, self.generation)

    def log_tail(self) -> tuple[str, ...]:
        """Last lines of its log, as they came with its last word."""
        return self.tail

    def end(self) -> None:
        """Kills the actor, and with it the rank."""
        import ray

        self.dead = True
        with contextlib.suppress(Exception):
            ray.kill(self.actor, no_restart=True)

    def _call(self, method: Any, *arguments: Any) -> None:
        with contextlib.suppress(Exception):  # of a dead actor: `listen` reports it
            self.calls.append(method.remote(*arguments))


class RayCrews:
    """Placement groups with their actors."""

    def __init__(self, cluster: RayCluster, *, bundle: Mapping[str, float], trial: str) -> None:
        """`bundle`: what one rank takes."""
        self._cluster, self._bundle, self._trial = cluster, dict(bundle), trial
        self._idle: list[Crew] = []
        self._busy: list[Crew] = []
        self._label = f"autotune-{secrets.token_hex(2)}"
        self._formed = 0
        self._capacity = 0
        self._asked_s = -1e9

    @property
    def capacity(self) -> int:
        """Ranks that the cluster has room for, as far as it last said."""
        with contextlib.suppress(Exception):  # unreachable now: what was true before will do
            self._count()
        return self._capacity

    def _count(self) -> None:
        """Asks how large the cluster is, unless that was just done. Raises `RunnerError` when nobody answers."""
        now_s = time.monotonic()
        if now_s - self._asked_s > TOTAL_KEPT_S:
            self._asked_s = now_s
            has = self._cluster.totals()
            self._capacity = min(int(has.get(k, 0.0) / v + 1e-9) for k, v in self._bundle.items())

    def form(self, size: int) -> Crew | None:
        """A warm gang of that size, else a new placement group; idle gangs make room. Raises `RunnerError` when the head is gone."""
        self._count()
        if len(crew_sizes := [len(c.handles) for c in self._busy]) and sum(crew_sizes) + size > self.capacity >= size:
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
        group = placement_group([self._bundle] * size, strategy="PACK", name=name)
        device = "cuda" if self._bundle.get("GPU") else "cpu"
        host = remote_host()
        handles = []
        for index in range(size):
            actor = host.options(
                name=f"{name}-rank-{index}",
                num_cpus=self._bundle.get("CPU", 0),
                num_gpus=self._bundle.get("GPU", 0),
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
        ranks = [h for crew in self._busy + self._idle for h in crew.handles if not h.dead]
        now_s = time.monotonic()
        for rank in ranks:
            if rank.ear is None and now_s >= rank.deaf_until_s:
                rank.ear = rank.actor.listen.remote()
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
        rank.ear = rank.actor.listen.remote()
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
        """Keeps the gang for the next trial of its size, with new processes for ranks that are not healthy; without its hosts it goes."""
        self._busy.remove(crew)
        if any(h.dead for h in crew.handles) or not any(h.ready or i in healthy for i, h in enumerate(crew.handles)):
            self._remove(crew)
            return
        for index, rank in enumerate(crew.handles):
            if index not in healthy:
                rank.replace()
        self._idle.append(crew)

    def shortage(self, crew: Crew) -> str:
        """Says so when all nodes together are smaller than what the gang asks for."""
        self._asked_s = -1e9
        size = len(crew.handles)
        if size <= self.capacity:
            return ""
        asks = " and ".join(f"{size * v:g} {k}" for k, v in self._bundle.items())
        with contextlib.suppress(Exception):
            totals = self._cluster.totals()
            has = " and ".join(f"{totals.get(k, 0.0):g} {k}" for k in self._bundle)
            return f"the placement group of {size} ranks can never be placed: it asks for {asks}, all nodes together have {has}"
        return ""

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
