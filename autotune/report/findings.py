"""A study's findings in words and numbers: winner, baseline, speedup, why it won.

Everything is computed from the record and its trials. The parts of a step are the cost model's
prediction unless the trials were profiled; sentences state which.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

from autotune.report.terminal import PART_NAMES, format_bytes, format_count, format_duration
from autotune.results.result import Result
from autotune.results.without_baseline import why_unmeasured
from autotune.reward import tokens_per_s
from autotune.spec import FailureKind, Trial, TrialPurpose, TrialStatus, config_changes
from autotune.spec.config import capitalized
from autotune.spec.runs.trial import trial_numbers
from autotune.spec.texts.as_text import format_speedup, number_of

OVERLAPPED = "communication_overlapped"
"""communication hidden behind computation, which is no part of the step's time"""


def time_parts(*trials: Trial) -> tuple[list[dict[str, float]], str]:
    """Return the step time of each trial by cause, in seconds, and the source of the times:
    "profiled" if all trials were profiled or none has a prediction, otherwise "predicted". A trial
    without times from this source has an empty dict."""
    profiles = [t.measurement.breakdown_s if t.measurement is not None else {} for t in trials]
    predictions = [
        t.estimate.time_parts_s.to_dict() if t.estimate is not None else {} for t in trials
    ]
    is_profiled = all(profiles) or not any(predictions)
    return [
        {name: float(time_s) for name, time_s in parts.items() if name != OVERLAPPED}
        for parts in (profiles if is_profiled else predictions)
    ], "profiled" if is_profiled else "predicted"


def winner_sentences(result: Result) -> list[str]:
    """Return sentences on why the winner won: the speedup, ties, differing knobs, parts of the step
    that shrank or grew, and memory."""
    best, baseline = result.best, result.baseline
    if best is None:
        if any(t.purpose is TrialPurpose.PROXY for t in result.measured):
            return [
                "Proxies are not ranked, so no trial wins; the target's configs are ranked instead."
            ]
        failed = failures_line(result.failed)
        return [
            "No trial was measured, so there is no winner.",
            *([f"{failed}."] if failed else ()),
        ]
    if baseline is None:
        missing = result.unmeasured_baseline
        measured = f"Trial {best.number} is the best of {len(result.measured)} measured runs; {why_unmeasured(missing)}."
        return [measured, *([_difference_sentence(missing, best)] if missing else ())]
    rivals = trial_numbers(result.tied_with) if result.tied_with else ""
    tied = [f"Trial {best.number} is statistically tied with {rivals}."] if rivals else []
    if result.too_noisy is not None:
        return [
            f"{capitalized(str(result.too_noisy))}, so no speedup is claimed and the baseline stays."
        ]
    if best.config == baseline.config:
        return ["Nothing that was tried beats the baseline.", *tied]
    sentences = []
    if result.speedup is not None and best.measurement and baseline.measurement:
        sentences.append(
            f"{format_count(tokens_per_s(best))} against {format_count(tokens_per_s(baseline))} tokens per second: "
            f"{format_speedup(result.speedup, result.speedup_low, result.speedup_high, times=' times')} the baseline."
        )
    sentences += tied
    sentences.append(_difference_sentence(baseline, best))
    sentences += _part_changes(baseline, best)
    memory = _memory_sentence(baseline, best)
    return [*sentences, memory] if memory else sentences


def _difference_sentence(baseline: Trial, best: Trial) -> str:
    return f"The best config differs from the baseline in {config_changes(baseline.config, best.config)}."


def _part_changes(baseline: Trial, best: Trial) -> list[str]:
    (before, after), source = time_parts(baseline, best)
    if not before or not after:
        return []
    # compare per token, so that a different batch size does not look like a different speed
    a, b = _tokens_per_step(baseline), _tokens_per_step(best)
    changes = {n: (after.get(n, 0.0) / b - before.get(n, 0.0) / a) * a for n in {*before, *after}}
    total = sum(before.values())
    sentences = []
    for verb, sign in (("shrank", -1), ("grew", 1)):
        large = sorted(
            (n for n in changes if sign * changes[n] > 0.01 * total),
            key=lambda n: -sign * changes[n],
        )[:3]
        if large:
            parts = ", ".join(
                f"{PART_NAMES.get(n, n)} by {format_duration(abs(changes[n]))}" for n in large
            )
            sentences.append(
                f"For the same number of tokens, these parts of a {format_duration(total)} step {verb} ({source}): {parts}."
            )
    return sentences


def _tokens_per_step(trial: Trial) -> float:
    measured = trial.measurement.tokens_per_step if trial.measurement else 0
    return float(measured or trial.config.global_batch_size)


def _memory_sentence(baseline: Trial, best: Trial) -> str:
    a, b = baseline.peak_memory_bytes, best.peak_memory_bytes
    if not a or not b:
        return ""
    return f"The highest peak memory of any rank is {format_bytes(b)} instead of {format_bytes(a)}."


def prediction_errors(trials: Sequence[Trial]) -> dict[str, float]:
    """Return median relative errors of the predictions, as {"step_time": ..., "memory": ...},
    without keys for which there is no data."""
    errors: Mapping[str, list[float]] = {"step_time": [], "memory": []}
    for trial in trials:
        if not trial.is_measured or trial.estimate is None or trial.measurement is None:
            continue
        errors["step_time"].append(
            abs(float(trial.estimate.step_time_s) / trial.measurement.step_time_s - 1)
        )
        if trial.measurement.peak_memory_bytes:
            errors["memory"].append(
                abs(
                    float(trial.estimate.peak_memory_bytes) / trial.measurement.peak_memory_bytes
                    - 1
                )
            )
    return {name: sorted(values)[len(values) // 2] for name, values in errors.items() if values}


def failures_line(failed: Sequence[Trial]) -> str:
    """Return the failures in one line, such as `4 trials failed: 3 out of memory, 1 timeout`; an
    empty text without failures."""
    return (
        f"{number_of(len(failed), 'trial')} failed: {failure_kinds_text(failed)}" if failed else ""
    )


def failure_kinds_text(failed: Sequence[Trial]) -> str:
    """Return the number of failures by kind, such as `3 out of memory, 1 timeout`."""
    kinds = Counter(t.failure.kind if t.failure else FailureKind.ERROR for t in failed)
    return ", ".join(f"{count:,} {kind.words}" for kind, count in kinds.most_common())


def status_counts(trials: Sequence[Trial]) -> dict[str, int]:
    """Return the number of trials by status, in the order of a trial's life."""
    return {str(s): n for s in TrialStatus if (n := sum(t.status is s for t in trials))}
