"""torchrun: placement of ranks on nodes, and the beginning of the command.

    world_size = tp * pp * dp * cp = nnodes * nproc_per_node

Every node runs the same command, except for its number. With several nodes, the rendezvous is
`master_addr:master_port` on node 0: the static one of torch.distributed.run, in which node 0 has
rank 0. A single node finds a free port itself (`--standalone`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from autotune.errors import ExportError
from autotune.spec import ClusterSpec, ParallelConfig, Workload, number_of
from autotune.trainers.launch_files import MASTER_ADDR, MASTER_PORT, NODE_RANK


@dataclass(frozen=True, slots=True, kw_only=True)
class Placement:
    """Ranks on nodes."""

    nnodes: int
    """number of nodes, >= 1"""
    nproc_per_node: int
    """ranks on each node, >= 1"""
    has_gpus: bool = field(default=True, compare=False)
    """whether each rank has a GPU; otherwise ranks are CPU processes"""

    @property
    def gpus_per_node(self) -> int:
        """GPUs in use on each node."""
        return self.nproc_per_node if self.has_gpus else 0

    @property
    def world_size(self) -> int:
        """Total number of ranks."""
        return self.nnodes * self.nproc_per_node


def place(cluster: ClusterSpec, config: ParallelConfig) -> Placement:
    """The placement on the smallest number of nodes with equally many ranks. Raises `ExportError`
    if the cluster has too few."""
    world = config.world_size
    per_node = next(n for n in range(min(world, cluster.gpus_per_node), 0, -1) if world % n == 0)
    if world // per_node > cluster.num_nodes:
        raise ExportError(
            f"tp * pp * dp * cp = {world} ranks do not fit on {number_of(cluster.num_nodes, 'node')} with {number_of(cluster.gpus_per_node, 'rank')} each",
            remedy="choose a larger cluster, or a config with fewer ranks",
            field="cluster",
        )
    return Placement(
        nnodes=world // per_node, nproc_per_node=per_node, has_gpus=not cluster.gpu.is_cpu
    )


def meeting(options: Mapping[str, Any]) -> tuple[str, str]:
    """(address, port) of the rendezvous for several nodes: the trainer's options, or placeholders
    that are replaced when the nodes start."""
    return options["master_addr"] or MASTER_ADDR, str(options["master_port"] or MASTER_PORT)


def meeting_variables(placement: Placement) -> dict[str, str]:
    """Environment variables with the rendezvous, for a program whose command does not contain it;
    empty for one node.

    torchrun reads the default of an option --some-name from PET_SOME_NAME
    (torch/distributed/argparse_util.py, class `env`); an option on the command line takes
    precedence. So `torchrun train.py` runs on several nodes unchanged.
    """
    if placement.nnodes == 1:
        return {}
    meeting = {"NODE_RANK": NODE_RANK, "MASTER_ADDR": MASTER_ADDR, "MASTER_PORT": MASTER_PORT}
    ranks = {
        "PET_NNODES": str(placement.nnodes),
        "PET_NPROC_PER_NODE": str(placement.nproc_per_node),
    }
    return {**meeting, **ranks, **{f"PET_{name}": word for name, word in meeting.items()}}


def torchrun(
    placement: Placement, *, master_addr: str, master_port: int, max_restarts: int = 0
) -> tuple[str, ...]:
    """The beginning of the command, which the program and its arguments follow. An empty address or
    port becomes a placeholder."""
    if placement.nnodes == 1:
        rendezvous: tuple[str, ...] = ("--standalone",)
    else:
        address, port = meeting({"master_addr": master_addr, "master_port": master_port})
        rendezvous = (
            f"--node-rank={NODE_RANK}",
            f"--master-addr={address}",
            f"--master-port={port}",
        )
    restarts = (f"--max-restarts={max_restarts}",) if max_restarts else ()
    return (
        "torchrun",
        f"--nnodes={placement.nnodes}",
        f"--nproc-per-node={placement.nproc_per_node}",
        *rendezvous,
        *restarts,
    )


def ranks_started(
    workload: Workload, config: ParallelConfig, options: Mapping[str, Any]
) -> tuple[str, ...]:
    """torchrun for all ranks of a config, with the rendezvous from the options."""
    return torchrun(
        place(workload.cluster, config),
        master_addr=options["master_addr"],
        master_port=options["master_port"],
    )


def tf32_environment(precision: str) -> dict[str, str]:
    """The variable that switches TF32 on or off for fp32 matrix products; empty for other
    precisions. ATen reads the variable when the library is loaded (aten/src/ATen/Context.cpp)."""
    if precision not in ("fp32", "tf32"):
        return {}
    return {"TORCH_ALLOW_TF32_CUBLAS_OVERRIDE": "1" if precision == "tf32" else "0"}
