"""Studies or trials side by side: a row for each fact, first those that differ. Facts are text as people read it; `-` where something is not known."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from autotune.report.comparison import facts
from autotune.report.findings import time_parts
from autotune.report.terminal import PART_NAMES, format_bytes, format_count, format_duration
from autotune.results.result import Result
from autotune.reward import tokens_per_s
from autotune.spec import ParallelConfig, Trial
from autotune.spec.texts.as_text import value_word

UNKNOWN = "-"


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """Facts of several things, in rows."""

    differing: tuple[tuple[str, tuple[str, ...]], ...]
    """(fact, its value in each column) where the columns differ"""
    equal: tuple[tuple[str, str], ...]
    """(fact, value) where all columns have the same"""


def side_by_side(columns: Sequence[Mapping[str, str]]) -> Comparison:
    """The facts of all columns. A fact that a column lacks is not known of it."""
    names = list(dict.fromkeys(name for column in columns for name in column))
    rows = [(name, tuple(column.get(name, UNKNOWN) for column in columns)) for name in names]
    return Comparison(
        differing=tuple(row for row in rows if len(set(row[1])) > 1),
        equal=tuple((name, values[0]) for name, values in rows if len(set(values)) == 1 and values[0] != UNKNOWN),
    )


def study_facts(found: Result) -> dict[str, str]:
    """What a study was asked and what came out, with the knobs of its best config."""
    best = found.best
    knobs = {f"best {name}": value for name, value in knob_words(best.config).items()} if best is not None else {}
    return {**facts(found), **knobs, **version_facts(best)}


def version_facts(trial: Trial | None) -> dict[str, str]:
    """The releases and limits that a trial was measured with."""
    seen = trial.measurement if trial is not None else None
    return {f"version of {name}": version for name, version in sorted(seen.versions.items())} if seen else {}


def trial_facts(trial: Trial) -> dict[str, str]:
    """A trial's knobs, what was predicted and measured of it, and where its time and memory go."""
    m, estimate, reward = trial.measurement, trial.estimate, trial.reward
    measured = m if trial.is_measured else None
    times, is_profiled = time_parts(trial)
    losses = [loss for loss in m.losses if math.isfinite(loss)] if m else []
    return {
        **knob_words(trial.config),
        "status": str(trial.status).lower(),
        "failure": f"{trial.failure.kind}: {trial.failure.message}" if trial.failure else UNKNOWN,
        "tokens/s": format_count(tokens_per_s(trial)) if measured else UNKNOWN,
        "predicted tokens/s": format_count(float(estimate.tokens_per_s)) if estimate else UNKNOWN,
        "step time": format_duration(measured.step_time_s if measured else None),
        "predicted step time": format_duration(float(estimate.step_time_s) if estimate else None),
        "spread of step times": f"{measured.step_time_spread:.1%}" if measured else UNKNOWN,
        "peak memory": format_bytes(m.peak_memory_bytes if m else None),
        "predicted peak memory": format_bytes(float(estimate.peak_memory_bytes) if estimate else None),
        "probability of running out of memory": f"{float(estimate.oom_probability):.0%}" if estimate else UNKNOWN,
        "model FLOPs utilization": f"{measured.mfu:.1%}"
        if measured and measured.mfu is not None and measured.mfu <= 1.0
        else UNKNOWN,
        "last loss": f"{losses[-1]:.4f}" if losses else UNKNOWN,
        "reward": f"{reward.total:+.3f}" if reward else UNKNOWN,
        "stability": f"{reward.stability:.2f}" if reward else UNKNOWN,
        "steps that count": str(len(measured.step_times_s)) if measured else UNKNOWN,
        "setup": format_duration(m.setup_s) if m and m.setup_s else UNKNOWN,
        **{
            f"time: {PART_NAMES.get(name, name)} ({'profiled' if is_profiled else 'predicted'})": format_duration(value)
            for name, value in times.items()
            if value > 0
        },
        **(
            {
                f"memory: {PART_NAMES[name]} (predicted)": format_bytes(float(value))
                for name, value in estimate.memory_parts_bytes.to_dict().items()
            }
            if estimate
            else {}
        ),
        **version_facts(trial),
    }


def knob_words(config: ParallelConfig) -> dict[str, str]:
    """The value of each knob as text."""
    return {name: value_word(value) for name, value in config.values().items()}
