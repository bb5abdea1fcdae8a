"""What a study's trials say, in words and numbers: winner, baseline, speedup, why it won.

Everything is computed from the record and its trials alone. The parts of a step are the cost model's prediction, unless the trial was
profiled; sentences say which.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from autotune.ports import StudyRecord
from autotune.report.terminal import PART_NAMES, format_bytes, format_count, format_duration
from autotune.reward import competes
from autotune.spec import Trial, TrialPurpose, TrialStatus


@dataclass(frozen=True, slots=True, kw_only=True)
class Findings:
    """The answer of a study, as far as it came."""

    record: StudyRecord
    trials: tuple[Trial, ...]
    """all of them by number"""
    best: Trial | None
    """the named winner, else the best measured one; after the finals with what they measured, as the speedup is"""
    baseline: Trial | None
    """the default config's trial, where it was measured; after the finals with what they measured"""
    speedup: float | None
    """best against baseline in tokens per second"""

    @property
    def failed(self) -> tuple[Trial, ...]:
        """Trials with a failure."""
        return tuple(t for t in self.trials if t.failure is not None)

    @property
    def measured(self) -> tuple[Trial, ...]:
        """Trials with a step time that can be trusted."""
        return tuple(t for t in self.trials if t.is_measured)


def findings(record: StudyRecord, trials: Sequence[Trial]) -> Findings:
    """Reads the record and its trials."""
    from autotune.api import result_from

    ordered = tuple(sorted(trials, key=lambda t: t.number))
    by_number = {t.number: t for t in ordered}
    measured = [t for t in ordered if t.is_measured]
    best = by_number.get(record.best) if record.best is not None else None
    if best is None or not best.is_measured:
        best = max((t for t in measured if competes(t, record.study)), key=worth, default=None)
    baseline = by_number.get(record.baseline) if record.baseline is not None else None
    if baseline is None:
        baseline = next((t for t in measured if t.purpose is TrialPurpose.BASELINE), None)
    if baseline is not None and not baseline.is_measured:
        baseline = None
    again = {t.number: t for t in result_from(record, ordered).confirmed}
    if best is not None and best.number in again and (baseline is None or baseline.number in again):
        best, baseline = again[best.number], again[baseline.number] if baseline is not None else None
    speedup = record.speedup
    if speedup is None and best is not None and baseline is not None:
        speedup = rate(best) / rate(baseline)
    if speedup is not None and not math.isfinite(speedup):
        speedup = None
    return Findings(record=record, trials=ordered, best=best, baseline=baseline, speedup=speedup)


def worth(trial: Trial) -> float:
    """The reward, or the log of the throughput where there is none; trials of one study compare by it."""
    if trial.reward is not None:
        return trial.reward.total
    return math.log(rate(trial)) if rate(trial) > 0 else -math.inf


def rate(trial: Trial) -> float:
    """Tokens per second of the whole job; nan when it was not measured."""
    return trial.measurement.tokens_per_s if trial.measurement is not None else math.nan


def time_parts(trial: Trial) -> tuple[dict[str, float], bool]:
    """Seconds of a step by cause, and whether they were profiled (else: predicted). Empty when nothing is known."""
    if trial.measurement is not None and trial.measurement.breakdown_s:
        return {name: float(v) for name, v in trial.measurement.breakdown_s.items()}, True
    if trial.estimate is None:
        return {}, False
    return {name: float(v) for name, v in trial.estimate.time_parts_s.to_dict().items()}, False


def changed_knobs(before: Trial, after: Trial) -> dict[str, tuple[object, object]]:
    """Knobs with different values, with both of them."""
    pairs = {name: (before.config.value(name), after.config.value(name)) for name in after.config.values()}
    return {name: pair for name, pair in pairs.items() if pair[0] != pair[1]}


def why(found: Findings) -> list[str]:
    """Why the winner won, in sentences: by how much, which knobs differ, which parts of the step shrank or grew, memory."""
    best, baseline = found.best, found.baseline
    if best is None:
        return ["No trial was measured, so there is no winner."]
    if baseline is None:
        return [
            f"Trial {best.number} is the best of {len(found.measured)} measured ones; the baseline was not measured."
        ]
    if best.config == baseline.config:
        return ["Nothing that was tried beats the default config."]
    sentences = []
    if found.speedup is not None and best.measurement and baseline.measurement:
        sentences.append(
            f"{format_count(rate(best))} against {format_count(rate(baseline))} tokens per second: "
            f"{found.speedup:.2f} times the default config."
        )
    changes = changed_knobs(baseline, best)
    sentences.append(
        "It differs by " + ", ".join(f"{n} {_word(a)} -> {_word(b)}" for n, (a, b) in changes.items()) + "."
    )
    sentences += _moves(baseline, best)
    memory = _memory(baseline, best)
    return [*sentences, memory] if memory else sentences


def _moves(baseline: Trial, best: Trial) -> list[str]:
    (before, measured_before), (after, measured_after) = time_parts(baseline), time_parts(best)
    if not before or not after:
        return []
    # Per token, so that a different batch does not look like a different cost.
    a, b = _tokens(baseline), _tokens(best)
    moves = {n: (after.get(n, 0.0) / b - before.get(n, 0.0) / a) * a for n in {*before, *after}}
    total = sum(before.values())
    source = "profiled" if measured_before and measured_after else "predicted"
    sentences = []
    for word, sign in (("shrank", -1), ("grew", 1)):
        large = sorted((n for n in moves if sign * moves[n] > 0.01 * total), key=lambda n: -sign * moves[n])[:3]
        if large:
            parts = ", ".join(f"{PART_NAMES.get(n, n)} by {format_duration(abs(moves[n]))}" for n in large)
            sentences.append(
                f"Of a step of {format_duration(total)} ({source}), at equal tokens, these parts {word}: {parts}."
            )
    return sentences


def _tokens(trial: Trial) -> float:
    measured = trial.measurement.tokens_per_step if trial.measurement else 0
    return float(measured or trial.config.global_batch_size)


def _memory(baseline: Trial, best: Trial) -> str:
    a = baseline.measurement.peak_memory_bytes if baseline.measurement else None
    b = best.measurement.peak_memory_bytes if best.measurement else None
    if not a or not b:
        return ""
    return f"Peak memory of the fullest rank: {format_bytes(b)} against {format_bytes(a)}."


def best_so_far(trials: Sequence[Trial]) -> list[tuple[float, float]]:
    """(number, best tokens per second so far) of the measured trials, by number; rises, never falls."""
    points: list[tuple[float, float]] = []
    top = -math.inf
    for trial in trials:
        value = rate(trial)
        if trial.is_measured and value > top:
            top = value
        if top > -math.inf:
            points.append((float(trial.number), top))
    return points


def prediction_errors(trials: Sequence[Trial]) -> dict[str, float]:
    """Median relative errors of the predictions: {"step_time": ..., "memory": ...}; only what can be said."""
    errors: Mapping[str, list[float]] = {"step_time": [], "memory": []}
    for trial in trials:
        if not trial.is_measured or trial.estimate is None or trial.measurement is None:
            continue
        errors["step_time"].append(abs(float(trial.estimate.step_time_s) / trial.measurement.step_time_s - 1))
        if trial.measurement.peak_memory_bytes:
            errors["memory"].append(
                abs(float(trial.estimate.peak_memory_bytes) / trial.measurement.peak_memory_bytes - 1)
            )
    return {name: sorted(values)[len(values) // 2] for name, values in errors.items() if values}


def status_counts(trials: Sequence[Trial]) -> dict[str, int]:
    """Trials by status, in the order of a trial's life."""
    return {str(s): n for s in TrialStatus if (n := sum(t.status is s for t in trials))}


def _word(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
