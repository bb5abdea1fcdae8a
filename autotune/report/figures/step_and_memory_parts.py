"""Figures of step time and memory by cause: for the winner, the runner-up and the baseline, and for
each rank of a trial (`autotune.diagnosis`) next to the prediction.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields

from autotune.report.figures.source import CONFIG, TRIAL, FigureSource
from autotune.report.findings import time_parts
from autotune.report.svg.bars import Bar, stacked_bars
from autotune.report.svg.canvas import byte_ticks, time_ticks
from autotune.report.terminal import PART_NAMES, format_bytes, format_duration
from autotune.results.answers import standings_of
from autotune.results.diagnoses import diagnosis_of_run
from autotune.results.figure import Column, Figure, table_of
from autotune.spec import MemoryParts, Trial, config_label
from autotune.spec.texts.as_text import bytes_cell, duration_cell

ROLE = Column(name="role", head="", is_number=False)
MEMORY_NAMES: Mapping[str, str] = {part.name: PART_NAMES[part.name] for part in fields(MemoryParts)}
"""display names of the parts of memory"""
MAX_CAPACITY_RATIO = 4.0
"""if the capacity is more than this factor above the highest peak, it is stated in words and not
drawn"""


def compared_trials(source: FigureSource) -> list[tuple[str, Trial]]:
    """Return winner, runner-up and baseline as (role, trial); each trial once."""
    best, baseline = source.result.best, source.result.baseline
    if best is None:
        return []
    others = [t for t in standings_of(source.result) if t.config != best.config]
    runner_up = next((t for t in others if baseline is None or t.config != baseline.config), None)
    is_baseline = baseline is not None and baseline.config == best.config
    compared = [("winner = baseline" if is_baseline else "winner", best)]
    compared += [("runner-up", runner_up)] if runner_up is not None else []
    return compared if baseline is None or is_baseline else [*compared, ("baseline", baseline)]


def step_parts(source: FigureSource) -> Figure | None:
    """Return the figure of step time by cause; None without data."""
    bars, rows, trials = [], [], compared_trials(source)
    parts_by_trial, source_name = time_parts(*(trial for _, trial in trials))
    for (role, trial), parts in zip(trials, parts_by_trial, strict=True):
        if parts and trial.measurement is not None:
            step_s = trial.measurement.step_time_s
            bars.append(
                Bar(
                    label=f"{role} #{trial.number}",
                    parts=parts,
                    mark=step_s,
                    note=f"{format_duration(step_s)} measured",
                )
            )
            rows.append((role, trial, parts, step_s))
    if not bars:
        return None
    names = part_names([parts for _, _, parts, _ in rows])
    return Figure(
        name="step_parts",
        title="Where step time goes",
        shows=f"{source_name.capitalize()} time in one optimizer step by cause, for the winner, the runner-up and the baseline.",
        how_to_read="Each bar is one step, colored by cause. The tick and the number are the measured median step. "
        "Communication hidden behind computation takes no time and is not shown. Batches may differ, so compare throughput, not just step times.",
        svg=stacked_bars(
            bars,
            names=names,
            number=format_duration,
            x_label="time in one optimizer step",
            description="Step time of the winner, the runner-up and the baseline by part",
            tick_values=time_ticks,
        ),
        table=table_of(
            (
                ROLE,
                TRIAL,
                CONFIG,
                *(
                    Column(name=f"{n}_s", head=word, show=duration_cell)
                    for n, word in names.items()
                ),
                Column(
                    name="measured_step_time_s",
                    head="measured step",
                    show=duration_cell,
                    bar_of=0.0,
                ),
            ),
            [
                (role, t.number, config_label(t.config), *(parts.get(n, 0.0) for n in names), s)
                for role, t, parts, s in rows
            ],
        ),
    )


def memory_parts(source: FigureSource) -> Figure | None:
    """Return the figure of memory by cause on the rank with the highest peak, against the capacity;
    None without predictions."""
    bars, rows = [], []
    for role, trial in compared_trials(source):
        if trial.estimate is None:
            continue
        parts = {n: float(v) for n, v in trial.estimate.memory_parts_bytes.to_dict().items()}
        peak = trial.peak_memory_bytes
        note = (
            f"{format_bytes(peak)} measured"
            if peak
            else f"{format_bytes(sum(parts.values()))} predicted"
        )
        bars.append(Bar(label=f"{role} #{trial.number}", parts=parts, mark=peak, note=note))
        rows.append((role, trial, parts, peak))
    if not bars:
        return None
    capacity = _capacity(source)
    svg, capacity_sentence = memory_bars(
        bars,
        MEMORY_NAMES,
        capacity_bytes=capacity,
        x_label="highest peak memory of any rank",
        description="Predicted parts and measured memory peak, against the capacity",
    )
    return Figure(
        name="memory_parts",
        title="Where the memory goes",
        shows=f"Predicted peak memory by cause, on the rank with the highest peak, for the winner, the runner-up and the baseline.{capacity_sentence}",
        how_to_read="Bars are colored by cause. The tick and the number show the measured peak."
        + (
            ""
            if capacity_sentence
            else " A bar or tick near the dashed line leaves no room for a larger micro-batch."
        ),
        svg=svg,
        table=table_of(
            (
                ROLE,
                TRIAL,
                CONFIG,
                *(
                    Column(name=f"{n}_bytes", head=word, show=bytes_cell)
                    for n, word in MEMORY_NAMES.items()
                ),
                Column(name="measured_peak_bytes", head="measured peak", show=bytes_cell),
                Column(name="capacity_bytes", head="capacity", show=bytes_cell),
            ),
            [
                (
                    role,
                    t.number,
                    config_label(t.config),
                    *(parts.get(n, 0.0) for n in MEMORY_NAMES),
                    peak,
                    capacity,
                )
                for role, t, parts, peak in rows
            ],
        ),
    )


def memory_bars(
    bars: Sequence[Bar],
    names: Mapping[str, str],
    *,
    capacity_bytes: float,
    x_label: str,
    description: str,
) -> tuple[str, str]:
    """Return the bars of memory against the capacity, and a sentence that states the capacity if it
    is too far off to be drawn."""
    capacity = format_bytes(capacity_bytes)
    is_near = capacity_bytes <= MAX_CAPACITY_RATIO * max(
        max(bar.mark or 0.0, sum(bar.parts.values())) for bar in bars
    )
    svg = stacked_bars(
        bars,
        names=names,
        number=format_bytes,
        x_label=x_label,
        description=description,
        tick_values=byte_ticks,
        limit=capacity_bytes if is_near else None,
        limit_label=f"capacity {capacity}",
    )
    return (
        svg,
        "" if is_near else f" The capacity, {capacity}, is beyond the right edge of the figure.",
    )


def part_names(parts_by_bar: list[dict[str, float]]) -> Mapping[str, str]:
    """Return the display names of the parts that occur, in their usual order."""
    values = ((name, value) for parts in parts_by_bar for name, value in parts.items())
    used = {name for name, value in values if value > 0}
    ordered = {name: word for name, word in PART_NAMES.items() if name in used}
    return {**ordered, **{name: name.replace("_", " ") for name in sorted(used - set(ordered))}}


def _capacity(source: FigureSource) -> float:
    """Return a rank's memory in bytes: the smallest that a trial reported, otherwise the GPU's."""
    reported = (
        t.measurement.memory_capacity_bytes
        for t in source.result.measured
        if t.measurement is not None
    )
    return min(
        filter(None, reported), default=source.result.record.study.workload.cluster.gpu.memory_bytes
    )


RANK_PART_NAMES: Mapping[str, str] = {
    "compute": "forward and backward",
    "communication": "communication, waiting for others",
    "bubble": "bubble",
    "optimizer": "optimizer",
    "data": "data",
    "pauses": "evaluation, checkpoints",
    "rest": "the rest",
    "processor": "waiting for a processor",
}
MAX_RANKS = 16
"""maximum number of ranks to show"""
_MEASURED_PARTS = {"forward": "compute", "backward": "compute", "optimizer": "optimizer", "data": "data", "evaluation": "pauses", "checkpoint": "pauses", "rest": "rest", "waiting for others": "communication", "waiting for a processor": "processor"}  # fmt: skip
"""part for each activity in a rank's measured time (`autotune.diagnosis`)"""
_PREDICTED_PARTS = {
    "compute": "compute",
    "bubble": "bubble",
    "optimizer": "optimizer",
    "other": "rest",
}


def winners_rank_parts(source: FigureSource) -> Figure | None:
    """Return the figure of the best config's time on each rank; None without a best config or
    evidence."""
    best = source.result.best
    if best is None:
        return None
    return rank_parts(next((t for t in source.result.trials if t.number == best.number), best))


def rank_parts(trial: Trial) -> Figure | None:
    """Return the figure of a trial's time on each rank; None if no rank was observed."""
    if trial.measurement is None or not trial.measurement.evidence:
        return None
    diagnosis = diagnosis_of_run(trial)
    bars: list[tuple[str, dict[str, float]]] = []
    if trial.estimate is not None:
        parts = trial.estimate.time_parts_s.to_dict()
        bars.append(
            ("predicted", _summed(parts, lambda name: _PREDICTED_PARTS.get(name, "communication")))
        )
    for row in diagnosis.table[:MAX_RANKS]:
        node = f" ({row['node']})" if len({r["node"] for r in diagnosis.table}) > 1 else ""
        bars.append(
            (
                f"rank {row['rank']}{node}",
                _summed(row["parts_s"], lambda name: _MEASURED_PARTS[name]),
            )
        )
    if not bars:
        return None
    names = {
        name: word
        for name, word in RANK_PART_NAMES.items()
        if any(name in parts for _, parts in bars)
    }
    num_hidden = len(diagnosis.table) - MAX_RANKS
    more = f" {num_hidden} more ranks are not shown." if num_hidden > 0 else ""
    return Figure(
        name="rank_parts",
        title="Where each rank's time goes",
        shows=f"Time in a step by cause: as predicted, and as measured on each rank (mean over the steps after warm-up).{more}",
        how_to_read=f"{diagnosis.verdict}. Different bars mean that ranks do different work; the others wait for the rank that waits least. "
        f"For details, run `autotune diagnose {trial.study or 'STUDY'} {trial.number}`.",
        svg=stacked_bars(
            [Bar(label=label, parts=parts, note=format_duration(sum(parts.values()))) for label, parts in bars],
            names=names,
            number=format_duration,
            x_label="time in one optimizer step",
            description="Parts of a step by rank, predicted and measured",
            tick_values=time_ticks,
        ),
        table=table_of(
            (Column(name="cause", head="", is_number=False), *(Column(name=f"{label}_s", head=label, show=duration_cell) for label, _ in bars)),
            [(word, *(parts.get(name, 0.0) for _, parts in bars)) for name, word in names.items()],
        ),
    )  # fmt: skip


def _summed(values: Mapping[str, float], name_of: Callable[[str], str]) -> dict[str, float]:
    """Return positive values summed by the name that `name_of` maps them to."""
    sums: dict[str, float] = {}
    for name, value in values.items():
        if value > 0:
            sums[name_of(name)] = sums.get(name_of(name), 0.0) + float(value)
    return sums
