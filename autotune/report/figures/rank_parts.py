"""Where each rank's time goes, beside what was predicted of a step, with what that says (`autotune.diagnosis`)."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from autotune.report.figures.source import FigureSource
from autotune.report.svg.bars import Bar, stacked_bars
from autotune.report.svg.canvas import time_ticks
from autotune.report.terminal import format_duration
from autotune.results.diagnoses import diagnosis_of_run
from autotune.results.figure import Column, Figure, table_of
from autotune.spec import Trial

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
        rank_parts(next((t for t in source.result.trials if best and t.number == best.number), best)) if best else None
    )


def rank_parts(trial: Trial) -> Figure | None:
    """Of a trial; None where no rank was watched."""
    if trial.measurement is None or not trial.measurement.evidence:
        return None
    diagnosis = diagnosis_of_run(trial)
    found: list[tuple[str, dict[str, float]]] = []
    if trial.estimate is not None:
        parts = trial.estimate.time_parts_s.to_dict()
        found.append(("predicted", _summed(parts, lambda name: _PREDICTED.get(name, "communication"))))
    for row in diagnosis.table[:MOST_RANKS]:
        where = f" ({row['node']})" if len({r["node"] for r in diagnosis.table}) > 1 else ""
        found.append((f"rank {row['rank']}{where}", _summed(row["parts_s"], lambda name: _SEEN[name])))
    if not found:
        return None
    names = {name: word for name, word in NAMES.items() if any(name in parts for _, parts in found)}
    left_out = len(diagnosis.table) - MOST_RANKS
    more = f" {left_out} more ranks are not shown." if left_out > 0 else ""
    return Figure(
        name="rank_parts",
        title="Where each rank's time goes",
        shows=f"Seconds of a step by cause: as predicted, and as each rank spent it, mean over the steps after warm-up.{more}",
        how_to_read=f"{diagnosis.verdict}. Bars of different make are ranks that do not do the same: the one that waits least for others is the one they wait for. "
        f"`autotune diagnose {trial.study or 'STUDY'} {trial.number}` says more.",
        svg=stacked_bars(
            [Bar(label=label, parts=parts, note=format_duration(sum(parts.values()))) for label, parts in found],
            names=names,
            number=format_duration,
            x_label="seconds of one optimizer step",
            description="Parts of a step by rank, predicted and measured",
            tick_values=time_ticks,
        ),
        table=table_of(
            (Column(name="cause", head="", is_number=False), *(Column(name=f"{label}_s", head=label, show=format_duration) for label, _ in found)),
            [(word, *(parts.get(name, 0.0) for _, parts in found)) for name, word in names.items()],
        ),
    )  # fmt: skip


def _summed(values: Mapping[str, float], name_of: Callable[[str], str]) -> dict[str, float]:
    found: dict[str, float] = {}
    for name, value in values.items():
        if value > 0:
            found[name_of(name)] = found.get(name_of(name), 0.0) + float(value)
    return found
