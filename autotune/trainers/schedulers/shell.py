"""No scheduler: `launch.sh`, started by hand, or by a tool of one's own, on each node."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from autotune.trainers.launch_files import SCRIPT, Launch
from autotune.trainers.schedulers.scheduler import JobShape, Scheduler


class Shell(Scheduler):
    """A shell on each node."""

    name = "shell"
    summary = "launch.sh, started on each node"

    def files(self, launch: Launch, shape: JobShape, options: Mapping[str, Any]) -> Mapping[str, str]:
        """None: `launch.sh` is part of every launch."""
        return {}

    def start(self, launch: Launch, shape: JobShape) -> str:
        """The script, with the variables of the first node where there are several."""
        return f"NODE_RANK=0 MASTER_ADDR=HOST sh {SCRIPT}" if launch.is_spread else f"sh {SCRIPT}"

    def notes(self, launch: Launch, shape: JobShape, options: Mapping[str, Any]) -> tuple[str, ...]:
        """How the nodes differ."""
        if not launch.is_spread:
            return ()
        return (
            f"start it on {shape.nodes} nodes: NODE_RANK is 0 to {shape.nodes - 1}, MASTER_ADDR the address of node 0",
        )
