"""Texts about changes of the machine's speed during a study."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from autotune.reward import MachineChange, MachineLevels, RunNoise, asked_again, tokens_per_s
from autotune.reward.run_noise import CHANGE_CONFIDENCE
from autotune.spec import Trial, TrialPurpose
from autotune.spec.runs.trial import trial_numbers
from autotune.study.controller.finals.rounds import at_start, gained

CORRECTED = "Speeds are corrected to the machine's speed at the start of the study"
"""note on the speeds of a study (`autotune.results.config_figures`)"""


def change_in_words(change: MachineChange, trials: Mapping[int, Trial]) -> str:
    """`The machine became 3.9 times slower between 14:02 and 14:31 UTC (baseline: 1,210 -> 310
    tokens/s at its median step).`"""
    times, is_faster = change.speedup, change.speedup > 1
    default = f"{_default_speed(trials, change.before.level):,.0f} -> {_default_speed(trials, change.after.level):,.0f}"
    return (
        f"The machine became {times if is_faster else 1 / times:.2g} times {'faster' if is_faster else 'slower'} between "
        f"{_when(trials[change.before.runs[-1]], trials[change.after.runs[0]])} (baseline: {default} tokens/s at its median step)."
    )


def plan_in_words(again: Sequence[int]) -> str:
    """What the study does after a change. `again`: numbers of the trials that may still win and will
    be re-measured."""
    measured = f" {_named(sorted(again))} may still win and will be re-measured." if again else ""
    return f"Speeds are normalized to the first measurement of the baseline.{measured}"


def changes_in_words(
    levels: MachineLevels, trials: Sequence[Trial], default: Trial | None
) -> list[str]:
    """Texts about all changes during a study, the correction of its speeds, and the trials that were
    re-measured because of them; empty without a change.

    `default`: the baseline with its final rounds pooled, or its first measurement if it had none.
    """
    if not levels.changes:
        return []
    by_number = {t.number: t for t in trials}
    texts = [change_in_words(change, by_number) for change in levels.changes]
    if default is not None and default.measurement is not None:
        is_final = default.measurement is not by_number[default.number].measurement
        corrected = at_start(default, trials) if is_final else default
        texts.append(f"{CORRECTED} (baseline: {tokens_per_s(corrected):,.0f} tokens/s).")
    again = asked_again(trials)
    if again:
        texts.append(
            f"{_named(sorted(again))} {'was' if len(again) == 1 else 'were'} re-measured for that reason."
        )
    unknown = [
        t.number
        for t in trials
        if t.purpose is TrialPurpose.SEARCH
        and t.is_measured
        and t.number not in again
        and not levels.at(t.number).is_known
    ]
    if unknown:
        possessive = "its" if len(unknown) == 1 else "their"
        texts.append(
            f"{_named(unknown)} ran while the machine changed, so only the lower end of {possessive} possible speed is used."
        )
    return texts


def since_search_in_words(
    levels: MachineLevels, trials: Sequence[Trial], default: Trial
) -> list[str]:
    """A text if the baseline's speed differs between search and finals although no change was
    detected; else empty."""
    log_gain = gained(default.config, trials)
    if levels.changes or abs(log_gain) <= RunNoise().half_width(1, confidence=CHANGE_CONFIDENCE):
        return []
    before = _default_speed({t.number: t for t in trials}, levels.now)
    speeds = f"{before * math.exp(log_gain):,.0f} tokens/s in the final rounds and at {before:,.0f} in the search"
    text = f"The baseline's median step ran at about {speeds}. The machine changed, or other jobs used it."
    return [f"{text} {CORRECTED}."]


def _default_speed(trials: Mapping[int, Trial], level: float) -> float:
    """Tokens/s of the baseline's median step at a level of the machine, which is in ln tokens/s; nan
    without a measurement."""
    first = next(
        t for _, t in sorted(trials.items()) if t.purpose is TrialPurpose.BASELINE and t.is_measured
    )
    return (
        first.measurement.median_tokens_per_s * math.exp(level)
        if first.measurement is not None
        else math.nan
    )


def _when(before: Trial, after: Trial) -> str:
    """The times at which two trials ended, with dates if these differ; their numbers if a time is
    unknown."""
    if before.ended_at is None or after.ended_at is None:
        return f"trials {before.number} and {after.number}"
    pattern = "%H:%M" if before.ended_at.date() == after.ended_at.date() else "%Y-%m-%d %H:%M"
    return f"{before.ended_at:{pattern}} and {after.ended_at:{pattern}} UTC"


def _named(numbers: Sequence[int]) -> str:
    """`Trial 7` or `Trials 7 and 9`, for the beginning of a sentence."""
    return trial_numbers(numbers).capitalize()
