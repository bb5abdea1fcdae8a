"""Reads a command as a launch on this machine: the target of its review and its cluster. Also opens
the results database.

For a shell that runs a script, the target is the script. Inside a task of `srun` or `mpirun`, the
command looks like a single process, so the numbers of tasks and nodes come from environment
variables.
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
"""variables with the number of tasks that a launcher has started, and the number of nodes; an empty
name: the launcher does not set it"""
_ALL_GPUS = ("accelerate", "deepspeed")
"""launchers that start one process per GPU by default"""


def target_of(command: Sequence[str], environment: Mapping[str, str]) -> Path | tuple[str, ...]:
    """Return the target of the review: the script, if a shell runs it without arguments; otherwise
    the command. Tasks of a scheduler are rewritten as ranks of torchrun."""
    words = tuple(command)
    script = words[1] if len(words) > 1 and Path(words[0]).name in SHELLS else words[0]
    if words[-1] == script and Path(script).suffix in SHELL_SCRIPTS and Path(script).is_file():
        return Path(script)
    for tasks, nodes in _TASKS:
        count, on_nodes = number(environment, tasks), max(1, number(environment, nodes))
        # one task per node is a launcher such as torchrun, which starts the ranks itself
        if count > on_nodes and Path(words[0]).name.startswith("python"):
            program = words[_program_at(words) :]
            return (
                "torchrun",
                f"--nnodes={on_nodes}",
                f"--nproc-per-node={count // on_nodes}",
                *program,
            )
    return words


def _program_at(words: Sequence[str]) -> int:
    """Index of the script or `-m` after Python and its options; 1 without one."""
    for at, word in enumerate(words[1:], 1):
        if word == "-m" or not word.startswith("-"):
            return at
    return 1


def cluster_here(started: Started | None, asked: tuple[int, int] | None) -> ClusterSpec:
    """The cluster that the launch uses, assuming nodes like this machine. `asked`: number of nodes
    and ranks per node; None if the launch does not state them."""
    if asked is None:
        uses_all_gpus = started is not None and started.launcher in _ALL_GPUS
        asked = (1, max(1, len(cuda_devices())) if uses_all_gpus else 1)
    return cluster_of_ranks(*asked)


def results_database(address: str | Path | None, *, is_needed: bool) -> Any:
    """Context manager of the results database. If it is a file that does not exist, it is created
    if `is_needed`; otherwise the context is None. `address`: None for the user's default."""
    url = str(address or settings().store)
    if not is_needed and "://" not in url and not Path(url).exists():
        return nullcontext()
    from autotune.store import open_store

    return closing(open_store(url))


def cluster_of_ranks(nodes: int, ranks: int) -> ClusterSpec:
    """A cluster of nodes like this machine with one GPU per rank. Without GPUs, each rank gets an
    equal share of the machine's memory."""
    if devices := cuda_devices():
        return cluster_of(gpu_of(devices[0]), num_nodes=nodes, gpus_per_node=ranks)
    share = replace(gpu("cpu"), memory_bytes=float(memory_bytes() // ranks))
    return cluster_of(share, num_nodes=nodes, gpus_per_node=ranks)
