"""Calibration: the constants of the cost model for one GPU type and trainer that are not in
datasheets.

Each is a physical quantity: the achieved fraction of a datasheet value, a size at which half of it
is achieved, or a time of the host. They are fitted to published measurements (`python -m
research.fit_cost_model`) or measured on a cluster (`autotune calibrate`). `constants.json` contains
the fitted constants with their source.

Bounds: no matmul of a trainer is faster than the fastest ever measured on the GPU
(`GpuSpec.measured_flops_per_s`).

    matmul_efficiency               <= measured / peak in bf16
    matmul_efficiency * fp8_factor  <= measured / peak in fp8

Below rated power, the speed of matmuls and attention and these bounds are scaled by the relative
clock (`GpuSpec.clock`); memory bandwidth is not.

A GPU type without measurements of any trainer is assumed to achieve the same share of its fastest
matmul as other types, because the achievable fraction of datasheet peaks differs (bf16: 87% on
A100, 51% on MI300X).

Network between domains by fabric: the bandwidth that NCCL achieves, from public measurements.

    efficiency   achieved fraction of a port's bandwidth for the ring of a group with one member per domain
    rails        exponent r: g members per domain achieve g ** r times that; 1 if every GPU has its own port
    decay        relative growth of the time per byte with each doubling of the domains beyond two
    hop_s        latency of a ring per domain, s
    most         maximum bandwidth of all GPUs of a node together; over TCP it is limited by the host's sockets instead of its ports

Network constants fitted for a pair of GPU type and trainer are valid only on the fabric of those
runs; on another fabric they are replaced by these. A cluster without a stated fabric is assumed to
have that of the pair's runs, or else the usual one of its GPU type. Assumption: the network is
neither shared with other jobs nor oversubscribed; if yours is, state the bandwidth that a GPU
really gets.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from copy import copy
from dataclasses import asdict, dataclass, field, fields, replace
from functools import cache
from pathlib import Path
from typing import Any, final

from autotune.cost.learn.dry_runs import DryRuns
from autotune.cost.learn.measured import KEYS, measured_constants
from autotune.cost.memory.constants import memory_values
from autotune.cost.time.attention_kernels import kernel_limit
from autotune.cost.traits import TRAITS, USUAL, loop_of, loop_traits, traits_of
from autotune.errors import SpecError
from autotune.spec import ClusterSpec, GpuSpec, Workload
from autotune.spec.checks import nearest, positive


def ceiling(gpu: GpuSpec, precision: str) -> float:
    """Return the speed of the fastest matmul ever measured in a precision, as a fraction of the
    datasheet's peak; 1 if there is no measurement."""
    peak = gpu.peak_flops_per_s.get(precision)
    return float(gpu.ceiling_flops_per_s(precision) / peak) if peak else 1.0


def bounded(constants: Calibration, gpu: GpuSpec, *, share: float | None = None) -> Calibration:
    """Return the constants limited to the bounds of a GPU. `share`: fraction of its fastest matmul
    that trainers achieve, for a GPU type without fitted constants."""
    plain, eight = ceiling(gpu, "bf16"), ceiling(gpu, "fp8")
    efficiency = min(constants.matmul_efficiency, plain)
    if share is not None and "bf16" in gpu.measured_flops_per_s:
        efficiency = share * plain
    factor = min(constants.fp8_factor, eight / efficiency)
    return replace(
        constants,
        matmul_efficiency=efficiency * gpu.clock,
        attention_efficiency=constants.attention_efficiency * gpu.clock,
        attention_limit=constants.attention_limit * gpu.clock,
        fp8_factor=factor,
    )


UNSURE = 0.3
"""minimum relative error of communication on a fabric on which the pair of GPU type and trainer was
not fitted: the achieved share of a port varies this much between clusters (`spreads` in
`constants.json`). With 0.1, after one trial only 80% of vTrain's runs on 8 to 64 nodes, whose pair
was fitted on one node, were inside their intervals"""


@final
@dataclass(frozen=True, slots=True)
class Network:
    """The performance of NCCL on one fabric; see above for the fields."""

    efficiency: float
    rails: float
    decay: float
    hop_s: float
    source: str
    """where the numbers are from"""
    most_bytes_per_s: float = math.inf
    """maximum bandwidth out of a node, independent of its ports, bytes/s"""


_INFINIBAND = Network(
    0.96, 1.0, 0.075, 14e-6,
    "46 to 48 of 50 GB/s per port (NVIDIA/nccl-tests issue 290), 192 of 200 GB/s on DGX A100 (NVIDIA/nccl issue 1576); reduce-scatter on 4 to 128 "
    "nodes of 8 H100: 360, 345, 320, 300, 280, 260 GB/s (NVIDIA/nccl issue 1229); latency of a ring's network step in NCCL's tuning.cc, 9.6 to 14 us",
)  # fmt: skip
NETWORKS: Mapping[str, Network] = {
    "efa": Network(
        1.0, 0.61, 0.14, 22e-6,
        "fitted to runs on 8 to 128 H100 of AWS p5 (nanotron_h100.csv); agrees with 182 GB/s of 400 in reduce-scatter over two such nodes "
        "(comm_measurements.csv)",
    ),
    "infiniband-edr": _INFINIBAND,
    "infiniband-hdr": _INFINIBAND,
    "infiniband-ndr": _INFINIBAND,
    "infiniband-xdr": _INFINIBAND,
    "roce": Network(
        0.82, 1.0, 0.10, 17e-6,
        "330 of 400 GB/s on two and 320 on four nodes of 8 H100 (NVIDIA/nccl issue 1221), 75 of 100 on two of 8 A100 (NVIDIA/nccl issue 495); a tuned "
        "fabric equals InfiniBand (Tolly report 225107). Decay and latency are assumed to lie between those of InfiniBand and EFA",
    ),
    "ethernet": Network(
        0.5, 1.0, 0.10, 50e-6,
        "NCCL over TCP sockets reached 4.7 of 12.5 GB/s (NVIDIA/nccl issue 398), 7 GB/s between two nodes of 4 A100 (published_open.csv); the rest assumed: order of magnitude of TCP",
        most_bytes_per_s=7e9,
    ),
    "nvlink": Network(
        0.84, 0.0, 0.0, 3.4e-6,
        "as inside a node: 835 GB/s of all-reduce over 72 GB200 (coreweave/nccl-tests pull request 43); latency of a ring's NVLink step in NCCL's "
        "tuning.cc",
    ),
}  # fmt: skip
"""network constants by fabric, named as in `autotune.spec.cluster.FABRICS`"""


def on_fabric(constants: Calibration, cluster: ClusterSpec) -> Calibration:
    """Return the constants, with those of the network replaced if they were not fitted on the
    cluster's fabric."""
    stated = cluster.inter_node.fabric
    if constants.fabric and stated in ("", constants.fabric):
        return constants
    network = NETWORKS.get(stated or cluster.gpu.usual_fabric)
    if network is None:
        return constants
    ports = cluster.inter_node.bytes_per_s * cluster.gpus_per_node
    return replace(
        constants,
        fabric="",
        inter_efficiency=min(network.efficiency, network.most_bytes_per_s / ports),
        rails=network.rails,
        inter_decay=network.decay,
        hop_s=network.hop_s,
        tensor_hop_s=0.0,
        comm_sigma=max(constants.comm_sigma, UNSURE),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Calibration:
    """Constants for one GPU type and trainer."""

    gpu: str = ""
    """GPU type that the constants hold for; empty for any"""
    trainer: str = ""
    """trainer that the constants hold for; empty for any"""
    source: str = "datasheet"
    """where the constants are from, as shown to users"""
    fabric: str = ""
    """fabric between the nodes on which inter_efficiency, rails, inter_decay and hop_s were fitted;
    empty if they are priors"""

    matmul_efficiency: float = 0.72
    """fraction of the peak FLOP/s achieved by large matmuls"""
    half_factor: float = 1.0
    """factor on `matmul_efficiency` in bf16 and fp16; above 1 if the datasheet's peak for them is
    too low"""
    fp8_factor: float = 0.75
    """factor on `matmul_efficiency` in fp8, including casts and scales"""
    half_size: float = 300.0
    """h in the factor 1 + h * (1/m + 1/n + 1/k) on the time of an m x n x k matmul: a square one of
    side 3h takes twice as long"""
    attention_efficiency: float = 0.40
    """fraction of the peak FLOP/s achieved in attention's scores and values for sequences of 8,192
    tokens (`attention.py`)"""
    attention_limit: float = 0.0
    """limit of this fraction for long sequences; 0: the limit of the GPU's kernels"""
    score_bytes: float = 12.0
    """bytes moved per attention score by kernels that store the score matrix
    (`compute.keeps_scores`)"""
    cast_bytes: float = 0.0
    """bytes moved per element that a matmul in 8 or 4 bits reads or writes, forward and backward,
    to cast and scale it; 0 if `fp8_factor` includes that"""
    grouped_efficiency: float = 0.95
    """factor on the rate of the experts' matmuls, in addition to that of their size, for padding
    and uneven last tiles"""
    expert_imbalance: float = 1.0
    """tokens of the busiest rank's experts, as a multiple of the mean; 1 for balanced routing"""
    dispatch_efficiency: float = 0.6
    """fraction of the link bandwidth inside a node achieved by sending tokens to experts and back,
    including launches"""
    dispatch_overlap: float = 0.85
    """fraction of that time that can be hidden behind another micro-batch's compute (`ep_overlap`);
    the rest is the share of the device that it occupies"""
    memory_efficiency: float = 0.75
    """fraction of the memory bandwidth achieved by element-wise kernels"""
    layer_host_s: float = 1.5e-3
    """host time to launch one layer's forward and backward pass for one micro-batch, s"""
    expert_host_s: float = 6e-3
    """additional host time to launch the router, the dispatcher and the experts of one layer,
    forward and backward, for one micro-batch, s"""
    micro_batch_host_s: float = 1e-3
    """host time per micro-batch and rank in addition to the layers, s"""
    step_host_s: float = 10e-3
    """host time per optimizer step, s"""
    intra_efficiency: float = 0.70
    """achieved fraction of the link bandwidth inside a node"""
    inter_efficiency: float = 0.60
    """achieved fraction of the link bandwidth between nodes"""
    rails: float = 0.6
    """exponent r: a group's bandwidth between nodes is proportional to (members per node) ** r; 1
    if every member has its own full port"""
    inter_decay: float = 0.2
    """relative growth of a collective's time per byte with each doubling of its nodes beyond two"""
    latency_factor: float = 2.0
    """latency of a collective inside a node, as a multiple of the link's latency per doubling of
    the group"""
    turn_s: float = 0.0
    """time that a rank waits for its core, per member of the ring and per additional rank on the
    core, s"""
    hop_s: float = 15e-6
    """latency of a ring collective per node, s"""
    tensor_hop_s: float = 0.0
    """additional latency of a tensor-parallel collective per node boundary in its ring, s; it is
    not hidden because nothing else runs meanwhile"""
    pipelined_tensor_host_s: float = 0.1e-3
    """additional host time to launch one layer for one micro-batch with a pipeline between nodes,
    per tensor-parallel rank and 1 + log2 of the nodes that the tensor-parallel group spans, s"""
    send_host_s: float = 0.1e-3
    """host time of a pipeline send and receive, s"""
    data_overlap: float = 0.5
    """fraction of the data-parallel traffic that can be hidden behind the backward pass"""
    straggler: float = 0.01
    """relative growth of the step per doubling of the nodes"""
    full_speed_ranks: float = 0.0
    """number of ranks of a node that can run at full speed simultaneously, because more ranks share
    its cores; 0: all (every rank has its own device)"""
    activation_factor: float = 1.0
    """factor on the predicted activations"""
    waiting_in_layer: float = 0.0
    """number of gathered inputs per layer and micro-batch in flight that are freed but stay
    reserved until the communication stream has used them, because the host runs ahead; only with
    tensor parallelism"""
    waiting_at_head: float = 0.0
    """the same in the output projection and the loss"""
    buffer_bytes: float = 1.0
    """temporary buffers of the data-parallel reduction, bytes per weight on the rank"""
    fragmentation: float = 0.05
    """memory that the allocator reserves in addition to the allocated memory, relative to it,
    without expandable segments"""
    framework_bytes: float = 0.5e9
    """workspace of kernels and collectives that is allocated by the allocator, bytes"""
    usable_fraction: float = 0.9
    """fraction of the device memory that the allocator can use before a run fails; the rest is CUDA
    context, communication buffers and fragmentation"""
    time_sigma: float = 0.15
    """standard deviation of a config's individual error of ln step time, in addition to the error
    shared by all configs of its cluster"""
    level_sigma: float = 0.2
    """standard deviation of the error of ln step time that all configs of a cluster and its
    software share before any trial: a common level, and differences of constants between clusters
    (`refit.py`)"""
    comm_sigma: float = 0.3
    """additional standard deviation for the share of the step that is communication or bubble,
    which is constrained by few data"""
    expert_sigma: float = 0.15
    """additional standard deviation for models with experts, whose dispatch and routing are
    constrained by few data"""
    level: float = 1.0
    """factor on all step times of a pair without a fit: measured step time divided by that
    predicted with constants pooled from other pairs; 1 for a fitted pair"""
    program_level: float = 1.0
    """the part of `level` that is assumed for programs without a fit; not applied to separately
    measured times such as the host's update"""
    memory_sigma: float = 0.12
    """standard deviation of ln peak memory about the estimate"""
    dry_runs: DryRuns | None = field(default=None, compare=False, repr=False)
    """results of dry runs of the workload, which correct the formulas; not stored with the
    constants"""

    def __post_init__(self) -> None:
        for name in NUMBERS:
            positive(name, getattr(self, name), zero=name in _MAY_BE_ZERO)

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON values."""
        return {
            name: value
            for name, value in asdict(replace(self, dry_runs=None)).items()
            if name != "dry_runs"
        }

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Calibration:
        """Make a calibration from plain values; omitted constants have their default. Raises
        `SpecError` for unknown names."""
        known = [f.name for f in fields(cls) if f.name != "dry_runs"]
        for name in values:
            if name not in known:
                raise SpecError(
                    f"a calibration has no constant {name!r}", remedy=nearest(name, known)
                )
        return cls(**values)

    @classmethod
    def from_measurements(
        cls, measured: Mapping[str, Any], *, cluster: ClusterSpec, trainer: str = "native"
    ) -> Calibration:
        """Return constants fitted to measurements on `cluster`; constants without measurements keep
        the value of `calibration_for`.

        Keys of `measured`, all optional: `matmul`: list of {m, n, k, precision, flops_per_s};
        `memory_bytes_per_s`; `collectives`: list of {kind (all_reduce, all_gather, reduce_scatter),
        ranks, scope (intra, inter), bytes, time_s}; `host_overhead_s`: time to launch one layer's
        forward and backward pass; `concurrency`: list of {ranks, flops_per_s (per rank, all at
        once)}; `gpu`, `memory_bytes`, `versions`, `date`, `out_of_line` and `nodes` describe the
        measurement and determine no constant. Raises `SpecError` for other keys and for values that
        are not positive numbers.
        """
        prior = on_fabric(known_constants(cluster.gpu.name, trainer), cluster)
        values: dict[str, Any] = dict(
            measured_constants(
                measured,
                cluster,
                half_size=prior.half_size,
                full_speed_ranks=prior.full_speed_ranks,
            )
        )
        what = ", ".join(key for key in KEYS if measured.get(key)) or "nothing"
        rest = prior.source.partition(";")[0]  # without the advice to calibrate
        return replace(
            prior, **values, source=f"measured on {cluster.name} ({what}); the rest: {rest}"
        )


def with_columns(constants: Calibration, columns: Mapping[str, Any]) -> Calibration:
    """Return the constants with some of them replaced by columns: one value per row of a table.

    This evaluates the time formulas for several sets of constants at once. The result is not
    validated, and must not be stored.
    """
    columnar = copy(constants)
    for name, column in columns.items():
        object.__setattr__(columnar, name, column)
    return columnar


NUMBERS = tuple(
    f.name
    for f in fields(Calibration)
    if f.name not in ("gpu", "trainer", "source", "fabric", "dry_runs")
)
"""names of all constants"""
_MAY_BE_ZERO = (
    "full_speed_ranks",
    "comm_sigma",
    "level_sigma",
    "expert_sigma",
    "layer_host_s",
    "expert_host_s",
    "dispatch_overlap",
    "micro_batch_host_s",
    "step_host_s",
    "send_host_s",
    "data_overlap",
    "straggler",
    "framework_bytes",
    "fragmentation",
    "latency_factor",
    "hop_s",
    "tensor_hop_s",
    "turn_s",
    "inter_decay",
    "rails",
    "pipelined_tensor_host_s",
    "score_bytes",
    "half_size",
    "attention_limit",
    "cast_bytes",
    "waiting_in_layer",
    "waiting_at_head",
    "buffer_bytes",
)


@cache
def _known() -> Mapping[str, Any]:
    path = Path(__file__).with_name("constants.json")
    return dict(json.loads(path.read_text(encoding="utf-8")))


def calibration_for(workload: Workload, *, known: Mapping[str, Any] | None = None) -> Calibration:
    """Return constants for the workload's GPU type and trainer; `source` says where they are from.

    In order of preference: 1. constants fitted to measurements of this pair; 2. the hardware
    constants of the GPU family and the software constants of the trainer, each pooled from other
    pairs; 3. the geometric mean of all pairs. The error bars grow in that order. If the GPU family
    was fitted but not with this trainer, all times have the `level` found for such programs in
    clusters left out of the fit. If the family was never fitted, the level is unknown, and the
    error bars are those of such families. On a CPU cluster the ranks share the cores of their node.
    The network's constants are those of the cluster's fabric, and no efficiency is above the
    highest ever measured on the GPU (see the top of this module). `known`: the content of
    `constants.json`, or of a fit without some rows.
    """
    gpu = workload.cluster.gpu
    document = known or _known()
    constants = on_fabric(
        known_constants(gpu.name, loop_of(workload), known=document), workload.cluster
    )
    if gpu.is_cpu:
        cores = workload.cluster.cores_per_node
        return replace(constants, full_speed_ranks=float(cores)) if cores else constants
    share = (
        None
        if _family(gpu.name, document) in document["hardware"]
        else document.get("share_of_measured")
    )
    return bounded(_with_kernel(constants, workload), gpu, share=share)


def _with_kernel(constants: Calibration, workload: Workload) -> Calibration:
    """Return the constants with the limit of the program's attention kernel.

    The level of programs without a fit describes losses outside their kernels, so it is divided out
    of the kernel's limit. A kernel stated by the workload is assumed to lose as much outside of it
    as the kernel for which the constants were fitted.
    """
    if constants.attention_limit:
        return constants
    gpu, level = workload.cluster.gpu, constants.program_level
    limit = kernel_limit(gpu, loop_traits(workload)) * level
    reached = constants.attention_efficiency
    if workload.attention_kernel:
        usual = kernel_limit(gpu, traits_of(loop_of(workload))) * level
        reached = min(1.0 / (1.0 / reached + 1.0 / limit - 1.0 / usual), limit)
    return replace(constants, attention_limit=limit, attention_efficiency=reached)


def refit_values() -> Mapping[str, Any]:
    """Return the standard deviation of each constant between clusters of one GPU type and trainer,
    and the parameters of the correlation of their configs' errors (`refit`)."""
    return dict(_known()["refit"])


_LACKING = {
    (False, False): "this GPU or trainer",
    (False, True): "this GPU",
    (True, False): "this trainer",
    (True, True): "this GPU with this trainer",
}
"""text for a pair without a fit, by whether constants of (the GPU, the trainer) are known;
`research.held_out.kind_of` parses it"""


def known_constants(
    gpu: str, trainer: str, *, known: Mapping[str, Any] | None = None
) -> Calibration:
    """Return the constants for a GPU type and a trainer by name; see `calibration_for`."""
    known = known or _known()
    names = {"gpu": gpu, "trainer": trainer, **memory_values(gpu, trainer)}
    family, loop = _family(gpu, known), known.get("loops", {}).get(trainer, trainer)
    pair = known["pairs"].get(f"{family}/{loop}")
    if pair is not None:
        return Calibration.from_dict({**pair, **names})
    if gpu == "cpu":
        constants = {**known["cpu"], **names}
        return Calibration.from_dict(
            {**constants, "source": constants["source"].replace(")", f"{_assumed(trainer)})", 1)}
        )
    hardware, software = known["hardware"].get(family, {}), known["software"].get(loop, {})
    lacking = _LACKING[bool(hardware), bool(software)]
    rates = f"{family} rates from other trainers" if hardware else "datasheet peaks"
    overheads = (
        f"{loop} overheads from other GPUs"
        if software
        else "overheads from other GPUs and trainers"
    )
    unread = known.get("unread_trainer", {})
    if hardware:
        assumed = unread.get("programs", {}).get(traits_of(trainer).program, 1.0)
        level = {"level": assumed, "program_level": assumed}
    else:
        level = {"level_sigma": unread.get("unfitted_gpu_sigma", known["pooled"]["level_sigma"])}
    constants = {**known["pooled"], **hardware, **software, **level, **names}
    source = f"not fitted to {lacking} ({rates}, {overheads}{_assumed(trainer)})"
    return Calibration.from_dict({**constants, "source": source})


def _assumed(trainer: str) -> str:
    """Return the addition to `source` for a trainer that is not in `TRAITS`; empty for others."""
    return (
        ""
        if trainer in TRAITS
        else f", memory and overlap of {USUAL}, because those of {trainer} are unknown"
    )


def _family(gpu: str, known: Mapping[str, Any]) -> str:
    """Return the family of a GPU type; empty if it belongs to none."""
    return next((f for f, members in known["families"].items() if gpu in members), "")
