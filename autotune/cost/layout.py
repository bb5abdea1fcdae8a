"""Layout: where the ranks of each group sit, as columns of floats that all formulas of this package share.

Ranks are numbered with the tensor-parallel index fastest, then context, data, and pipeline slowest, and fill one node after another (the order of
Megatron-LM and of torch's DeviceMesh). A group is described by its size and by the number of its members that share a domain: the GPUs that the fast
link joins, which is a node on most clusters and a rack of 18 nodes on a GB200 NVL72. A job takes equally many nodes of
each domain that it needs.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from autotune.spec import ConfigTable, Workload
from autotune.trainers.whole_experts import keeps_experts_whole

Column = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Group:
    """The ranks that take part in one collective."""

    size: Column
    """members"""
    per_domain: Column
    """members that share a domain"""
    crowd: Column
    """all ranks that share a node, members or not"""

    @property
    def domains(self) -> Column:
        """Domains that the group spans."""
        return np.ceil(self.size / self.per_domain)


@dataclass(frozen=True, slots=True)
class Layout:
    """The configs of a table as floats, with the groups of their mesh."""

    tp: Column
    pp: Column
    dp: Column
    cp: Column
    ep: Column
    expert_tp: Column
    """ranks over which tensor parallelism cuts one expert: tp, or 1 for a trainer that leaves experts whole"""
    micro_batch: Column
    """sequences per rank and micro-batch"""
    accumulation: Column
    """micro-batches per step and rank"""
    zero: Column
    """ZeRO stage"""
    sequence_parallel: NDArray[np.bool_]
    virtual: Column
    """pipeline stages per rank"""
    world: Column
    """ranks"""
    tokens: Column
    """tokens per rank and micro-batch: micro_batch * seq_len / cp"""
    tp_group: Group
    cp_group: Group
    data_group: Group
    """ranks with the same weights: dp * cp"""
    shard_group: Group
    """those over which one copy is sharded: dp * cp / dp_replicas, next to one another"""
    replica_group: Group
    """those that hold the same shard: dp_replicas"""
    ep_group: Group
    """ranks that hold different experts of a layer"""
    expert_shard_group: Group
    """those of one copy that hold the same experts, over which these are sharded: tp * cp * dp / (expert_tp * ep * dp_replicas)"""
    stages_per_domain: Column
    """neighbouring pipeline ranks that share a domain"""


def layout_of(workload: Workload, table: ConfigTable) -> Layout:
    """The layout of every row."""
    tp, pp, dp, cp, ep = (table.column(n).astype(np.float64) for n in ("tp", "pp", "dp", "cp", "ep"))
    world = tp * pp * dp * cp
    expert_tp = np.ones_like(tp) if keeps_experts_whole(workload.trainer) else tp
    crowd = np.minimum(world, float(workload.cluster.gpus_per_node))
    domain = workload.cluster.domain_ranks(world)

    def group(size: Column, stride: Column) -> Group:
        return Group(size, np.clip(np.floor(domain / stride), 1.0, size), crowd)

    shards = dp * cp / table.dp_replicas.astype(np.float64)
    micro_batch = table.micro_batch_size.astype(np.float64)
    return Layout(
        tp=tp,
        pp=pp,
        dp=dp,
        cp=cp,
        ep=ep,
        expert_tp=expert_tp,
        micro_batch=micro_batch,
        accumulation=table.accumulation_steps.astype(np.float64),
        zero=table.zero_stage.astype(np.float64),
        sequence_parallel=table.sequence_parallel & (table.tp > 1),
        virtual=np.maximum(table.virtual_stages, 1).astype(np.float64),
        world=world,
        tokens=micro_batch * workload.seq_len / cp,
        tp_group=group(tp, np.ones_like(tp)),
        cp_group=group(cp, tp),
        data_group=group(dp * cp, tp),
        shard_group=group(shards, tp),
        replica_group=group(dp * cp / shards, tp * shards),
        ep_group=group(ep, expert_tp),
        expert_shard_group=group(np.maximum(tp * shards / (expert_tp * ep), 1.0), expert_tp * ep),
        stages_per_domain=np.clip(np.floor(domain / (tp * cp * dp)), 1.0, pp),
    )
