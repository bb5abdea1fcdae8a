"""An actor that looks after places on a cluster which outlives its drivers: a place whose gang was never born has nobody else.

A driver asks for a placement group first and then for the actors that live in it. Killed between the two it would leave a group that
nobody gives back: its lifetime is its own, so that gangs can be adopted. Gangs that were born end themselves (`_ray_host`).
"""

from __future__ import annotations

import contextlib
import threading
import time
from typing import Any


def unborn_groups(part: str, *, without: str = "") -> list[str]:
    """Names of the placement groups that hold `part`, but not `without`, and that have no place yet or no actor."""
    import ray
    from ray.util.placement_group import placement_group_table

    gangs = {name.rpartition("-rank-")[0] for name in ray.util.list_named_actors()}
    return [
        name
        for name, state in ((str(group["name"]), group["state"]) for group in placement_group_table().values())
        if part in name and not (without and without in name)
        if state == "PENDING" or (state != "REMOVED" and name not in gangs)
    ]


def give_back(groups: list[str]) -> None:
    """Removes them, as far as they are still there."""
    from ray.util.placement_group import get_placement_group, remove_placement_group

    for name in groups:
        with contextlib.suppress(ValueError):  # gone since it was listed
            remove_placement_group(get_placement_group(name))


class Warden:
    """Waits until its driver is gone."""

    def __init__(self, label: str, abandoned_s: float) -> None:
        """`label`: what names of the driver's groups hold."""
        import ray

        self._self = ray.get_runtime_context().current_actor
        self._label, self._abandoned_s = label, abandoned_s
        self._sign_of_life_s = time.monotonic()
        threading.Thread(target=self._watch, name="autotune-warden", daemon=True).start()

    def keep(self) -> None:
        """The driver lives."""
        self._sign_of_life_s = time.monotonic()

    def _watch(self) -> None:
        import ray

        while time.monotonic() - self._sign_of_life_s < self._abandoned_s:
            time.sleep(min(1.0, self._abandoned_s / 4))
        with contextlib.suppress(Exception):  # without a head there is nothing to be given back to
            give_back(unborn_groups(self._label))
        ray.kill(self._self)


def post_warden(label: str, abandoned_s: float) -> Any:
    """The actor, known to the cluster when this returns."""
    import ray

    kind = ray.remote(num_cpus=0, max_restarts=0)(Warden)
    return kind.options(name=f"autotune-warden{label.rstrip('-')}", lifetime="detached").remote(label, abandoned_s)
