"""Stalls: on some runs of a pipeline over nodes every send between stages waits, and the step takes
several times as long.

    stalled step = step + s * n        n: sends of the busiest rank that wait one after another: 2 m v min(p - 1, 2)        s: seconds of a stalled send
    chance       = 1 / (1 + exp(-(a + b log2 nodes)))                                                                       0 for a pipeline inside a domain

In a published sweep on 2 to 16 nodes one such run in ten stalls, and 0.29 s a send explain all of
them: whatever the model, the message, the degrees and the number of nodes. So a stall is a property
of network and software and not of the config, and no training on one node shows it. Predicted is
the mixture of both: the step time of an estimate is that without a stall, its interval is that of
the mixture. a, b and s are fitted by `research/fit_stalls.py`.

Offloading: what goes between a GPU and the memory of its host, and how long the host takes for the
optimizer's step.

    optimizer     gradients go down in fp32 (in 16 bits where nothing is kept in fp32), weights come up in 16 bits, the host updates (Ren et al.,
                  ZeRO-Offload, arXiv 2101.06840)
    activations   what a layer keeps goes down in the forward pass and comes up in the backward pass, concurrently with compute

`LINK_EFFICIENCY` of the link's bandwidth (`GpuSpec.host_bytes_per_s`) is reached. The host updates
from its memory, of which a GPU's share is that of a server with 8 GPUs and two sockets (DGX H100:
16 channels of DDR5-4800, 614 GB/s), or where the link is faster than PCIe that of Grace (500 GB/s,
of as many GPUs as share its link of 450 GB/s; NVIDIA datasheets). Of a server's memory a fifth is
reached: 3.8e9 weights/s by CPU-Adam on two sockets of 24 cores (arXiv 2101.06840, table 4: 10e9
weights in 2.6 s), 4.2e9 by eight ranks beside H200 and B200 (published_open.csv: an 8B model takes
1.9 s more), 28 bytes each; of Grace's half is assumed.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, final

import numpy as np
from numpy.typing import NDArray

from autotune.cost.layout import Column, Layout
from autotune.spec import ClusterSpec, ConfigTable, GpuSpec, Workload

LINK_EFFICIENCY = 0.85
"""fraction of the link's bandwidth that copies reach"""
GRADIENT_DOWN_BYTES, HALF_BYTES = 4.0, 2.0
PCIE_BYTES_PER_S, GRACE_BYTES_PER_S = 64e9, 450e9
"""the fastest PCIe x16, and the link of a whole Grace, in one direction"""
SERVER_UPDATE_BYTES_PER_S, GRACE_UPDATE_BYTES_PER_S = 15e9, 250e9
"""bytes of weights and moments that the host updates per second, for one GPU of a server, and with
a whole Grace"""


@dataclass(frozen=True, slots=True)
class HostLink:
    """The way between one GPU and its host."""

    bytes_per_s: float
    """in one direction"""
    update_bytes_per_s: float
    """bytes of weights and moments that the host updates for one GPU, per second"""


def host_link(gpu: GpuSpec) -> HostLink:
    """The link of a GPU type."""
    rate, update = gpu.host_bytes_per_s, SERVER_UPDATE_BYTES_PER_S
    if rate > PCIE_BYTES_PER_S:
        update = GRACE_UPDATE_BYTES_PER_S * rate / GRACE_BYTES_PER_S
    return HostLink(rate * LINK_EFFICIENCY, update)


def is_offloaded(table: ConfigTable, what: str) -> NDArray[np.bool_]:
    """Rows whose `what` (optimizer or activations) is kept on the host."""
    return table.is_word("offload", what) | table.is_word("offload", "all")


def offloaded_update_s(workload: Workload, weights: Column, moved_bytes: Column) -> Column:
    """Seconds of the optimizer's step on the host. `weights`: that the rank updates, `moved_bytes`:
    of the update (`time/step.py`)."""
    gpu = workload.cluster.gpu
    if gpu.is_cpu:  # its memory is the host's
        return moved_bytes / gpu.memory_bytes_per_s
    link = host_link(gpu)
    down = HALF_BYTES if workload.pure_bf16 else GRADIENT_DOWN_BYTES
    copied = weights * (down + HALF_BYTES) / link.bytes_per_s
    return np.asarray(copied + moved_bytes / link.update_bytes_per_s)


def offloaded_layer_s(gpu: GpuSpec, kept_bytes: Column) -> Column:
    """Seconds of copies of one layer's activations for one micro-batch, down and up; zero where the
    GPU's memory is the host's."""
    return (
        np.zeros_like(kept_bytes) if gpu.is_cpu else 2.0 * kept_bytes / host_link(gpu).bytes_per_s
    )


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Stalls:
    """How often sends stall, and for how long."""

    log_odds: float
    """a: log odds that a pipeline over nodes stalls, without the term of the nodes"""
    per_doubling: float
    """b: what twice the nodes add to the log odds"""
    send_s: float
    """s: seconds of a stalled send"""


@cache
def known_stalls() -> Stalls:
    """The stalls of published sweeps."""
    path = Path(__file__).parents[1] / "constants.json"
    values: Mapping[str, Any] = json.loads(path.read_text(encoding="utf-8"))["stalls"]
    return Stalls(**{name: values[name] for name in Stalls.__dataclass_fields__})


def stall_probability(cluster: ClusterSpec, layout: Layout, stalls: Stalls) -> Column:
    """Chance that sends between stages stall, shape (N,)."""
    nodes = np.ceil(layout.world / cluster.gpus_per_node)
    chance = 1.0 / (1.0 + np.exp(-stalls.log_odds - stalls.per_doubling * np.log2(nodes)))
    return np.where(layout.stages_per_domain < layout.pp, chance, 0.0)


def with_stalls(cluster: ClusterSpec, layout: Layout, step_s: Column) -> tuple[Column, Column]:
    """Chance that the sends of a step of `step_s` seconds stall, and seconds of the step then, each
    of shape (N,)."""
    stalls = known_stalls()
    chance = stall_probability(cluster, layout, stalls)
    return chance, np.where(chance > 0, step_s + stalls.send_s * waiting_sends(layout), step_s)


def waiting_sends(layout: Layout) -> Column:
    """n: sends of a step that wait one after another on the busiest rank, shape (N,). A rank
    between two others sends and receives in both passes."""
    return 2.0 * layout.accumulation * layout.virtual * np.minimum(layout.pp - 1.0, 2.0)
