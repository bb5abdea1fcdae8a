"""The cluster that a model is trained on: a GPU type, links, and nodes of GPUs. SI units and bytes
throughout.

    node        GPUs of one host                                   intra_node link
    domain      nodes that one NVLink switch joins; usually one    intra_node link (a GB200 NVL72 rack: 18 nodes of 4)
    cluster     all domains                                        inter_node link

Figures come from datasheets: dense peaks (no sparsity) per GPU, link bandwidths per GPU in each
direction. The fraction that a trainer achieves of a figure is a constant in the cost model
(`autotune.cost.calibration`).
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from autotune.errors import CatalogError, SpecError
from autotune.spec.catalog_files import entry_names, read_entry
from autotune.spec.checks import figure, nearest, one_of, positive, positive_int
from autotune.spec.config import PRECISIONS

_MAX_LATENCY_S = 3600.0
_GIB = 1 << 30
_LINKS = ("intra_node", "inter_node")
_CLUSTER_KEYS = (*_LINKS, "gpus_per_node", "gpus_per_domain")
"""keys in a GPU's catalog file that are fields of `ClusterSpec`"""
_SAME_RATE: Mapping[str, str] = {"bf16": "fp16", "fp16": "bf16", "fp8": "mxfp8", "mxfp8": "fp8"}
"""pairs of precisions with the same rate"""
FABRICS: Mapping[str, float | None] = {
    "efa": None, "infiniband-edr": 12.5e9, "infiniband-hdr": 25e9, "infiniband-ndr": 50e9, "infiniband-xdr": 100e9,
    "roce": None, "ethernet": None, "nvlink": None,
}  # fmt: skip
"""kinds of network between nodes, with the bandwidth of a port in bytes/s if the kind determines
the bandwidth; `ethernet` is TCP without RDMA"""
CLOCK_OF_POWER = 0.45
"""exponent of the clock as a function of the power limit. The same multiprocessor was measured at
350 and at 700 W: an H100 PCIe with 114 multiprocessors multiplies at most 499.5 TFLOP/s, an H100
SXM with 132 at most 792.1 TFLOP/s (mag-/gpu_benchmark, README.md), so the rate per multiprocessor
is 0.73 at 350 W; a V100 loses 12% from 250 to 175 W (exponent 0.35)"""
_SIMILAR_NAME = re.compile(r"(?:(?P<gpus>[0-9]{1,4})x)?(?P<gpu>.+?)(?:-(?P<nodes>)[0-9x]*)?")
"""names that users write instead of a cluster's name: `8xh100`, `h100-8`"""
_CLUSTER_NAME = re.compile(r"(?P<gpu>[A-Za-z0-9_ -]+)-(?P<nodes>[0-9]{1,7})x(?P<gpus>[0-9]{1,4})")


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuSpec:
    """One accelerator, or one CPU rank."""

    name: str
    """catalog name"""
    memory_bytes: float
    """device memory, bytes"""
    peak_flops_per_s: Mapping[str, float]
    """dense peak by precision, FLOP/s; an absent precision is not supported"""
    memory_bytes_per_s: float
    """device-memory bandwidth, bytes/s"""
    host_bytes_per_s: float = 64e9
    """bandwidth of the link to host memory, bytes/s in one direction; default: PCIe 5.0 x16"""
    measured_flops_per_s: Mapping[str, float] = field(default_factory=dict)
    """largest known measured rate of a dense matmul, by precision, FLOP/s; an absent precision was
    not measured"""
    usual_fabric: str = ""
    """usual network between nodes with this GPU, one of `FABRICS`; empty if unknown"""
    source: str = ""
    """source of the figures"""
    usd_per_hour: float | None = None
    """price per GPU-hour, if known"""
    power_watts: float | None = None
    """board power under load in W, if known; the power limit if one is set"""
    rated_watts: float | None = None
    """power in W at which the datasheet's peak and `measured_flops_per_s` hold, if `power_watts` is
    lower; None if they hold at `power_watts`"""

    def __post_init__(self) -> None:
        figure("memory_bytes", self.memory_bytes)
        figure("memory_bytes_per_s", self.memory_bytes_per_s)
        figure("host_bytes_per_s", self.host_bytes_per_s)
        _check_fabric("usual_fabric", self.usual_fabric)
        if not self.peak_flops_per_s:
            raise SpecError(
                "peak_flops_per_s must contain at least one precision", field="peak_flops_per_s"
            )
        for name, rates in (
            ("peak_flops_per_s", self.peak_flops_per_s),
            ("measured_flops_per_s", self.measured_flops_per_s),
        ):
            for precision, rate in rates.items():
                if precision not in PRECISIONS:
                    raise SpecError(
                        f"{name} has no precision {precision!r}",
                        remedy=f"use {', '.join(PRECISIONS)}",
                        field=name,
                    )
                figure(f"{name}.{precision}", rate)
        for precision, rate in self.measured_flops_per_s.items():
            if rate > self.peak_flops_per_s.get(precision, 0.0):
                raise SpecError(
                    f"measured_flops_per_s.{precision} must be at most the peak, but is {rate:g} and the peak is "
                    f"{self.peak_flops_per_s.get(precision, 0.0):g}",
                    remedy="set peak_flops_per_s to the datasheet's dense peak",
                    field="measured_flops_per_s",
                )

    def ceiling_flops_per_s(self, precision: str) -> float:
        """Return an upper bound on a matmul's rate in this precision: the largest measured rate, or
        else the datasheet's peak. The GPU must have the precision.

        fp16 and bf16 run at the same rate, and so do fp8 and mxfp8: if only one of a pair was
        measured, its rate is the bound for both.
        """
        peak = self.peak_flops_per_s[precision]
        twin = _SAME_RATE.get(precision, precision)
        return self.measured_flops_per_s.get(
            precision, min(self.measured_flops_per_s.get(twin, peak), peak)
        )

    @property
    def clock(self) -> float:
        """Clock of power-limited kernels as a fraction of the clock at `rated_watts`; 1 if no lower
        power limit is set.

        Switching power is C V^2 f (Chandrakasan et al., IEEE J. Solid-State Circuits 27(4), 1992,
        equation 2). If voltage were proportional to the clock and nothing else used power, the
        clock would follow the cube root of the power; the measured exponent is `CLOCK_OF_POWER`.
        """
        if not (self.power_watts and self.rated_watts):
            return 1.0
        return float(min(self.power_watts / self.rated_watts, 1.0) ** CLOCK_OF_POWER)

    @property
    def is_cpu(self) -> bool:
        """Whether ranks are processes on the CPU."""
        return self.name == "cpu"

    @classmethod
    def of(cls, name: str) -> GpuSpec:
        """Return the catalog's GPU with this name. For an unknown name, raises `CatalogError` with
        the nearest name."""
        values = dict(read_entry("gpus", name, field="gpu"))
        for key in _CLUSTER_KEYS:
            values.pop(key, None)
        return cls(name=name, memory_bytes=float(round(values.pop("memory_gib") * _GIB)), **values)


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkSpec:
    """A link between GPUs."""

    latency_s: float
    """time of an empty message, s"""
    bytes_per_s: float
    """bandwidth per GPU in each direction, bytes/s"""
    fabric: str = ""
    """kind of network, one of `FABRICS`, for a link between nodes; empty if unknown"""

    def __post_init__(self) -> None:
        if positive("latency_s", self.latency_s, zero=True) > _MAX_LATENCY_S:
            raise SpecError(
                f"latency_s must be at most {_MAX_LATENCY_S:g} s, but is {self.latency_s:g}",
                field="latency_s",
            )
        figure("bytes_per_s", self.bytes_per_s)
        _check_fabric("fabric", self.fabric)


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterSpec:
    """`num_nodes` identical nodes with `gpus_per_node` GPUs each."""

    name: str
    """name of the cluster; GPU-NODESxGPUS for catalog clusters"""
    gpu: GpuSpec
    """the GPU type"""
    num_nodes: int = 1
    """nodes, >= 1"""
    gpus_per_node: int = 8
    """GPUs (or CPU ranks) per node, >= 1"""
    intra_node: LinkSpec = field(default_factory=lambda: LinkSpec(latency_s=5e-6, bytes_per_s=64e9))
    """link between GPUs in the same node or domain"""
    inter_node: LinkSpec = field(
        default_factory=lambda: LinkSpec(latency_s=10e-6, bytes_per_s=25e9)
    )
    """link between GPUs of two domains"""
    gpus_per_domain: int = 0
    """GPUs joined by the intra_node link, if it reaches beyond a node (72 in a GB200 NVL72 rack); 0
    if the link joins only the GPUs in a node"""
    cores_per_node: int | None = None
    """cores that the ranks of a node share, for ranks that are CPU processes; None if unknown"""

    def __post_init__(self) -> None:
        positive_int("num_nodes", self.num_nodes, at_most=1 << 20)
        positive_int("gpus_per_node", self.gpus_per_node, at_most=1 << 12)
        positive_int("gpus_per_domain", self.gpus_per_domain, at_most=1 << 20, least=0)
        if self.cores_per_node is not None:
            positive_int("cores_per_node", self.cores_per_node, at_most=1 << 16)

    @property
    def num_gpus(self) -> int:
        """All GPUs (or CPU ranks)."""
        return self.num_nodes * self.gpus_per_node

    @property
    def nodes_per_domain(self) -> int:
        """Whole nodes joined by the intra_node link; 1 on most clusters."""
        return min(max(1, self.gpus_per_domain // self.gpus_per_node), self.num_nodes)

    @property
    def domain_gpus(self) -> int:
        """GPUs joined by the intra_node link: those of a node, or of an NVLink domain."""
        return self.nodes_per_domain * self.gpus_per_node

    def domain_ranks(self, world: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return the ranks per domain of jobs with `world` ranks, in the shape of `world`.

        A job uses the same number of whole nodes in each of its domains. With 64 or 256 nodes in
        domains of 18, that is 16 nodes, so that no power-of-two group spans domains (Slurm's
        `--segment=16`). If no suitable number divides the number of nodes, as with 37, the job uses
        as few domains as possible.
        """
        if self.nodes_per_domain == 1:
            return np.full(np.shape(world), float(self.gpus_per_node))
        nodes, indices = np.unique(
            np.ceil(np.asarray(world) / self.gpus_per_node), return_inverse=True
        )
        ranks = [
            _nodes_per_domain(int(count), self.nodes_per_domain) * float(self.gpus_per_node)
            for count in nodes
        ]
        return np.reshape(np.array(ranks)[indices], np.shape(world))

    def resized(self, *, num_nodes: int, gpus_per_node: int) -> ClusterSpec:
        """Return the same kind of cluster in a different size."""
        name = f"{self.gpu.name}-{num_nodes}x{gpus_per_node}"
        return replace(self, name=name, num_nodes=num_nodes, gpus_per_node=gpus_per_node)

    @classmethod
    def of(cls, gpu: str | GpuSpec, *, num_nodes: int = 1, gpus_per_node: int = 8) -> ClusterSpec:
        """Return a cluster with its links and one type of GPU, from the catalog or your own. The
        name may include the size: `ClusterSpec.of("h100-sxm-4x8")` has 4 nodes with 8 GPUs each.

        A GPU outside the catalog gets this class's default links; set your own with
        `dataclasses.replace`.
        """
        if isinstance(gpu, str):
            has_sizes = (
                gpu not in entry_names("gpus") and gpu.rpartition("-")[2].replace("x", "").isdigit()
            )
            if has_sizes and (num_nodes, gpus_per_node) == (1, 8):
                return cls.named(gpu)
            gpu = GpuSpec.of(gpu)
        links: dict[str, Any] = {}
        if gpu.name in entry_names("gpus"):
            values = read_entry("gpus", gpu.name, field="gpu")
            links = {link: LinkSpec(**values[link]) for link in _LINKS}
            links |= {"gpus_per_domain": values.get("gpus_per_domain", 0)}
        name = f"{gpu.name}-{num_nodes}x{gpus_per_node}"
        return cls(name=name, gpu=gpu, num_nodes=num_nodes, gpus_per_node=gpus_per_node, **links)

    @classmethod
    def named(cls, name: str) -> ClusterSpec:
        """Return the cluster for a name like `h100-sxm-4x8`, with any size and any catalog GPU.
        Raises `CatalogError` for any other name."""
        gpus = entry_names("gpus")
        match = _CLUSTER_NAME.fullmatch(name)
        if name in gpus:
            raise CatalogError(
                f"{name!r} is a GPU type; a cluster also needs a number of nodes and GPUs per node",
                remedy=f"write {name}-NODESxGPUS, e.g. {name}-1x8",
                field="cluster",
            )
        if not match or match["gpu"] not in gpus:
            parts = match or _SIMILAR_NAME.fullmatch(name) or {"gpu": name, "nodes": "", "gpus": ""}
            word, size = parts["gpu"].lower(), f"-{parts['nodes'] or 1}x{parts['gpus'] or 8}"
            is_gpu = word in gpus
            raise CatalogError(
                f"there is no cluster {name!r}",
                remedy=nearest(word, [word] if is_gpu else gpus, ending=size)
                or f"write GPU-NODESxGPUS, e.g. h100-sxm-4x8 for 4 nodes of 8, with one of these GPUs: {', '.join(gpus)}",
                field="cluster",
            )
        return cls.of(match["gpu"], num_nodes=int(match["nodes"]), gpus_per_node=int(match["gpus"]))


def _check_fabric(name: str, word: object) -> None:
    """Raise `SpecError` if the word is neither empty nor one of `FABRICS`."""
    if word:
        one_of(name, word, FABRICS)


def _nodes_per_domain(nodes: int, at_most: int) -> int:
    """Return how many nodes a job with `nodes` nodes uses in each domain, which has `at_most`
    nodes."""
    even = nodes // math.ceil(nodes / at_most)
    equal = max(count for count in range(1, min(nodes, at_most) + 1) if nodes % count == 0)
    return equal if 2 * equal >= even else even
