"""The janitor: an actor that removes placement groups which a killed driver has left without
actors.

A driver asks for a placement group first and then for the actors that run in it. Both are detached
from the driver, so that the next controller of the study can adopt the gang. Killed between the
two, a driver leaves a group that nobody else removes. Gangs whose actors have started end
themselves (`ranks.host`).

Silence is no death: a driver whose link is down lives on. So the janitor runs on the node of the
head, and asks the head whether the driver's job has ended before it removes anything. It goes on
waiting while the job lives, and returns to silence once it hears from the driver again.

Names of what a runner makes on a cluster, by which the next controller of the study and the janitor
find it.

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
    """How the names of all groups and actors of a study begin."""
    return f"autotune-{study}-"


def group_of(actor: str) -> str:
    """The group of an actor; empty for one that is in none of ours."""
    found = _ACTOR.fullmatch(actor)
    return found["group"] if found else ""


def is_node(actor: str) -> bool:
    """Whether it is the actor of a node that runs programs."""
    found = _ACTOR.fullmatch(actor)
    return found is not None and found["what"] == "node"


LOOK_S = 2.0
"""between two searches for what a driver has left, and between two questions whether it lives"""
HEAD = {"node:__internal_head__": 0.001}
"""a resource that Ray gives to the node of the head only"""


def orphaned_groups(part: str, *, without: str = "") -> list[str]:
    """Names of the placement groups that contain `part`, but not `without`, and that are not placed
    yet or have no actor."""
    import ray

    gangs = {group_of(name) for name in ray.util.list_named_actors()}
    return [
        name
        for name, state in _groups(part).items()
        if not (without and without in name) and (state == "PENDING" or name not in gangs)
    ]


def remove_groups(groups: list[str]) -> None:
    """Removes the groups that still exist, and kills their actors: actors that wait for a placement
    do not end with their group."""
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
    """Whether that job's driver has ended, by the head's own account, which forgets jobs long after
    their end. Raises when the head does not answer."""
    from ray._private.state import jobs

    return all(entry["IsDead"] for entry in jobs() if entry["JobID"] == job)


class Janitor:
    """Waits until its driver is gone, and then removes its groups until nothing is left."""

    def __init__(self, label: str, abandoned_s: float) -> None:
        """`label`: part of the names of all the driver's groups. `abandoned_s`: time without a
        heartbeat after which the driver may be gone."""
        import ray

        context = ray.get_runtime_context()
        self._self, self._job = context.current_actor, context.get_job_id()
        self._label, self._abandoned_s, self._silent_s = label, abandoned_s, 0.0
        threading.Thread(target=self._watch, name="autotune-janitor", daemon=True).start()

    def heartbeat(self) -> None:
        """The driver lives."""
        self._silent_s = 0.0

    def _watch(self) -> None:
        import ray

        while not self._driver_is_gone():
            time.sleep(LOOK_S)
        is_left = True
        while is_left:  # the head may be away, and gangs with actors take their time
            with contextlib.suppress(Exception):
                remove_groups(orphaned_groups(self._label))
                is_left = bool(_groups(self._label))
            time.sleep(LOOK_S)
        ray.kill(self._self)

    def _driver_is_gone(self) -> bool:
        """Waits until the driver is silent, and tells whether its job has ended. A head that is
        away has told nothing."""
        round_s = min(1.0, self._abandoned_s / 4)
        while self._silent_s < self._abandoned_s:
            time.sleep(round_s)
            self._silent_s += round_s
        with contextlib.suppress(Exception):
            return has_ended(self._job)
        return False


def start_janitor(label: str, abandoned_s: float) -> Any:
    """The actor, known to the cluster when this returns."""
    import ray

    kind = ray.remote(num_cpus=0, resources=HEAD, max_restarts=0)(Janitor)
    name = f"autotune-janitor-{label.rstrip('-')}-{secrets.token_hex(4)}"
    return kind.options(name=name, lifetime="detached").remote(label, abandoned_s)


class JanitorHandle:
    """The driver's side of its janitor, which is started with the first gang and again when it was
    lost. Threads may share it."""

    def __init__(self, label: str, abandoned_s: float) -> None:
        """See `Janitor`."""
        self._label, self._abandoned_s = label, abandoned_s
        self._actor: Any = None
        self._heartbeat_call: Any = None
        """the last call that told it that its driver lives"""

    def ensure(self) -> None:
        """Starts the actor unless there is one."""
        if self._actor is None:
            self._actor = start_janitor(self._label, self._abandoned_s)

    def heartbeat(self) -> None:
        """Tells the actor that its driver lives; forgets one that is gone, so that the next gang
        starts another."""
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
        except Exception:  # Ray could not answer; whether the actor lives is another question
            return

    def dismiss(self, cluster: RayCluster) -> None:
        """Removes what is left of the driver's groups, and ends the actor. Where Ray does not
        answer, the actor does both by itself."""
        import ray

        actor, self._actor = self._actor, None

        def clean_up() -> None:
            remove_groups(orphaned_groups(self._label))
            ray.kill(actor)

        if actor is not None:
            with contextlib.suppress(Exception):
                cluster.ask(clean_up)
