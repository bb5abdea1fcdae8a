"""Correction: estimates of a study's configs given its measured trials.

Trials change the prediction and interval of a config in three ways. Constants and level, which all
configs share, are refitted (`refit`), with a different effect on each config. Own errors are
correlated between neighbors. Both are one linear step about the study's initial constants. The
scale of all these errors is estimated per study, too. Trials with stalled sends are excluded.

    step time    predicted * exp(mean of log(measured / predicted))
    interval     of Student's t about the same

Error scale: the size of the errors of a study's configs, estimated from its trials.

The configs of some programs are predicted within a few percent of their common level, those of
others within a factor. So the variances of all errors, shared and own, are those of `refit` times a
factor f that belongs to the study and is unknown before its trials:

    f ~ c m / chi^2_m                      before any trial: an inverse gamma distribution with m degrees of freedom
    f ~ (c m + q) / chi^2_(m + n)          given n trials        q = y' A^-1 y, squared distance of the trials from the predictions (`Conditioned.squares`)

The error of a config then has a Student's t distribution with m + n degrees of freedom (Shah,
Wilson and Ghahramani 2014, arXiv 1402.4306, equation 5). Its mean is that of the normal, so
predictions do not depend on f. Trials that agree with the predictions narrow the intervals. Trials
that disagree keep them wide, until there are enough of them to estimate the scatter.

m approximately maximizes the density of rows of published sources after one and after three trials,
which is nearly constant for m from 2 to 4; with c, 90% of them are inside their intervals
(`research/error_scale.py`). Approximation: before any trial the widths are those of `uncertainty`,
one sixth narrower than this t, because their coverage is right.

Stalled trials: those that ran while sends stalled carry no information about constants, level and
neighbors.

A pipeline over nodes may be several times slower than normal, with a known probability and by a
known factor (`stalls`). A refit would attribute that to the whole cluster. So both explanations are
compared for each trial that can stall, given the others:

    log odds = log(p / (1 - p)) + (x^2 - (x - w)^2) / 2 v

    x, v    residual of log(measured / predicted) given all other trials, and its variance (`Conditioned.left_out`); for a single trial, those of the prior
    p, w    probability of a stall, and log of the factor by which it lengthens the step

The trial with the greatest odds above one is excluded, and the others are tested again. Trials that
agree with each other are kept, so a uniformly slow cluster is recognized from its second trial on.
Neglected: stalls of one cluster vary by a tenth, which is little compared with v.

Guarded refit: changes the constants only if that predicts left-out trials better.

Before any trial the error of the constants is unknown: those of a fitted pair are accurate to some
ten percent, others may be off by a factor. So several priors are tried, and each is scored by its
prediction of every trial given all others:

    known     the given constants unchanged, with the level's standard deviation that they state
    level     an unknown factor on all step times
    refit     uncertain constants and level, with their variation between clusters of one pair (`refit`)
    wrong     the same with three times the standard deviation w, but limited to variances min((3 w)^2, w^2 + (ln 2)^2)

Without this limit, the constants that vary most between clusters, such as the host time of a step,
could change by factors of a hundred, which would explain all trials of one batch size by a constant
time.

    score     sum_i log p(y_i | all other y)        p: normal, mixed with a wide one of weight `OUTLIER`, so that one outlier is not decisive
              (leave-one-out densities: Rasmussen & Williams 2006, eq. 5.10 to 5.12; Geisser & Eddy 1979)

If a single set of constants is needed, it is that with the best score, the first in this list in
case of a tie; predictions for other workloads are averaged over all priors (`transferred`). So
trials that agree with the constants change them little, and trials that no constants explain do not
change them.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import final

import numpy as np
from numpy.typing import NDArray

from autotune.cost.calibration import Calibration, calibration_for
from autotune.cost.estimator import Sensitivity, sensitivity
from autotune.cost.learn.refit import (
    LEAST_SIGMA,
    Array,
    Conditioned,
    Measured,
    UncertainConstants,
    linearized,
    uncertain,
)
from autotune.cost.learn.uncertainty import TAIL, Z90, config_sigma, interval, upper_end
from autotune.space import SearchSpace
from autotune.spec import ConfigTable, Estimate, ParallelConfig, TimeParts, Trial, Workload
from autotune.spec.estimate import PhaseParts
from autotune.spec.post_training import TRAINED

DEGREES = 3.0
"""m, degrees of freedom of the error scale before any trial"""
SCALE = 0.7
"""c, scale of the error variance before any trial"""


def widening(squares: float, trials: int) -> float:
    """Return the factor on standard deviations for which the 90% interval of a normal equals that
    of the t. `squares`: q; `trials`: n."""
    import scipy

    degrees = DEGREES + trials
    variance = (SCALE * DEGREES + squares) / degrees
    return math.sqrt(variance) * float(scipy.special.stdtrit(degrees, 1.0 - TAIL)) / Z90


def unstalled(rows: Sensitivity, errors: Array, prior: UncertainConstants) -> NDArray[np.intp]:
    """Return indices of the trials whose sends did not stall, ascending. `errors`: log(measured /
    predicted) of each trial, shape (n,)."""
    import scipy

    kept = np.arange(len(errors))
    while len(kept) and rows.stall_probability[kept].any():
        left = rows.take(kept)
        residuals, variance = Conditioned.on(left, errors[kept], prior).left_out()
        stalled = residuals - left.stall_log
        log_odds = scipy.special.logit(left.stall_probability) + (residuals**2 - stalled**2) / (
            2.0 * variance
        )
        likeliest = int(np.argmax(log_odds))
        if log_odds[likeliest] <= 0.0:
            break
        kept = np.delete(kept, likeliest)
    return kept


ENOUGH = 64
"""maximum number of measured configs that are used; by then the uncertainty of the constants is far
smaller than the own error of a config"""
MARGIN = 2.0
"""minimum gain in the leave-one-out score for the wider prior (e^2 = 7 times the density). With a
lower one, it would absorb errors that are better explained by the error scale"""


@final
class Correction:
    """Corrects estimates of a study's configs with its trials. Values computed for a config are
    cached; results depend only on the arguments."""

    def __init__(self, space: SearchSpace, constants: Calibration | None = None) -> None:
        """`constants`: those used for the estimates; default: `calibration_for` the workload."""
        self._space = space
        self._prior = uncertain(constants or calibration_for(space.workload))
        self._rows: dict[ParallelConfig, Sensitivity] = {}

    def applied(
        self, config: ParallelConfig, estimate: Estimate, trials: Iterable[Trial]
    ) -> Estimate:
        """Return the estimate of one config given these trials; unchanged if none was measured, or
        the sends of all stalled. Repeated runs of a config count once, as their median."""
        logs_of: dict[ParallelConfig, list[float]] = {}
        for trial in trials:
            if trial.is_measured and trial.measurement is not None:
                logs_of.setdefault(trial.config, []).append(math.log(trial.measurement.step_time_s))
                if len(logs_of) == ENOUGH:
                    break
        if not logs_of:
            return estimate
        rows = Sensitivity.joined([self._row(known) for known in logs_of])
        errors = np.array([float(np.median(logs)) for logs in logs_of.values()]) - rows.log_step_s
        known = learnt(rows, errors, self._prior)
        return (
            estimate if known is None else moved(estimate, *errors_given(known, self._row(config)))
        )

    def _row(self, config: ParallelConfig) -> Sensitivity:
        if config not in self._rows:
            found = sensitivity(
                self._space.workload,
                ConfigTable.of([config]),
                self._prior.constants,
                self._prior.names,
            )
            self._rows[config] = replace(found, points=self._space.coordinates_of(config))
        return self._rows[config]


def learnt(rows: Sensitivity, errors: Array, prior: UncertainConstants) -> Conditioned | None:
    """Return the posterior given the trials `rows`, from the prior or the wider one; None if the
    sends of all stalled. `errors`: log(measured / predicted) of each trial, shape (n,)."""
    ran = unstalled(rows, errors, prior)
    if not len(ran):
        return None
    wider = replace(prior, covariance=WIDE**2 * prior.covariance)
    known, wide = (Conditioned.on(rows.take(ran), errors[ran], some) for some in (prior, wider))
    return wide if left_out_score(wide) > left_out_score(known) + MARGIN else known


def errors_given(known: Conditioned, rows: Sensitivity) -> tuple[Array, Array, Array]:
    """Return the prediction for the next measurements of configs: mean of log(measured /
    predicted), standard deviation of the normal with the same 90% interval, and the part of that
    due to constants and level; shape (N,) each."""
    center, sigma, shared = known.errors_of(rows)
    wider = widening(known.squares, len(known.rows))
    sigma = np.maximum(wider * sigma, LEAST_SIGMA)
    return center, sigma, np.minimum(wider * shared, sigma)


def moved(
    estimate: Estimate, center: np.ndarray, sigma: np.ndarray, shared: np.ndarray
) -> Estimate:
    """Return the estimate with its times multiplied by exp(`center`). `sigma`: standard deviation
    of ln step time; `shared`: the part of it due to constants and level. Shapes (N,), or (1,) for
    one config."""
    is_single = not np.ndim(estimate.step_time_s)
    factor = np.exp(center)
    step = np.asarray(estimate.step_time_s) * factor
    low, _ = interval(step, sigma)
    chance = np.atleast_1d(estimate.stall_probability)
    stalled = step + np.maximum(
        np.asarray(estimate.stalled_step_time_s) - np.asarray(estimate.step_time_s), 0.0
    )
    high = upper_end(*np.broadcast_arrays(np.atleast_1d(step), sigma, stalled, chance))
    parts, phases = _scaled_parts(estimate, factor)
    whole = replace(
        estimate,
        phases_s=phases,
        step_time_s=step,
        step_time_low_s=low,
        step_time_high_s=high,
        time_parts_s=parts,
        tokens_per_s=np.asarray(estimate.tokens_per_s) / factor,
        tokens_per_s_per_gpu=np.asarray(estimate.tokens_per_s_per_gpu) / factor,
        mfu=np.asarray(estimate.mfu) / factor,
        level=np.asarray(estimate.level) * factor,
        level_sigma=shared,
        stalled_step_time_s=stalled,
    )
    return whole.row(0) if is_single else whole


def _scaled_parts(estimate: Estimate, factor: np.ndarray) -> tuple[TimeParts, PhaseParts | None]:
    """Return the time parts and phases of a step that takes `factor` times as long. Phases that the
    trainer does not run have stated times, so only its own phases are scaled, unless the step is
    shorter than the stated times."""
    parts = {name: np.asarray(value) for name, value in estimate.time_parts_s.to_dict().items()}
    if estimate.phases_s is None:
        return TimeParts(**{name: value * factor for name, value in parts.items()}), None
    phases = {name: np.asarray(value) for name, value in estimate.phases_s.to_dict().items()}
    step = np.asarray(estimate.step_time_s)
    other_phases = step - sum(phases[name] for name in TRAINED)
    is_longer = step * factor > other_phases
    own = np.where(is_longer, (step * factor - other_phases) / (step - other_phases), factor)
    rest = np.where(is_longer, 1.0, factor)
    scaled = {name: value * own for name, value in parts.items()}
    scaled["other"] = (parts["other"] - other_phases) * own + other_phases * rest
    in_phases = {name: value * (own if name in TRAINED else rest) for name, value in phases.items()}
    return TimeParts(**scaled), PhaseParts(**in_phases)


def after_one_trial(estimate: Estimate) -> float:
    """Return the half-width of a config's 90% interval after one trial of a neighbor at distance 1
    with an error of the expected size, as a fraction of the step time."""
    own_error = uncertain(Calibration()).own_error
    own, level = float(config_sigma(estimate)) ** 2, float(estimate.level_sigma) ** 2
    together = level + max(own - own_error.alone_sigma**2, 0.0) * math.exp(-1.0 / own_error.length)
    remaining = own + level - together**2 / (own + level + LEAST_SIGMA**2)
    _, high = interval(np.ones(1), widening(1.0, 1) * math.sqrt(remaining))
    return float(high[0]) - 1.0


WIDE = 3.0
"""factor on the standard deviations between clusters of one pair in the wider priors"""
WRONG = math.log(2.0)
"""limit in the prior `wrong` of the standard deviation of a constant's log, in addition to the
variation between clusters"""
UNKNOWN_LEVEL = 1.0
"""standard deviation of ln of an unknown level"""
OUTLIER, OUTLIER_SD = 0.05, 1.0
"""weight and additional standard deviation of the wide component of a density"""


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Posterior:
    """The posterior from one of the priors."""

    kind: str
    """the prior: known, level, refit or wrong"""
    score: float
    """leave-one-out score of the trials"""
    known: UncertainConstants
    """posterior of the constants and the level"""
    conditioned: Conditioned | None
    """the conditioning at the last linearization; None without trials"""
    weight: float
    """posterior probability of this prior; all add up to one"""


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Refitted:
    """The result of a guarded refit."""

    kind: str
    """the prior with the best score: known, level, refit or wrong"""
    known: UncertainConstants
    """constants and level with their uncertainty"""
    gain: float
    """gain in the leave-one-out score per trial compared with the given constants"""
    posteriors: tuple[Posterior, ...]
    """the posterior from each prior; without trials, only the given constants"""

    @property
    def calibration(self) -> Calibration:
        """The constants including the level, with the posterior standard deviation of the level as
        `level_sigma`."""
        constants = self.known.constants
        sigma = math.sqrt(float(self.known.covariance[-1, -1]))
        return replace(
            constants,
            level=constants.level * math.exp(self.known.log_level),
            level_sigma=min(constants.level_sigma, sigma)
            if self.kind != "known"
            else constants.level_sigma,
        )


def guarded_refit(constants: Calibration, trials: Sequence[Measured]) -> Refitted:
    """Refit the constants with the prior that predicts left-out trials best. Without trials, the
    given constants are returned."""
    given = uncertain(constants)
    if not trials:
        alone = Posterior(kind="known", score=0.0, known=given, conditioned=None, weight=1.0)
        return Refitted(kind="known", known=given, gain=0.0, posteriors=(alone,))
    levels = {"known": constants.level_sigma, "level": UNKNOWN_LEVEL}
    priors = {name: _level_only(given, sigma) for name, sigma in levels.items()}
    variances = np.diag(given.covariance)
    wider = np.diag(np.minimum(WIDE**2 * variances, variances + WRONG**2))
    priors |= {"refit": given, "wrong": replace(given, covariance=wider)}
    answers: dict[str, Posterior] = {}
    for name, prior in priors.items():
        now, last = linearized(prior, trials)
        answers[name] = Posterior(
            kind=name, score=left_out_score(last), known=now, conditioned=last, weight=0.0
        )
    best = max(answers.values(), key=lambda b: b.score)
    count = sum(len(t.table) for t in trials)
    return Refitted(
        kind=best.kind,
        known=given if best.kind == "known" else best.known,
        gain=(best.score - answers["known"].score) / count,
        posteriors=_with_weights(list(answers.values())),
    )


def _with_weights(answers: Sequence[Posterior]) -> tuple[Posterior, ...]:
    """Return the posteriors with weights proportional to the evidence of their priors."""
    import scipy

    weights = np.exp(
        scipy.special.log_softmax([b.conditioned.log_evidence for b in answers if b.conditioned])
    )
    return tuple(replace(b, weight=float(w)) for b, w in zip(answers, weights, strict=True))


def left_out_score(known: Conditioned) -> float:
    """Return the leave-one-out score: sum of the log densities of the trials, each given all
    others."""
    mean, variance = known.left_out()
    narrow = -0.5 * mean**2 / variance - 0.5 * np.log(2.0 * np.pi * variance)
    wide = variance + OUTLIER_SD**2
    spread = -0.5 * mean**2 / wide - 0.5 * np.log(2.0 * np.pi * wide)
    return float(np.logaddexp(narrow + math.log1p(-OUTLIER), spread + math.log(OUTLIER)).sum())


def _level_only(given: UncertainConstants, sigma: float) -> UncertainConstants:
    """Return a prior with certain constants and a level with standard deviation `sigma`."""
    return replace(given, names=(), covariance=np.array([[max(sigma, 1e-6) ** 2]]))


def measured_workloads(trials: Iterable[tuple[Workload, Trial]]) -> list[Measured]:
    """Return the measured step times by workload, in the order in which workloads and configs first
    occur. Repeated runs of a config are represented by their median."""
    by_workload: dict[str, tuple[Workload, dict[ParallelConfig, list[float]]]] = {}
    for workload, trial in trials:
        if (
            trial.is_measured
            and trial.measurement is not None
            and trial.measurement.step_time_s > 0
        ):
            _, times_of = by_workload.setdefault(repr(workload), (workload, {}))
            times_of.setdefault(trial.config, []).append(trial.measurement.step_time_s)
    return [
        Measured(
            workload=workload,
            table=ConfigTable.of(list(times_of)),
            step_time_s=np.array([float(np.median(times)) for times in times_of.values()]),
        )
        for workload, times_of in by_workload.values()
    ]
