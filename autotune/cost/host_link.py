"""Offloading: what goes between a GPU and the memory of its host, and how long the host takes for the optimizer's step.

    optimizer     gradients go down in fp32 (in 16 bits where nothing is kept in fp32), weights come up in 16 bits, the host updates (Ren et al.,
                  ZeRO-Offload, arXiv 2101.06840)
    activations   what a layer keeps goes down in the forward pass and comes up in the backward pass, concurrently with compute

`LINK_EFFICIENCY` of the link's bandwidth (`GpuSpec.host_bytes_per_s`) is reached. The host updates from its memory, of which a GPU's share is that of
a server with 8 GPUs and two sockets (DGX H100: 16 channels of DDR5-4800, 614 GB/s), or where the link is faster than PCIe that of Grace (500 GB/s, of as many
GPUs as share its link of 450 GB/s; NVIDIA datasheets). Of a server's memory a fifth is reached: 3.8e9 weights/s by CPU-Adam on two sockets of 24 cores (arXiv 2101.06840, table 4:
10e9 weights in 2.6 s), 4.2e9 by eight ranks beside H200 and B200 (published_open.csv: an 8B model takes 1.9 s more), 28 bytes each; of Grace's half is assumed.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from autotune.cost.layout import Column
from autotune.spec import ConfigTable, GpuSpec, Workload

LINK_EFFICIENCY = 0.85
"""fraction of the link's bandwidth that copies reach"""
GRADIENT_DOWN_BYTES, HALF_BYTES = 4.0, 2.0
PCIE_BYTES_PER_S, GRACE_BYTES_PER_S = 64e9, 450e9
"""the fastest PCIe x16, and the link of a whole Grace, in one direction"""
SERVER_UPDATE_BYTES_PER_S, GRACE_UPDATE_BYTES_PER_S = 15e9, 250e9
"""bytes of weights and moments that the host updates per second, for one GPU of a server, and with a whole Grace"""


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
    """Seconds of the optimizer's step on the host. `weights`: that the rank updates, `moved_bytes`: of the update (`update.py`)."""
    gpu = workload.cluster.gpu
    if gpu.is_cpu:  # its memory is the host's
        return moved_bytes / gpu.memory_bytes_per_s
    link = host_link(gpu)
    down = HALF_BYTES if workload.pure_bf16 else GRADIENT_DOWN_BYTES
    copied = weights * (down + HALF_BYTES) / link.bytes_per_s
    return np.asarray(copied + moved_bytes / link.update_bytes_per_s)


def offloaded_layer_s(gpu: GpuSpec, kept_bytes: Column) -> Column:
    """Seconds of copies of one layer's activations for one micro-batch, down and up; zero where the GPU's memory is the host's."""
    return np.zeros_like(kept_bytes) if gpu.is_cpu else 2.0 * kept_bytes / host_link(gpu).bytes_per_s
