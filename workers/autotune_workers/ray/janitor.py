"""The janitor: an actor that removes placement groups left without actors by a killed driver.

A driver creates a placement group first and then the actors that run in it. Both are detached from
the driver, so that the study's next controller can adopt the gang. A driver killed between the two
leaves a group that nothing else removes. Gangs whose actors have started end by themselves
(`ranks.host`).

A silent driver may be alive with its network link down. So the janitor runs on the head's node, and
asks the head whether the driver's job has ended before it removes anything. While the job is alive
it keeps waiting, and it starts over when it gets a heartbeat.

Names of a runner's groups and actors on a cluster, by which the study's next controller and the
janitor find them:

group   autotune-STUDY-LABEL-gang-N or autotune-STUDY-LABEL-program-N     LABEL: of the runner
actor   GROUP-rank-I or GROUP-node-I                                      a rank of the native trainer, or a node that runs programs
"""

from __future__ import annotations

import contextlib
import re
import secrets
import threading
import time
from typing import Any

from autotune_workers.ray.cluster.connection import RayCluster

_ACTOR = re.compile(r"(?P<group>.+)-(?P<what>rank|node)-\d+")


def study_prefix(study: str) -> str:
    """Prefix of the names of all groups and actors of a study."""
    return f"autotune-{study}-"


def group_of(actor: str) -> str:
    """Name of an actor's group; empty for other actors."""
    found = _ACTOR.fullmatch(actor)
    return found["group"] if found else ""


def is_node(actor: str) -> bool:
    """Whether the name is that of the actor of a node for programs."""
    found = _ACTOR.fullmatch(actor)
    return found is not None and found["what"] == "node"


LOOK_S = 2.0
"""interval of searches for remaining groups, and of checks whether the driver lives, seconds"""
HEAD = {"node:__internal_head__": 0.001}
"""a resource that only the head's node has"""


def orphaned_groups(part: str, *, without: str = "") -> list[str]:
    """Names of placement groups that contain `part` but not `without`, and are not placed yet or
    have no actor."""
    import ray

    gangs = {group_of(name) for name in ray.util.list_named_actors()}
    return [
        name
        for name, state in _groups(part).items()
        if not (without and without in name) and (state == "PENDING" or name not in gangs)
    ]


def remove_groups(groups: list[str]) -> None:
    """Removes those of the groups that still exist and kills their actors, because actors waiting
    for a placement do not end with their group."""
    import ray
    from ray.util.placement_group import get_placement_group, remove_placement_group

    if not groups:
        return
    for actor in ray.util.list_named_actors():
        if group_of(actor) in groups:
            with contextlib.suppress(ValueError):  # gone since it was listed
                ray.kill(ray.get_actor(actor), no_restart=True)
    for name in groups:
        with contextlib.suppress(ValueError):
            remove_placement_group(get_placement_group(name))


def _groups(part: str) -> dict[str, str]:
    from ray.util.placement_group import placement_group_table

    groups = [group for group in placement_group_table().values() if group["state"] != "REMOVED"]
    return {
        str(group["name"]): str(group["state"]) for group in groups if part in str(group["name"])
    }


def has_ended(job: str) -> bool:
    """Whether the job's driver has ended, according to the head, which forgets jobs long after
    their end. Raises if the head does not answer."""
    from ray._private.state import jobs

    return all(entry["IsDead"] for entry in jobs() if entry["JobID"] == job)


class Janitor:
    """Waits until its driver is gone, then removes its groups until none is left."""

    def __init__(self, label: str, abandoned_s: float) -> None:
        """`label`: part of the names of all the driver's groups. `abandoned_s`: seconds without a
        heartbeat after which the driver is checked."""
        import ray

        context = ray.get_runtime_context()
        self._self, self._job = context.current_actor, context.get_job_id()
        self._label, self._abandoned_s, self._silent_s = label, abandoned_s, 0.0
        threading.Thread(target=self._watch, name="autotune-janitor", daemon=True).start()

    def heartbeat(self) -> None:
        """Called by the driver while it is alive."""
        self._silent_s = 0.0

    def _watch(self) -> None:
        import ray

        while not self._driver_is_gone():
            time.sleep(LOOK_S)
        is_left = True
        while is_left:  # the head may be unreachable, and gangs with actors need time to end
            with contextlib.suppress(Exception):
                remove_groups(orphaned_groups(self._label))
                is_left = bool(_groups(self._label))
            time.sleep(LOOK_S)
        ray.kill(self._self)

    def _driver_is_gone(self) -> bool:
        """Waits until the driver is silent. Returns whether its job has ended; False if the head
        does not answer."""
        round_s = min(1.0, self._abandoned_s / 4)
        while self._silent_s < self._abandoned_s:
            time.sleep(round_s)
            self._silent_s += round_s
        with contextlib.suppress(Exception):
            return has_ended(self._job)
        return False


def start_janitor(label: str, abandoned_s: float) -> Any:
    """Starts the actor and returns it, registered in the cluster."""
    import ray

    kind = ray.remote(num_cpus=0, resources=HEAD, max_restarts=0)(Janitor)
    name = f"autotune-janitor-{label.rstrip('-')}-{secrets.token_hex(4)}"
    return kind.options(name=name, lifetime="detached").remote(label, abandoned_s)


class JanitorHandle:
    """The driver's handle of its janitor, which is started with the first gang and again if it was
    lost. Thread-safe."""

    def __init__(self, label: str, abandoned_s: float) -> None:
        """See `Janitor`."""
        self._label, self._abandoned_s = label, abandoned_s
        self._actor: Any = None
        self._heartbeat_call: Any = None
        """the last heartbeat call"""

    def ensure(self) -> None:
        """Starts the actor unless it exists."""
        if self._actor is None:
            self._actor = start_janitor(self._label, self._abandoned_s)

    def heartbeat(self) -> None:
        """Sends a heartbeat. Drops an actor that is gone, so that the next gang starts another."""
        import ray
        from ray.exceptions import ActorDiedError

        actor, call = self._actor, self._heartbeat_call
        if actor is None:
            return
        try:
            if call is not None:
                if not ray.wait([call], timeout=0)[0]:
                    return  # the last heartbeat is still unanswered
                self._heartbeat_call = None
                ray.get(call)
            self._heartbeat_call = actor.heartbeat.remote()
        except ActorDiedError:
            self._actor = None
        except Exception:  # Ray could not answer; the actor may be alive
            return

    def dismiss(self, cluster: RayCluster) -> None:
        """Removes the driver's remaining groups and ends the actor. If Ray does not answer, the
        actor does both by itself."""
        import ray

        actor, self._actor = self._actor, None

        def clean_up() -> None:
            remove_groups(orphaned_groups(self._label))
            ray.kill(actor)

        if actor is not None:
            with contextlib.suppress(Exception):
                cluster.ask(clean_up)
