"""Two studies side by side: what was asked, what came out, and which knobs of the winners differ."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from autotune.ports import StudyRecord
from autotune.report.findings import changed_knobs, prediction_errors, status_counts
from autotune.report.reward_tables import cost_label
from autotune.report.study_facts import speedup_word
from autotune.report.terminal import (
    FULL,
    Palette,
    format_bytes,
    format_count,
    format_duration,
    plain_table,
    safe,
)
from autotune.results.answers import result_from
from autotune.results.result import Result
from autotune.results.target import first_pick
from autotune.reward import stability, token_cost, tokens_per_s
from autotune.spec import Measurement, Trial, Workload, config_label
from autotune.study.recheck import differences

if TYPE_CHECKING:
    from rich.table import Table

Side = tuple[StudyRecord, Sequence[Trial]]


def differing_versions(first: Trial | None, second: Trial | None) -> list[tuple[str, str, str]]:
    """What differs between what two trials were measured with: name, and the version of each."""
    known = [trial.measurement.versions if trial and trial.measurement else {} for trial in (first, second)]
    return differences(*known)


def compare(first: Side, second: Side, *, palette: Palette = FULL) -> Table:
    """A table with a row per fact and a column per study; facts that differ are bold."""
    a, b = (result_from(record, trials) for record, trials in (first, second))
    table = plain_table(palette)
    table.add_column("")
    table.add_column(safe(a.record.study.name, palette), overflow="fold")
    table.add_column(safe(b.record.study.name, palette), overflow="fold")
    for (name, left), (_, right) in zip(facts(a).items(), facts(b).items(), strict=True):
        style = "bold" if left != right else ""
        table.add_row(name, safe(left, palette), safe(right, palette), style=style)
    for name, left, right in differing_versions(a.best, b.best):
        table.add_row(f"version of {name}", safe(left, palette), safe(right, palette), style="bold")
    if a.best is not None and b.best is not None:
        arrow = "->"
        changes = changed_knobs(a.best, b.best)
        text = ", ".join(f"{name} {before} {arrow} {after}" for name, (before, after) in changes.items())
        table.caption = safe(f"winners differ by: {text}" if text else "both found the same config", palette)
    return table


def facts(found: Result) -> dict[str, str]:
    """What is compared, as text; `-` where it is not known."""
    record, best = found.record, found.best
    workload, objective = record.study.workload, record.study.objective
    measured = best.measurement if best is not None else None
    errors = prediction_errors(found.shown)
    return {
        "study": f"{record.id} ({record.status.lower()})",
        "model": workload.model.name,
        "cluster": workload.cluster.name,
        "proxies on": record.study.at_hand.name if record.study.at_hand is not None else "-",
        "tokens per sequence": str(workload.seq_len),
        "sequences per step": ", ".join(map(str, workload.global_batch_sizes)),
        "objective": f"{objective.metric}, stability weight {objective.stability_weight:g}",
        "searcher": record.study.searcher,
        "trials": ", ".join(f"{n} {status.lower()}" for status, n in status_counts(found.shown).items()) or "-",
        "time": format_duration(record.elapsed_s),
        "best config": config_label(best.config) if best is not None else "-",
        "first config of the target": config_label(first) if (first := first_pick(record)) is not None else "-",
        "tokens/s": format_count(tokens_per_s(best)) if best is not None else "-",
        "step time": format_duration(measured.step_time_s if measured else None),
        "peak memory": format_bytes(measured.peak_memory_bytes if measured else None),
        "stability": f"{stability(measured):.2f}" if measured else "-",
        "per million tokens": _cost(measured, workload) if measured else "-",
        "speedup over the baseline": speedup_word(found, times="", nothing="-"),
        "median error of predicted step time": f"{errors['step_time']:.0%}" if "step_time" in errors else "-",
    }


def _cost(measurement: Measurement, workload: Workload) -> str:
    cost = token_cost(measurement, workload.cluster.gpu)
    return cost_label(cost.value * 1e6, cost.unit)
