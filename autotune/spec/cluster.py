"""The cluster that a model is trained on: a GPU type, links, and nodes of GPUs. SI units and bytes throughout.

Figures are those of the datasheets: dense peaks (no sparsity) per GPU, link bandwidths per GPU and direction. The fraction of them that a
trainer reaches is a constant of the cost model (`autotune.cost.calibration`).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from autotune.errors import CatalogError, SpecError
from autotune.spec.catalog_files import entry_names, read_entry
from autotune.spec.checks import figure, nearest, positive, positive_int
from autotune.spec.config import PRECISIONS

_LONGEST_LATENCY_S = 3600.0
_GIB = 1 << 30
_CLUSTER_NAME = re.compile(r"(?P<gpu>[a-z0-9-]+)-(?P<nodes>[0-9]{1,7})x(?P<gpus>[0-9]{1,4})")


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
    """source of the figures"""
    usd_per_hour: float | None = None
    """price of one GPU for one hour, if known"""
    power_watts: float | None = None
    """board power under load, W, if known"""

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

    @classmethod
    def of(cls, name: str) -> GpuSpec:
        """The catalog's GPU of that name. Raises `CatalogError` with the nearest name when there is none."""
        values = dict(read_entry("gpus", name, field="gpu"))
        del values["intra_node"], values["inter_node"]
        return cls(name=name, memory_bytes=float(round(values.pop("memory_gib") * _GIB)), **values)


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkSpec:
    """A link between GPUs."""

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
    """its name; GPU-NODESxGPUS for catalog clusters"""
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
    """cores that the ranks of a node share, for ranks that are CPU processes; None if not known"""

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
        """A cluster of the same kind with another size."""
        name = f"{self.gpu.name}-{num_nodes}x{gpus_per_node}"
        return replace(self, name=name, num_nodes=num_nodes, gpus_per_node=gpus_per_node)

    @classmethod
    def of(cls, gpu: str | GpuSpec, *, num_nodes: int = 1, gpus_per_node: int = 8) -> ClusterSpec:
        """A cluster of a catalog GPU (or of your own) with the links that come with it; `ClusterSpec.of("h100-sxm-4x8")` names the sizes at once.

        A GPU that is not in the catalog gets the default links of this class: give your own with `dataclasses.replace`.
        """
        if isinstance(gpu, str):
            has_sizes = gpu not in entry_names("gpus") and gpu.rpartition("-")[2].replace("x", "").isdigit()
            if has_sizes and (num_nodes, gpus_per_node) == (1, 8):
                return cls.named(gpu)
            gpu = GpuSpec.of(gpu)
        links: dict[str, Any] = {}
        if gpu.name in entry_names("gpus"):
            values = read_entry("gpus", gpu.name, field="gpu")
            links = {link: LinkSpec(**values[link]) for link in ("intra_node", "inter_node")}
        name = f"{gpu.name}-{num_nodes}x{gpus_per_node}"
        return cls(name=name, gpu=gpu, num_nodes=num_nodes, gpus_per_node=gpus_per_node, **links)

    @classmethod
    def named(cls, name: str) -> ClusterSpec:
        """The cluster of a name like `h100-sxm-4x8`: any size of any catalog GPU. Raises `CatalogError` for any other name."""
        gpus = entry_names("gpus")
        found = _CLUSTER_NAME.fullmatch(name)
        if not found:
            raise CatalogError(
                f"no cluster is called {name!r}",
                remedy=nearest(name, [f"{gpu}-1x8" for gpu in gpus])
                or "write GPU-NODESxGPUS, e.g. h100-sxm-4x8 for 4 nodes of 8",
                field="cluster",
            )
        if found["gpu"] not in gpus:
            raise CatalogError(
                f"no GPU is called {found['gpu']!r} (in cluster {name!r})",
                remedy=nearest(found["gpu"], gpus) or f"there are {', '.join(gpus)}",
                field="cluster",
            )
        return cls.of(found["gpu"], num_nodes=int(found["nodes"]), gpus_per_node=int(found["gpus"]))
