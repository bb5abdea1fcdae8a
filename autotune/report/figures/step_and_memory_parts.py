"""Where the time of a step and the memory of a rank go: the winner beside the baseline and the
runner-up.

Where each rank's time goes, beside what was predicted of a step, with what that says
(`autotune.diagnosis`).
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
"""what people call the parts of memory"""
FAR = 4.0
"""a capacity of more than so many times the largest peak is named, not drawn"""


def compared_trials(source: FigureSource) -> list[tuple[str, Trial]]:
    """Winner, runner-up and baseline with their roles; each trial once."""
    best, default = source.result.best, source.result.baseline
    if best is None:
        return []
    others = [t for t in standings_of(source.result) if t.config != best.config]
    runner_up = next((t for t in others if default is None or t.config != default.config), None)
    is_default = default is not None and default.config == best.config
    found = [("winner = baseline" if is_default else "winner", best)]
    found += [("runner-up", runner_up)] if runner_up is not None else []
    return found if default is None or is_default else [*found, ("baseline", default)]


def step_parts(source: FigureSource) -> Figure | None:
    """Seconds of a step by cause."""
    bars, rows, trials = [], [], compared_trials(source)
    found, known_by = time_parts(*(trial for _, trial in trials))
    for (role, trial), parts in zip(trials, found, strict=True):
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
        shows=f"{known_by.capitalize()} time in one optimizer step by cause, for the winner, the runner-up and the baseline.",
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
    """Bytes by cause on the rank with the highest peak, against the capacity."""
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
    svg, far = memory_bars(
        bars,
        MEMORY_NAMES,
        capacity_bytes=capacity,
        x_label="highest peak memory of any rank",
        description="Predicted parts and measured memory peak, against the capacity",
    )
    return Figure(
        name="memory_parts",
        title="Where the memory goes",
        shows=f"Predicted peak memory by cause, on the rank with the highest peak, for the winner, the runner-up and the baseline.{far}",
        how_to_read="Bars are colored by cause. The tick and the number show the measured peak."
        + (
            ""
            if far
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
    """(bars of memory against the capacity, a sentence that names a capacity too far off to be
    drawn)."""
    capacity = format_bytes(capacity_bytes)
    is_near = capacity_bytes <= FAR * max(
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


def part_names(found: list[dict[str, float]]) -> Mapping[str, str]:
    """The parts that occur, in their usual order."""
    values = ((name, value) for parts in found for name, value in parts.items())
    used = {name for name, value in values if value > 0}
    known = {name: word for name, word in PART_NAMES.items() if name in used}
    return {**known, **{name: name.replace("_", " ") for name in sorted(used - set(known))}}


def _capacity(source: FigureSource) -> float:
    """Memory of a rank: the smallest that a trial reported, else the GPU's."""
    told = (
        t.measurement.memory_capacity_bytes
        for t in source.result.measured
        if t.measurement is not None
    )
    return min(
        filter(None, told), default=source.result.record.study.workload.cluster.gpu.memory_bytes
    )


NAMES: Mapping[str, str] = {
    "compute": "forward and backward",
    "communication": "communication, waiting for others",
    "bubble": "bubble",
    "optimizer": "optimizer",
    "data": "data",
    "pauses": "evaluation, checkpoints",
    "rest": "the rest",
    "processor": "waiting for a processor",
}
MOST_RANKS = 16
"""ranks that are shown"""
_SEEN = {"forward": "compute", "backward": "compute", "optimizer": "optimizer", "data": "data", "evaluation": "pauses", "checkpoint": "pauses", "rest": "rest", "waiting for others": "communication", "waiting for a processor": "processor"}  # fmt: skip
_PREDICTED = {"compute": "compute", "bubble": "bubble", "optimizer": "optimizer", "other": "rest"}


def winners_rank_parts(source: FigureSource) -> Figure | None:
    """Of the best config of a study."""
    best = source.result.best
    return (
        rank_parts(
            next((t for t in source.result.trials if best and t.number == best.number), best)
        )
        if best
        else None
    )


def rank_parts(trial: Trial) -> Figure | None:
    """Of a trial; None where no rank was watched."""
    if trial.measurement is None or not trial.measurement.evidence:
        return None
    diagnosis = diagnosis_of_run(trial)
    found: list[tuple[str, dict[str, float]]] = []
    if trial.estimate is not None:
        parts = trial.estimate.time_parts_s.to_dict()
        found.append(
            ("predicted", _summed(parts, lambda name: _PREDICTED.get(name, "communication")))
        )
    for row in diagnosis.table[:MOST_RANKS]:
        where = f" ({row['node']})" if len({r["node"] for r in diagnosis.table}) > 1 else ""
        found.append(
            (f"rank {row['rank']}{where}", _summed(row["parts_s"], lambda name: _SEEN[name]))
        )
    if not found:
        return None
    names = {name: word for name, word in NAMES.items() if any(name in parts for _, parts in found)}
    left_out = len(diagnosis.table) - MOST_RANKS
    more = f" {left_out} more ranks are not shown." if left_out > 0 else ""
    return Figure(
        name="rank_parts",
        title="Where each rank's time goes",
        shows=f"Time in a step by cause: as predicted, and as measured on each rank (mean over the steps after warm-up).{more}",
        how_to_read=f"{diagnosis.verdict}. Different bars mean that ranks do different work; the others wait for the rank that waits least. "
        f"For details, run `autotune diagnose {trial.study or 'STUDY'} {trial.number}`.",
        svg=stacked_bars(
            [Bar(label=label, parts=parts, note=format_duration(sum(parts.values()))) for label, parts in found],
            names=names,
            number=format_duration,
            x_label="time in one optimizer step",
            description="Parts of a step by rank, predicted and measured",
            tick_values=time_ticks,
        ),
        table=table_of(
            (Column(name="cause", head="", is_number=False), *(Column(name=f"{label}_s", head=label, show=duration_cell) for label, _ in found)),
            [(word, *(parts.get(name, 0.0) for _, parts in found)) for name, word in names.items()],
        ),
    )  # fmt: skip


def _summed(values: Mapping[str, float], name_of: Callable[[str], str]) -> dict[str, float]:
    found: dict[str, float] = {}
    for name, value in values.items():
        if value > 0:
            found[name_of(name)] = found.get(name_of(name), 0.0) + float(value)
    return found
