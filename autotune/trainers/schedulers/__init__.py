"""Schedulers: a launch as a job of the cluster's scheduler. Each starts the same `launch.sh` once
on every node and tells it NODE_RANK, MASTER_ADDR and MASTER_PORT.

    scheduler.py     Scheduler, the base class; Shell: by hand, or by a tool of one's own, launch.sh alone
    slurm.py         job.sbatch, for sbatch
    ray_job.py       ray_job.py, a driver for `ray job submit`
    kubernetes.py    job.yaml: a JobSet, with the files in a ConfigMap
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from autotune.errors import CatalogError, ExportError
from autotune.spec import ParallelConfig, Workload
from autotune.spec.checks import nearest
from autotune.trainers.base.torchrun import place
from autotune.trainers.launch_files import Launch, check_file_name
from autotune.trainers.schedulers.kubernetes import Kubernetes
from autotune.trainers.schedulers.ray_job import RayJob
from autotune.trainers.schedulers.scheduler import Scheduler, Shell
from autotune.trainers.schedulers.slurm import Slurm

SCHEDULERS: Mapping[str, Scheduler] = {
    one.name: one for one in (Shell(), Slurm(), RayJob(), Kubernetes())
}
"""all of them by name; the first is the default"""
DEFAULT = Shell.name


def scheduler(name: str) -> Scheduler:
    """The scheduler of that name. Raises `CatalogError` with the nearest name when there is
    none."""
    if name not in SCHEDULERS:
        raise CatalogError(
            f"there is no scheduler {name[:80]!r}",
            remedy=nearest(name, SCHEDULERS) or f"choose one of {', '.join(SCHEDULERS)}",
            field="on",
        )
    return SCHEDULERS[name]


def split_options(
    on: Scheduler, options: Mapping[str, Any]
) -> tuple[dict[str, Any], dict[str, Any]]:
    """The options that are the trainer's, and those that are the scheduler's, checked and with
    their defaults. Raises `SpecError`."""
    mine = {option.name: option for option in on.options}
    values = {
        name: option.check(options[name]) if name in options else option.default
        for name, option in mine.items()
    }
    return {name: value for name, value in options.items() if name not in mine}, values


def job_of(
    on: Scheduler,
    launch: Launch,
    workload: Workload,
    config: ParallelConfig,
    options: Mapping[str, Any],
) -> dict[str, Any]:
    """The launch as a job: {scheduler, nodes, ranks_per_node, gpus_per_node, start (the command
    that starts it), files, notes}.

    `options`: of `split_options`. Raises `ExportError` when a file of the launch has the name of a
    file of the job.
    """
    placement = place(workload.cluster, config)
    files = {
        check_file_name(name): text for name, text in on.files(launch, placement, options).items()
    }
    taken = sorted(files.keys() & launch.files.keys())
    if taken:
        raise ExportError(
            f"{taken[0]} is written by both the trainer and the {on.name} job", field="files"
        )
    return {
        "scheduler": on.name,
        "nodes": placement.nnodes,
        "ranks_per_node": placement.nproc_per_node,
        "gpus_per_node": placement.gpus_per_node,
        "start": on.start(launch, placement),
        "files": files,
        "notes": list(on.notes(launch, placement, options)),
    }


__all__ = ["DEFAULT", "SCHEDULERS", "Scheduler", "job_of", "scheduler", "split_options"]
