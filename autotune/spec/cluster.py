"""What a model is trained on: a GPU type, links, and nodes of GPUs. SI units and bytes throughout.

Figures are those of the datasheets: dense (no sparsity), per GPU, links per GPU and direction. What a given trainer really reaches is
kept apart, in the cost model's calibration.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from autotune.errors import SpecError
from autotune.spec.checks import figure, positive, positive_int
from autotune.spec.config import PRECISIONS

_LONGEST_LATENCY_S = 3600.0


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuSpec:
    """One accelerator, or one CPU rank."""

    name: str
    """catalog name"""
    memory_bytes: float
    """device memory, bytes"""
    peak_flops_per_s: Mapping[str, float]
    """dense peak by precision, FLOP/s; a precision that is absent is not supported"""
    memory_bytes_per_s: float
    """device-memory bandwidth, bytes/s"""
    source: str = ""
    """where the figures come from"""
    usd_per_hour: float | None = None
    """price of one GPU for one hour, where it is known"""
    power_watts: float | None = None
    """board power under load, W, where it is known"""

    def __post_init__(self) -> None:
        figure("memory_bytes", self.memory_bytes)
        figure("memory_bytes_per_s", self.memory_bytes_per_s)
        if not self.peak_flops_per_s:
            raise SpecError("peak_flops_per_s must name at least one precision", field="peak_flops_per_s")
        for precision, peak in self.peak_flops_per_s.items():
            if precision not in PRECISIONS:
                raise SpecError(
                    f"peak_flops_per_s has no precision called {precision!r}",
                    remedy=f"use {', '.join(PRECISIONS)}",
                )
            figure(f"peak_flops_per_s.{precision}", peak)

    @property
    def is_cpu(self) -> bool:
        """Whether ranks are processes on the CPU."""
        return self.name == "cpu"


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkSpec:
    """A way between GPUs, as one GPU sees it."""

    latency_s: float
    """time of an empty message, s"""
    bytes_per_s: float
    """bandwidth per GPU and direction, bytes/s"""

    def __post_init__(self) -> None:
        if positive("latency_s", self.latency_s, zero=True) > _LONGEST_LATENCY_S:
            raise SpecError(
                f"latency_s must be at most {_LONGEST_LATENCY_S:g} s, but is {self.latency_s:g}", field="latency_s"
            )
        figure("bytes_per_s", self.bytes_per_s)


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterSpec:
    """`num_nodes` equal nodes of `gpus_per_node` GPUs."""

    name: str
    """what people call it; GPU-NODESxGPUS for catalog clusters"""
    gpu: GpuSpec
    """the GPU type"""
    num_nodes: int = 1
    """nodes, >= 1"""
    gpus_per_node: int = 8
    """GPUs (or CPU ranks) per node, >= 1"""
    intra_node: LinkSpec = field(default_factory=lambda: LinkSpec(latency_s=5e-6, bytes_per_s=64e9))
    """link between GPUs of one node"""
    inter_node: LinkSpec = field(default_factory=lambda: LinkSpec(latency_s=10e-6, bytes_per_s=25e9))
    """link between GPUs of two nodes"""
    cores_per_node: int | None = None
    """cores that the ranks of a node share where ranks are processes on the CPU; None where that is not known"""

    def __post_init__(self) -> None:
        positive_int("num_nodes", self.num_nodes, at_most=1 << 20)
        positive_int("gpus_per_node", self.gpus_per_node, at_most=1 << 12)
        if self.cores_per_node is not None:
            positive_int("cores_per_node", self.cores_per_node, at_most=1 << 16)

    @property
    def num_gpus(self) -> int:
        """All GPUs (or CPU ranks)."""
        return self.num_nodes * self.gpus_per_node

    def resized(self, *, num_nodes: int, gpus_per_node: int) -> ClusterSpec:
        """The same kind of cluster in another size."""
        name = f"{self.gpu.name}-{num_nodes}x{gpus_per_node}"
        return replace(self, name=name, num_nodes=num_nodes, gpus_per_node=gpus_per_node)

    @classmethod
    def of(cls, gpu: str | GpuSpec, *, num_nodes: int = 1, gpus_per_node: int = 8) -> ClusterSpec:
        """A cluster of a catalog GPU, with the links that come with it; `ClusterSpec.of("h100-sxm-4x8")` names the sizes at once."""
        from autotune.spec.catalog import (
            cluster,
            cluster_of,
            gpu_names,
        )  # reads its files when it is asked, never at import

        names_sizes = (
            isinstance(gpu, str) and gpu not in gpu_names() and gpu.rpartition("-")[2].replace("x", "").isdigit()
        )
        if isinstance(gpu, str) and names_sizes and (num_nodes, gpus_per_node) == (1, 8):
            return cluster(gpu)
        return cluster_of(gpu, num_nodes=num_nodes, gpus_per_node=gpus_per_node)
