"""Calibration: the constants of the cost model for one GPU type and trainer, which no datasheet
states.

Each is a physical quantity: the fraction of a datasheet figure that is reached, a size at which it
is half reached, or a time of the host. They are fitted to published measurements (`python -m
research.fit_cost_model`) or measured on a cluster (`autotune calibrate`). `constants.json` holds
the fitted ones with their source.

Bounds: no matmul of a trainer is faster than the fastest that was ever measured on the GPU
(`GpuSpec.measured_flops_per_s`).

    matmul_efficiency               <= measured / peak in bf16
    matmul_efficiency * fp8_factor  <= measured / peak in fp8

Below its rated power (`GpuSpec.clock`) matmuls and attention are slower by the clock that is left,
and the bounds lower; memory keeps its clock.

A GPU type that no trainer was measured on reaches the same share of its best matmul as the others
do of theirs: datasheets differ in how far their peaks can be reached at all (bf16: 87% on A100, 51%
on MI300X).

The network between domains by its fabric: what NCCL reaches of the ports' bandwidth, from public
measurements.

    efficiency   fraction of a port's bandwidth that the ring of a group with one member per domain reaches
    rails        exponent r: g members of a domain reach g ** r times that; 1 where every GPU has a port of its own
    decay        relative growth of the time per byte with each doubling of the domains beyond two
    hop_s        latency of a ring per domain that it joins, s
    most         bandwidth that all GPUs of a node reach together: over TCP the host's sockets are the limit, not its ports

Constants that a pair of GPU type and trainer was fitted to hold on the fabric of those runs alone;
on another fabric these stand in their place. A cluster that does not state its fabric has that of
the pair's runs, or else the usual one of its GPU type. Assumption: the network is not shared with
other jobs and not oversubscribed; where yours is, state the bandwidth that a GPU really gets.
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
    """The fastest matmul ever measured in a precision, as a fraction of the datasheet's peak; 1
    where none is known."""
    peak = gpu.peak_flops_per_s.get(precision)
    return float(gpu.ceiling_flops_per_s(precision) / peak) if peak else 1.0


def bounded(constants: Calibration, gpu: GpuSpec, *, share: float | None = None) -> Calibration:
    """The constants within the bounds of a GPU; `share`: of its best matmul that trainers reach,
    for a type that nothing was fitted on."""
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
"""least relative error of communication on a fabric that the pair of GPU type and trainer was not
fitted on: the achieved share of a port differs by as much between clusters (`spreads` of
`constants.json`). With 0.1 one trial left 80% of vTrain's runs on 8 to 64 nodes inside, whose pair
was fitted on one node"""


@final
@dataclass(frozen=True, slots=True)
class Network:
    """What NCCL reaches on one fabric."""

    efficiency: float
    rails: float
    decay: float
    hop_s: float
    source: str
    """where the figures come from"""
    most_bytes_per_s: float = math.inf
    """bandwidth of all that leaves a node, whatever its ports, bytes/s"""


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
"""by the words of `autotune.spec.cluster.FABRICS`"""


def on_fabric(constants: Calibration, cluster: ClusterSpec) -> Calibration:
    """The constants with those of the network replaced where they were not fitted on the cluster's
    fabric."""
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
    """where the constants come from, in words"""
    fabric: str = ""
    """fabric between the nodes on which inter_efficiency, rails, inter_decay and hop_s were fitted;
    empty if they are priors"""

    matmul_efficiency: float = 0.72
    """fraction of the peak FLOP/s that large matmuls reach"""
    half_factor: float = 1.0
    """factor on `matmul_efficiency` in bf16 and fp16; above 1 where the datasheet's figure for them
    is too low"""
    fp8_factor: float = 0.75
    """factor on `matmul_efficiency` in fp8, casts and scales included"""
    half_size: float = 300.0
    """h in the factor 1 + h * (1/m + 1/n + 1/k) on the time of an m x n x k matmul: a square one of
    side 3h takes twice as long"""
    attention_efficiency: float = 0.40
    """fraction of the peak FLOP/s in attention's scores and values, over sequences of 8,192 tokens
    (`attention.py`)"""
    attention_limit: float = 0.0
    """the same over sequences of any greater length, the most that it comes to; 0: what the GPU's
    kernels reach"""
    score_bytes: float = 12.0
    """bytes moved per attention score by kernels that store the score matrix
    (`compute.keeps_scores`)"""
    cast_bytes: float = 0.0
    """bytes moved per element that a matmul in 8 or 4 bits reads or writes, forward and backward,
    to cast and scale it; 0 where `fp8_factor` includes it"""
    grouped_efficiency: float = 0.95
    """factor on the rate of the experts' matmuls, beside that of their size, for padding and uneven
    last tiles"""
    expert_imbalance: float = 1.0
    """tokens of the busiest rank's experts, as a multiple of the mean; 1 where routing is
    balanced"""
    dispatch_efficiency: float = 0.6
    """fraction of the link bandwidth inside a node that sending tokens to experts and back reaches,
    launches included"""
    dispatch_overlap: float = 0.85
    """fraction of that time that can hide behind another micro-batch's compute (`ep_overlap`); the
    rest is the share of the device that it takes"""
    memory_efficiency: float = 0.75
    """fraction of the memory bandwidth in element-wise kernels"""
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
    """fraction of the link bandwidth inside a node"""
    inter_efficiency: float = 0.60
    """fraction of the link bandwidth between nodes"""
    rails: float = 0.6
    """exponent r: a group's bandwidth between nodes is proportional to (members per node) ** r; 1
    when every member uses a full port of its own"""
    inter_decay: float = 0.2
    """relative growth of a collective's time per byte with each doubling of its nodes beyond two"""
    latency_factor: float = 2.0
    """latency of a collective inside a node, as a multiple of the link's latency per doubling of
    the group"""
    turn_s: float = 0.0
    """time that a rank waits for its core, per member of the ring and per further rank on the core,
    s"""
    hop_s: float = 15e-6
    """latency of a ring collective per node that it joins, s"""
    tensor_hop_s: float = 0.0
    """further latency of a tensor-parallel collective per border between nodes that its ring
    crosses, s: nothing else runs meanwhile that would hide how far apart its ranks are"""
    pipelined_tensor_host_s: float = 0.1e-3
    """additional host time to launch one layer for one micro-batch if there is a pipeline between
    nodes too, per tensor-parallel rank and 1 + log2 of the nodes that these span, s"""
    send_host_s: float = 0.1e-3
    """host time of a pipeline send and receive, s"""
    data_overlap: float = 0.5
    """fraction of the data-parallel traffic that can hide behind the backward pass"""
    straggler: float = 0.01
    """relative growth of the step per doubling of the nodes"""
    full_speed_ranks: float = 0.0
    """number of ranks of a node that can run at full speed at once; more ranks share its cores; 0
    means all (every rank has its own device)"""
    activation_factor: float = 1.0
    """factor on the activations that the formulas count"""
    waiting_in_layer: float = 0.0
    """gathered inputs per layer and micro-batch in flight that are freed but stay reserved until
    the communication stream has used them, while the host runs ahead; with tensor parallelism
    only"""
    waiting_at_head: float = 0.0
    """the same in the output projection and the loss"""
    buffer_bytes: float = 1.0
    """temporary buffers of the data-parallel reduction, bytes per weight on the rank"""
    fragmentation: float = 0.05
    """what the allocator reserves beyond what is allocated, as a share of it, without expandable
    segments"""
    framework_bytes: float = 0.5e9
    """workspace of kernels and collectives that the allocator counts, bytes"""
    usable_fraction: float = 0.9
    """fraction of the device memory that the allocator can use before a run fails; the rest is CUDA
    context, communication buffers and fragmentation"""
    time_sigma: float = 0.15
    """standard deviation of a config's own error of log step time, beyond what all configs of its
    cluster share"""
    level_sigma: float = 0.2
    """standard deviation of the error that all configs of a cluster and its software share before
    any trial: a common level, and what one cluster's constants differ from another's by
    (`refit.py`)"""
    comm_sigma: float = 0.3
    """additional standard deviation for the share of the step that is communication or bubble,
    where few data constrain it"""
    expert_sigma: float = 0.15
    """additional standard deviation for models with experts, whose dispatch and routing few data
    constrain"""
    level: float = 1.0
    """factor on all step times: what clusters whose trainer was never fitted take beyond what
    constants pooled from other pairs predict; 1 for a fitted pair"""
    program_level: float = 1.0
    """the part of `level` that is assumed of programs that no fit has read; what was measured by
    itself, as the host's update, is without it"""
    memory_sigma: float = 0.12
    """standard deviation of log peak memory about the estimate"""
    dry_runs: DryRuns | None = field(default=None, compare=False, repr=False)
    """what dry runs said of the workload, by which the formulas are corrected; not among the
    constants that are kept"""

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
        """The calibration of plain values; omitted constants take their default. Raises `SpecError`
        for unknown names."""
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
        """Constants fitted to what was measured on `cluster`; a constant that nothing was measured
        for keeps the value of `calibration_for`.

        Keys of `measured`, all optional: `matmul`: list of {m, n, k, precision, flops_per_s};
        `memory_bytes_per_s`; `collectives`: list of {kind (all_reduce, all_gather, reduce_scatter),
        ranks, scope (intra, inter), bytes, time_s}; `host_overhead_s`: time to launch one layer's
        forward and backward pass; `concurrency`: list of {ranks, flops_per_s (per rank, all at
        once)}; `gpu`, `memory_bytes`, `versions`, `date`, `out_of_line` and `nodes` describe the
        measurement and determine no constant. Raises `SpecError` for other keys and for figures
        that are not positive numbers.
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
    """The constants with some of them as columns: one value for each row of a table.

    One evaluation of the formulas of time then serves several sets of constants. The result is for
    the formulas alone: its numbers are not checked, and it is never kept.
    """
    found = copy(constants)
    for name, column in columns.items():
        object.__setattr__(found, name, column)
    return found


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
    """Constants for the workload's GPU type and trainer; `source` says where they come from.

    In order of preference: 1. constants fitted to measurements of this pair; 2. the hardware
    constants of the GPU family and the software constants of the trainer, each pooled from other
    pairs; 3. the geometric mean of all pairs. The error bars grow in that order. Where the GPU
    family was fitted but not with this trainer, all times have the `level` of clusters of such
    programs that no fit had read; for a family that was never fitted none is known, and the error
    bars are those of such families. On a CPU cluster the ranks share the cores of their node. The
    network's constants are those of the cluster's fabric (`autotune.cost.calibration`), and no
    efficiency is above what was ever measured on the GPU (`autotune.cost.calibration`). `known`:
    the content of `constants.json`, or of a fit that has not seen some rows.
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
    """The constants with the limit of the program's attention kernel.

    The level of unread programs is what they lose beside their kernels, so the kernel's own limit
    is without it. A kernel that the workload states loses as much beside itself as the kernels do
    that the constants are of.
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
    """How far clusters of one GPU type and trainer lie apart, constant by constant, and how errors
    of their configs resemble each other (`refit`)."""
    return dict(_known()["refit"])


_LACKING = {
    (False, False): "this GPU or trainer",
    (False, True): "this GPU",
    (True, False): "this trainer",
    (True, True): "this GPU with this trainer",
}
"""what no constants were fitted to, by whether those of the GPU and of the trainer are known;
`research.held_out.kind_of` reads these words"""


def known_constants(
    gpu: str, trainer: str, *, known: Mapping[str, Any] | None = None
) -> Calibration:
    """The constants for a GPU type and a trainer by name; see `calibration_for`."""
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
    """What its source says of a trainer without traits of its own."""
    return (
        ""
        if trainer in TRAITS
        else f", memory and overlap of {USUAL}, because those of {trainer} are unknown"
    )


def _family(gpu: str, known: Mapping[str, Any]) -> str:
    """The family of GPU types that the type belongs to; empty for one of its own."""
    return next((f for f, members in known["families"].items() if gpu in members), "")
