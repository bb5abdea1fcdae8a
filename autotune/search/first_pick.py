"""Bounds with 90% confidence how much slower the top-ranked config of a target may be than its best
config.

    d    90% quantile of max_i y_i - y_pick according to the model        y: log throughput of the configs, assumed normal and independent
    s    score of a replay: true shortfall / d        `first_pick.json` holds n scores of replayed published sweeps, with constants fitted without
                                                      the model and the number of GPUs of the sweep

    within X        X = 1 - exp(-d s_k)        s_k: the k-th smallest score, k = ceil((n + 1) c)        c: confidence

This is split conformal prediction with a scaled score (Papadopoulos et al. 2002; Lei et al. 2018,
section 5.2): the bound holds for any error of the model, as long as the study is like the replays.
The replays have correct constants and ones that are wrong by a factor of two, and targets with 2 to
16 times the GPUs you have. Without proxies the shortfall is different, so there are separate scores
for it.

Replays with a stalled pick (`autotune.cost.time.stalls`) are excluded, because the probability p of
a stall is known: c = 0.9 / (1 - p). If c requires more replays than there are, there is no bound.
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
"""confidence of the bound"""
FARTHEST = 32
"""maximum ratio between the target's GPUs and the GPUs you have: in published sweeps, proxies on 8
GPUs predicted nothing about 512"""
WORTH_SAYING = 0.5
"""maximum loss of throughput for which a bound is stated"""
NO_RIVAL = 1e-3
"""minimum d: below it the model expects no better config, and scores relative to d are
meaningless"""
RIVALS = 500
"""number of other configs to consider, those most likely to be better than the pick"""
POINTS = 41
"""number of values of the pick's throughput to average over"""
BISECTIONS = 24
"""number of bisections that determine d"""
MOST = 5.0
"""maximum d"""


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Statement(Plain):
    """A bound: with this confidence, the top-ranked config is at most `within` slower than the best
    config."""

    within: float
    """relative loss of throughput, 0 to 1"""
    confidence: float
    """0 to 1"""
    replays: int
    """number of replays of published sweeps behind it"""


def statement(
    shortfall: float, *, with_proxies: bool, stall_probability: float, times: float, scores: Mapping[str, Sequence[float]] | None = None
) -> Statement | str:  # fmt: skip
    """The bound for a pick, or a sentence on why there is none. `shortfall`: d;
    `stall_probability`: of the pick; `times`: GPUs of the target divided by those you have;
    `scores`: by default those of `first_pick.json`."""
    if times > FARTHEST:
        return (
            f"the target has {times:g} times as many GPUs as you have, and beyond a factor "
            f"of {FARTHEST} there is no bound for the top-ranked config; run proxies on "
            "more GPUs, up to a quarter of the target's GPUs"
        )
    if shortfall < NO_RIVAL:
        return "no other config is expected to fit in memory and come close; replays cannot show how often this expectation is right, but a trial of another config on the target can test it"
    known = sorted((scores or _bundled_scores())["with_proxies" if with_proxies else "without"])
    confidence = CONFIDENCE / (1.0 - stall_probability)
    rank = math.ceil((len(known) + 1) * confidence)
    if rank > len(known):
        return (
            "in the top-ranked config, transfers between pipeline stages on different "
            f"nodes stall with a probability of {stall_probability:.0%}, so there is no "
            f"bound with {CONFIDENCE:.0%} confidence; try this config and a config without "
            "a pipeline across nodes on the target"
        )
    within = -math.expm1(-shortfall * known[rank - 1])
    if within > WORTH_SAYING:
        return (
            f"the first config may be up to {within:.0%} slower than the best, with {CONFIDENCE:.0%} confidence; run more proxies, "
            "or proxies on more GPUs"
        )
    return Statement(within=within, confidence=CONFIDENCE, replays=len(known))


def likely_shortfall(mean: Array, sd: Array, pick: int, rivals: NDArray[np.intp]) -> float:
    """d for the config `pick` and the other configs `rivals` (indices). `mean`, `sd`: of the log
    throughput, shape (N,)."""
    if not len(rivals):
        return 0.0
    sd = np.maximum(sd, 1e-9)
    ahead = (mean[rivals] - mean[pick]) / np.hypot(sd[rivals], sd[pick])
    near = rivals[np.argsort(-ahead, kind="stable")[:RIVALS]]
    picks = mean[pick] + sd[pick] * ndtri((np.arange(POINTS) + 0.5) / POINTS)
    low, high = 0.0, MOST
    for _ in range(BISECTIONS):
        middle = 0.5 * (low + high)
        none_above = np.exp(log_ndtr((picks[:, None] + middle - mean[near]) / sd[near]).sum(axis=1))
        if float(none_above.mean()) < CONFIDENCE:
            low = middle
        else:
            high = middle
    return high


@cache
def _bundled_scores() -> Mapping[str, Sequence[float]]:
    path = Path(__file__).with_name("first_pick.json")
    return dict(json.loads(path.read_text(encoding="utf-8"))["scores"])
