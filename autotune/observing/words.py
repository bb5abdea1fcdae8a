"""Formats the two lines that are printed after an observed run."""

from __future__ import annotations

from autotune.reviews.words import against_prediction
from autotune.spec import ObservedRun
from autotune.spec.texts.as_text import (
    format_bytes,
    format_count,
    format_duration,
    format_span,
    number_of,
)

PREFIX = "autotune: "
WORST = 160
"""maximum length of a failure's message, characters"""


def after(run: ObservedRun, kept: str, *, by_output: bool = False) -> tuple[str, str]:
    """Return two lines: measured against predicted speed, and how the run ended. `kept`: where it
    is stored, or why it is not; `by_output`: only the command's output was observed."""
    return _measured(run, by_output), _ended(run, kept)


def _measured(run: ObservedRun, by_output: bool) -> str:
    seen, predicted = run.measurement, run.estimate
    if seen is None or not seen.step_times_s:
        return (
            "measured: no step times were recognized in the output; `autotune run --diagnose` observes the steps"
            if by_output
            else "measured: no optimizer step was observed"
        )
    count = len(seen.step_times_s)
    text = f"measured: {format_duration(seen.step_time_s)} a step (median of {number_of(count, 'step')}{_source_of_times(seen.time_from)})"
    if seen.tokens_per_step:
        text += f", {format_count(seen.median_tokens_per_s)} tokens/s"
    if predicted is None:
        return text
    ratio = against_prediction(seen.step_time_s / float(predicted.step_time_s))
    low_s, high_s = float(predicted.step_time_low_s), float(predicted.step_time_high_s)
    position = "within" if low_s <= seen.step_time_s <= high_s else "outside"
    interval = f"{format_duration(low_s)} to {format_duration(high_s)}"
    return f"{text}, {ratio} ({position} {interval})"


def _source_of_times(time_from: str) -> str:
    return {
        "arrival": ", timed by the arrival of log lines",
        "rate": ", from the printed rate",
        "probe": ", timed by the probe",
    }.get(time_from, "")


def _ended(run: ObservedRun, kept: str) -> str:
    lasted = format_span((run.ended_at - run.started_at).total_seconds())
    text = f"{run.outcome.lower()} after {lasted}"
    if run.failure is not None:
        text += f": {run.failure.kind.words}: {run.failure.message[:WORST]}"
    peak = run.measurement.peak_memory_bytes if run.measurement else None
    if peak:
        text += f"; peak memory {format_bytes(peak)}"
        if run.estimate is not None:
            text += f" ({format_bytes(float(run.estimate.peak_memory_bytes))} predicted)"
    return f"{text}; {kept}"
