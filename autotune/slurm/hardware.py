"""The cluster `slurm`: the nodes of this job, with what one step on all of them finds: GPUs as the
driver describes them, memory, CPUs.

All nodes must have the same: a config is spread evenly. What a batch script alone would see (the
cluster `local`) is its own node.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from typing import Any

from autotune.detect import (
    CudaDevice,
    cpu_cluster,
    cuda_devices,
    gpu_of,
    memory_bytes,
    usable_cores,
)
from autotune.errors import RunnerError, SpecError
from autotune.slurm.allocation import Allocation, allocation, number, step_environment
from autotune.spec import ClusterSpec, number_of
from autotune.spec.catalog import cluster_of

LOOK_S = 180.0
"""for all nodes to look: a cold file system takes long to start Python"""


def slurm_cluster(*, spare_nodes: int = 0) -> ClusterSpec:
    """The nodes of this job without the spare ones. Raises `SpecError` outside of a job, for nodes
    that differ and for GPUs that no driver describes."""
    job = allocation()
    if job is None:
        raise SpecError(
            "the cluster 'slurm' means the nodes of a Slurm job, but this process is not in a Slurm job",
            remedy="start the study on the login node with `autotune tune SPEC --on slurm`, or in an allocation (salloc); or set `cluster`, e.g. h100-sxm-2x8",
            field="cluster",
        )
    if job.num_nodes <= spare_nodes:
        raise SpecError(
            f"the job must have more nodes than slurm.spare_nodes, but job {job.job} has {number_of(job.num_nodes, 'node')} and spare_nodes is {spare_nodes}",
            remedy="request more nodes, or lower slurm.spare_nodes",
            field="slurm.spare_nodes",
        )
    return cluster_from(look(job), num_nodes=job.num_nodes - spare_nodes)


def look(job: Allocation) -> list[dict[str, Any]]:
    """What each node says of itself. Raises `RunnerError` for nodes that do not answer."""
    # what a node has, it has in a container too
    command = [
        *job.srun(plain=True),
        sys.executable,
        "-m",
        __name__,
    ]
    try:
        done = subprocess.run(
            command,
            env=step_environment(),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=LOOK_S,
        )
        said, why = done.stdout, done.stderr.strip()
    except (OSError, subprocess.TimeoutExpired) as error:
        said, why = "", str(error)
    found = [json.loads(line) for line in said.splitlines() if line.startswith('{"host"')]
    if len(found) < job.num_nodes:
        seen = {node["host"].partition(".")[0] for node in found}
        absent = [host for host in job.hosts() if host.partition(".")[0] not in seen]
        raise RunnerError(
            f"{', '.join(absent)} did not report its hardware: {why[-500:]}",
            remedy=f"`srun --overlap --nodes={job.num_nodes} {sys.executable} --version` in the same job must work on each node",
            field="cluster",
        )
    return found


def cluster_from(nodes: Sequence[Mapping[str, Any]], *, num_nodes: int) -> ClusterSpec:
    """The cluster of such nodes. Raises `SpecError` when they differ."""
    has = {str(node["host"]): _in_words(node) for node in nodes}
    if len(set(has.values())) > 1:
        raise SpecError(
            "the nodes of a study must have the same GPUs, but "
            + "; ".join(f"{host} has {what}" for host, what in sorted(has.items())),
            remedy="request nodes of one type (slurm: {constraint: ...}, or --nodelist)",
            field="cluster",
        )
    devices = [CudaDevice(**device) for device in nodes[0]["devices"]]
    if devices:
        return cluster_of(gpu_of(devices[0]), num_nodes=num_nodes, gpus_per_node=len(devices))
    if given := max(int(node["given_gpus"]) for node in nodes):
        raise SpecError(
            f"Slurm gives this job {number_of(given, 'GPU')} on each node, but there is no CUDA driver to query",
            remedy="specify the GPUs, as cluster: {gpu: NAME, num_nodes: N, gpus_per_node: G} (`autotune clusters` lists names)",
            field="cluster",
        )
    least = min(nodes, key=lambda node: int(node["memory_bytes"]))
    cores = min(int(node["cpus"]) for node in nodes)
    one = cpu_cluster(int(least["memory_bytes"]), max_ranks=_power_of_two(cores), cores=cores)
    ranks = one.gpus_per_node
    return replace(
        cluster_of(one.gpu, num_nodes=num_nodes, gpus_per_node=ranks), cores_per_node=cores
    )


def _power_of_two(cores: int) -> int:
    """The largest that is no larger than the cores, 4 at most."""
    return next(n for n in (4, 2, 1) if n <= max(1, cores))


def _in_words(node: Mapping[str, Any]) -> str:
    names = Counter(str(device["name"]) for device in node["devices"])
    return ", ".join(f"{count} x {name}" for name, count in sorted(names.items())) or number_of(
        node["given_gpus"], "GPU"
    )


def _own_node() -> dict[str, Any]:
    """What this node has of the job."""
    limit_mib, memory = number(os.environ, "SLURM_MEM_PER_NODE"), memory_bytes()
    return {
        "host": os.environ.get("SLURMD_NODENAME") or os.uname().nodename,
        "devices": [asdict(device) for device in cuda_devices()],
        "given_gpus": number(os.environ, "SLURM_GPUS_ON_NODE"),
        "memory_bytes": min(memory, limit_mib << 20) if limit_mib else memory,
        "cpus": number(os.environ, "SLURM_CPUS_ON_NODE") or usable_cores(),
    }


if __name__ == "__main__":
    print(json.dumps(_own_node()), flush=True)
