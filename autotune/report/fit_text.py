"""The answer to "will it fit?" as words and rows, which the terminal and the HTML page show alike.

A table is its heads and its rows of text; the first `text` columns are words and the others
numbers.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from autotune.plan.fit import AT_THE_LIMIT, FITS, PLAYED, Fit
from autotune.plan.fit.findings import (
    active_parameters,
    beside_cost_model,
    flops_per_token,
    fullest_modules,
    largest_products,
    moment_words,
    over_six_n,
    product_flops,
    traffic,
)
from autotune.report.memory_over_step import CATEGORY_NAMES
from autotune.report.terminal import format_bytes, format_count, format_duration
from autotune.spec import DryRun, ParallelConfig, Workload, config_label
from autotune.spec.texts.as_text import bytes_cell, number_of


@dataclass(frozen=True, slots=True, kw_only=True)
class Rows:
    """A small table."""

    title: str
    heads: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    text: int = 1
    """leading columns that are words"""


def workload_line(workload: Workload) -> str:
    """What is asked about."""
    batch = ", ".join(map(str, workload.global_batch_sizes))
    return (
        f"{workload.model.name} ({format_count(workload.model.num_parameters)} parameters) on {workload.cluster.name}, "
        f"{number_of(workload.seq_len, 'token')} x {batch} sequences, {workload.optimizer}, trainer {workload.trainer}"
    )


def problem_lines(fit: Fit) -> list[str]:
    """Why no dry run could be made, and what to do; empty where one was. It stands before all else:
    it may be a fault of the model's code."""
    if not fit.problem:
        return []
    return [
        f"a dry run was impossible: {fit.problem}",
        *([f"  {fit.remedy}"] if fit.remedy else []),
    ]


def verdict_line(fit: Fit) -> str:
    """The answer in one line: verdict, whose it is, allocated, reserved, memory, risk."""
    place = "rank" if fit.workload.cluster.gpu.is_cpu else "GPU"
    reserved = (
        f"{format_bytes(fit.reserved.peak_bytes)} reserved "
        f"(90%: {format_bytes(fit.reserved.low_bytes)} to {format_bytes(fit.reserved.high_bytes)})"
    )
    if fit.basis == "dry run":
        said = {FITS: "yes, it fits", AT_THE_LIMIT: "at the limit"}.get(
            fit.verdict, "no, it does not fit"
        )
        size = f"{format_bytes(fit.allocated_bytes)} allocated at the peak, {reserved}"
    else:
        said = {FITS: "it should fit", AT_THE_LIMIT: "it is at the limit"}.get(
            fit.verdict, "it should not fit"
        )
        whose = (
            f"according to the cost model of {fit.workload.trainer} (the dry run below executes the {PLAYED} trainer's loop)"
            if fit.runs
            else "according to the cost model's formulas (the model's code was not run)"
        )
        said, size = f"{whose}, {said}", reserved
    memory = f"a {place} has {format_bytes(fit.memory_bytes)}, {format_bytes(fit.reserved.usable_bytes)} of it usable"
    return f"{said}: {size}; {memory}; P(OOM) {risk(fit)}"


def other_verdict_line(fit: Fit) -> str:
    """Where dry run and cost model are two answers: both, which one counts, and why. Empty where
    they agree."""
    if not fit.runs or fit.allocated_bytes is None:
        return ""
    if not fit.is_played:
        return (
            f"the {PLAYED} trainer allocates {format_bytes(fit.allocated_bytes)} in this config, but {fit.workload.trainer} keeps different tensors: "
            "the table 'Dry run and formulas' compares both trainers by category and gives the reasons"
        )
    if fit.verdict == fit.cost_model_verdict:
        return ""
    return (
        f"plan and estimate say {fit.cost_model_verdict!r} based on formulas ({format_bytes(float(fit.estimate.peak_memory_bytes))}); "
        "the dry run is authoritative, because it runs the trainer's code. With --profile, plan and estimate use the dry run's memory"
    )


def risk(fit: Fit) -> str:
    """P(OOM) as text: no risk is exactly 0% or 100%."""
    if fit.oom_probability < 0.005:
        return "below 1%"
    return "above 99%" if fit.oom_probability > 0.995 else f"{fit.oom_probability:.0%}"


def several_line(fits: Sequence[Fit]) -> str:
    """The answer for several configs in one line."""
    count, failed = sum(fit.fits is True for fit in fits), sum(fit.fits is None for fit in fits)
    if failed == len(fits):
        return (
            f"no dry run was possible for any of {number_of(failed, 'config')}: {fits[0].problem}"
        )
    without = f"; no dry run was possible for {failed} of them" if failed else ""
    return f"{count or 'none'} of {number_of(len(fits), 'config')} {'is' if count == 1 else 'are'} expected to fit{without}"


def rank_names(fit: Fit) -> tuple[str, ...]:
    """What the ranks of the runs are called."""
    if len(fit.runs) < 2:
        return ("every rank",) * len(fit.runs)
    words = ("first", "last") if len(fit.runs) == 2 else ("first", "middle", "last")
    return tuple(
        f"{word} (pp rank {run.pp_rank})" for word, run in zip(words, fit.runs, strict=True)
    )


def peaks(fit: Fit) -> Rows:
    """The peak of each rank by category."""
    used = [
        name
        for name in CATEGORY_NAMES
        if any(run.peak.parts_bytes.get(name, 0) for run in fit.runs)
    ]
    rows = [
        (
            name,
            bytes_cell(run.peak.total_bytes),
            *(bytes_cell(run.peak.parts_bytes.get(category, 0)) for category in used),
        )
        for name, run in zip(rank_names(fit), fit.runs, strict=True)
    ]
    heads = ("rank", "peak", *(CATEGORY_NAMES[name] for name in used))
    return Rows(title="Peak of allocated memory", heads=heads, rows=tuple(rows))


def peak_lines(fit: Fit) -> list[str]:
    """When the peak of each rank occurs."""
    steps = fit.config.accumulation_steps
    return [
        f"{name}: the peak is {moment_words(run.peak, steps)}"
        for name, run in zip(rank_names(fit), fit.runs, strict=True)
    ]


def cost_model(fit: Fit) -> Rows:
    """The categories of the fullest rank beside those of the cost model, with the reasons where
    they are two trainers'."""
    found = beside_cost_model(fit)
    rows = [
        (row.name, bytes_cell(row.dry_run_bytes), bytes_cell(row.cost_model_bytes)) for row in found
    ]
    total = (
        "total",
        bytes_cell(fit.allocated_bytes),
        bytes_cell(float(fit.estimate.peak_memory_bytes)),
    )
    if fit.is_played:
        heads = ("category", "dry run (allocated)", "formulas (reserved)")
        return Rows(title="Dry run and formulas", heads=heads, rows=(*rows, total))
    trainer = fit.workload.trainer
    compared = (
        "category",
        f"what {trainer} does differently",
        f"{PLAYED}, dry run",
        f"{trainer}, formulas",
    )
    reasons = [(name, row.why, *sizes) for row, (name, *sizes) in zip(found, rows, strict=True)]
    return Rows(
        title="Dry run and formulas",
        heads=compared,
        rows=(*reasons, (total[0], "", *total[1:])),
        text=2,
    )


def modules(run: DryRun) -> Rows:
    """The modules that made most of what is alive at the peak."""
    rows = [
        (
            row.name or "(the model itself, and its loss)",
            row.kind.removeprefix("FSDP"),  # FSDP gives what it shards a class of its own
            f"{row.count:,}",
            format_bytes(row.at_peak_bytes),
            format_bytes(row.parameter_bytes),
            format_bytes(row.saved_bytes),
            format_count(float(row.flops)),
        )
        for row in fullest_modules(run)
    ]
    heads = (
        "module",
        "class",
        "how many",
        "at the peak",
        "weights",
        "saved by a micro-batch",
        "FLOPs of a micro-batch",
    )
    return Rows(title="Modules with the most memory", heads=heads, rows=tuple(rows), text=2)


def products(run: DryRun) -> Rows:
    """The matmuls that take most of the work."""
    rows = [
        (
            f"{p.m:,} x {p.k:,} x {p.n:,}",
            p.dtype,
            f"{p.count:,}",
            format_count(float(product_flops(p))),
        )
        for p in largest_products(run)
    ]
    heads = ("m x k x n", "type", "times in a micro-batch", "FLOPs")
    return Rows(title="Largest matmuls", heads=heads, rows=tuple(rows), text=2)


def collectives(run: DryRun, config: ParallelConfig) -> Rows:
    """What a rank sends in one optimizer step."""
    rows = [
        (
            row.kind.replace("_", "-"),
            _axis(row.axis, config),
            _ranks(row.ranks),
            f"{row.calls:,}",
            format_bytes(row.num_bytes),
        )
        for row in traffic(run)
    ]
    heads = ("collective", "axis", "ranks of the group", "calls in a step", "bytes in a step")
    return Rows(title="Traffic of a rank", heads=heads, rows=tuple(rows), text=3)


def work_line(fit: Fit) -> str:
    """Parameters and FLOPs."""
    run, flops, ratio = fit.fullest, flops_per_token(fit), over_six_n(fit)
    if run is None or flops is None or ratio is None:
        return ""
    active = active_parameters(fit)
    used = "" if active == run.num_parameters else f" ({format_count(active)} used per token)"
    return (
        f"{format_count(run.num_parameters)} parameters{used}, {format_count(run.rank_parameters)} on each rank; "
        f"{format_count(float(run.flops))} FLOPs per micro-batch on each rank, {format_count(flops)} per token, {ratio:.2f} times 6N"
    )


def closing_lines(fit: Fit) -> list[str]:
    """What was assumed, what was left out, versions and time."""
    gpu = fit.workload.cluster.gpu.name
    lines = (
        [
            f"reserved: the memory that {gpu}'s allocator holds beyond the tensors is {fit.reserved.source}"
        ]
        if fit.basis == "dry run"
        else []
    )
    lines += [f"assumed: {guess}" for guess in fit.guesses]
    lines += [f"note: {note}" for note in fit.notes]
    if fit.runs:
        ran_on = ", ".join(f"{name} {version}" for name, version in fit.versions.items())
        most = max(run.process_peak_bytes for run in fit.runs)
        lines.append(
            f"{number_of(len(fit.runs), 'dry run')} of a {fit.runs[0].world_size:,}-rank job in {format_duration(fit.took_s)}"
            + (f", with {format_bytes(most)} of memory" if most else "")
            + (f" ({ran_on})" if ran_on else "")
        )
    return lines


def tables(fit: Fit) -> list[Rows]:
    """All tables of an answer by dry runs, those without rows left out."""
    run = fit.fullest
    if run is None:
        return []
    return [
        rows
        for rows in (
            peaks(fit),
            cost_model(fit),
            modules(run),
            products(run),
            collectives(run, fit.config),
        )
        if rows.rows
    ]


def several(fits: Sequence[Fit]) -> Rows:
    """One row for each config, where several were asked about."""
    rows = [
        (
            config_label(fit.config),
            fit.verdict if fit.runs else f"no dry run (formulas: {fit.verdict})",
            format_bytes(fit.allocated_bytes),
            format_bytes(fit.reserved.peak_bytes),
            format_bytes(float(fit.estimate.peak_memory_bytes)),
            risk(fit),
        )
        for fit in fits
    ]
    heads = ("config", "verdict", "allocated", "reserved", "formulas", "P(OOM)")
    return Rows(title="Will they fit?", heads=heads, rows=tuple(rows), text=2)


def _axis(name: str, config: ParallelConfig) -> str:
    """`dp_cp`, over which data and context parallelism reduce gradients, is dp alone without
    context parallelism."""
    return name.replace("dp_cp", "dp" if config.cp == 1 else "dp and cp").replace("_", " ")


def _ranks(ranks: Sequence[int]) -> str:
    """`8 (0 to 7)`, `4 (0, 8, 16, ...)`."""
    if len(ranks) > 1 and list(ranks) == list(range(ranks[0], ranks[0] + len(ranks))):
        return f"{len(ranks):,} ({ranks[0]} to {ranks[-1]})"
    shown = ", ".join(map(str, ranks[:3])) + (", ..." if len(ranks) > 3 else "")
    return f"{len(ranks):,} ({shown})"
