"""Which trials may win, and the Pareto front of those that none other beats.

Nothing is run: a trial's measurement holds all that is needed.

At what speed a measured config stands among those of all studies.

    speed      of a config that took part in its study's finals: what they showed of it; of any other: its measurement, but less than what they showed of the winner

The fastest of many configs that were measured once was lucky on average (the winner's curse). So no
config stands before the winner of its own study, and the config that heads an answer is the one
that `autotune best` and `autotune export` name for that study.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, TypeVar

import numpy as np

from autotune.reward.price import token_cost
from autotune.reward.stability import stability
from autotune.space import why_outside
from autotune.spec import GpuSpec, Measurement, ParallelConfig, Study, Trial, TrialPurpose

_OUTSIDE = (TrialPurpose.FINAL, TrialPurpose.PROXY)
"""trials that are no first measurement of a config of the study's workload"""


def competes(trial: Trial, study: Study) -> bool:
    """Whether the trial may win: an fp32 reference only where the study asked for its config, a
    proxy never."""
    if trial.purpose is TrialPurpose.PROXY:
        return False
    if trial.purpose is not TrialPurpose.REFERENCE or trial.config in study.enqueue:
        return True
    return why_outside(study.workload, study.space, trial.config) is None


def asked_again(trials: Iterable[Trial]) -> set[int]:
    """Numbers of the search trials whose config the search measured again later: only a change of
    the machine makes it do so."""
    searched = [t for t in trials if t.purpose is TrialPurpose.SEARCH and t.is_measured]
    last = {t.config: t.number for t in sorted(searched, key=lambda t: t.number)}
    return {t.number for t in searched if last[t.config] != t.number}


def counted_once(trials: Sequence[Trial]) -> list[Trial]:
    """The measured trials but the finals' and the proxies, by number, each config of the search
    once: of the baseline the first run, which everything is relative to; of a config that was asked
    for again the last run."""
    measured = sorted(
        (t for t in trials if t.is_measured and t.purpose not in _OUTSIDE), key=lambda t: t.number
    )
    default = next((t for t in measured if t.purpose is TrialPurpose.BASELINE), None)
    again = asked_again(measured)
    return [
        t
        for t in measured
        if (t is default if t.purpose is TrialPurpose.BASELINE else t.number not in again)
    ]


def merits(
    trial: Trial, measurement: Measurement, cost_of_token: float
) -> tuple[float, float, float, float]:
    """(tokens/s, stability, memory headroom as a share of the capacity, -cost per token) of a trial
    with that measurement, each the higher the better.

    Unknown memory counts as none free. The stability is that of its reward, where it was scored.
    """
    m = measurement
    steady = trial.reward.stability if trial.reward is not None else stability(m)
    used, capacity = m.occupied_memory_bytes, m.memory_capacity_bytes
    headroom = 1.0 - used / capacity if used is not None and capacity else 0.0
    return (m.tokens_per_s, steady, headroom, -cost_of_token)


def pareto(trials: Sequence[Trial], gpu: GpuSpec) -> list[Trial]:
    """The measured trials that none other matches in all four merits and beats in one, fastest
    first; repeats of the finals and proxies left aside.

    Costs that cannot be compared (power was measured in some only) count in rank-seconds.
    """
    first = [
        (t, t.measured) for t in trials if t.purpose not in _OUTSIDE and t.measured is not None
    ]
    costs = [token_cost(m, gpu) for _, m in first]
    alike = len({cost.source for cost in costs}) == 1
    scored = [
        (t, merits(t, m, cost.value if alike else m.num_ranks / m.tokens_per_s))
        for (t, m), cost in zip(first, costs, strict=True)
    ]
    # who beats another comes before it in this order, and of those that beat it one is on the
    # front: so only the front is compared
    scored.sort(key=lambda pair: (*(-merit for merit in pair[1]), pair[0].number))
    front, members = list[tuple[float, Trial]](), np.empty((len(scored), 4))
    for t, mine in scored:
        others = members[: len(front)]
        if not np.any(np.all(others >= mine, axis=1) & np.any(others != mine, axis=1)):
            members[len(front)] = mine
            front.append((mine[0], t))
    return [t for _, t in sorted(front, key=lambda pair: (-pair[0], pair[1].number))]


Key = TypeVar("Key")


def speeds_in_finals(result: Mapping[str, Any]) -> dict[ParallelConfig, float]:
    """Tokens per second of the configs that a study measured again, the winner's first. `result`:
    of the study's record; empty before its end."""
    return {
        ParallelConfig.from_dict(final["config"]): final["tokens_per_s"]
        for final in result.get("finals") or ()
        if isinstance(final, Mapping) and final.get("config") and final.get("tokens_per_s")
    }


def standing(config: Key, speed: float, speeds: Mapping[Key, float]) -> float:
    """The speed at which a config stands that was measured at `speed`. `speeds`: in its study's
    finals, the winner's first, in the same unit."""
    speed, winner = speeds.get(config, speed), next(iter(speeds), config)
    return speed if config == winner else min(speed, math.nextafter(speeds[winner], 0.0))
