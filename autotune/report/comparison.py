"""Studies or trials side by side: a terminal table of two studies, and rows of facts about several,
those that differ first.

Facts are text; `-` is an unknown value.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from autotune.ports import StudyRecord
from autotune.report.findings import prediction_errors, status_counts, time_parts
from autotune.report.reward_tables import cost_label
from autotune.report.study_facts import speedup_text
from autotune.report.terminal import (
    MEDIAN_STEP,
    PART_NAMES,
    UNICODE_PALETTE,
    Palette,
    plain_table,
    safe,
)
from autotune.results.answers import result_from
from autotune.results.result import Result
from autotune.results.target import first_pick
from autotune.reward import stability, token_cost, tokens_per_s
from autotune.spec import Measurement, ParallelConfig, Trial, Workload, config_changes, config_label
from autotune.spec.runs.versions import conditions, differences
from autotune.spec.texts.as_text import (
    UNKNOWN,
    bytes_cell,
    count_cell,
    duration_cell,
    format_mfu,
    format_span,
    value_word,
)

if TYPE_CHECKING:
    from rich.table import Table

Side = tuple[StudyRecord, Sequence[Trial]]


def differing_versions(first: Trial | None, second: Trial | None) -> list[tuple[str, str, str]]:
    """Return the differences between the conditions of two trials, as (name of a version, file or
    variable, first value, second value)."""
    measurements = [trial.measurement for trial in (first, second) if trial and trial.measurement]
    return differences(*conditions(measurements)) if len(measurements) == 2 else []


def compare(first: Side, second: Side, *, palette: Palette = UNICODE_PALETTE) -> Table:
    """Return a table with a row per fact and a column per study; facts that differ are bold."""
    a, b = (result_from(record, trials) for record, trials in (first, second))
    table = plain_table(palette)
    table.add_column("")
    table.add_column(safe(a.record.study.name, palette), overflow="fold")
    table.add_column(safe(b.record.study.name, palette), overflow="fold")
    for (name, left), (_, right) in zip(
        result_facts(a).items(), result_facts(b).items(), strict=True
    ):
        style = "bold" if left != right else ""
        table.add_row(name, safe(left, palette), safe(right, palette), style=style)
    for name, left, right in differing_versions(a.best, b.best):
        label = name if name.isupper() else f"version of {name}"
        table.add_row(label, safe(left, palette), safe(right, palette), style="bold")
    if a.best is not None and b.best is not None:
        text = config_changes(a.best.config, b.best.config)
        table.caption = safe(
            f"winners differ by: {text}" if text else "both found the same config", palette
        )
    return table


def result_facts(result: Result) -> dict[str, str]:
    """Return a study's facts that are compared, as text; `-` if unknown."""
    record, best = result.record, result.best
    workload, objective = record.study.workload, record.study.objective
    measured = best.measurement if best is not None else None
    errors = prediction_errors(result.shown)
    return {
        "study": f"{record.id} ({record.status.lower()})",
        "model": workload.model.name,
        "cluster": workload.cluster.name,
        "proxies on": record.study.at_hand.name if record.study.at_hand is not None else UNKNOWN,
        "tokens per sequence": str(workload.seq_len),
        "sequences per step": ", ".join(map(str, workload.global_batch_sizes)),
        "objective": f"{objective.metric}, stability weight {objective.stability_weight:g}",
        "searcher": record.study.searcher,
        "runs": ", ".join(
            f"{n} {status.lower()}" for status, n in status_counts(result.shown).items()
        )
        or UNKNOWN,
        "time": format_span(record.elapsed_s),
        "best config": config_label(best.config) if best is not None else UNKNOWN,
        "first config of the target": config_label(first)
        if (first := first_pick(record)) is not None
        else UNKNOWN,
        "tokens/s": count_cell(tokens_per_s(best)) if best is not None else UNKNOWN,
        MEDIAN_STEP: duration_cell(measured.step_time_s if measured else None),
        "peak memory": bytes_cell(measured.peak_memory_bytes if measured else None),
        "stability": f"{stability(measured):.2f}" if measured else UNKNOWN,
        "per million tokens": _cost(measured, workload) if measured else UNKNOWN,
        "speedup over the baseline": speedup_text(result, times=""),
        "median error of predicted step time": f"{errors['step_time']:.0%}"
        if "step_time" in errors
        else UNKNOWN,
    }


def _cost(measurement: Measurement, workload: Workload) -> str:
    cost = token_cost(measurement, workload.cluster.gpu)
    return cost_label(cost.value * 1e6, cost.unit)


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """Facts about several studies or trials, in rows."""

    differing: tuple[tuple[str, tuple[str, ...]], ...]
    """(fact, its value in each column) of facts whose values differ"""
    equal: tuple[tuple[str, str], ...]
    """(fact, value) of facts that are equal in all columns"""


def side_by_side(columns: Sequence[Mapping[str, str]]) -> Comparison:
    """Return the comparison of columns of facts. A fact that is missing in a column is unknown
    there."""
    names = list(dict.fromkeys(name for column in columns for name in column))
    rows = [(name, tuple(column.get(name, UNKNOWN) for column in columns)) for name in names]
    return Comparison(
        differing=tuple(row for row in rows if len(set(row[1])) > 1),
        equal=tuple(
            (name, values[0])
            for name, values in rows
            if len(set(values)) == 1 and values[0] != UNKNOWN
        ),
    )


def study_facts(result: Result) -> dict[str, str]:
    """Return a study's request and result, with the knobs of its best config."""
    best = result.best
    knobs = (
        {f"best {name}": value for name, value in knob_texts(best.config).items()}
        if best is not None
        else {}
    )
    return {**result_facts(result), **knobs, **version_facts(best)}


def version_facts(trial: Trial | None) -> dict[str, str]:
    """Return the software versions with which a trial was measured."""
    measurement = trial.measurement if trial is not None else None
    return (
        {f"version of {name}": version for name, version in sorted(measurement.versions.items())}
        if measurement
        else {}
    )


def trial_facts(trial: Trial) -> dict[str, str]:
    """Return a trial's knobs, predictions and measurements, with its time and memory by cause."""
    m, estimate, reward = trial.measurement, trial.estimate, trial.reward
    measured = m if trial.is_measured else None
    (times,), source = time_parts(trial)
    losses = [loss for loss in m.losses if math.isfinite(loss)] if m else []
    return {
        **knob_texts(trial.config),
        "status": str(trial.status).lower(),
        "failure": str(trial.failure) if trial.failure else UNKNOWN,
        "tokens/s": count_cell(tokens_per_s(trial)) if measured else UNKNOWN,
        "predicted tokens/s": count_cell(float(estimate.tokens_per_s)) if estimate else UNKNOWN,
        MEDIAN_STEP: duration_cell(measured.step_time_s if measured else None),
        "predicted step": duration_cell(float(estimate.step_time_s) if estimate else None),
        "spread of step times": f"{measured.step_time_spread:.1%}" if measured else UNKNOWN,
        "peak memory": bytes_cell(m.peak_memory_bytes if m else None),
        "predicted peak memory": bytes_cell(
            float(estimate.peak_memory_bytes) if estimate else None
        ),
        "probability of running out of memory": f"{float(estimate.oom_probability):.0%}"
        if estimate
        else UNKNOWN,
        "model FLOPs utilization": format_mfu(measured.mfu if measured else None),
        "last loss": f"{losses[-1]:.4f}" if losses else UNKNOWN,
        "reward": f"{reward.total:+.3f}" if reward else UNKNOWN,
        "stability": f"{reward.stability:.2f}" if reward else UNKNOWN,
        "steps that count": str(len(measured.step_times_s)) if measured else UNKNOWN,
        "setup": duration_cell(m.setup_s) if m and m.setup_s else UNKNOWN,
        **{
            f"time: {PART_NAMES.get(name, name)} ({source})": duration_cell(value)
            for name, value in times.items()
            if value > 0
        },
        **(
            {
                f"memory: {PART_NAMES[name]} (predicted)": bytes_cell(float(value))
                for name, value in estimate.memory_parts_bytes.to_dict().items()
            }
            if estimate
            else {}
        ),
        **version_facts(trial),
    }


def knob_texts(config: ParallelConfig) -> dict[str, str]:
    """Return each knob's value as text."""
    return {name: value_word(value) for name, value in config.values().items()}
