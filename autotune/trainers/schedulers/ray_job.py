"""A Ray job: `ray_job.py`, a driver that reserves the nodes and starts `launch.sh` on each. It
needs Ray alone, not this package."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from autotune.trainers.base.bundled_program import program
from autotune.trainers.base.torchrun import Placement
from autotune.trainers.launch_files import Launch
from autotune.trainers.schedulers.scheduler import Scheduler, heading

DRIVER = "ray_job.py"


class RayJob(Scheduler):
    """`ray job submit`."""

    name = "ray"
    summary = "ray_job.py, the driver of a Ray job, which reserves the nodes and starts launch.sh on each node"

    def files(
        self, launch: Launch, placement: Placement, options: Mapping[str, Any]
    ) -> Mapping[str, str]:
        """The driver."""
        sizes = {
            "NODES = 1": f"NODES = {placement.nnodes}",
            "CPUS_PER_NODE = 1": f"CPUS_PER_NODE = {placement.nproc_per_node}",
            "GPUS_PER_NODE = 0": f"GPUS_PER_NODE = {placement.gpus_per_node}",
        }
        text = program(f"schedulers/{DRIVER}")
        for line, ours in sizes.items():
            text = text.replace(line, ours)
        return {DRIVER: "\n".join([*heading(launch), text])}

    def start(self, launch: Launch, placement: Placement) -> str:
        """ray job submit."""
        return f"ray job submit --working-dir . -- python {DRIVER}"

    def notes(
        self, launch: Launch, placement: Placement, options: Mapping[str, Any]
    ) -> tuple[str, ...]:
        """What Ray sends along, and what not."""
        if launch.cwd not in ("", "."):
            return (
                f"Ray sends the job folder to all nodes; the program's folder, {launch.cwd}, must already be on them",
            )
        return ("Ray sends the job folder to all nodes",)
