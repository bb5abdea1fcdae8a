"""Slurm: `job.sbatch`, which starts `launch.sh` once on every node of its allocation; its first
lines are also those of a job that runs a study.

MASTER_ADDR is the first host of the allocation (`scontrol show hostnames`), NODE_RANK the relative
number of the node (SLURM_NODEID, srun(1)), and MASTER_PORT follows from the job's id, so that jobs
that share a node do not collide.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from autotune.errors import SpecError
from autotune.trainers.base.torchrun import Placement
from autotune.trainers.base.trainer_option import Option
from autotune.trainers.launch_files import SCRIPT, Launch
from autotune.trainers.schedulers.scheduler import Scheduler, heading, job_name

JOB = "job.sbatch"
_ASKED = {"time": "HH:MM:SS", "partition": "NAME", "account": "NAME", "qos": "NAME"}
"""options of sbatch that a site may want, each with what stands in its comment"""


class Slurm(Scheduler):
    """sbatch and srun."""

    name = "slurm"
    summary = "job.sbatch, which starts launch.sh on each allocated node"
    options = (
        Option(name="time", meaning="time limit for the job, in sbatch's format", default=""),
        Option(name="partition", meaning="partition for the job", default=""),
        Option(name="account", meaning="account to charge for the job", default=""),
        Option(name="qos", meaning="quality of service for the job", default=""),
    )

    def files(
        self, launch: Launch, placement: Placement, options: Mapping[str, Any]
    ) -> Mapping[str, str]:
        """The batch script."""
        for name in _ASKED:
            if any(character.isspace() for character in options[name]):
                raise SpecError(
                    f"{name} must be one word, but is {options[name]!r}", field=f"option.{name}"
                )  # sbatch reads options up to the next space
        directives = directive_lines(
            job_name(launch),
            nodes=placement.nnodes,
            gpus_per_node=placement.gpus_per_node,
            asked={k: options[k] for k in _ASKED},
        )
        return {
            JOB: "\n".join(
                [
                    "#!/bin/bash",
                    *directives,
                    *heading(
                        launch,
                        f"Submit this job from this folder, which all nodes must see: sbatch {JOB}",
                    ),
                    *_BODY,
                    "",
                ]
            )
        }

    def start(self, launch: Launch, placement: Placement) -> str:
        """sbatch."""
        return f"sbatch {JOB}"

    def notes(
        self, launch: Launch, placement: Placement, options: Mapping[str, Any]
    ) -> tuple[str, ...]:
        """What the nodes must have."""
        return ("all nodes must see the job folder and have the program on their PATH",)


def directive_lines(
    name: str, *, nodes: int, gpus_per_node: int, asked: Mapping[str, str], exclusive: bool = True
) -> list[str]:
    """The first lines of a batch script, for one task on each node. Of `asked`, what is empty
    stands there as a comment to be filled in."""
    return [
        f"#SBATCH --job-name={name}",
        f"#SBATCH --nodes={nodes}",
        "#SBATCH --ntasks-per-node=1",
        *([f"#SBATCH --gpus-per-node={gpus_per_node}"] if gpus_per_node else []),
        *(["#SBATCH --exclusive"] if exclusive else []),
        *(
            f"#SBATCH --{k}={asked[k]}" if asked.get(k) else f"##SBATCH --{k}={example}"
            for k, example in _ASKED.items()
        ),
    ]


_BODY = (
    "set -euo pipefail",
    'cd "$SLURM_SUBMIT_DIR"',
    'hosts=$(scontrol show hostnames "$SLURM_JOB_NODELIST")',
    "export MASTER_ADDR=${hosts%%$'\\n'*}",
    "export MASTER_PORT=$((20000 + SLURM_JOB_ID % 10000))",
    "# One task per node, using all its CPUs; when one fails, all are stopped.",
    "srun --ntasks-per-node=1 --cpu-bind=none --kill-on-bad-exit=1 \\",
    f'  sh -c \'export NODE_RANK=$SLURM_NODEID; exec sh {SCRIPT} "$@"\' sh "$@"',
)
