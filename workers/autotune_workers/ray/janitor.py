"""An actor that looks after places on a cluster which outlives its drivers: a place whose gang was never born has nobody else.

A driver asks for a placement group first and then for the actors that live in it. Killed between the two it would leave a group that
nobody gives back: its lifetime is its own, so that gangs can be adopted. Gangs that were born end themselves (`_ray_host`).
"""

from __future__ import annotations

import contextlib
import secrets
import threading
import time
from typing import Any

LOOK_S = 2.0
"""between two looks at what a driver left behind"""


def unborn_groups(part: str, *, without: str = "") -> list[str]:
    """Names of the placement groups that hold `part`, but not `without`, and that have no place yet or no actor."""
    import ray

    gangs = {name.rpartition("-rank-")[0] for name in ray.util.list_named_actors()}
    return [
        name
        for name, state in _groups(part).items()
        if not (without and without in name) and (state == "PENDING" or name not in gangs)
    ]


def give_back(groups: list[str]) -> None:
    """Ends them with their actors, as far as they are still there. Actors that wait for their place would not end with it."""
    import ray
    from ray.util.placement_group import get_placement_group, remove_placement_group

    if not groups:
        return
    for actor in ray.util.list_named_actors():
        if actor.rpartition("-rank-")[0] in groups:
            with contextlib.suppress(ValueError):  # gone since it was listed
                ray.kill(ray.get_actor(actor), no_restart=True)
    for name in groups:
        with contextlib.suppress(ValueError):
            remove_placement_group(get_placement_group(name))


def _groups(part: str) -> dict[str, str]:
    from ray.util.placement_group import placement_group_table

    groups = [group for group in placement_group_table().values() if group["state"] != "REMOVED"]
    return {str(group["name"]): str(group["state"]) for group in groups if part in str(group["name"])}


class Janitor:
    """Waits until its driver is gone, and then until nothing is left of it."""

    def __init__(self, label: str, abandoned_s: float) -> None:
        """`label`: what names of the driver's groups hold."""
        import ray

        self._self = ray.get_runtime_context().current_actor
        self._label, self._abandoned_s, self._quiet_s = label, abandoned_s, 0.0
        threading.Thread(target=self._watch, name="autotune-warden", daemon=True).start()

    def keep(self) -> None:
        """The driver lives."""
        self._quiet_s = 0.0

    def _watch(self) -> None:
        import ray

        round_s = min(1.0, self._abandoned_s / 4)
        while self._quiet_s < self._abandoned_s:
            time.sleep(round_s)
            self._quiet_s += round_s
        is_left = True
        while is_left:  # the head may be away, and gangs that were born take their time
            with contextlib.suppress(Exception):
                give_back(unborn_groups(self._label))
                is_left = bool(_groups(self._label))
            time.sleep(LOOK_S)
        ray.kill(self._self)


def start_janitor(label: str, abandoned_s: float) -> Any:
    """The actor, known to the cluster when this returns."""
    import ray

    kind = ray.remote(num_cpus=0, max_restarts=0)(Janitor)
    name = f"autotune-warden{label.rstrip('-')}-{secrets.token_hex(4)}"
    return kind.options(name=name, lifetime="detached").remote(label, abandoned_s)
