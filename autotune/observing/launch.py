"""A command as a launch on this machine: what is reviewed of it, and the cluster that it runs on.

A shell that is given a script stands for the script. Tasks that a scheduler starts (`srun`,
`mpirun`) look like single processes from inside: their number is told by variables, as is that of
the nodes. Its results database is opened here, too.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import closing, nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

from autotune.detect import cuda_devices, gpu_of, memory_bytes
from autotune.onboarding.launch.launch_script import SHELL_SCRIPTS, SHELLS, Started
from autotune.settings import settings
from autotune.slurm.allocation import number
from autotune.spec import ClusterSpec
from autotune.spec.catalog import cluster_of, gpu

_TASKS = (
    ("SLURM_STEP_NUM_TASKS", "SLURM_STEP_NUM_NODES"),
    ("OMPI_COMM_WORLD_SIZE", ""),
    ("PMI_SIZE", ""),
)
"""variables that say how many tasks a launcher has started, and on how many nodes"""
_ALL_GPUS = ("accelerate", "deepspeed")
"""launchers that start a process for each GPU where nothing else is said"""


def target_of(command: Sequence[str], environment: Mapping[str, str]) -> Path | tuple[str, ...]:
    """The target of the review: the script, if a shell runs it without arguments; otherwise the
    command, with a scheduler's tasks as ranks of torchrun."""
    words = tuple(command)
    script = words[1] if len(words) > 1 and Path(words[0]).name in SHELLS else words[0]
    if words[-1] == script and Path(script).suffix in SHELL_SCRIPTS and Path(script).is_file():
        return Path(script)
    for tasks, nodes in _TASKS:
        count, on = number(environment, tasks), max(1, number(environment, nodes))
        # one on each node is a launcher of its own
        if count > on and Path(words[0]).name.startswith("python"):
            program = next(
                (
                    at
                    for at, word in enumerate(words)
                    if at and (word == "-m" or not word.startswith("-"))
                ),
                1,
            )
            return (
                "torchrun",
                f"--nnodes={on}",
                f"--nproc-per-node={count // on}",
                *words[program:],
            )
    return words


def cluster_here(started: Started | None, asked: tuple[int, int] | None) -> ClusterSpec:
    """The part of this machine, and of others like it, that the launch uses. `asked`: its nodes and
    ranks of a node."""
    if asked is None:
        whole = started is not None and started.launcher in _ALL_GPUS
        asked = (1, max(1, len(cuda_devices())) if whole else 1)
    return cluster_of_ranks(*asked)


def results_database(address: str | Path | None, *, is_needed: bool) -> Any:
    """The results database, None where there is none; it is made where it `is_needed`. `address`:
    None for the usual one."""
    found = str(address or settings().store)
    if not is_needed and "://" not in found and not Path(found).exists():
        return nullcontext()
    from autotune.store import open_store

    return closing(open_store(found))


def cluster_of_ranks(nodes: int, ranks: int) -> ClusterSpec:
    """So many nodes like this machine, with so many ranks each."""
    if devices := cuda_devices():
        return cluster_of(gpu_of(devices[0]), num_nodes=nodes, gpus_per_node=ranks)
    share = replace(gpu("cpu"), memory_bytes=float(memory_bytes() // ranks))
    return cluster_of(share, num_nodes=nodes, gpus_per_node=ranks)
