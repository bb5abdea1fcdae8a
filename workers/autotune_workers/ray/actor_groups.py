"""Actor groups: the placement groups that a runner holds on a cluster with their actors, both for
gangs of ranks and for nodes of programs.

    place    the actors' handles, with the placement group as token (`gang.attempt_runner.Place`)
    shape    kind and size of a place; places of the same shape are interchangeable

A place is busy with an attempt, or idle and warm. All share a label in their names, an owner token,
a heartbeat, a janitor and the count of the cluster's resources. If the cluster outlives its
drivers, groups are detached. Names begin with the study's prefix, by which the study's next
controller finds them.
"""

from __future__ import annotations

import contextlib
import secrets
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from autotune.errors import RunnerError
from autotune.ports.trial_runner import LeftOut
from autotune.trainers.base.torchrun import Placement
from autotune_workers.gang.wire import Message
from autotune_workers.ray.actor_handle import LOST_S, ActorHandle, ListeningClock, Silence
from autotune_workers.ray.cluster.capacity import ClusterCapacity
from autotune_workers.ray.cluster.connection import RayCluster
from autotune_workers.ray.janitor import JanitorHandle, study_prefix
from autotune_workers.ray.nodes.environment import NOTHING_ADDED, NodeEnvironment

HEARTBEAT_S = 3.0
"""interval of heartbeats to the actors, seconds"""
ANSWER_S = 5.0
"""longest wait for actors to answer when they are adopted or released, seconds"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """Kind and size of a place."""

    kind: Literal["gang", "program"]
    """ranks of the native trainer, or nodes for programs; part of group names"""
    nodes: int
    """number of nodes"""
    ranks_per_node: int
    content: str = ""
    """digest of the program's folder sent to the actors; empty if none was"""

    @property
    def ranks(self) -> int:
        """Total number of ranks."""
        return self.nodes * self.ranks_per_node


@dataclass(slots=True, eq=False)
class _Held:
    place: Any
    shape: Shape
    study: str
    is_busy: bool = True


class ActorGroups:
    """The actor groups of one runner on one cluster."""

    def __init__(
        self,
        cluster: RayCluster,
        *,
        bundle: Mapping[str, float],
        abandoned_s: float,
        lost_s: float = LOST_S,
        environment: NodeEnvironment = NOTHING_ADDED,
    ) -> None:
        """`bundle`: resources of one rank. `abandoned_s`: see `OwnedActor`. `lost_s`: see
        `Silence`."""
        self.cluster, self.environment = cluster, environment
        self.owner = secrets.token_hex(16)
        """token that authorizes calls to the actors"""
        self.label = f"{secrets.token_hex(8)}-"
        """part of the names of this runner's groups, after the study's prefix"""
        self.abandoned_s = abandoned_s if cluster.outlives_us else None
        """see `OwnedActor`; None if the actors end with this process"""
        self.capacity = ClusterCapacity(cluster, bundle=bundle, label=self.label)
        self._lost_s = lost_s
        self._clock = ListeningClock()
        self._held: list[_Held] = []
        self._group_count = 0
        self._janitor = JanitorHandle(self.label, abandoned_s)
        self._closed = threading.Event()
        self._heartbeats = threading.Thread(
            target=self._send_heartbeats, name="autotune-ray-heartbeat", daemon=True
        )
        if cluster.outlives_us:
            self._heartbeats.start()

    def form(self, shape: Shape, study: str, make: Callable[[str], Any]) -> Any | None:
        """An idle place of that shape, else a new one, for which idle places are removed to free
        resources. None if not enough is free.

        `make`: creates the group of the given name with its actors. Raises `RunnerError` if the
        head is gone.
        """
        self.capacity.count()
        busy = sum(held.shape.ranks for held in self._held if held.is_busy)
        if self.capacity.is_yielding or (
            busy and busy + shape.ranks > self.capacity.ranks >= shape.ranks
        ):
            return None
        self._remove_lost()
        for held in self._idle:
            if held.shape == shape and self._is_of(held, study):
                held.is_busy = True
                return held.place
        while (
            self._idle
            and sum(held.shape.ranks for held in self._held) + shape.ranks > self.capacity.ranks
        ):
            self.remove_idle()
        self._group_count += 1
        name = f"{study_prefix(study)}{self.label}{shape.kind}-{self._group_count}"
        place = self.cluster.ask(lambda: self._make(name, make))
        self._held.append(_Held(place=place, shape=shape, study=study))
        return place

    def _remove_lost(self) -> None:
        """Removes idle places on dead nodes, which nobody noticed while nobody listened."""
        handles = [handle for held in self._idle for handle in held.place.handles]
        idle = [handle for handle in handles if handle.address and not handle.dead]
        living = self.cluster.addresses() if idle else set()
        for handle in idle:
            if handle.address not in living:
                handle.lose(f"node {handle.address} is dead")
        self._remove_broken()

    def _remove_broken(self) -> None:
        """Removes idle places that have lost an actor."""
        for held in self._idle:
            if any(handle.dead for handle in held.place.handles):
                self.remove(held.place)

    def _make(self, name: str, make: Callable[[str], Any]) -> Any:
        if self.abandoned_s is not None:
            self._janitor.ensure()
        place = make(name)
        if self._closed.is_set():  # closed meanwhile
            remove_group(place.token)
            raise RunnerError("the runner is closed", remedy="create a new runner")
        return place

    @property
    def lifetime(self) -> str | None:
        """Ray's option `lifetime` for groups and actors."""
        return None if self.abandoned_s is None else "detached"

    def silence(self) -> Silence:
        """A new `Silence` for an actor's handle."""
        return Silence(self._lost_s)

    @property
    def _idle(self) -> list[_Held]:
        return [held for held in self._held if not held.is_busy]

    def _is_of(self, held: _Held, study: str) -> bool:
        """Whether the place may run trials of that study. If the cluster outlives its drivers, the
        study must match, because its next controller finds groups by its name."""
        return self.abandoned_s is None or held.study == study

    def take(self, place: Any, shape: Shape, study: str, *, busy: bool) -> None:
        """Adds a place that another runner of the study made."""
        self._held.append(_Held(place=place, shape=shape, study=study, is_busy=busy))

    def handles(self, kind: str, *, or_idle: bool = False) -> list[Any]:
        """Handles of the living actors of that kind; `or_idle`: also of all idle places."""
        selected = [
            held for held in self._held if held.shape.kind == kind or (or_idle and not held.is_busy)
        ]
        handles = [handle for held in selected for handle in held.place.handles]
        return [handle for handle in handles if not handle.dead]

    def listen(self, kind: str, timeout_s: float) -> list[tuple[Any, Message]]:
        """Messages of the actors of that kind with their handles, after at most `timeout_s`. The
        last message of a lost actor is `gone`. Idle places that lose an actor are removed. Raises
        `RunnerError` if the head is gone."""
        import ray

        self.cluster.check()
        if self._idle and self.capacity.is_wanted():
            self.remove_idle()
        handles: list[ActorHandle] = self.handles(kind, or_idle=True)
        monotonic_s = time.monotonic()
        for handle in handles:
            if handle.listen_call is None and monotonic_s >= handle.retry_at_s:
                handle.listen()
            if handle.calls:
                handle.calls = ray.wait(handle.calls, num_returns=len(handle.calls), timeout=0)[1]
        calls = {handle.listen_call: handle for handle in handles if handle.listen_call is not None}
        ready: list[Any] = []
        if calls:
            ready, pending = ray.wait(list(calls), num_returns=1, timeout=timeout_s)
            if pending:
                ready += ray.wait(pending, num_returns=len(pending), timeout=0)[0]
        else:
            time.sleep(timeout_s)
        now_s = self._clock.look()
        received = [
            (calls[call], message) for call in ready for message in calls[call].receive(now_s)
        ]
        for handle in handles:
            if not handle.dead and handle.silence.lasts_too_long(now_s):
                why = handle.silence.reason(handle.address or f"of {handle.name}")
                received += [(handle, message) for message in handle.lose(why)]
        self._remove_broken()
        return received

    def is_silent(self, handle: ActorHandle, for_s: float) -> bool:
        """Whether the actor has been silent for more than `for_s` seconds."""
        return handle.silence.lasts_s(self._clock.look()) > for_s

    def disband(self, place: Any, *, is_usable: bool) -> bool:
        """Takes a place back after its attempt. Returns whether it stays as an idle one; it does
        not if it lost an actor, is not usable, or others wait for resources."""
        held = next(held for held in self._held if held.place is place)
        is_wanted = self.capacity.is_wanted()
        if is_wanted:
            self.capacity.yield_to_others()
        if is_wanted or not is_usable or any(handle.dead for handle in place.handles):
            self.remove(place)
            return False
        held.is_busy = False
        return True

    def is_placed(self, place: Any) -> bool:
        """Whether Ray has placed the group. If not, its actors cannot start, and idle places are
        removed to free resources."""
        placed = self.capacity.is_placed(place.token)
        if not placed:
            self.remove_idle()
        return placed

    def leave_out(self, node: str, needed: Placement) -> LeftOut:
        """See `autotune.ports.ChoosingRunner`. Removes idle places, which may be on the node."""
        if not self.cluster.has(node):
            return "absent"
        if not self.capacity.has_room_without(node, needed):
            return "needed"
        while self.remove_idle():
            pass
        return "left out"

    def remove_idle(self) -> bool:
        """Removes the place that has been idle longest. Returns whether there was one."""
        idle = self._idle
        if idle:
            self.remove(idle[0].place)
        return bool(idle)

    def remove(self, place: Any) -> None:
        """Kills the place's actors and removes its group, unless another runner has adopted
        them."""
        self._held = [held for held in self._held if held.place is not place]

        def remove() -> None:
            if self.abandoned_s is None or self._release_all(place):
                for handle in place.handles:
                    handle.close()
                remove_group(place.token)
            for handle in place.handles:
                handle.dead = True

        with contextlib.suppress(Exception):  # nothing can be removed without a head
            self.cluster.ask(remove)

    def close(self) -> None:
        """Kills all actors and removes all placement groups, except those that another runner has
        adopted."""
        self._closed.set()
        # a call after the end of the connection would make Ray start another cluster
        if self._heartbeats.is_alive():
            self._heartbeats.join(ANSWER_S)
        for held in list(self._held):
            self.remove(held.place)
        self._janitor.dismiss(self.cluster)

    def _send_heartbeats(self) -> None:
        while not self._closed.wait(HEARTBEAT_S):
            self._janitor.heartbeat()
            for held in list(self._held):
                for handle in held.place.handles:
                    if not handle.dead:
                        handle.heartbeat()

    def _release_all(self, place: Any) -> bool:
        """Whether the place may be removed: no other runner has adopted it. Places with an
        unresponsive actor are not removed; without heartbeats the actor ends by itself."""
        import ray
        from ray.exceptions import RayActorError
        from ray.util.placement_group import placement_group_table

        if any(handle.superseded for handle in place.handles):
            return False
        if placement_group_table(place.token)["state"] == "PENDING":
            return True  # no actor has started yet
        calls = [
            handle.actor.release.remote(self.owner) for handle in place.handles if not handle.dead
        ]
        answers, unanswered = (
            ray.wait(calls, num_returns=len(calls), timeout=ANSWER_S) if calls else ([], [])
        )
        are_ours = not unanswered
        for answer in answers:
            with contextlib.suppress(RayActorError):  # dead actors cannot have been adopted
                are_ours = ray.get(answer) and are_ours
        return are_ours


def remove_group(group: Any) -> None:
    """Removes a placement group, which ends its actors."""
    from ray.util.placement_group import remove_placement_group

    remove_placement_group(group)
