"""Gangs of rank actors on a Ray cluster: formed, heard, adopted, given back. See `ray` for the runner, `_ray_host` for the actors' side."""

from __future__ import annotations

import contextlib
import secrets
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from autotune.errors import RunnerError
from autotune.ports import TrialRequest
from autotune_workers.gang.gang_runner import RankPool
from autotune_workers.gang.wire import Message, request_from_plain
from autotune_workers.ray.capacity import Room
from autotune_workers.ray.connection import RayCluster
from autotune_workers.ray.janitor import give_back, start_janitor, unborn_groups
from autotune_workers.ray.rank_handle import RayRank

if TYPE_CHECKING:
    from autotune_workers.ray.rank_host import HostState

HOST_KILL_S = 3.0
"""a rank that its host does not report gone this long after SIGKILL is killed with its host"""
ASK_AGAIN_S = 1.0
"""after a call that Ray could not answer"""
KEEP_S = 3.0
"""between two signs of life"""
ADOPT_S = 5.0
"""for the actors of a gang to answer who adopts them, or gives them up"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Left:
    """A gang that was left behind, whole and adopted."""

    crew: RankPool
    request: TrialRequest | None
    """what its ranks are training, or have trained last; None: nothing that can be told"""
    run: int
    """number of that launch"""
    begun: set[int]
    """ranks of that launch that have the order to run"""
    joined: set[int]
    """those that know its store"""
    is_idle: bool
    """whether all ranks are up, or starting, and have nothing to do"""


class RayRankPools:
    """Placement groups with their actors."""

    def __init__(self, cluster: RayCluster, *, bundle: Mapping[str, float], trial: str, abandoned_s: float) -> None:
        """`bundle`: what one rank takes."""
        self._cluster, self._trial = cluster, trial
        self._idle: list[RankPool] = []
        self._busy: list[RankPool] = []
        self._owner = secrets.token_hex(16)
        self._label = f"-{secrets.token_hex(8)}-gang-"
        self._room = Room(cluster, bundle=bundle, label=self._label)
        self._formed = 0
        self._abandoned_s = abandoned_s if cluster.outlives_us else None
        self._warden: Any = None
        self._warden_kept: Any = None
        """the last call that told it that its driver lives"""
        self._closed = threading.Event()
        if cluster.outlives_us:
            threading.Thread(target=self._give_signs_of_life, name="autotune-ray-owner", daemon=True).start()

    @property
    def capacity(self) -> int:
        """Ranks that the cluster has room for, as far as it last said."""
        return self._room.capacity

    def form(self, size: int, study: str) -> RankPool | None:
        """A warm gang of that size, else a new placement group; idle gangs make room. Raises `RunnerError` when the head is gone."""
        self._room.count()
        busy = sum(len(c.handles) for c in self._busy)
        if self._room.is_giving_way or (busy and busy + size > self.capacity >= size):
            return None
        for crew in self._idle:
            if len(crew.handles) == size and self._is_of(crew, study):
                self._idle.remove(crew)
                self._busy.append(crew)
                return crew
        while self._idle and sum(len(c.handles) for c in self._busy + self._idle) + size > self.capacity:
            self._remove(self._idle.pop(0))
        crew = self._cluster.ask(lambda: self._place(size, study))
        self._busy.append(crew)
        return crew

    def _is_of(self, crew: RankPool, study: str) -> bool:
        """Whether the gang may run trials of that study: on a cluster that goes on its next controller would look for it by the study's name."""
        return self._abandoned_s is None or crew.handles[0].name.startswith(f"{_named_after(study)}-")

    def _place(self, size: int, study: str) -> RankPool:
        from ray.util.placement_group import placement_group
        from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

        from autotune_workers.ray.rank_host import remote_host

        self._formed += 1
        name = f"{_named_after(study)}{self._label}{self._formed}"
        lifetime = None if self._abandoned_s is None else "detached"
        if self._abandoned_s is not None and self._warden is None:
            self._warden = start_janitor(self._label, self._abandoned_s)
        group = placement_group([self._room.bundle] * size, strategy="PACK", name=name, lifetime=lifetime)
        if self._closed.is_set():  # meanwhile
            remove_group(group)
            raise RunnerError("the runner is closed", remedy="make a new one")
        device = "cuda" if self._room.bundle.get("GPU") else "cpu"
        host = remote_host()
        handles = []
        for index in range(size):
            actor = host.options(
                name=f"{name}-rank-{index}",
                num_cpus=self._room.bundle.get("CPU", 0),
                num_gpus=self._room.bundle.get("GPU", 0),
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

    def adopt(self, study: str) -> list[Left]:
        """The whole gangs that others left behind for this study, ours from now on; those that are not whole are ended."""
        import ray

        if self._abandoned_s is None:
            return []
        self._cluster.ask(lambda: give_back(unborn_groups(f"{_named_after(study)}-", without=self._label)))
        names = self._cluster.ask(ray.util.list_named_actors)
        gangs: dict[str, list[str]] = {}
        for name in sorted(names):
            if name.startswith(f"{_named_after(study)}-") and self._label not in name:
                gangs.setdefault(name.rpartition("-rank-")[0], []).append(name)
        found = []
        for gang, members in gangs.items():
            with contextlib.suppress(Exception):  # it goes while we look: it ends by itself
                found.append(self._cluster.ask(partial(self._adopt, gang, members)))
        return [left for left in found if left is not None]

    def _adopt(self, gang: str, names: list[str]) -> Left | None:
        import ray
        from ray.util.placement_group import get_placement_group

        actors = {}
        for name in names:
            with contextlib.suppress(ValueError):  # gone since it was listed
                actors[name] = ray.get_actor(name)
        try:
            group = get_placement_group(gang)
        except ValueError:  # gone too: its actors follow
            return None
        states: list[HostState | None]
        try:
            states = ray.get([actor.adopt.remote(self._owner) for actor in actors.values()], timeout=ADOPT_S)
        except Exception:  # an actor is dead, or as good as dead
            states = []
        known = [state for state in states if state is not None]
        if not known or len(known) < max(len(states), known[0].size):
            give_back([gang])
            return None
        run = max((s.trial["run"] for s in known if s.trial is not None), default=0)
        seats: dict[int, RayRank] = {}
        joined: set[int] = set()
        others: list[RayRank] = []
        order: Message | None = None
        for (name, actor), state in zip(actors.items(), known, strict=True):
            rank = RayRank(name, actor, self._owner, state)
            if state.trial is None or state.trial["run"] != run:
                others.append(rank)
                continue
            order = state.trial
            seats[order["rank"]] = rank
            if state.knows_store:
                joined.add(order["rank"])
        is_told = all(s.ready and not (s.is_ending or s.was_replaced) for s in known)
        return Left(
            crew=RankPool(handles=[seats.get(n) or others.pop(0) for n in range(len(known))], token=group),
            request=request_from_plain(order["request"]) if order is not None and is_told else None,
            run=run,
            begun=set(seats),
            joined=joined,
            is_idle=all(not s.is_lost and (s.is_idle or s.trial is None) for s in known),
        )

    def take(self, crew: RankPool, *, busy: bool, keep: bool = True) -> None:
        """What becomes of an adopted gang: it runs something, or stays warm, or ends."""
        if not keep:
            self._remove(crew)
        else:
            (self._busy if busy else self._idle).append(crew)

    def _give_signs_of_life(self) -> None:
        while not self._closed.wait(KEEP_S):
            self._keep_warden()
            for crew in [*self._busy, *self._idle]:
                for rank in crew.handles:
                    if not rank.dead:
                        rank.keep()

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
            return _gone(f"{place} {f'did not answer for {HOST_KILL_S:g} s' if rank.given_up else words}")
        except Exception:  # Ray could not answer; whether the rank lives is another question
            rank.deaf_until_s = time.monotonic() + ASK_AGAIN_S
            return []
        if any(m["say"] == "taken" for m in messages):
            rank.dead = rank.taken = True
            return _gone("was adopted by another controller of its study")
        last = max((m["number"] for m in messages), default=rank.heard)
        messages = [m for m in messages if m.pop("number") > rank.heard]
        rank.heard = max(rank.heard, last)
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

    def disband(self, crew: RankPool, healthy: frozenset[int]) -> None:
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

    def is_placed(self, crew: RankPool) -> bool:
        """Whether Ray has found room for the gang; until then its ranks cannot start, and idle gangs go to make room."""
        placed = self._room.is_placed(crew.token)
        if not placed and self._idle:
            self._remove(self._idle.pop(0))
        return placed

    def shortage(self, crew: RankPool) -> str:
        """Says so when all nodes together are smaller than what the gang asks for."""
        return self._room.shortage(len(crew.handles))

    def close(self) -> None:
        """Kills all actors and removes all placement groups, but for those that somebody else has adopted."""
        import ray

        self._closed.set()
        for crew in self._busy + self._idle:
            self._remove(crew)
        self._busy.clear()
        self._idle.clear()
        warden, self._warden = self._warden, None

        def dismiss() -> None:
            give_back(unborn_groups(self._label))
            ray.kill(warden)

        if warden is not None:
            with contextlib.suppress(Exception):  # then it looks after what is left
                self._cluster.ask(dismiss)

    def _remove(self, crew: RankPool) -> None:
        def remove() -> None:
            if self._abandoned_s is None or self._may_end(crew):
                for rank in crew.handles:
                    rank.end()
                remove_group(crew.token)
            for rank in crew.handles:
                rank.dead = True

        with contextlib.suppress(Exception):  # without a head there is nothing to be given back to
            self._cluster.ask(remove)

    def _may_end(self, crew: RankPool) -> bool:
        """Whether nobody else has adopted the gang. Who does not answer is not ended: it ends by itself, now that it hears no sign of life."""
        import ray
        from ray.exceptions import RayActorError
        from ray.util.placement_group import placement_group_table

        if any(rank.taken for rank in crew.handles):
            return False
        if placement_group_table(crew.token)["state"] == "PENDING":
            return True  # nothing lives there yet
        asked = [rank.actor.leave.remote(self._owner) for rank in crew.handles if not rank.dead]
        answers, silent = ray.wait(asked, num_returns=len(asked), timeout=ADOPT_S) if asked else ([], [])
        may = not silent
        for answer in answers:
            with contextlib.suppress(RayActorError):  # the dead are nobody's
                may = ray.get(answer) and may
        return may

    def _keep_warden(self) -> None:
        """Tells the warden that its driver lives; forgets one that is gone, so that the next gang has a new one."""
        import ray
        from ray.exceptions import ActorDiedError

        warden, before = self._warden, self._warden_kept
        if warden is None:
            return
        try:
            if before is not None:
                if not ray.wait([before], timeout=0)[0]:
                    return  # it has not answered the last time
                self._warden_kept = None
                ray.get(before)
            self._warden_kept = warden.keep.remote()
        except ActorDiedError:
            self._warden = None
        except Exception:  # Ray could not answer; whether it lives is another question
            return


def remove_group(group: Any) -> None:
    """Gives the place of a gang back; what runs there ends."""
    from ray.util.placement_group import remove_placement_group

    remove_placement_group(group)


def _gone(why: str) -> list[Message]:
    """What a rank would say last, in its place."""
    return [{"say": "gone", "code": None, "kernel_oom": False, "why": why}]


def _named_after(study: str) -> str:
    return f"autotune-{study}"
