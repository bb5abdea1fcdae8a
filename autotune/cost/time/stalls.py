"""Stalls: in some runs of a pipeline between nodes, every send between stages waits, and the step
takes several times as long.

    stalled step = step + s * n        n: sends of the busiest rank that wait one after another: 2 m v min(p - 1, 2)        s: seconds of a stalled send
    chance       = 1 / (1 + exp(-(a + b log2 nodes)))                                                                       0 for a pipeline inside a domain

In a published sweep on 2 to 16 nodes one such run in ten stalls, and 0.29 s per send explains all
of them, independent of the model, the message, the degrees and the number of nodes. So a stall is a
property of the network and the software, not of the config, and cannot be observed on one node. The
prediction is a mixture of both: the step time of an estimate is that without a stall, its interval
is that of the mixture. a, b and s are fitted by `research/fit_stalls.py`.

Offloading: the traffic between a GPU and its host's memory, and the time of the optimizer step on
the host.

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
"""achieved fraction of the link's bandwidth"""
GRADIENT_DOWN_BYTES, HALF_BYTES = 4.0, 2.0
PCIE_BYTES_PER_S, GRACE_BYTES_PER_S = 64e9, 450e9
"""the fastest PCIe x16, and the link of a whole Grace, in one direction"""
SERVER_UPDATE_BYTES_PER_S, GRACE_UPDATE_BYTES_PER_S = 15e9, 250e9
"""bytes of weights and moments that the host updates per second, for one GPU of a server, and with
a whole Grace"""


@dataclass(frozen=True, slots=True)
class HostLink:
    """Bandwidths between one GPU and its host."""

    bytes_per_s: float
    """bytes/s of copies in one direction"""
    update_bytes_per_s: float
    """bytes of weights and moments that the host updates per second for one GPU"""


def host_link(gpu: GpuSpec) -> HostLink:
    """Return the link of a GPU type."""
    rate, update = gpu.host_bytes_per_s, SERVER_UPDATE_BYTES_PER_S
    if rate > PCIE_BYTES_PER_S:
        update = GRACE_UPDATE_BYTES_PER_S * rate / GRACE_BYTES_PER_S
    return HostLink(rate * LINK_EFFICIENCY, update)


def is_offloaded(table: ConfigTable, what: str) -> NDArray[np.bool_]:
    """Return whether each row keeps `what` (optimizer or activations) on the host, shape (N,)."""
    return table.is_word("offload", what) | table.is_word("offload", "all")


def offloaded_update_s(workload: Workload, weights: Column, moved_bytes: Column) -> Column:
    """Return the seconds of the optimizer's step on the host. `weights`: number of weights that the
    rank updates; `moved_bytes`: bytes that the update moves (`time/step.py`)."""
    gpu = workload.cluster.gpu
    if gpu.is_cpu:  # its memory is the host's
        return moved_bytes / gpu.memory_bytes_per_s
    link = host_link(gpu)
    down = HALF_BYTES if workload.pure_bf16 else GRADIENT_DOWN_BYTES
    copied = weights * (down + HALF_BYTES) / link.bytes_per_s
    return np.asarray(copied + moved_bytes / link.update_bytes_per_s)


def offloaded_layer_s(gpu: GpuSpec, kept_bytes: Column) -> Column:
    """Return the seconds of copies of one layer's activations for one micro-batch, in both
    directions; zero if the GPU shares the host's memory."""
    return (
        np.zeros_like(kept_bytes) if gpu.is_cpu else 2.0 * kept_bytes / host_link(gpu).bytes_per_s
    )


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Stalls:
    """Probability and duration of stalled sends."""

    log_odds: float
    """a: log odds that a pipeline between nodes stalls, without the term for the number of nodes"""
    per_doubling: float
    """b: increase of the log odds per doubling of the nodes"""
    send_s: float
    """s: seconds of a stalled send"""


@cache
def known_stalls() -> Stalls:
    """Return the constants fitted to published sweeps."""
    path = Path(__file__).parents[1] / "constants.json"
    values: Mapping[str, Any] = json.loads(path.read_text(encoding="utf-8"))["stalls"]
    return Stalls(**{name: values[name] for name in Stalls.__dataclass_fields__})


def stall_probability(cluster: ClusterSpec, layout: Layout, stalls: Stalls) -> Column:
    """Return the probability that sends between stages stall, shape (N,)."""
    nodes = np.ceil(layout.world / cluster.gpus_per_node)
    chance = 1.0 / (1.0 + np.exp(-stalls.log_odds - stalls.per_doubling * np.log2(nodes)))
    return np.where(layout.stages_per_domain < layout.pp, chance, 0.0)


def with_stalls(cluster: ClusterSpec, layout: Layout, step_s: Column) -> tuple[Column, Column]:
    """Return (the probability that sends stall, the seconds of a stalled step), shape (N,) each.
    `step_s`: seconds of a step without stalls."""
    stalls = known_stalls()
    chance = stall_probability(cluster, layout, stalls)
    return chance, np.where(chance > 0, step_s + stalls.send_s * waiting_sends(layout), step_s)


def waiting_sends(layout: Layout) -> Column:
    """Return n, the number of sequential sends of a step on the busiest rank, shape (N,). A rank
    between two others sends and receives in both passes."""
    return 2.0 * layout.accumulation * layout.virtual * np.minimum(layout.pp - 1.0, 2.0)
