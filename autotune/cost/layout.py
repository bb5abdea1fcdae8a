"""Layout: where the ranks of each group sit, as columns of floats that all formulas of this package share.

Ranks are numbered with the tensor-parallel index fastest, then context, data, and pipeline slowest, and fill one node after another (the order of
Megatron-LM and of torch's DeviceMesh). A group is described by its size and by the number of its members that share a node.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from autotune.spec import ConfigTable, Workload

Column = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Group:
    """The ranks that take part in one collective."""

    size: Column
    """members"""
    per_node: Column
    """members that share a node"""
    crowd: Column
    """all ranks that share a node, members or not"""

    @property
    def nodes(self) -> Column:
        """Nodes that the group spans."""
        return np.ceil(self.size / self.per_node)


@dataclass(frozen=True, slots=True)
class Layout:
    """The configs of a table as floats, with the groups of their mesh."""

    tp: Column
    pp: Column
    dp: Column
    cp: Column
    ep: Column
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
    ep_group: Group
    stages_per_node: Column
    """neighbouring pipeline ranks that share a node"""


def layout_of(workload: Workload, table: ConfigTable) -> Layout:
    """The layout of every row."""
    tp, pp, dp, cp, ep = (table.column(n).astype(np.float64) for n in ("tp", "pp", "dp", "cp", "ep"))
    node = float(workload.cluster.gpus_per_node)

    world = tp * pp * dp * cp
    crowd = np.minimum(world, node)

    def group(size: Column, stride: Column) -> Group:
        return Group(size, np.clip(np.floor(node / stride), 1.0, size), crowd)

    micro_batch = table.micro_batch_size.astype(np.float64)
    return Layout(
        tp=tp,
        pp=pp,
        dp=dp,
        cp=cp,
        ep=ep,
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
        ep_group=group(ep, tp),
        stages_per_node=np.clip(np.floor(node / (tp * cp * dp)), 1.0, pp),
    )
