"""How often the host launches: its time for one layer and micro-batch, in units of a plain layer's forward and backward pass (`layer_host_s`).

    adapters     beside each matrix dropout, two products, a scaling and a sum, and their gradients (`ADAPTER`); with 4-bit weights their unpacking (`UNPACKING`)
    recompute    a repeated forward pass, and what the checkpoint itself does: saved tensors, hooks, states of random generators (`Traits.checkpoint_host`)
    ZeRO-3       hooks before and after every module, which gather and release its weights one by one (`Traits.shard_hooks`: DeepSpeed)

Measured on one CPU core with layers of Llama's form so narrow that nothing but the host counts (`python -m research.host_launches`: transformers, PEFT,
bitsandbytes, DeepSpeed); FSDP beside a process group that moves nothing (2.0, 2.8 to 3.3 times a plain layer with it). Assumed: a GPU's launches cost as much more in each.
"""

from __future__ import annotations

import numpy as np

from autotune.cost.flops import layer_matmuls
from autotune.cost.layout import Column, Layout
from autotune.cost.recompute import Repeated
from autotune.cost.trainable import apart
from autotune.cost.traits import Traits
from autotune.spec import ModelSpec, Workload

ADAPTER = 0.09
"""for one adapter"""
UNPACKING = 0.19
"""to unpack one matrix of 4 bits, forward and backward"""


def _matrices(model: ModelSpec, *, every: bool) -> float:
    """Weight matrices of one layer as libraries hold them."""
    return sum(apart(model, m.part) * m.share for m in layer_matmuls(model) if every or m.part in ("inputs", "output"))


def launches_of_layer(workload: Workload, layout: Layout, traits: Traits, again: Repeated) -> Column:
    """Host time of one layer as a multiple of a plain one's."""
    beside = 0.0
    if workload.peft is not None:
        adapted = _matrices(workload.model, every=workload.peft.targets == "all")
        unpacked = _matrices(workload.model, every=True) if workload.peft.method == "qlora" else 0.0
        beside = ADAPTER * adapted + UNPACKING * unpacked
    launches = (1.0 + beside) * (1.0 + traits.checkpoint_host * again.moved)
    if not traits.shard_hooks:
        return launches
    return launches + np.where(layout.zero == 3, traits.shard_hooks * (3.0 + again.moved) / 3.0, 0.0)
