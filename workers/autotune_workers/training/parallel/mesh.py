"""The ranks of a trial as a mesh with the axes pp, dp, cp, tp (outermost first), and its process
groups.

tp is innermost, because it communicates most and consecutive ranks have the fastest links; pp is
outermost, because it communicates least. Gradients of dense weights are summed over `dp_cp`, because
context-parallel ranks have other positions of the same sequences. With expert parallelism, dp_cp is
also split as (expert_data, ep): ranks of an `ep` group have different experts, ranks of an
`expert_data` group the same ones.

With replicas of shards, dp_cp is split as (dp_cp_replica, dp_cp_shard), and expert_data likewise:
ranks of a shard group are consecutive and have different shards, ranks of a replica group have the
same shard.

All groups are created for one trial and destroyed after it, so that a reused rank has the same
state as a new one.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh

from autotune.spec import ParallelConfig
from autotune_workers.training.measuring.progress import Progress
from autotune_workers.training.torch_internals import (
    flatten_axes,
    forget_shardings,
    process_groups,
    split_axis,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class RankContext:
    """One rank of a gang. The default process group is initialized with exactly the gang's ranks."""

    rank: int
    """number in the gang, from 0"""
    world_size: int
    """number of ranks in the gang"""
    device: torch.device
    """device on which this rank computes"""
    progress: Progress = field(default_factory=Progress)
    """its progress in the trial"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Mesh:
    """A rank's coordinates on the axes, and the meshes of its axes."""

    pp: int
    """coordinate on the pipeline axis, from 0"""
    dp: int
    """coordinate on the data-parallel axis"""
    cp: int
    """coordinate on the context-parallel axis"""
    tp: int
    """coordinate on the tensor-parallel axis"""
    root: DeviceMesh
    """the mesh of all ranks, by (pp, dp, cp, tp)"""
    axes: Mapping[str, DeviceMesh]
    """the one-dimensional mesh of each axis that contains this rank"""
    hybrid: Mapping[str, DeviceMesh]
    """the axes with replicas of shards, as two-dimensional meshes"""

    def group(self, name: str) -> dist.ProcessGroup:
        """The process group of this axis that contains this rank."""
        return self.axes[name].get_group()

    def counted_groups(self) -> list[dist.ProcessGroup]:
        """This rank's process groups in which all ranks begin the same collectives in the same
        order, which excludes the pipeline's."""
        world = dist.group.WORLD
        groups = [world, *(self.group(name) for name in self.axes if name != "pp")]
        by_name = {
            group.group_name: group for group in groups if group is not None and group.size() > 1
        }
        by_name.pop(self.group("pp").group_name, None)
        return list(by_name.values())

    def shards_of(self, name: str) -> DeviceMesh:
        """The mesh for FSDP over an axis: the axis itself, or (replicas, shards) if it has
        replicas."""
        return self.hybrid.get(name, self.axes[name])


def tied_embedding_group(
    config: ParallelConfig, mesh: Mesh, context: RankContext
) -> dist.ProcessGroup | None:
    """The group of the first and the last pipeline rank, which share a tied embedding; None on ranks
    between them. Collective."""
    if config.pp == 1:
        return None
    ranks = mesh.root.mesh
    pairs = torch.stack((ranks[0].flatten(), ranks[-1].flatten()), dim=1).tolist()
    groups = [dist.new_group(pair) for pair in pairs]
    of_rank = [group for group, pair in zip(groups, pairs, strict=True) if context.rank in pair]
    return of_rank[0] if of_rank else None


def build_mesh(config: ParallelConfig, context: RankContext) -> Mesh:
    """Create the config's mesh over all ranks of the gang. Collective."""
    ep = config.ep
    names, sizes = ("pp", "dp", "cp", "tp"), (config.pp, config.dp, config.cp, config.tp)
    root = init_device_mesh(context.device.type, sizes, mesh_dim_names=names)
    axes = {name: root[name] for name in names}
    axes["dp_cp"] = flatten_axes(root["dp", "cp"], "dp_cp")
    if ep > 1:
        experts = split_axis(
            axes["dp_cp"], "dp_cp", (config.dp * config.cp // ep, ep), ("expert_data", "ep")
        )
        axes.update({name: experts[name] for name in ("expert_data", "ep")})
    hybrid: dict[str, DeviceMesh] = {}
    if config.dp_replicas > 1:
        # the order must be the same on all ranks
        for name in (name for name in ("dp_cp", "expert_data") if name in axes):
            split = (config.dp_replicas, axes[name].size() // config.dp_replicas)
            hybrid[name] = split_axis(axes[name], name, split, (f"{name}_replica", f"{name}_shard"))
            axes.update({inner: hybrid[name][inner] for inner in hybrid[name].mesh_dim_names or ()})
    pp, dp, cp, tp = (root.get_local_rank(name) for name in names)
    return Mesh(pp=pp, dp=dp, cp=cp, tp=tp, root=root, axes=axes, hybrid=hybrid)


def living_groups() -> set[dist.ProcessGroup]:
    """All current process groups of this rank."""
    return set(process_groups())


def destroy_groups(keep: set[dist.ProcessGroup]) -> None:
    """Destroy all process groups except `keep`, in the order of their creation, which is the same on
    all ranks."""
    for group in [g for g in process_groups() if g not in keep]:
        dist.destroy_process_group(group)
    forget_shardings()


def line_up(context: RankContext) -> None:
    """A barrier on the rank's device: return when all ranks have called it."""
    token = torch.zeros(1, device=context.device)
    dist.all_reduce(token)
    token.item()
