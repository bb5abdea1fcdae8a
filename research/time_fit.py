"""The fit of the cost model's time constants: for each pair of GPU family and trainer, the
published rows and the constants that they determine.

A robust loss (soft L1) on log tokens/s, with log-normal priors around physical figures (datasheets,
measured matmul, attention and NCCL limits), so that a constant that the data do not determine stays
at its physical value. No efficiency passes the fastest matmul (`autotune.cost.calibration`) or
attention kernel that was ever measured.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
from scipy.optimize import least_squares

from autotune.cost import Calibration
from autotune.cost.calibration import ceiling, on_fabric
from autotune.cost.layout import layout_of, stages_of
from autotune.cost.time.step import time_parts
from autotune.cost.traits import traits_of
from autotune.spec import catalog
from tests.benchmarks import published
from tests.benchmarks.published import Block

PRIOR = Calibration(
    latency_factor=3.0,
    straggler=0.004,
    hop_s=60e-6,
    inter_efficiency=0.85,
    inter_decay=0.1,
    cast_bytes=10.0,
)
SPREAD = {
    "matmul_efficiency": 0.1, "fp8_factor": 0.15, "half_size": 0.5, "attention_efficiency": 0.3, "memory_efficiency": 0.25, "layer_host_s": 1.0,
    "micro_batch_host_s": 1.0, "step_host_s": 1.0, "pipelined_tensor_host_s": 2.0, "send_host_s": 1.0, "intra_efficiency": 0.2,
    "inter_efficiency": 0.4, "rails": 0.5, "inter_decay": 0.7, "latency_factor": 0.3, "hop_s": 1.0, "tensor_hop_s": 1.0, "data_overlap": 0.4,
    "straggler": 0.7, "cast_bytes": 0.3, "grouped_efficiency": 0.05, "dispatch_efficiency": 0.12, "expert_host_s": 0.3,
}  # fmt: skip
"""Standard deviation of the log of each time constant about its prior."""
NARROW = ("fp8_factor", "cast_bytes")
"""constants of matmuls in 8 or 4 bits. Prior of the casts: 4 bytes to read a value and write it
along both axes, about three times in unfused kernels; DeepSeek-V3 in bf16 and in mxfp8 on the same
GB300 differ by as much as 13 leave over"""
EXPERTS = ("grouped_efficiency", "dispatch_efficiency", "expert_host_s")
"""constants of models with experts; priors from published measurements of the kernels
(`autotune.cost.time.experts`), so their spreads are narrow"""
NOISE = 0.05
"""residuals beyond this count linearly, not squared"""
STEPS = 20
"""steps of the least-squares fit"""
FAMILIES = {
    "a100": ["a100-40gb", "a100-80gb", "a800"],
    "h100": ["h100-sxm", "h100-sxm-96gb", "h200-sxm", "h800", "gh200"],
    "blackwell": ["b200-sxm", "gb200-nvl72"],
    "blackwell_ultra": ["b300-sxm", "gb300-nvl72"],
}
"""Blackwell Ultra is a chip of its own, with twice the exponentials per second and more power: the
same recipes run a fifth faster on it"""
BOUNDED_BY = {
    "a100": "a100-80gb",
    "h100": "h100-sxm",
    "blackwell": "b200-sxm",
    "blackwell_ultra": "b300-sxm",
}
"""the GPU type whose fastest measured matmul bounds a family"""
LOOPS = {
    "megatron_bridge": "megatron",
    "nemo": "megatron",
    "nvidia_recipes": "megatron",
    "composer": "torchtitan",
}
"""loops whose time constants are those of another: Megatron Bridge and NeMo run Megatron-Core,
composer runs the FSDP that torchtitan runs"""
HARDWARE_PRIOR = {
    "a100": {"matmul_efficiency": 0.78, "intra_efficiency": 0.76, "attention_efficiency": 0.50},
    "h100": {"matmul_efficiency": 0.70, "intra_efficiency": 0.78, "attention_efficiency": 0.33},
    "blackwell": {
        "matmul_efficiency": 0.65,
        "intra_efficiency": 0.78,
        "attention_efficiency": 0.45,
    },
    "blackwell_ultra": {
        "matmul_efficiency": 0.72,
        "intra_efficiency": 0.78,
        "attention_efficiency": 0.55,
    },
}
"""with `PRIOR`'s share of the network: about what nccl-tests shows for large gathers on such nodes,
alone; attention: causal FlashAttention-2, forward and backward together, 150 to 190 of 312 TFLOP/s
on A100 and 280 to 350 of 989 on H100 (Dao, arXiv 2307.08691, figures 4 to 7)"""
FASTEST_ATTENTION = {"a100": 0.73, "h100": 0.75, "blackwell": 0.72, "blackwell_ultra": 0.72}
"""the fastest attention kernel ever measured, as a fraction of the peak in 16 bits:
FlashAttention-2 230 of 312 TFLOP/s (arXiv 2307.08691, section 4.1), FlashAttention-3 740 of 989
(Shah et al., arXiv 2407.08608, section 4.1), FlashAttention-4 and cuDNN 1,613 of 2,250 (arXiv
2603.05451)"""
FLASH_2 = 0.40
"""the same for FlashAttention-2 on H100, which does not use its tensor memory accelerator (arXiv
2407.08608, figure 5: at most 370 of 989)"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Pair:
    """One GPU family and trainer with its data."""

    name: str
    source: str
    blocks: list[Block]
    free: tuple[str, ...]
    """constants that these data say something about"""
    given: dict[str, float]
    """constants that are known otherwise, or their priors where they are free"""
    unsure: float
    """extra relative error of communication and bubbles that these data do not show"""
    near: float
    """rows slower than this many times their cell's best do not count in the fit"""
    ceilings: Mapping[str, float] = field(default_factory=dict)
    """upper limits of this pair's constants"""
    fabric: str = ""
    """fabric between the nodes that the network's constants were fitted on; empty: none was"""


def pairs() -> list[Pair]:
    """The pairs that have measurements."""
    mosaic, bridge = published.mosaic(), published.bridge()
    network = (
        "hop_s",
        "inter_efficiency",
        "inter_decay",
        "pipelined_tensor_host_s",
        "straggler",
        "tensor_hop_s",
    )
    flat = (
        "rails",
        "layer_host_s",
        "pipelined_tensor_host_s",
        "send_host_s",
        "latency_factor",
        "tensor_hop_s",
    )

    def without(*names: str) -> tuple[str, ...]:
        return tuple(n for n in SPREAD if n not in (*names, *EXPERTS))

    def of(family: str, blocks: Sequence[Block]) -> list[Block]:
        return [b for b in blocks if b.workload.cluster.gpu.name in FAMILIES[family]]

    recipe = (
        "matmul_efficiency", "fp8_factor", "half_size", "attention_efficiency", "memory_efficiency", "intra_efficiency", "data_overlap",
        "layer_host_s", "cast_bytes", *EXPERTS,
    )  # fmt: skip
    return [
        Pair(
            name="h100/nanotron", source="nanotron_h100.csv", blocks=published.nanotron(), free=without(*NARROW),
            given={"tensor_hop_s": 0.3e-3}, unsure=0.0, near=3.0, ceilings={"attention_efficiency": FLASH_2}, fabric="efa",
        ),
        Pair(
            name="a100/megatron", source="vtrain_single_node_a100.csv", blocks=published.vtrain(),
            free=without(*network, "attention_efficiency", *NARROW), given={"score_bytes": 12.0}, unsure=0.1, near=3.0,
        ),
        Pair(
            name="a100/torchtitan", source="mosaic_llm_foundry.csv", blocks=of("a100", mosaic), free=without(*flat, *NARROW),
            given={}, unsure=0.2, near=1e9, fabric="roce",
        ),
        Pair(
            name="h100/torchtitan", source="mosaic_llm_foundry.csv", blocks=of("h100", mosaic), free=without(*flat), given={},
            unsure=0.2, near=1e9, ceilings={"attention_efficiency": FLASH_2}, fabric="roce",
        ),
        Pair(
            name="h100/megatron", source="nvidia_nemo_perf.csv, megatron_bridge_perf.csv", blocks=[*published.nemo(), *of("h100", bridge)],
            free=recipe, given={"attention_efficiency": 0.5}, unsure=0.1, near=1e9,
        ),
        Pair(
            name="blackwell/megatron", source="simumax_b200.csv, megatron_bridge_perf.csv",
            blocks=[*published.simumax(), *of("blackwell", bridge)], free=recipe, given={}, unsure=0.1, near=1e9,
        ),
        Pair(
            name="blackwell_ultra/megatron", source="megatron_bridge_perf.csv", blocks=of("blackwell_ultra", bridge), free=recipe,
            given={}, unsure=0.1, near=1e9,
        ),
    ]  # fmt: skip


def running(blocks: Sequence[Block], near: float) -> list[Block]:
    """The rows that ran and whose speed is printed, at most `near` times slower than the best of
    their cell."""
    best: dict[str, float] = {}
    for b in blocks:
        for cell, speed in zip(b.cell, b.tokens_per_s_per_gpu, strict=True):
            if np.isfinite(speed):
                best[cell] = max(best.get(cell, 0.0), float(speed))
    kept = []
    for b in blocks:
        limit = np.array([best.get(c, np.inf) for c in b.cell]) / near
        rows = np.where(~b.failed & (np.nan_to_num(b.tokens_per_s_per_gpu) >= limit))[0]
        if len(rows):
            kept.append(b.take(rows))
    return kept


def speed_of(block: Block) -> Callable[[Calibration], np.ndarray]:
    """Tokens/s per GPU of every row by constants, as `estimate` has it, without memory; what no
    constant changes is computed once."""
    workload, table, traits = block.workload, block.table, traits_of(block.workload.trainer)
    layout = layout_of(workload, table)
    stages = stages_of(workload.model, table, traits.split)
    tokens = table.global_batch_size * float(workload.seq_len) / layout.world

    def speed(constants: Calibration) -> np.ndarray:
        return tokens / time_parts(workload, table, layout, stages, constants, traits).total

    return speed


def errors_of(blocks: Sequence[Block]) -> Callable[[Calibration], np.ndarray]:
    """log(measured / predicted speed) of every row by constants."""
    pairs_of = [(np.log(b.tokens_per_s_per_gpu), speed_of(b)) for b in blocks]
    return lambda constants: np.concatenate(
        [measured - np.log(speed(constants)) for measured, speed in pairs_of]
    )


def fit_time(pair: Pair, blocks: Sequence[Block]) -> Calibration:
    """The pair's time constants from these rows: the better of two starts, host-bound and
    device-bound. No fit starts where another has ended: one that takes no step from there would
    know rows that were held out."""
    family, trainer = pair.name.split("/")
    given = {**HARDWARE_PRIOR[family], **pair.given}
    prior = replace(
        PRIOR, gpu=family, trainer=trainer, source=pair.source, fabric=pair.fabric, **given
    )
    if not pair.fabric:  # an estimate then has the network of the usual fabric
        prior = on_fabric(prior, pair.blocks[-1].workload.cluster)
    gpu = catalog.gpu(BOUNDED_BY[family])
    ceilings = {
        "attention_efficiency": FASTEST_ATTENTION[family],
        "matmul_efficiency": ceiling(gpu, "bf16"),
        **pair.ceilings,
    }
    rows = running(blocks, pair.near)
    starts: list[dict[str, float]] = [{}]
    if "layer_host_s" in pair.free:
        starts = [{"layer_host_s": 0.5e-3}, {"layer_host_s": 4e-3}]

    def within(values: dict[str, float]) -> dict[str, float]:
        for n in values:
            if n.endswith("_efficiency") or n in ("data_overlap", "rails"):
                values[n] = min(values[n], ceilings.get(n, 1.0))
        if "fp8_factor" in values:
            values["fp8_factor"] = min(
                values["fp8_factor"], ceiling(gpu, "fp8") / values["matmul_efficiency"]
            )
        return values

    spread = {n: SPREAD[n] for n in pair.free}
    fits = [_fit(errors_of(rows), prior, spread, within, s) for s in starts]
    return min(fits, key=lambda f: f[1])[0]


def _fit(
    errors: Callable[[Calibration], np.ndarray], prior: Calibration, spread: Mapping[str, float],
    within: Callable[[dict[str, float]], dict[str, float]], start: Mapping[str, float],
) -> tuple[Calibration, float]:  # fmt: skip
    names, widths = list(spread), np.array(list(spread.values()))

    def at(z: np.ndarray) -> Calibration:
        values = {
            n: float(getattr(prior, n) * np.exp(v)) for n, v in zip(names, z * widths, strict=True)
        }
        return replace(prior, **within(values))

    def cost(z: np.ndarray) -> np.ndarray:
        scaled = errors(at(z)) / NOISE
        robust = np.sign(scaled) * np.sqrt(2.0 * (np.sqrt(1.0 + scaled**2) - 1.0))
        return np.concatenate([robust, z])

    first = (
        np.array([np.log(start.get(n, getattr(prior, n)) / getattr(prior, n)) for n in names])
        / widths
    )
    found = least_squares(cost, first, diff_step=1e-3, max_nfev=STEPS)
    return at(found.x), float(found.cost)
