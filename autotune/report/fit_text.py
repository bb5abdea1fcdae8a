"""The answer of `autotune fit` as sentences and tables, for the terminal and the HTML page.

In a table, the first `text` columns are words and the others are numbers.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from autotune.plan.fit import AT_THE_LIMIT, DRY_RUN_TRAINER, FITS, Fit
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
class TextTable:
    """A small table of text."""

    title: str
    heads: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    text: int = 1
    """number of leading columns with words"""


def workload_line(workload: Workload) -> str:
    """Return the workload that the answer is about, in one line."""
    batch = ", ".join(map(str, workload.global_batch_sizes))
    return (
        f"{workload.model.name} ({format_count(workload.model.num_parameters)} parameters) on {workload.cluster.name}, "
        f"{number_of(workload.seq_len, 'token')} x {batch} sequences, {workload.optimizer}, trainer {workload.trainer}"
    )


def problem_lines(fit: Fit) -> list[str]:
    """Return why no dry run was possible, and the remedy; an empty list after a dry run. Print this
    first, because the cause may be a mistake in the model's code."""
    if not fit.problem:
        return []
    return [
        f"a dry run was impossible: {fit.problem}",
        *([f"  {fit.remedy}"] if fit.remedy else []),
    ]


def verdict_line(fit: Fit) -> str:
    """Return the answer in one line: verdict and its basis, allocated, reserved and available
    memory, and risk."""
    device = "rank" if fit.workload.cluster.gpu.is_cpu else "GPU"
    reserved = (
        f"{format_bytes(fit.reserved.peak_bytes)} reserved "
        f"(90%: {format_bytes(fit.reserved.low_bytes)} to {format_bytes(fit.reserved.high_bytes)})"
    )
    if fit.basis == "dry run":
        verdict = {FITS: "yes, it fits", AT_THE_LIMIT: "at the limit"}.get(
            fit.verdict, "no, it does not fit"
        )
        size = f"{format_bytes(fit.allocated_bytes)} allocated at the peak, {reserved}"
    else:
        verdict = {FITS: "it should fit", AT_THE_LIMIT: "it is at the limit"}.get(
            fit.verdict, "it should not fit"
        )
        basis = (
            f"according to the cost model of {fit.workload.trainer} (the dry run below executes the {DRY_RUN_TRAINER} trainer's loop)"
            if fit.runs
            else "according to the cost model's formulas (the model's code was not run)"
        )
        verdict, size = f"{basis}, {verdict}", reserved
    memory = f"a {device} has {format_bytes(fit.memory_bytes)}, {format_bytes(fit.reserved.usable_bytes)} of it usable"
    return f"{verdict}: {size}; {memory}; P(OOM) {oom_risk(fit)}"


def other_verdict_line(fit: Fit) -> str:
    """Return the second answer if dry run and cost model differ, which of the two counts, and why;
    an empty text if they agree."""
    if not fit.runs or fit.allocated_bytes is None:
        return ""
    if not fit.runs_study_trainer:
        return (
            f"the {DRY_RUN_TRAINER} trainer allocates {format_bytes(fit.allocated_bytes)} in this config, but {fit.workload.trainer} keeps different tensors: "
            "the table 'Dry run and formulas' compares both trainers by category and gives the reasons"
        )
    if fit.verdict == fit.cost_model_verdict:
        return ""
    return (
        f"plan and estimate say {fit.cost_model_verdict!r} based on formulas ({format_bytes(float(fit.estimate.peak_memory_bytes))}); "
        "the dry run is authoritative, because it runs the trainer's code. With --profile, plan and estimate use the dry run's memory"
    )


def oom_risk(fit: Fit) -> str:
    """Return P(OOM) as text, which is never exactly 0% or 100%."""
    if fit.oom_probability < 0.005:
        return "below 1%"
    return "above 99%" if fit.oom_probability > 0.995 else f"{fit.oom_probability:.0%}"


def summary_line(fits: Sequence[Fit]) -> str:
    """Return the answer for several configs in one line."""
    count, failed = sum(fit.fits is True for fit in fits), sum(fit.fits is None for fit in fits)
    if failed == len(fits):
        return (
            f"no dry run was possible for any of {number_of(failed, 'config')}: {fits[0].problem}"
        )
    without = f"; no dry run was possible for {failed} of them" if failed else ""
    return f"{count or 'none'} of {number_of(len(fits), 'config')} {'is' if count == 1 else 'are'} expected to fit{without}"


def rank_names(fit: Fit) -> tuple[str, ...]:
    """Return display names for the ranks that were dry-run."""
    if len(fit.runs) < 2:
        return ("every rank",) * len(fit.runs)
    words = ("first", "last") if len(fit.runs) == 2 else ("first", "middle", "last")
    return tuple(
        f"{word} (pp rank {run.pp_rank})" for word, run in zip(words, fit.runs, strict=True)
    )


def peak_table(fit: Fit) -> TextTable:
    """Return the peak of each dry-run rank by category."""
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
    return TextTable(title="Peak of allocated memory", heads=heads, rows=tuple(rows))


def peak_lines(fit: Fit) -> list[str]:
    """Return when the peak of each dry-run rank occurs, one line per rank."""
    steps = fit.config.accumulation_steps
    return [
        f"{name}: the peak is {moment_words(run.peak, steps)}"
        for name, run in zip(rank_names(fit), fit.runs, strict=True)
    ]


def category_table(fit: Fit) -> TextTable:
    """Return memory by category, for the dry run of the rank with the highest peak and for the cost
    model. If the two are about different trainers, the reasons for differences are a column."""
    comparison = beside_cost_model(fit)
    rows = [
        (row.name, bytes_cell(row.dry_run_bytes), bytes_cell(row.cost_model_bytes))
        for row in comparison
    ]
    total = (
        "total",
        bytes_cell(fit.allocated_bytes),
        bytes_cell(float(fit.estimate.peak_memory_bytes)),
    )
    if fit.runs_study_trainer:
        heads = ("category", "dry run (allocated)", "formulas (reserved)")
        return TextTable(title="Dry run and formulas", heads=heads, rows=(*rows, total))
    trainer = fit.workload.trainer
    compared = (
        "category",
        f"what {trainer} does differently",
        f"{DRY_RUN_TRAINER}, dry run",
        f"{trainer}, formulas",
    )
    reasons = [
        (name, row.why, *sizes) for row, (name, *sizes) in zip(comparison, rows, strict=True)
    ]
    return TextTable(
        title="Dry run and formulas",
        heads=compared,
        rows=(*reasons, (total[0], "", *total[1:])),
        text=2,
    )


def module_table(run: DryRun) -> TextTable:
    """Return the modules that created most of the memory in use at the peak."""
    rows = [
        (
            row.name or "(the model itself, and its loss)",
            row.kind.removeprefix("FSDP"),  # FSDP replaces the class of each module that it shards
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
    return TextTable(title="Modules with the most memory", heads=heads, rows=tuple(rows), text=2)


def matmul_table(run: DryRun) -> TextTable:
    """Return the matmuls with the most FLOPs."""
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
    return TextTable(title="Largest matmuls", heads=heads, rows=tuple(rows), text=2)


def traffic_table(run: DryRun, config: ParallelConfig) -> TextTable:
    """Return a rank's traffic by collective in one optimizer step."""
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
    return TextTable(title="Traffic of a rank", heads=heads, rows=tuple(rows), text=3)


def work_line(fit: Fit) -> str:
    """Return parameters and FLOPs in one line; an empty text without a dry run."""
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
    """Return assumptions, notes, versions and the duration of the dry runs, one line each."""
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
        versions = ", ".join(f"{name} {version}" for name, version in fit.versions.items())
        peak_bytes = max(run.process_peak_bytes for run in fit.runs)
        lines.append(
            f"{number_of(len(fit.runs), 'dry run')} of a {fit.runs[0].world_size:,}-rank job in {format_duration(fit.took_s)}"
            + (f", with {format_bytes(peak_bytes)} of memory" if peak_bytes else "")
            + (f" ({versions})" if versions else "")
        )
    return lines


def tables(fit: Fit) -> list[TextTable]:
    """Return all nonempty tables for an answer with dry runs."""
    run = fit.fullest
    if run is None:
        return []
    return [
        rows
        for rows in (
            peak_table(fit),
            category_table(fit),
            module_table(run),
            matmul_table(run),
            traffic_table(run, fit.config),
        )
        if rows.rows
    ]


def summary_table(fits: Sequence[Fit]) -> TextTable:
    """Return a table with one row for each of several configs."""
    rows = [
        (
            config_label(fit.config),
            fit.verdict if fit.runs else f"no dry run (formulas: {fit.verdict})",
            format_bytes(fit.allocated_bytes),
            format_bytes(fit.reserved.peak_bytes),
            format_bytes(float(fit.estimate.peak_memory_bytes)),
            oom_risk(fit),
        )
        for fit in fits
    ]
    heads = ("config", "verdict", "allocated", "reserved", "formulas", "P(OOM)")
    return TextTable(title="Will they fit?", heads=heads, rows=tuple(rows), text=2)


def _axis(name: str, config: ParallelConfig) -> str:
    """Return an axis as text. `dp_cp`, the group that reduces gradients, is just dp without context
    parallelism."""
    return name.replace("dp_cp", "dp" if config.cp == 1 else "dp and cp").replace("_", " ")


def _ranks(ranks: Sequence[int]) -> str:
    """Return a group of ranks as `8 (0 to 7)` or `4 (0, 8, 16, ...)`."""
    if len(ranks) > 1 and list(ranks) == list(range(ranks[0], ranks[0] + len(ranks))):
        return f"{len(ranks):,} ({ranks[0]} to {ranks[-1]})"
    shown = ", ".join(map(str, ranks[:3])) + (", ..." if len(ranks) > 3 else "")
    return f"{len(ranks):,} ({shown})"
