"""Facts about a study as text, for the HTML page and the Markdown report: its setting, the answer's
figures, rows of trials and failures, and commands to reproduce it."""

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
"""columns of `trial_row`: (head, whether it has numbers)"""
FAILURE_HEADS = (
    ("#", True),
    ("config", False),
    ("kind", False),
    ("where", False),
    ("what happened", False),
)
"""columns of `failure_row`: (head, whether it has numbers)"""


def setting_line(result: Result) -> str:
    """Return model, cluster, batch, trainer, searcher and runner in one line."""
    record, workload = result.record, result.record.study.workload
    batch = ", ".join(map(str, workload.global_batch_sizes))
    return (
        f"{workload.model.name} ({format_count(workload.model.num_parameters)} parameters) on {workload.cluster.name}, "
        f"sequences of {workload.seq_len} tokens, {batch} per step, trainer {record.study.trainer}, "
        f"searcher {record.study.searcher}, runner {record.study.runner}"
    )


def status_line(result: Result) -> str:
    """Return status, start and duration in one line."""
    record = result.record
    started = f", {record.started_at:%Y-%m-%d %H:%M} UTC" if record.started_at else ""
    return (
        record.status.lower()
        + started
        + (f", {format_span(record.elapsed_s)}" if record.elapsed_s else "")
    )


def speedup_text(result: Result, *, over: str = "", times: str = "×") -> str:
    """Return the speedup, such as `1.18× (95% CI 1.14-1.22)`, followed by `over`; `UNKNOWN`
    if there is no speedup."""
    if result.too_noisy is not None:
        return "too noisy to tell"
    if result.speedup is None:
        return UNKNOWN
    return format_speedup(
        result.speedup,
        result.speedup_low,
        result.speedup_high,
        times=times,
        over=over,
        is_open=not result.record.status.is_terminal,
    )


def counts_line(result: Result) -> str:
    """Return the number of runs by status, and of infeasible configs."""
    counts = ", ".join(f"{n} {status.lower()}" for status, n in status_counts(result.shown).items())
    return f"runs: {counts or 'none yet'}" + (
        f"; {line}" if (line := infeasible_line(result.infeasible)) else ""
    )


def speed_row(trial: Trial) -> list[str]:
    """Return measured tokens/s, median step time, peak memory and model FLOPs utilization;
    `UNKNOWN` if not measured."""
    m = trial.measurement
    return [
        count_cell(tokens_per_s(trial)) if m else UNKNOWN,
        duration_cell(m.step_time_s) if m else UNKNOWN,
        bytes_cell(m.peak_memory_bytes) if m and m.peak_memory_bytes else UNKNOWN,
        format_mfu(m.mfu if m else None),
    ]


def trial_row(trial: Trial, note: str) -> list[str]:
    """Return a trial's cells for `TRIAL_HEADS`; speeds are in tokens/s."""
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
    """Return a failed trial's cells for `FAILURE_HEADS`. Raises `ValueError` if it did not fail."""
    failure = trial.failure
    if failure is None:
        raise ValueError(f"trial {trial.number} did not fail")
    places = (("rank", failure.rank), ("step", failure.step))
    place = ", ".join(f"{name} {value}" for name, value in places if value is not None)
    return [
        str(trial.number),
        config_label(trial.config),
        failure.kind.words,
        place or UNKNOWN,
        failure.message,
    ]


def reproduction_commands(result: Result) -> list[str]:
    """Return the commands that show the study, export its best config and run it again."""
    record = result.record
    commands = [f"autotune status {record.id}"]
    line = python_line(record.study.trainer)
    if result.best is not None:
        export = (
            f"autotune export {record.id} --to {_trainer_argument(record.study.trainer)} -o launch"
        )
        commands.append(f"# in Python: {line}" if line else export)
    if record.study.runner.startswith(PASSED):
        commands.append(
            "# in Python: the call that started the study and produced the document below"
        )
    else:
        commands.append("autotune tune study.yaml   # the document below")
    return commands


def spec_text(result: Result, *, most: int) -> str:
    """Return the submitted spec as JSON (which is valid YAML), cut after `most` characters."""
    text = json.dumps(result.record.spec, indent=2, default=str)
    return text if len(text) <= most else text[:most] + "\n... (cut)"


def _trainer_argument(name: str) -> str:
    """Return a trainer's name for a command line; a placeholder for names with other characters."""
    return name if name.replace("_", "").replace("-", "").isalnum() else "TRAINER"
