"""The formulas of the cost model against dry runs of the native trainer, for the decoders of the
catalog at a depth of three layers.

    python -m tests.benchmarks.formulas_against_dry_runs                         every model, the configs that matter for all of them
    python -m tests.benchmarks.formulas_against_dry_runs --all llama-8b ...      these models, all configs
    ... --record FILE       keeps the dry runs        --recorded FILE ...      compares those that were kept, in seconds

Per layer and micro-batch, on one rank: FLOPs of the matrix products and of attention (forward,
backward and again), bytes saved for the backward pass, bytes on the wire of tensor, context and
expert parallelism; per step: FLOPs of the output projection, weights, and bytes on the wire of data
parallelism.

The formulas are asked as the estimator asks them, with constants under which a second is a FLOP or
a byte. A ring moves (n-1)/n of its bytes, an all-reduce twice that. Attention that skips what a
causal mask hides counts half; what kernels add to head dimensions counts in neither. Models with
latents, dense layers before those with experts, or shared experts are left out: the native trainer
has none.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from autotune.cost.calibration import Calibration, calibration_for
from autotune.cost.layout import attended_len, edge_weights, layer_weights, layout_of
from autotune.cost.memory.activations import mean_kept_bytes
from autotune.cost.time.attention import attention_reached
from autotune.cost.time.compute import (
    element_bytes,
    head_step_s,
    layer_forward_s,
    padded_head,
    peak_flops_per_s,
)
from autotune.cost.time.experts import expert_layer_s
from autotune.cost.time.recompute import repeated
from autotune.cost.time.traffic import RankWeights, context_s, data_step_s, tensor_layer_s
from autotune.cost.traits import traits_of
from autotune.errors import ConfigError
from autotune.spec import ConfigTable, DryRun, ModelSpec, ParallelConfig, Workload, catalog
from autotune.spec.config import knobs_of
from autotune.trainers.base.trainer import UNCOMMON_SHAPES
from autotune_workers.dryrun.played_rank import dry_run
from autotune_workers.dryrun.process import stand_in
from autotune_workers.training.torch_internals import forget_shardings

RECORDED = Path(__file__).parent / "data" / "formulas_dry_runs.jsonl"
"""dry runs of the catalog that were kept (torch 2.13)"""
DATA_AXES = ("dp_cp", "expert_data")
"""mesh axes over which gradients are summed, and how the names of their parts begin"""
LAYERS = 3
WITHIN = 0.03
"""relative difference that needs no reason"""
BASIC = ("", "tp=2,dp=2,zero_stage=3,sequence_parallel=true")
MORE = (
    "recompute=full",
    "recompute=selective",
    "recompute=mlp",
    "recompute=norm",
    "precision=fp32",
    "tp=2",
    "tp=2,sequence_parallel=true",
    "tp=2,recompute=full",
    "tp=2,sequence_parallel=true,recompute=full",
    "tp=2,sequence_parallel=true,recompute=selective",
    "dp=4",
    "dp=4,zero_stage=1",
    "dp=4,zero_stage=2,accumulation_steps=2",
    "dp=4,zero_stage=3,accumulation_steps=2",
    "dp=4,dp_replicas=2,zero_stage=3",
    "dp=2,cp=2,cp_style=gather",
    "dp=2,cp=2,cp_style=ring",
    "dp=2,cp=2,cp_style=heads",
    "dp=2,cp=2,cp_style=ring,recompute=full",
    "loss=chunked",
)
OF_EXPERTS = (
    "dp=4,ep=2",
    "dp=4,ep=2,dispatcher=allgather",
    "dp=4,ep=2,zero_stage=3",
    "tp=2,dp=4,ep=2",
    "dp=4,ep=2,recompute=full",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """One quantity of one config."""

    model: str
    config: str
    quantity: str
    formula: float
    dry_run: float

    @property
    def relative(self) -> float:
        """Above zero where the formula says too much."""
        if self.formula == self.dry_run:
            return 0.0
        return self.formula / self.dry_run - 1.0 if self.dry_run else float("inf")


def is_plain(model: ModelSpec) -> bool:
    """Whether the native trainer builds it with all its parts."""
    return not any(getattr(model, name) for name in UNCOMMON_SHAPES)


def workload_of(model: ModelSpec, config: ParallelConfig, seq_len: int) -> Workload:
    """A step of that config, on a cluster whose link moves one byte per second without latency."""
    cluster = catalog.cluster("h100-sxm-1x8")
    link = replace(cluster.intra_node, bytes_per_s=1.0, latency_s=0.0)
    return Workload(
        model=model,
        cluster=replace(cluster, intra_node=link),
        seq_len=seq_len,
        global_batch_size=config.global_batch_size,
        trainer="native",
    )


def counting(workload: Workload) -> Calibration:
    """Constants under which a second of traffic is a byte, and one of matrix products the FLOPs of
    the datasheet's peak."""
    return replace(
        calibration_for(workload),
        matmul_efficiency=1.0,
        half_factor=1.0,
        half_size=0.0,
        attention_efficiency=1.0,
        grouped_efficiency=1.0,
        expert_imbalance=1.0,
        intra_efficiency=1.0,
        dispatch_efficiency=1.0,
        latency_factor=0.0,
        turn_s=0.0,
        tensor_hop_s=0.0,
        data_overlap=0.0,
        memory_efficiency=1e30,  # what is bound by memory takes no time
    )


def by_formulas(workload: Workload, config: ParallelConfig) -> dict[str, float]:
    """What the estimator's formulas say."""
    model, traits, constants = workload.model, traits_of("native"), counting(workload)
    table = ConfigTable.of([config])
    layout = layout_of(workload, table)
    again = repeated(model, table, layout, traits, attended_len(workload))
    products, scores, _ = layer_forward_s(workload, table, layout, constants, traits)
    per_second = peak_flops_per_s(workload, table)
    dense, experts = layer_weights(model, layout)
    embedding, projection = edge_weights(model, layout, traits.vocab_parallel)
    ends = embedding + projection
    nothing = np.zeros_like(ends)
    shards = (
        (layout.shard_group.size, layout.expert_shard_group.size)
        if config.zero_stage >= 2
        else (1.0, 1.0)
    )
    layers = nothing + model.num_layers
    rank = RankWeights(layers, layers * dense + ends, layers * experts, nothing, nothing)
    once, each, late = data_step_s(workload, table, layout, constants, traits, rank)
    reached = attention_reached(workload, table, constants, traits)
    sent = expert_layer_s(
        workload, table, layout, constants, traits, again.dispatches, element_bytes(table)
    )
    found = {
        "weights": (layers * dense + ends) / shards[0] + layers * experts / shards[1],
        "layer, products": (3.0 + again.matmuls) * products * per_second,
        "layer, scores": (3.5 + again.scores) * scores * reached / padded_head(model) * per_second,
        "head, products": head_step_s(workload, table, layout, constants, traits) * per_second,
        "layer, saved": layout.tokens * mean_kept_bytes(workload, table, layout, constants, traits),
        "layer, tp bytes": tensor_layer_s(workload, table, layout, constants, again.collectives),
        "layer, cp bytes": context_s(
            workload, table, layout, constants, traits, again.scores, scores
        ),
        "layer, ep bytes": sent,
        "step, dp bytes": once + layout.accumulation * (each + late),
    }
    return {name: float(np.asarray(value).reshape(-1)[0]) for name, value in found.items()}


def by_dry_run(run: DryRun, deeper: DryRun, config: ParallelConfig) -> dict[str, float]:
    """The same of a dry run; a layer is what one of the same model with one more layer does more.
    What it saves is not among them, nor attention under cp."""
    sizes = {"tp": config.tp, "cp": config.cp, "ep": config.ep}
    data = [c for c in run.collectives if c.axis.startswith(DATA_AXES) and c.num_bytes > 64]
    layer = _products(deeper) - _products(run)
    # a dry run counts those that the mask hides too
    scores = (deeper.flops - run.flops - layer) / 2.0
    return {
        "weights": float(run.rank_parameters),
        "layer, products": layer,
        **({"layer, scores": scores} if config.cp == 1 else {}),
        "head, products": _products(run) - LAYERS * layer,
        **{
            f"layer, {axis} bytes": _sent(deeper, axis, n) - _sent(run, axis, n)
            for axis, n in sizes.items()
        },
        "step, dp bytes": sum(c.count * on_wire(c.kind, c.num_bytes, len(c.ranks)) for c in data),
    }


def _products(run: DryRun) -> float:
    return float(sum(2 * p.m * p.n * p.k * p.count for p in run.products))


def _sent(run: DryRun, axis: str, ranks: int) -> float:
    """Bytes on the wire of one micro-batch."""
    calls = [c for c in run.collectives if c.axis == axis]
    return sum(c.count * on_wire(c.kind, c.num_bytes, ranks) for c in calls)


def on_wire(kind: str, num_bytes: int, ranks: int) -> float:
    """Bytes that one rank sends for a collective."""
    share = (ranks - 1.0) / ranks
    return {"all_reduce": 2.0 * share, "send": 1.0, "recv": 0.0}.get(kind, share) * num_bytes


def recorded(model: ModelSpec, text: str) -> dict[str, Any]:
    """A dry run of the config, as plain values. Raises `ConfigError` for a config that the model
    cannot be cut by."""
    small, config, _, s = setting(model, text)
    found = []
    for layers in (LAYERS, LAYERS + 1):
        request, _ = stand_in(workload_of(replace(small, num_layers=layers), config, s), config)
        found.append(dry_run(request, rank=0))
        forget_shardings()  # a later mesh of the same shape would be given groups that are gone
    return {"model": model.name, "config": text, "figures": by_dry_run(*found, config)}


_PRIMES = (
    23,
    29,
    31,
    37,
    41,
    43,
    47,
    53,
    59,
    61,
    67,
    71,
    73,
    79,
    83,
    89,
    97,
    101,
    103,
    107,
    109,
    113,
)
"""of the sizes of runs"""


def marked_sizes(sizes: Iterable[int], *, multiple: int = 1, longest: int = 0) -> tuple[int, int]:
    """(b, s): primes, s times a power of two, that divide no size of the model; s is a multiple of
    `multiple`.

    `longest`: the most positions that the model is known to take. Where the multiple would exceed
    it, s is a multiple of a smaller power of two.
    """
    known = [size for size in sizes if size]
    free = [p for p in _PRIMES if all(size % p for size in known)]
    power = 16
    while power % multiple:
        power *= 2
        if power > 1 << 16:
            raise ValueError(f"no sequence length of a run is a multiple of {multiple}")
    if free[1] <= longest:
        while free[1] * power > longest:
            power //= 2
    return free[0], free[1] * power


def sizes_of(model: ModelSpec) -> Iterable[int]:
    """The sizes of a model's tensors, which the run's own sizes must not divide."""
    heads = (
        model.num_attention_heads,
        model.num_kv_heads,
        model.head_dim,
        model.v_head_dim,
        model.qk_rope_head_dim,
    )
    widths = (
        model.hidden_size,
        model.ffn_hidden_size,
        model.dense_ffn_hidden_size,
        model.shared_ffn_hidden_size,
    )
    others = (
        model.vocab_size,
        model.max_positions,
        model.kv_lora_rank,
        model.q_lora_rank,
        model.num_experts,
    )
    return (*heads, *widths, *others, *_joined(model))


def _joined(model: ModelSpec) -> Iterator[int]:
    """Widths of projections that are one tensor."""
    for n, k, _ in model.attention_matrices:
        yield from (n, k)
    yield 2 * model.ffn_hidden_size + model.hidden_size
    yield model.num_attention_heads + 2 * model.num_kv_heads


def setting(model: ModelSpec, text: str) -> tuple[ModelSpec, ParallelConfig, int, int]:
    """What is run: the model with few layers, the config, and its sizes."""
    small = replace(model, num_layers=LAYERS)
    b, s = marked_sizes(sizes_of(small), multiple=64)
    if model.max_positions:
        small = replace(small, max_positions=max(s, model.max_positions))
    return (
        small,
        ParallelConfig.from_dict({"precision": "bf16", **knobs_of(text), "micro_batch_size": b}),
        b,
        s,
    )


def differences(found: Mapping[str, Any]) -> Iterator[Difference]:
    """All quantities of a recorded dry run against the formulas of today."""
    small, config, b, s = setting(catalog.model(found["model"]), found["config"])
    formulas, figures = by_formulas(workload_of(small, config, s), config), found["figures"]
    rounded = small.num_experts and b * s * small.experts_per_token % small.num_experts
    if config.zero_stage >= 2 or config.dp > 1 or rounded:
        # gathered weights come and go between; rows of experts that are rounded do not show the
        # micro-batch
        del formulas["layer, saved"]
    for quantity in formulas.keys() & figures.keys():
        said = formulas[quantity]
        if said or figures[quantity]:
            yield Difference(
                model=found["model"],
                config=found["config"],
                quantity=quantity,
                formula=said,
                dry_run=figures[quantity],
            )


def runs_of(models: Sequence[ModelSpec], *, everything: bool) -> Iterator[dict[str, Any]]:
    """Dry runs of the models; configs that a model cannot be cut by are left out."""
    for model in models:
        configs = (
            *BASIC,
            *(MORE if everything else ()),
            *(OF_EXPERTS if everything and model.num_experts else ()),
        )
        for text in configs:
            try:
                yield recorded(model, text)
            except ConfigError as error:
                print(f"{model.name} {text}: {error}", flush=True)


def main() -> None:
    """Prints every difference above 3%, and the worst of each quantity."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("models", nargs="*")
    parser.add_argument("--all", action="store_true", help="all configs")
    parser.add_argument("--record", type=Path, help="append the dry runs to this file")
    parser.add_argument(
        "--recorded",
        type=Path,
        nargs="*",
        help="compare dry runs of these files instead of making new ones",
    )
    asked = parser.parse_args()
    if asked.recorded:
        runs: Iterable[dict[str, Any]] = (
            json.loads(line)
            for path in asked.recorded
            for line in path.read_text(encoding="utf-8").splitlines()
        )
    else:
        models = [catalog.model(name) for name in asked.models or catalog.model_names()]
        runs = runs_of([model for model in models if is_plain(model)], everything=asked.all)
    found = list[Difference]()
    for run in runs:
        if asked.record:
            with asked.record.open("a", encoding="utf-8") as file:
                file.write(json.dumps(run) + "\n")
        for row in differences(run):
            found.append(row)
            if abs(row.relative) > WITHIN:
                sides = f"{row.formula:.6g} {row.dry_run:.6g}"
                print(
                    f"{row.relative:+8.2%} {row.quantity:16} {sides}  {row.model} {row.config}",
                    flush=True,
                )
    print(f"{len({row.model for row in found})} models, {len(found)} figures")
    for quantity in dict.fromkeys(row.quantity for row in found):
        errors = sorted(abs(row.relative) for row in found if row.quantity == quantity)
        worst, outside = errors[-1], sum(error > WITHIN for error in errors)
        print(
            f"{quantity:16} {len(errors):4}  median {errors[len(errors) // 2]:.3%}  worst {worst:.2%}  above 3%: {outside}"
        )


if __name__ == "__main__":
    main()
