"""Which trials compete, the Pareto front of the measured ones, and the speed by which a config is
ranked across studies.

The speed of a config in the finals of its study is the one measured there. The speed of any other
config is its measurement, limited to just below that of its study's winner: the fastest of many
configs that were measured once was lucky on average (the winner's curse). So no config is ranked
before the winner of its own study, and the top config of a ranking is the one that `autotune best`
and `autotune export` name for its study.
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
"""purposes of trials that repeat a measurement, or measure another workload"""


def competes(trial: Trial, study: Study) -> bool:
    """Whether the trial can win. A proxy cannot; an fp32 reference can if its config is in the search
    space or was enqueued."""
    if trial.purpose is TrialPurpose.PROXY:
        return False
    if trial.purpose is not TrialPurpose.REFERENCE or trial.config in study.enqueue:
        return True
    return why_outside(study.workload, study.space, trial.config) is None


def asked_again(trials: Iterable[Trial]) -> set[int]:
    """Numbers of the search trials whose config was measured again later in the search, which
    happens only after a change of the machine."""
    searched = [t for t in trials if t.purpose is TrialPurpose.SEARCH and t.is_measured]
    last = {t.config: t.number for t in sorted(searched, key=lambda t: t.number)}
    return {t.number for t in searched if last[t.config] != t.number}


def counted_once(trials: Sequence[Trial]) -> list[Trial]:
    """The measured trials sorted by number, without finals and proxies, and with each config of the
    search once: the first run of the baseline, which rewards are relative to, and the last run of
    any other config."""
    measured = sorted(
        (t for t in trials if t.is_measured and t.purpose not in _OUTSIDE), key=lambda t: t.number
    )
    baseline = next((t for t in measured if t.purpose is TrialPurpose.BASELINE), None)
    superseded = asked_again(measured)
    return [
        t
        for t in measured
        if t is baseline or (t.purpose is not TrialPurpose.BASELINE and t.number not in superseded)
    ]


def merits(
    trial: Trial, measurement: Measurement, cost_of_token: float
) -> tuple[float, float, float, float]:
    """(tokens/s, stability, memory headroom as a share of the capacity, -cost per token) of a
    trial; higher is better for each.

    Unknown memory counts as no headroom. The stability is that of the trial's reward, if it has
    one.
    """
    m = measurement
    steady = trial.reward.stability if trial.reward is not None else stability(m)
    used, capacity = m.occupied_memory_bytes, m.memory_capacity_bytes
    headroom = 1.0 - used / capacity if used is not None and capacity else 0.0
    return (m.tokens_per_s, steady, headroom, -cost_of_token)


def pareto(trials: Sequence[Trial], gpu: GpuSpec) -> list[Trial]:
    """The Pareto front of the measured trials in all four `merits`, fastest first; without finals
    and proxies.

    If costs are not comparable, because power was measured in some trials only, they are counted in
    rank-seconds.
    """
    measured = [
        (t, t.measured) for t in trials if t.purpose not in _OUTSIDE and t.measured is not None
    ]
    costs = [token_cost(m, gpu) for _, m in measured]
    is_comparable = len({cost.source for cost in costs}) == 1
    scored = [
        (t, merits(t, m, cost.value if is_comparable else m.num_ranks / m.tokens_per_s))
        for (t, m), cost in zip(measured, costs, strict=True)
    ]
    # a trial comes after all trials that dominate it, and one of them is on the front, so it is
    # enough to compare with the front
    scored.sort(key=lambda pair: (*(-merit for merit in pair[1]), pair[0].number))
    front, members = list[tuple[float, Trial]](), np.empty((len(scored), 4))
    for t, values in scored:
        others = members[: len(front)]
        if not np.any(np.all(others >= values, axis=1) & np.any(others != values, axis=1)):
            members[len(front)] = values
            front.append((values[0], t))
    return [t for _, t in sorted(front, key=lambda pair: (-pair[0], pair[1].number))]


Key = TypeVar("Key")


def speeds_in_finals(result: Mapping[str, Any]) -> dict[ParallelConfig, float]:
    """Tokens per second of the configs in a study's finals, the winner first. `result`: from the
    study's record; empty before its end."""
    return {
        ParallelConfig.from_dict(final["config"]): final["tokens_per_s"]
        for final in result.get("finals") or ()
        if isinstance(final, Mapping) and final.get("config") and final.get("tokens_per_s")
    }


def standing(config: Key, speed: float, speeds: Mapping[Key, float]) -> float:
    """The speed by which a config is ranked across studies (see above). `speed`: as measured in the
    search; `speeds`: those of its study's finals, the winner first, in the same unit."""
    speed, winner = speeds.get(config, speed), next(iter(speeds), config)
    return speed if config == winner else min(speed, math.nextafter(speeds[winner], 0.0))
