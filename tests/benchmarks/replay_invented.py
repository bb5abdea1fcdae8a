"""Invented cells: models and clusters that no constant was fitted to, with outcomes of another form
than the cost model's.

The step time is a roofline of its own (matmuls that saturate with tokens and shard width,
element-wise work, collectives, bubbles, a host that launches kernels) times random factors of knobs
and of pairs of knobs. A random share of each cell moves it towards the estimate, so that the cost
model is right about some things and wrong about others, differently in each cell. Memory is the
estimate, off by up to 15% in a cell and by 8% in each config. So searchers can be tested on data
that neither their priors nor their authors have seen.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from autotune.cost import estimate
from autotune.errors import AutotuneError
from autotune.space import SearchSpace
from autotune.spec import ClusterSpec, ConfigTable, FailureKind, ModelSpec, SpaceSpec, Workload
from tests.benchmarks.cells import Cell, Row

Array = NDArray[np.float64]


def _model(
    name: str, layers: int, hidden: int, heads: int, kv_heads: int, ffn: int, **others: Any
) -> ModelSpec:
    shape = {
        "num_layers": layers,
        "hidden_size": hidden,
        "num_attention_heads": heads,
        "num_kv_heads": kv_heads,
    }
    return ModelSpec(
        name=name, ffn_hidden_size=ffn, **{"vocab_size": 32_000, "gated_mlp": True} | shape | others
    )


MODELS = (
    _model("1b", 22, 2048, 32, 4, 5632),
    _model("3b", 32, 2560, 32, 32, 10_240, vocab_size=50_304, gated_mlp=False),
    _model("4b", 32, 3072, 32, 8, 8192, vocab_size=100_352),
    _model("7b", 32, 4096, 32, 32, 11_008),
    _model("9b", 42, 3584, 16, 8, 14_336, vocab_size=256_000, tied_embeddings=True),
    _model("13b", 40, 5120, 40, 40, 13_824),
    _model("20b", 44, 6144, 64, 64, 24_576, gated_mlp=False),
    _model("34b", 48, 8192, 64, 8, 22_016),
    _model("70b", 80, 8192, 64, 8, 28_672),
    _model("8x3b", 32, 2560, 32, 8, 8960, num_experts=8, experts_per_token=2),
    _model("16x1b", 24, 2048, 16, 16, 4096, num_experts=16, experts_per_token=2),
)
GPUS = ("a100-40gb", "a100-80gb", "h100-sxm", "h200-sxm", "b200-sxm", "l40s")
FITTED, UNFITTED = ("megatron", "nanotron"), ("native", "deepspeed", "accelerate")
"""trainers with measurements in the constants, and without"""
LEAST, MOST = 18, 200
"""configs of a cell"""


def invented_cells(count: int, *, is_fitted: bool) -> list[Cell]:
    """So many cells, of trainers that constants were fitted to or of others."""
    return [_cell(seed, is_fitted) for seed in range(count)]


def _cell(seed: int, is_fitted: bool) -> Cell:
    draw = np.random.default_rng([seed, is_fitted])
    while True:
        try:
            made = _tried(draw, seed, is_fitted)
        except AutotuneError:  # nothing of that space is legal
            continue
        if made is not None:
            return made


def _tried(draw: np.random.Generator, seed: int, is_fitted: bool) -> Cell | None:
    """A cell; None where the drawn model is far too large or too small for the drawn cluster, or
    little of it runs."""
    model = MODELS[draw.integers(len(MODELS))]
    gpus = int(8 * 2 ** draw.integers(0, 6))
    cluster = ClusterSpec.of(str(draw.choice(GPUS)), num_nodes=gpus // 8, gpus_per_node=8)
    share = 18 * model.num_parameters / (gpus * cluster.gpu.memory_bytes)
    if share > 0.6 or (gpus > 64 and share < 0.02):
        return None
    workload = Workload(
        model=model,
        cluster=cluster,
        seq_len=int(draw.choice([2048, 4096, 8192])),
        global_batch_size=max(gpus, int(2 ** draw.integers(7, 11))),
        trainer=str(draw.choice(FITTED if is_fitted else UNFITTED)),
    )
    whole = SearchSpace.build(workload, SpaceSpec(knobs=_knobs(draw, model)))
    size = int(math.exp(draw.uniform(math.log(LEAST), math.log(MOST))))
    table = whole.table.take(np.sort(draw.permutation(len(whole))[:size]))
    if len(table) < LEAST:
        return None
    predicted = estimate(workload, table)
    own = draw.uniform(0.3, 0.7) if is_fitted else draw.uniform(0.5, 1.0)
    times = _step_times(draw, workload, table) ** own * np.asarray(predicted.step_time_s) ** (
        1 - own
    )
    times = times * np.exp(draw.choice([0.01, 0.03, 0.06]) * draw.standard_normal(len(table)))
    peaks = np.asarray(predicted.peak_memory_bytes) * draw.uniform(0.85, 1.15)
    peaks = peaks * np.exp(0.08 * draw.standard_normal(len(table)))
    exhausted = peaks > cluster.gpu.memory_bytes * draw.uniform(0.88, 0.96)
    if exhausted.mean() > 0.8:
        return None
    space, rows = SearchSpace.of(workload, table), {}
    for i in range(len(space)):
        rows[space[i]] = Row(
            config=space[i],
            step_time_s=float(times[i]),
            peak_memory_bytes=None if exhausted[i] else float(peaks[i]),
            failure=FailureKind.OUT_OF_MEMORY if exhausted[i] else None,
        )
    return Cell(
        name=f"{model.name} on {cluster.name}, {workload.trainer}, {seed}",
        workload=workload,
        rows=rows,
    )


def _knobs(draw: np.random.Generator, model: ModelSpec) -> dict[str, tuple[object, ...]]:
    """Values of each knob, as somebody would list them."""
    zero = ((0, 1), (1,), (0, 1, 3), (0, 1, 2, 3))[draw.integers(4)]
    recompute = (("none",), ("none", "full"), ("none", "selective", "full"))[draw.integers(3)]
    return {
        "tp": (1, 2, 4, 8, 16)[: draw.integers(3, 6)],
        "pp": (1, 2, 4, 8)[: draw.integers(2, 5)],
        "micro_batch_size": (1, 2, 4, 8, 16)[: draw.integers(3, 6)],
        "zero_stage": zero,
        "recompute": recompute,
        "sequence_parallel": (False, True)[: draw.integers(1, 3)],
        **({"ep": (1, 2, 4, 8)} if model.num_experts else {}),
    }


def _step_times(draw: np.random.Generator, workload: Workload, table: ConfigTable) -> Array:
    """Seconds of a step of each config, shape (N,)."""
    model, cluster = workload.model, workload.cluster
    tp, pp, dp, ep = (
        np.asarray(knob, dtype=float) for knob in (table.tp, table.pp, table.dp, table.ep)
    )
    micro, steps = (
        np.asarray(table.micro_batch_size, dtype=float),
        np.asarray(table.accumulation_steps, dtype=float),
    )
    full, selective = table.is_word("recompute", "full"), table.is_word("recompute", "selective")
    hidden, tokens = model.hidden_size, micro * workload.seq_len
    inside = cluster.intra_node.bytes_per_s * draw.uniform(0.45, 0.85)
    across = cluster.inter_node.bytes_per_s * draw.uniform(0.3, 0.9)

    # a layer of a micro-batch
    weights = hidden**2 * (
        2 + 2 * (model.num_kv_heads or model.num_attention_heads) / model.num_attention_heads
    )
    weights += (
        (3 if model.gated_mlp else 2)
        * hidden
        * model.ffn_hidden_size
        * max(model.experts_per_token, 1)
    )
    enough_tokens, enough_width = np.exp(draw.uniform(np.log([200, 100]), np.log([3000, 900])))
    efficiency = draw.uniform(0.45, 0.72) * tokens / (tokens + enough_tokens)
    efficiency = efficiency * (hidden / tp) / (hidden / tp + enough_width / 2)
    rate = cluster.gpu.peak_flops_per_s["bf16"] * efficiency
    again = np.where(
        full, draw.uniform(1.24, 1.36), np.where(selective, draw.uniform(1.01, 1.08), 1.0)
    )
    layer = (
        6
        * tokens
        / tp
        * (weights + workload.seq_len * hidden * draw.uniform(0.7, 1.4))
        / rate
        * again
    )
    shards = np.where(table.sequence_parallel, tp, 1 + 0.5 * (tp - 1))
    layer += 34 * hidden * tokens / shards / cluster.gpu.memory_bytes_per_s * draw.uniform(0.5, 2.0)
    link = np.where(tp > cluster.gpus_per_node, across, inside)
    sums = 16 * hidden * tokens * (tp - 1) / tp / link * draw.uniform(0.6, 1.1)
    layer += np.where(tp > 1, sums + draw.uniform(40e-6, 240e-6) * np.log2(tp + 1), 0.0) * np.where(
        full, 1.5, 1.0
    )
    if model.num_experts:
        link = np.where(ep * tp > cluster.gpus_per_node, across, inside)
        sent = 8 * hidden * tokens * model.experts_per_token / link * draw.uniform(1.0, 2.5)
        layer += np.where(ep > 1, sent, 0.0) + draw.uniform(0.05, 0.3) * layer / np.sqrt(ep)
    layer = np.maximum(
        layer, draw.uniform(0.4e-3, 3e-3) * np.where(tp > 1, draw.uniform(1.0, 1.6), 1.0)
    )

    # the pipeline
    head = 6 * model.vocab_size * hidden * tokens / tp / rate
    stage = np.ceil(model.num_layers / pp) * layer + head * np.where(
        pp > 1, draw.uniform(0.3, 1.0), 1.0
    )
    handed = 4 * hidden * tokens / across * draw.uniform(0.3, 2.0) + draw.uniform(50e-6, 600e-6)
    busy = (stage + np.where(pp > 1, handed, 0.0)) * (steps + draw.uniform(0.8, 1.6) * (pp - 1))

    # gradients and weights of the replicas
    link = np.where(dp * tp > cluster.gpus_per_node, across, inside)
    held = model.num_parameters / (tp * pp)
    sums = np.where(dp > 1, 2 * held * draw.choice([2.0, 4.0]) / link, 0.0)
    gathers = np.where(
        (table.zero_stage == 3) & (dp > 1), 4 * held * steps / link * draw.uniform(0.5, 1.0), 0.0
    )
    hidden_share = draw.uniform(0.2, 0.9)
    shown = sum(
        np.maximum(sent * (1 - hidden_share), sent - hidden_share * busy)
        for sent in (sums, gathers)
    )
    update = (
        20
        * held
        / np.where(table.zero_stage > 0, dp, 1)
        / cluster.gpu.memory_bytes_per_s
        * draw.uniform(1.0, 2.0)
    )
    return np.asarray((busy + shown + update + draw.uniform(5e-3, 60e-3)) * _quirks(draw, table))


def _quirks(draw: np.random.Generator, table: ConfigTable) -> Array:
    """Factors by the values of knobs and of pairs of knobs, shape (N,)."""
    names = ("tp", "pp", "micro_batch_size", "zero_stage", "recompute", "sequence_parallel")
    places = [np.unique(table.column(name), return_inverse=True)[1] for name in names]
    one, two = draw.uniform(0.0, 0.05), draw.uniform(0.0, 0.02)
    logs = np.zeros(len(table))
    for i, first in enumerate(places):
        logs += one * draw.standard_normal(8)[first]
        for second in places[:i]:
            logs += two * draw.standard_normal((8, 8))[first, second]
    return np.asarray(np.exp(logs))
