"""Guarded refit: constants that follow trials only as far as that predicts left-out trials better.

Before any trial it is not known how wrong the constants are: those of a fitted pair are right to some ten percent, others are off by a factor. So several
priors are tried, and each is judged by what it says of every trial given all the others:

    known     nothing is moved: the constants that were given, with the level's spread as they state it
    level     one factor on all step times, of which nothing is known
    refit     constants and level, as uncertain as clusters of one pair lie apart (`refit`)
    wrong     the same, three times as uncertain, but none by more than a factor of two besides: variances min((3 w)^2, w^2 + (ln 2)^2)

Without that bound the constants that differ most between clusters, such as the host time of a step, are free by factors of a hundred, which is enough to explain
all trials of one batch size by a time that no rank shortens.

    score     sum_i log p(y_i | all other y)        p: normal, with `OUTLIER` of its weight spread wide, so that one wild trial decides nothing
              (leave-one-out densities: Rasmussen & Williams 2006, eq. 5.10 to 5.12; Geisser & Eddy 1979)

The best score wins, of equal ones the first in this list, where constants are needed; what trials say of another workload is an average over all of them
(`transferred`). So trials that agree with the constants move them little, and trials that no constants explain
move none.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import final

import numpy as np
import scipy

from autotune.cost.calibration import Calibration
from autotune.cost.refit import Conditioned, Measured, UncertainConstants, linearised, uncertain
from autotune.spec import ConfigTable, ParallelConfig, Trial, Workload

WIDE = 3.0
"""multiple of the spreads between clusters of one pair in the widest prior"""
WRONG = math.log(2.0)
"""standard deviation of the log of the factor by which a constant may be off in it, at most, beside what clusters differ by"""
UNKNOWN_LEVEL = 1.0
"""standard deviation of the log of a level of which nothing is known"""
OUTLIER, OUTLIER_SD = 0.05, 1.0
"""weight and standard deviation of the wide part of a density"""


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Believed:
    """What trials say by one of the priors."""

    kind: str
    """known, level, refit or wrong"""
    score: float
    """of the trials, each given all others"""
    known: UncertainConstants
    """the constants and the level given the trials"""
    said: Conditioned | None
    """the trials at the last linearisation; None without any"""
    weight: float
    """of this prior against the others, given the trials; all add up to one"""


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Refitted:
    """What trials say about the constants."""

    kind: str
    """known, level, refit or wrong"""
    known: UncertainConstants
    """the constants, the level, and what stays uncertain about them"""
    gain: float
    """by how much left-out trials are predicted better than by the constants that were given: difference of the scores per trial"""
    believed: tuple[Believed, ...]
    """each prior's answer; without trials that of the constants that were given"""

    @property
    def calibration(self) -> Calibration:
        """The constants with the level among them, and with what is uncertain about the level alone as their level's spread."""
        constants = self.known.constants
        sigma = math.sqrt(float(self.known.covariance[-1, -1]))
        return replace(
            constants,
            level=constants.level * math.exp(self.known.log_level),
            level_sigma=min(constants.level_sigma, sigma) if self.kind != "known" else constants.level_sigma,
        )


def guarded_refit(constants: Calibration, trials: Sequence[Measured]) -> Refitted:
    """The constants given these trials, by the prior that predicts left-out trials best; those that were given where there is no trial."""
    given = uncertain(constants)
    if not trials:
        alone = Believed(kind="known", score=0.0, known=given, said=None, weight=1.0)
        return Refitted(kind="known", known=given, gain=0.0, believed=(alone,))
    levels = {"known": constants.level_sigma, "level": UNKNOWN_LEVEL}
    priors = {name: _level_only(given, sigma) for name, sigma in levels.items()}
    variances = np.diag(given.covariance)
    wider = np.diag(np.minimum(WIDE**2 * variances, variances + WRONG**2))
    priors |= {"refit": given, "wrong": replace(given, covariance=wider)}
    found: dict[str, Believed] = {}
    for name, prior in priors.items():
        now, last = linearised(prior, trials)
        found[name] = Believed(kind=name, score=left_out_score(last), known=now, said=last, weight=0.0)
    best = max(found.values(), key=lambda b: b.score)
    count = sum(len(t.table) for t in trials)
    return Refitted(
        kind=best.kind,
        known=given if best.kind == "known" else best.known,
        gain=(best.score - found["known"].score) / count,
        believed=_weighed(list(found.values())),
    )


def _weighed(answers: Sequence[Believed]) -> tuple[Believed, ...]:
    """The answers with weights that are proportional to the evidence of their priors."""
    weights = np.exp(scipy.special.log_softmax([b.said.log_evidence for b in answers if b.said]))
    return tuple(replace(b, weight=float(w)) for b, w in zip(answers, weights, strict=True))


def left_out_score(known: Conditioned) -> float:
    """Sum of the log densities of the trials, each given all others."""
    mean, variance = known.left_out()
    narrow = -0.5 * mean**2 / variance - 0.5 * np.log(2.0 * np.pi * variance)
    wide = variance + OUTLIER_SD**2
    spread = -0.5 * mean**2 / wide - 0.5 * np.log(2.0 * np.pi * wide)
    return float(np.logaddexp(narrow + math.log1p(-OUTLIER), spread + math.log(OUTLIER)).sum())


def _level_only(given: UncertainConstants, sigma: float) -> UncertainConstants:
    """The constants as if they were known, under a level of that spread."""
    return replace(given, names=(), covariance=np.array([[max(sigma, 1e-6) ** 2]]))


def measured_workloads(trials: Iterable[tuple[Workload, Trial]]) -> list[Measured]:
    """The measured ones of these trials by workload, in the order in which workloads and configs first occur. Repeats of a config count as their median."""
    by_workload: dict[str, tuple[Workload, dict[ParallelConfig, list[float]]]] = {}
    for workload, trial in trials:
        if trial.is_measured and trial.measurement is not None and trial.measurement.step_time_s > 0:
            _, seen = by_workload.setdefault(repr(workload), (workload, {}))
            seen.setdefault(trial.config, []).append(trial.measurement.step_time_s)
    return [
        Measured(
            workload=workload,
            table=ConfigTable.of(list(seen)),
            step_time_s=np.array([float(np.median(times)) for times in seen.values()]),
        )
        for workload, seen in by_workload.values()
    ]
