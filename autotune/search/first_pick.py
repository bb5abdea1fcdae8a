"""How far the first pick of a target may be behind its best config: a statement that is right as
often as it says.

    d    90% quantile of max_i y_i - y_pick by the model        y: log throughput of the configs, normal and as if independent of one another
    s    shortfall / d in a replay of a published sweep, of which the constants had not seen the model nor the number of GPUs        `first_pick.json`, n of them

    within X        X = 1 - exp(-d s_k)        s_k: the k-th smallest of all s, k = ceil((n + 1) c)        holds with confidence c

This is split conformal prediction with a scaled score (Papadopoulos et al. 2002; Lei et al. 2018,
section 5.2): it holds whatever is wrong about the model, as long as a study is like the replays.
They are of constants that are right and of ones that are wrong by a factor of two, of targets with
2 to 16 times the GPUs at hand. Without a proxy the shortfall is another, and has scores of its own.

Replays whose pick stalled (`autotune.cost.time.stalls`) are not among them, for the chance p of
that is known: c = 0.9 / (1 - p). Where c needs more replays than there are, nothing is stated.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import final

import numpy as np
from numpy.typing import NDArray
from scipy.special import log_ndtr, ndtri

from autotune.spec.plain import Plain

Array = NDArray[np.float64]

CONFIDENCE = 0.9
FARTHEST = 32
"""times the GPUs at hand beyond which nothing is said of the first pick: proxies on 8 GPUs
predicted nothing of 512 in published sweeps"""
WORTH_SAYING = 0.5
"""greatest part of the throughput that a statement may leave open"""
NO_RIVAL = 1e-3
"""d below which the model sees no config that could be better; scores are shares of d, and nothing
follows from a share of nothing"""
RIVALS = 500
"""configs, those most likely to be better than the pick, that are looked at"""
POINTS = 41
"""values of the pick's throughput over which is averaged"""
BISECTIONS = 24
MOST = 5.0
"""greatest d"""


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Statement(Plain):
    """The first pick is within `within` of the best config with that confidence."""

    within: float
    """throughput lost against the best, 0 to 1"""
    confidence: float
    """0 to 1"""
    replays: int
    """of published sweeps that it rests on"""


def statement(
    shortfall: float, *, with_proxies: bool, stall_probability: float, times: float, scores: Mapping[str, Sequence[float]] | None = None
) -> Statement | str:  # fmt: skip
    """What can be said of a pick, or why nothing can. `shortfall`: d; `stall_probability`: the
    pick's; `times`: GPUs of the target over those at hand; `scores`: default: those of
    `first_pick.json`."""
    if times > FARTHEST:
        return (
            f"the target has {times:g} times as many GPUs as you have, and beyond a factor of {FARTHEST} the first pick has no bound; run proxies on more GPUs, up to a "
            "quarter of the target's GPUs"
        )
    if shortfall < NO_RIVAL:
        return "no other config is expected to fit in memory and come close; replays cannot show how often this expectation is right, but a trial of another config on the target can test it"
    found = sorted((scores or _kept_scores())["with_proxies" if with_proxies else "without"])
    level = CONFIDENCE / (1.0 - stall_probability)
    place = math.ceil((len(found) + 1) * level)
    if place > len(found):
        return (
            f"transfers between the first pick's pipeline stages on different nodes stall with a probability of {stall_probability:.0%}, so there is no bound with {CONFIDENCE:.0%} confidence; "
            "try this config and a config without a pipeline across nodes on the target"
        )
    within = -math.expm1(-shortfall * found[place - 1])
    if within > WORTH_SAYING:
        return (
            f"the first config may be up to {within:.0%} slower than the best, with {CONFIDENCE:.0%} confidence; run more proxies, "
            "or proxies on more GPUs"
        )
    return Statement(within=within, confidence=CONFIDENCE, replays=len(found))


def likely_shortfall(mean: Array, sd: Array, pick: int, rivals: NDArray[np.intp]) -> float:
    """d of the configs `rivals` over the config `pick`. `mean`, `sd`: of the log throughput, shape
    (N,)."""
    sd = np.maximum(sd, 1e-9)
    ahead = (mean[rivals] - mean[pick]) / np.hypot(sd[rivals], sd[pick])
    near = rivals[np.argsort(-ahead, kind="stable")[:RIVALS]]
    picks = mean[pick] + sd[pick] * ndtri((np.arange(POINTS) + 0.5) / POINTS)
    low, high = 0.0, MOST
    for _ in range(BISECTIONS if len(near) else 0):
        middle = 0.5 * (low + high)
        none_above = np.exp(log_ndtr((picks[:, None] + middle - mean[near]) / sd[near]).sum(axis=1))
        low, high = (middle, high) if float(none_above.mean()) < CONFIDENCE else (low, middle)
    return high if len(near) else 0.0


@cache
def _kept_scores() -> Mapping[str, Sequence[float]]:
    path = Path(__file__).with_name("first_pick.json")
    return dict(json.loads(path.read_text(encoding="utf-8"))["scores"])
