"""The ranks of a trial as a mesh with the axes pp, dp, cp, tp (the slowest first), and the groups that follow from it.

tp is innermost because it talks most and neighbours are nearest; pp is outermost because it talks least. `dp_cp` is the axis over which
gradients of dense weights are summed: context-parallel ranks see other positions of the same sequences. With experts it is also cut as
(expert_data, ep): ranks of one `ep` group hold different experts, ranks of one `expert_data` group the same ones.

All groups are made for one trial and destroyed after it, so that a warm rank stays as clean as a fresh one.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.tensor import _redistribute, _sharding_prop
from torch.distributed.tensor.debug import _clear_sharding_prop_cache

from autotune.spec import ParallelConfig


@dataclass(frozen=True, slots=True, kw_only=True)
class RankContext:
    """One rank of a gang; the default process group of exactly these ranks is initialized."""

    rank: int
    """of the gang, from 0"""
    world_size: int
    """ranks of the gang"""
    device: torch.device
    """where this rank computes"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Mesh:
    """A rank's place on every axis, and the axes as meshes where they are longer than one."""

    pp: int
    dp: int
    cp: int
    tp: int
    root: DeviceMesh
    axes: Mapping[str, DeviceMesh]
    """the one-dimensional mesh of each axis through this rank"""

    def group(self, name: str) -> dist.ProcessGroup:
        """The process group of that axis through this rank."""
        return self.axes[name].get_group()


def build_mesh(config: ParallelConfig, context: RankContext) -> Mesh:
    """The mesh of the config over all ranks of the gang; collective."""
    ep = config.ep
    names, sizes = ("pp", "dp", "cp", "tp"), (config.pp, config.dp, config.cp, config.tp)
    root = init_device_mesh(context.device.type, sizes, mesh_dim_names=names)
    axes = {name: root[name] for name in names}
    axes["dp_cp"] = root["dp", "cp"]._flatten("dp_cp")
    if ep > 1:
        experts = axes["dp_cp"]._unflatten("dp_cp", (config.dp * config.cp // ep, ep), ("expert_data", "ep"))
        axes.update({name: experts[name] for name in ("expert_data", "ep")})
    pp, dp, cp, tp = (root.get_local_rank(name) for name in names)
    return Mesh(pp=pp, dp=dp, cp=cp, tp=tp, root=root, axes=axes)


def living_groups() -> set[dist.ProcessGroup]:
    """Every process group that this rank is in now."""
    return set(dist.distributed_c10d._world.pg_map)


def destroy_groups(keep: set[dist.ProcessGroup], *, forgiving: bool = False) -> None:
    """Destroys the groups that were made since `keep` was taken, in the order in which they were made (the same on every rank).

    DTensor remembers how it cut and moved tensors, by the shape of the mesh: a later mesh of the same shape would meet the groups of
    this one. So its memory goes too. `forgiving`: after a failure, groups that will not go must not hide its cause.
    """
    for group in [g for g in dist.distributed_c10d._world.pg_map if g not in keep]:
        with contextlib.suppress(RuntimeError, ValueError) if forgiving else contextlib.nullcontext():
            dist.destroy_process_group(group)
    _clear_sharding_prop_cache()
    for module in (_redistribute, _sharding_prop):
        for remembered in vars(module).values():
            if hasattr(remembered, "cache_clear") and not isinstance(remembered, type):
                remembered.cache_clear()


def line_up(context: RankContext) -> None:
    """Returns when every rank has come here (a barrier that needs no word of devices)."""
    token = torch.zeros(1, device=context.device)
    dist.all_reduce(token)
    token.item()
