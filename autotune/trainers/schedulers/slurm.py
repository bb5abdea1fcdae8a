"""Slurm: `job.sbatch`, which starts `launch.sh` once on every node of its allocation.

MASTER_ADDR is the first host of the allocation (`scontrol show hostnames`), NODE_RANK the relative number of the node (SLURM_NODEID, srun(1)), and
MASTER_PORT follows from the job's id, so that jobs that share a node do not collide.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from autotune.errors import SpecError
from autotune.trainers.launch_files import SCRIPT, Launch
from autotune.trainers.schedulers.scheduler import JobShape, Scheduler, heading, job_name
from autotune.trainers.trainer import Option

JOB = "job.sbatch"
_ASKED = {"time": "HH:MM:SS", "partition": "NAME", "account": "NAME"}
"""options of sbatch that a site may want, each with what stands in its comment"""


class Slurm(Scheduler):
    """sbatch and srun."""

    name = "slurm"
    summary = "job.sbatch, which starts launch.sh on each node of its allocation"
    options = (
        Option(name="time", meaning="time limit of the job, as sbatch wants it", default=""),
        Option(name="partition", meaning="partition to which the job is sent", default=""),
        Option(name="account", meaning="account to which the job is charged", default=""),
    )

    def files(self, launch: Launch, shape: JobShape, options: Mapping[str, Any]) -> Mapping[str, str]:
        """The batch script."""
        for name in _ASKED:
            if any(character.isspace() for character in options[name]):
                raise SpecError(
                    f"{name} must be one word, but is {options[name]!r}", field=f"option.{name}"
                )  # sbatch reads options up to the next space
        asked = [
            f"#SBATCH --{name}={options[name]}" if options[name] else f"##SBATCH --{name}={example}"
            for name, example in _ASKED.items()
        ]
        directives = [
            f"#SBATCH --job-name={job_name(launch)}",
            f"#SBATCH --nodes={shape.nodes}",
            "#SBATCH --ntasks-per-node=1",
            *([f"#SBATCH --gpus-per-node={shape.gpus_per_node}"] if shape.gpus_per_node else []),
            "#SBATCH --exclusive",
            *asked,
        ]
        return {
            JOB: "\n".join(
                [
                    "#!/bin/bash",
                    *directives,
                    *heading(launch, f"Submit it in its folder, which all nodes must see: sbatch {JOB}"),
                    *_BODY,
                    "",
                ]
            )
        }

    def start(self, launch: Launch, shape: JobShape) -> str:
        """sbatch."""
        return f"sbatch {JOB}"

    def notes(self, launch: Launch, shape: JobShape, options: Mapping[str, Any]) -> tuple[str, ...]:
        """What the nodes must have."""
        return ("all nodes must see the folder of the job, and find the program that it starts in their PATH",)


_BODY = (
    "set -euo pipefail",
    'cd "$SLURM_SUBMIT_DIR"',
    'hosts=$(scontrol show hostnames "$SLURM_JOB_NODELIST")',
    "export MASTER_ADDR=${hosts%%$'\\n'*}",
    "export MASTER_PORT=$((20000 + SLURM_JOB_ID % 10000))",
    "# One task on each node, which uses all its CPUs; when one fails, all are ended.",
    "srun --ntasks-per-node=1 --cpu-bind=none --kill-on-bad-exit=1 \\",
    f'  sh -c \'export NODE_RANK=$SLURM_NODEID; exec sh {SCRIPT} "$@"\' sh "$@"',
)
