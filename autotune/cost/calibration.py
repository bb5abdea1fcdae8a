"""Calibration: the constants of the cost model for one GPU type and trainer, which no datasheet states.

Each is a physical quantity: the fraction of a datasheet figure that is reached, a size at which it is half reached, or a time of the host. They are
fitted to published measurements (`python -m tests.benchmarks.fit_cost_model`) or measured on a cluster (`autotune calibrate`). `constants.json`
holds the fitted ones with their source.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields, replace
from functools import cache
from pathlib import Path
from typing import Any

from autotune.cost.measured import KEYS, measured_constants
from autotune.errors import SpecError
from autotune.spec import ClusterSpec, Workload
from autotune.spec.checks import nearest, positive


@dataclass(frozen=True, slots=True, kw_only=True)
class Calibration:
    """Constants for one GPU type and trainer."""

    gpu: str = ""
    """GPU type that the constants hold for; empty for any"""
    trainer: str = ""
    """trainer that the constants hold for; empty for any"""
    source: str = "datasheet"
    """where the constants come from, in words"""

    matmul_efficiency: float = 0.72
    """fraction of the peak FLOP/s that large matmuls reach"""
    half_factor: float = 1.0
    """factor on `matmul_efficiency` in bf16 and fp16; above 1 where the datasheet's figure for them is too low"""
    fp8_factor: float = 0.75
    """factor on `matmul_efficiency` in fp8, casts and scales included"""
    half_size: float = 300.0
    """h in the factor 1 + h * (1/m + 1/n + 1/k) on the time of an m x n x k matmul: a square one of side 3h takes twice as long"""
    attention_efficiency: float = 0.40
    """fraction of the peak FLOP/s in attention's scores and values"""
    score_bytes: float = 0.0
    """bytes moved per attention score by kernels that store the score matrix (`Traits.scores_kept_in` lists the precisions)"""
    memory_efficiency: float = 0.75
    """fraction of the memory bandwidth in element-wise kernels"""
    layer_host_s: float = 1.5e-3
    """host time to launch one layer's forward and backward pass for one micro-batch, s"""
    micro_batch_host_s: float = 1e-3
    """host time per micro-batch and rank in addition to the layers, s"""
    step_host_s: float = 10e-3
    """host time per optimizer step, s"""
    intra_efficiency: float = 0.70
    """fraction of the link bandwidth inside a node"""
    inter_efficiency: float = 0.60
    """fraction of the link bandwidth between nodes"""
    rails: float = 0.6
    """exponent r: a group's bandwidth between nodes is proportional to (members per node) ** r; 1 when every member uses a full port of its own"""
    inter_decay: float = 0.2
    """relative growth of a collective's time per byte with each doubling of its nodes beyond two"""
    latency_factor: float = 2.0
    """latency of a collective inside a node, as a multiple of the link's latency per doubling of the group"""
    turn_s: float = 0.0
    """time that a rank waits for its core, per member of the ring and per further rank on the core, s"""
    hop_s: float = 15e-6
    """latency of a ring collective per node that it joins, s"""
    pipelined_tensor_host_s: float = 0.1e-3
    """additional host time to launch one layer for one micro-batch, per tensor-parallel rank, if there is a pipeline too, s"""
    send_host_s: float = 0.1e-3
    """host time of a pipeline send and receive, s"""
    data_overlap: float = 0.5
    """fraction of the data-parallel traffic that can hide behind the backward pass"""
    straggler: float = 0.01
    """relative growth of the step per doubling of the nodes"""
    full_speed_ranks: float = 0.0
    """number of ranks of a node that can run at full speed at once; more ranks share its cores; 0 means all (every rank has its own device)"""
    activation_factor: float = 1.0
    """factor on the activations that the formulas count"""
    waiting_in_layer: float = 0.0
    """gathered inputs per layer and micro-batch in flight that are freed but stay reserved until the communication stream has used them,
    while the host runs ahead; with tensor parallelism only"""
    waiting_at_head: float = 0.0
    """the same in the output projection and the loss"""
    buffer_bytes: float = 1.0
    """temporary buffers of the data-parallel reduction, bytes per weight on the rank"""
    framework_bytes: float = 0.5e9
    """workspace of kernels and collectives that the allocator counts, bytes"""
    usable_fraction: float = 0.9
    """fraction of the device memory that the allocator can use before a run fails; the rest is CUDA context, communication buffers and
    fragmentation"""
    time_sigma: float = 0.15
    """standard deviation of log step time about the estimate"""
    comm_sigma: float = 0.3
    """additional standard deviation for the share of the step that is communication or bubble, where few data constrain it"""
    memory_sigma: float = 0.12
    """standard deviation of log peak memory about the estimate"""

    def __post_init__(self) -> None:
        for name in NUMBERS:
            positive(name, getattr(self, name), zero=name in _MAY_BE_ZERO)

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON values."""
        return asdict(self)

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Calibration:
        """The calibration of plain values; omitted constants take their default. Raises `SpecError` for unknown names."""
        known = [f.name for f in fields(cls)]
        for name in values:
            if name not in known:
                raise SpecError(f"a calibration has no constant called {name!r}", remedy=nearest(name, known))
        return cls(**values)

    @classmethod
    def from_measurements(
        cls, measured: Mapping[str, Any], *, cluster: ClusterSpec, trainer: str = "native"
    ) -> Calibration:
        """Constants fitted to what was measured on `cluster`; a constant that nothing was measured for keeps the value of `calibration_for`.

        Keys of `measured`, all optional: `matmul`: list of {m, n, k, precision, flops_per_s}; `memory_bytes_per_s`; `collectives`: list of
        {kind (all_reduce, all_gather, reduce_scatter), ranks, scope (intra, inter), bytes, time_s}; `host_overhead_s`: time to launch one layer's
        forward and backward pass; `concurrency`: list of {ranks, flops_per_s (per rank, all at once)}; `gpu`, `memory_bytes`, `versions` and
        `date` describe the measurement and determine no constant. Raises `SpecError` for other keys and for figures that are not positive numbers.
        """
        prior = known_constants(cluster.gpu.name, trainer)
        values: dict[str, Any] = dict(
            measured_constants(measured, cluster, half_size=prior.half_size, full_speed_ranks=prior.full_speed_ranks)
        )
        what = ", ".join(key for key in KEYS if measured.get(key)) or "nothing"
        rest = prior.source.partition(";")[0]  # without the advice to calibrate
        return replace(prior, **values, source=f"measured on {cluster.name} ({what}); the rest: {rest}")


NUMBERS = tuple(f.name for f in fields(Calibration) if f.name not in ("gpu", "trainer", "source"))
"""names of all constants"""
_MAY_BE_ZERO = (
    "full_speed_ranks",
    "comm_sigma",
    "layer_host_s",
    "micro_batch_host_s",
    "step_host_s",
    "send_host_s",
    "data_overlap",
    "straggler",
    "framework_bytes",
    "latency_factor",
    "hop_s",
    "turn_s",
    "inter_decay",
    "rails",
    "pipelined_tensor_host_s",
    "score_bytes",
    "half_size",
    "waiting_in_layer",
    "waiting_at_head",
)


@cache
def _known() -> Mapping[str, Any]:
    path = Path(__file__).with_name("constants.json")
    return dict(json.loads(path.read_text(encoding="utf-8")))


def calibration_for(workload: Workload) -> Calibration:
    """Constants for the workload's GPU type and trainer; `source` says where they come from.

    In order of preference: 1. constants fitted to measurements of this pair; 2. the hardware constants of the GPU family and the software constants
    of the trainer, each pooled from other pairs; 3. the geometric mean of all pairs. The error bars grow in that order. On a CPU cluster
    the ranks share the cores of their node.
    """
    constants = known_constants(workload.cluster.gpu.name, workload.trainer)
    if workload.cluster.gpu.is_cpu and workload.cluster.cores_per_node:
        return replace(constants, full_speed_ranks=float(workload.cluster.cores_per_node))
    return constants


def known_constants(gpu: str, trainer: str) -> Calibration:
    """The constants for a GPU type and a trainer by name; see `calibration_for`."""
    known = _known()
    names = {"gpu": gpu, "trainer": trainer}
    family = next((f for f, members in known["families"].items() if gpu in members), "")
    pair = known["pairs"].get(f"{family}/{trainer}")
    if pair is not None:
        return Calibration.from_dict({**pair, **names})
    if gpu == "cpu":
        return Calibration.from_dict({**known["cpu"], **names})
    hardware, software = known["hardware"].get(family, {}), known["software"].get(trainer, {})
    said = [f"{family} hardware" if hardware else "datasheet", f"{trainer} software" if software else "any trainer"]
    constants = {**known["pooled"], **hardware, **software, **names}
    if not hardware:
        constants["time_sigma"] = known["unknown_hardware_sigma"]
    return Calibration.from_dict({**constants, "source": " and ".join(said) + ", pooled from other pairs"})
