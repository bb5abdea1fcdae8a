"""What reports say of a study, as plain words: its setting, the answer's figures, trials and
failures as rows, and how to run it again.

The HTML page and the Markdown report show the same of these.
"""

from __future__ import annotations

import json

from autotune.registry import PASSED
from autotune.report.findings import status_counts
from autotune.report.notes import infeasible_line
from autotune.report.terminal import MEDIAN_STEP, format_count, measured_cells
from autotune.results.result import Result
from autotune.reward import tokens_per_s
from autotune.spec import Trial, TrialPurpose, config_label
from autotune.spec.texts.as_text import (
    UNKNOWN,
    bytes_cell,
    count_cell,
    duration_cell,
    format_mfu,
    format_span,
    format_speedup,
)
from autotune.trainers import python_line

TRIAL_HEADS = (
    *(
        ("#", True),
        ("config", False),
        ("status", False),
        ("predicted", True),
        ("measured", True),
        (MEDIAN_STEP, True),
    ),
    *(("spread", True), ("memory", True), ("reward", True), ("why", False)),
)
"""heads of `trial_row`, and whether the column is of numbers"""
FAILURE_HEADS = (
    ("#", True),
    ("config", False),
    ("kind", False),
    ("where", False),
    ("what happened", False),
)
"""the same of `failure_row`"""


def setting_line(found: Result) -> str:
    """Model, cluster, batch, trainer, searcher and runner."""
    record, workload = found.record, found.record.study.workload
    batch = ", ".join(map(str, workload.global_batch_sizes))
    return (
        f"{workload.model.name} ({format_count(workload.model.num_parameters)} parameters) on {workload.cluster.name}, "
        f"sequences of {workload.seq_len} tokens, {batch} per step, trainer {record.study.trainer}, "
        f"searcher {record.study.searcher}, runner {record.study.runner}"
    )


def when_line(found: Result) -> str:
    """Status, start and length."""
    record = found.record
    started = f", {record.started_at:%Y-%m-%d %H:%M} UTC" if record.started_at else ""
    return (
        record.status.lower()
        + started
        + (f", {format_span(record.elapsed_s)}" if record.elapsed_s else "")
    )


def speedup_word(found: Result, *, over: str = "", times: str = "×", nothing: str = UNKNOWN) -> str:
    """`1.18× (95% CI 1.14-1.22)` and `over`; `nothing` where there is none."""
    if found.too_noisy is not None:
        return "too noisy to tell"
    if found.speedup is None:
        return nothing
    is_open = not found.record.status.is_terminal
    return format_speedup(
        found.speedup,
        found.speedup_low,
        found.speedup_high,
        times=times,
        over=over,
        is_open=is_open,
    )


def counts_line(found: Result) -> str:
    """Runs by status, and what cannot be run."""
    counts = ", ".join(f"{n} {status.lower()}" for status, n in status_counts(found.shown).items())
    return f"runs: {counts or 'none yet'}" + (
        f"; {line}" if (line := infeasible_line(found.infeasible)) else ""
    )


def speed_row(trial: Trial) -> list[str]:
    """Tokens per second, median step time, peak memory and model FLOPs utilization as measured; `UNKNOWN`
    without a measurement."""
    m = trial.measurement
    return [
        count_cell(tokens_per_s(trial)) if m else UNKNOWN,
        duration_cell(m.step_time_s) if m else UNKNOWN,
        bytes_cell(m.peak_memory_bytes) if m and m.peak_memory_bytes else UNKNOWN,
        format_mfu(m.mfu if m else None),
    ]


def trial_row(trial: Trial, note: str) -> list[str]:
    """A trial under `TRIAL_HEADS`; speeds in tokens per second."""
    m = trial.measured
    predicted, measured, step, memory = measured_cells(trial)
    return [
        str(trial.number),
        config_label(trial.config)
        + ("" if trial.purpose is TrialPurpose.SEARCH else f" ({trial.purpose})"),
        trial.status.lower(),
        predicted,
        measured,
        step,
        f"{m.step_time_spread:.1%}" if m else UNKNOWN,
        memory,
        f"{trial.reward.total:.3f}" if trial.reward else UNKNOWN,
        note,
    ]


def failure_row(trial: Trial) -> list[str]:
    """A failed trial under `FAILURE_HEADS`."""
    failure = trial.failure
    if failure is None:
        raise ValueError(f"trial {trial.number} did not fail")
    places = (("rank", failure.rank), ("step", failure.step))
    where = ", ".join(f"{name} {value}" for name, value in places if value is not None)
    return [
        str(trial.number),
        config_label(trial.config),
        failure.kind.words,
        where or UNKNOWN,
        failure.message,
    ]


def commands_again(found: Result) -> list[str]:
    """Commands that show the study, hand out its best config and run it again."""
    record = found.record
    commands = [f"autotune status {record.id}"]
    line = python_line(record.study.trainer)
    if found.best is not None:
        export = f"autotune export {record.id} --to {_word(record.study.trainer)} -o launch"
        commands.append(f"# in Python: {line}" if line else export)
    if record.study.runner.startswith(PASSED):
        commands.append(
            "# in Python: the call that started the study and produced the document below"
        )
    else:
        commands.append("autotune tune study.yaml   # the document below")
    return commands


def spec_text(found: Result, *, most: int) -> str:
    """The spec as it was submitted, as JSON (which YAML reads), cut after `most` characters."""
    text = json.dumps(found.record.spec, indent=2, default=str)
    return text if len(text) <= most else text[:most] + "\n... (cut)"


def _word(name: str) -> str:
    return name if name.replace("_", "").replace("-", "").isalnum() else "TRAINER"
