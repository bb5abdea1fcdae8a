"""The ranks of a trial as a mesh with the axes pp, dp, cp, tp (the slowest first), and the groups
that follow from it.

tp is innermost because it talks most and neighbours are nearest; pp is outermost because it talks
least. `dp_cp` is the axis over which gradients of dense weights are summed: context-parallel ranks
see other positions of the same sequences. With experts it is also cut as (expert_data, ep): ranks
of one `ep` group hold different experts, ranks of one `expert_data` group the same ones.

With replicas of shards, dp_cp is cut again as (dp_cp_replica, dp_cp_shard), and expert_data
likewise: ranks of one shard group hold different shards and are neighbours, ranks of one replica
group hold the same shard.

All groups are made for one trial and destroyed after it, so that a warm rank stays as clean as a
fresh one.
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
    """One rank of a gang; the default process group of exactly these ranks is initialized."""

    rank: int
    """of the gang, from 0"""
    world_size: int
    """ranks of the gang"""
    device: torch.device
    """where this rank computes"""
    progress: Progress = field(default_factory=Progress)
    """how far it has come"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Mesh:
    """A rank's place on every axis, and the axes as meshes where they are longer than one."""

    pp: int
    """this rank's place on the pipeline axis, from 0"""
    dp: int
    """on the data-parallel axis"""
    cp: int
    """on the context-parallel axis"""
    tp: int
    """on the tensor-parallel axis"""
    root: DeviceMesh
    """all ranks, by (pp, dp, cp, tp)"""
    axes: Mapping[str, DeviceMesh]
    """the one-dimensional mesh of each axis through this rank"""
    hybrid: Mapping[str, DeviceMesh]
    """the axes that are cut into replicas of shards, as two-dimensional meshes"""

    def group(self, name: str) -> dist.ProcessGroup:
        """The process group of that axis through this rank."""
        return self.axes[name].get_group()

    def counted_groups(self) -> list[dist.ProcessGroup]:
        """The process groups of this rank in which every rank begins the same collectives in the
        same order: not the pipeline's."""
        world = dist.group.WORLD
        groups = [world, *(self.group(name) for name in self.axes if name != "pp")]
        found = {
            group.group_name: group for group in groups if group is not None and group.size() > 1
        }
        found.pop(self.group("pp").group_name, None)
        return list(found.values())

    def shards_of(self, name: str) -> DeviceMesh:
        """The mesh over which FSDP shards what the ranks of the axis hold alike: the axis, or
        (replicas, shards) where it is cut so."""
        return self.hybrid.get(name, self.axes[name])


def tied_embedding_group(
    config: ParallelConfig, mesh: Mesh, context: RankContext
) -> dist.ProcessGroup | None:
    """This rank's group of first and last pipeline rank, which both hold a tied embedding; None on
    ranks between them. Collective."""
    if config.pp == 1:
        return None
    ranks = mesh.root.mesh
    pairs = torch.stack((ranks[0].flatten(), ranks[-1].flatten()), dim=1).tolist()
    groups = [dist.new_group(pair) for pair in pairs]
    own = [group for group, pair in zip(groups, pairs, strict=True) if context.rank in pair]
    return own[0] if own else None


def build_mesh(config: ParallelConfig, context: RankContext) -> Mesh:
    """The mesh of the config over all ranks of the gang; collective."""
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
        # in one order on all ranks
        for name in (name for name in ("dp_cp", "expert_data") if name in axes):
            cut = (config.dp_replicas, axes[name].size() // config.dp_replicas)
            hybrid[name] = split_axis(axes[name], name, cut, (f"{name}_replica", f"{name}_shard"))
            axes.update({inner: hybrid[name][inner] for inner in hybrid[name].mesh_dim_names or ()})
    pp, dp, cp, tp = (root.get_local_rank(name) for name in names)
    return Mesh(pp=pp, dp=dp, cp=cp, tp=tp, root=root, axes=axes, hybrid=hybrid)


def living_groups() -> set[dist.ProcessGroup]:
    """Every process group that this rank is in now."""
    return set(process_groups())


def destroy_groups(keep: set[dist.ProcessGroup]) -> None:
    """Destroys the groups that were made since `keep` was taken, in the order in which they were
    made (the same on every rank)."""
    for group in [g for g in process_groups() if g not in keep]:
        dist.destroy_process_group(group)
    forget_shardings()


def line_up(context: RankContext) -> None:
    """A barrier on the device of the rank: returns when every rank has come here."""
    token = torch.zeros(1, device=context.device)
    dist.all_reduce(token)
    token.item()
