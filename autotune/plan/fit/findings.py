"""Summaries of a dry run: categories next to the cost model's, the modules with the most memory,
traffic, and the FLOPs of a token compared with 6N.

    N       parameters that one token uses
    6N      FLOPs of a token, forward and backward, of a dense model without attention scores (Kaplan et al. 2020, arXiv:2001.08361, section 2.1)

All numbers come from the dry run; rows are only summed, sorted and cut.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace

from autotune.cost.learn.from_dry_runs import DRY_RUN_TRAINER
from autotune.cost.traits import loop_of, memory_differences
from autotune.plan.fit.answer import Fit
from autotune.spec import CollectiveCall, DryRun, MatrixProduct, MemorySample, ModuleCost

BESIDE = (
    ("weights", ("parameters", "buffers"), ("weights",)),
    ("gradients", ("gradients",), ("gradients",)),
    ("optimizer", ("optimizer",), ("optimizer",)),
    ("activations", ("activations", "temporaries", "inputs"), ("activations", "logits")),
    ("communication, workspace", ("communication",), ("framework",)),
)
"""rows of the comparison, each with its name, the categories of a dry run that it sums, and the
parts of the cost model's peak"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Beside:
    """One category of memory, from the dry run and from the cost model."""

    name: str
    dry_run_bytes: int
    """bytes allocated on the rank with the highest peak, at that peak"""
    cost_model_bytes: float
    """the same in the cost model"""
    why: str = ""
    """what the study's trainer does differently from the one whose loop was dry-run; empty if they
    are the same"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Traffic:
    """All collectives of one kind over groups of one axis, in one optimizer step."""

    kind: str
    """all_reduce, all_gather, ..."""
    axis: str
    """mesh axis of the group"""
    ranks: tuple[int, ...]
    """ranks of the group"""
    calls: int
    """number of calls in a step"""
    num_bytes: int
    """bytes in a step, as `CollectiveCall.num_bytes` counts them"""


@dataclass(frozen=True, slots=True, kw_only=True)
class ModuleGroup:
    """The modules in the same position of repeated layers, or a single module."""

    name: str
    """name of the module; `*` stands for the layer number"""
    kind: str
    """name of their class"""
    count: int
    """number of modules"""
    parameter_bytes: int
    """bytes of their parameters; this and all fields below are sums over the modules"""
    saved_bytes: int
    """bytes that one micro-batch saves for the backward pass"""
    at_peak_bytes: int
    """bytes alive at the peak of the rank"""
    flops: int
    """FLOPs of one micro-batch, forward and backward"""


def beside_cost_model(fit: Fit) -> tuple[Beside, ...]:
    """Memory categories on the rank with the highest peak, next to the cost model's; empty without
    a dry run."""
    if fit.fullest is None:
        return ()
    found, predicted = fit.fullest.peak.parts_bytes, fit.estimate.memory_parts_bytes
    why = (
        {}
        if fit.runs_study_trainer
        else memory_differences(loop_of(fit.workload), DRY_RUN_TRAINER, fit.config)
    )
    return tuple(
        Beside(
            name=name,
            dry_run_bytes=sum(found.get(category, 0) for category in categories),
            cost_model_bytes=sum(float(getattr(predicted, part)) for part in parts),
            why="; ".join(why.get(name, ())),
        )
        for name, categories, parts in BESIDE
    )


def fullest_modules(run: DryRun, most: int = 8) -> tuple[ModuleGroup, ...]:
    """The modules that created most of the memory alive at the peak. Modules whose names only
    differ in the layer number are one row."""
    groups: dict[tuple[str, str], list[ModuleCost]] = {}
    for module in run.modules:
        groups.setdefault((re.sub(r"\b\d+\b", "*", module.name), module.kind), []).append(module)
    rows = [
        ModuleGroup(
            name=name if len(modules) > 1 else modules[0].name,
            kind=kind,
            count=len(modules),
            parameter_bytes=sum(module.parameter_bytes for module in modules),
            saved_bytes=sum(module.saved_bytes for module in modules),
            at_peak_bytes=sum(module.at_peak_bytes for module in modules),
            flops=sum(module.forward_flops + module.backward_flops for module in modules),
        )
        for (name, kind), modules in groups.items()
    ]
    alive = [row for row in rows if row.at_peak_bytes > 0]
    return tuple(sorted(alive, key=lambda row: -row.at_peak_bytes)[:most])


def largest_products(run: DryRun, most: int = 5) -> tuple[MatrixProduct, ...]:
    """The matmuls with most of a micro-batch's FLOPs, one row per shape."""
    merged: dict[tuple[int, int, int, str], MatrixProduct] = {}
    for product in run.products:
        key = (product.m, product.n, product.k, product.dtype)
        merged[key] = replace(
            product, count=product.count + (merged[key].count if key in merged else 0)
        )
    return tuple(sorted(merged.values(), key=lambda product: -product_flops(product))[:most])


def product_flops(product: MatrixProduct) -> int:
    """FLOPs of all products of that shape in one micro-batch."""
    return 2 * product.m * product.n * product.k * product.count


def traffic(run: DryRun) -> tuple[Traffic, ...]:
    """Collectives by kind and group, the most bytes first."""
    groups: dict[tuple[str, str, tuple[int, ...]], list[CollectiveCall]] = {}
    for call in run.collectives:
        groups.setdefault((call.kind, call.axis, call.ranks), []).append(call)
    rows = [
        Traffic(
            kind=kind,
            axis=axis,
            ranks=ranks,
            calls=sum(call.count for call in calls),
            num_bytes=sum(call.count * call.num_bytes for call in calls),
        )
        for (kind, axis, ranks), calls in groups.items()
    ]
    return tuple(sorted(rows, key=lambda row: -row.num_bytes))


def rank_tokens(fit: Fit) -> float:
    """Tokens in one micro-batch on one rank."""
    return fit.config.micro_batch_size * fit.workload.seq_len / fit.config.cp


def flops_per_token(fit: Fit) -> float | None:
    """FLOPs per token on all ranks that share its micro-batch; in a pipeline, one middle rank
    represents all middle ranks."""
    if not fit.runs:
        return None
    counts = stage_counts(fit.config.pp, len(fit.runs))
    return (
        sum(n * run.flops for n, run in zip(counts, fit.runs, strict=True))
        * fit.config.tp
        / rank_tokens(fit)
    )


def stage_counts(pp: int, runs: int) -> tuple[int, ...]:
    """How many pipeline ranks each run represents: (1, pp - 2, 1), (1, 1) or (1,)."""
    return (1, pp - 2, 1) if runs == 3 else (1,) * runs


def active_parameters(fit: Fit) -> float:
    """Parameters that one token uses."""
    model = fit.workload.model
    total = fit.runs[0].num_parameters if fit.runs else model.num_parameters
    return total * model.active_parameters / model.num_parameters


def over_six_n(fit: Fit) -> float | None:
    """FLOPs per token as a multiple of 6N; attention scores and recomputation raise it."""
    flops = flops_per_token(fit)
    return None if flops is None else flops / (6.0 * active_parameters(fit))


def moment_words(sample: MemorySample, accumulation: int) -> str:
    """When the sample was taken: `in the backward pass of micro-batch 2 of 8, in layers.3.mlp`."""
    moment = sample.moment
    words = {"build": "while the model is built", "optimizer": "in the optimizer step"}.get(
        moment.phase, f"in the {moment.phase} pass"
    )
    if moment.micro_batch >= 0:
        words += f" of micro-batch {moment.micro_batch + 1} of {max(accumulation, moment.micro_batch + 1)}"
    return words + (f", in {moment.module}" if moment.module else "")
