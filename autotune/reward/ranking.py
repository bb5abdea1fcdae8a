"""Other orders of the same trials: under another objective, or without one.

Nothing is run: a trial's measurement says all that a reward needs.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from autotune.reward.price import token_cost
from autotune.reward.stability import stability
from autotune.reward.total import reward
from autotune.spec import Measurement, Objective, Trial, Workload


def rerank(
    trials: Sequence[Trial], *, objective: Objective, workload: Workload, baseline: Measurement | None
) -> list[Trial]:
    """The measured trials with their rewards under `objective`, best first."""
    rewarded = [
        replace(
            t, reward=reward(t.measurement, baseline=baseline, objective=objective, workload=workload, config=t.config)
        )
        for t in trials
        if t.is_measured and t.measurement is not None
    ]
    return sorted(rewarded, key=lambda t: (-t.reward.total if t.reward else 0.0, t.number))


def merits(trial: Trial, workload: Workload) -> tuple[float, ...] | None:
    """(tokens/s, stability, memory headroom as a share of the capacity, -cost per token), each the higher the better; None without a
    measurement. Unknown memory counts as none free."""
    m = trial.measurement
    if not trial.is_measured or m is None:
        return None
    headroom = (
        1.0 - m.peak_memory_bytes / m.memory_capacity_bytes
        if m.peak_memory_bytes is not None and m.memory_capacity_bytes
        else 0.0
    )
    return (m.tokens_per_s, stability(m), headroom, -token_cost(m, workload.cluster.gpu).value)


def pareto(trials: Sequence[Trial], workload: Workload) -> list[Trial]:
    """The measured trials that none other matches in all four merits and beats in one, by number."""
    scored = [(t, scores) for t in trials if (scores := merits(t, workload)) is not None]
    return [
        t
        for t, mine in sorted(scored, key=lambda pair: pair[0].number)
        if not any(theirs != mine and all(a >= b for a, b in zip(theirs, mine, strict=True)) for _, theirs in scored)
    ]
