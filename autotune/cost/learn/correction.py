"""Correction: estimates of a study's configs given the trials that it has measured.

Prediction and interval of a config follow from the trials in three ways. Constants and level, which
all configs share, are refitted (`refit`), and each config moves by its own mix of causes. Own
errors are shared by neighbors (`own_error`). Both are one linear step about the constants that the
study began with. How wide all of these errors are is the study's own too (`error_scale`). Trials
whose sends stalled are set aside (`stalled_trials`).

    step time    predicted * exp(mean of log(measured / predicted))
    interval     that of Student's t about the same

Error scale: how wide the errors of a study's configs are, as its trials show it.

Of one program all configs are predicted within a few percent, another's scatter by a factor about
whatever level they have. So the variances of all errors, shared and own, are those of `refit` times
a factor f that is the study's own, and not known before its trials:

    f ~ c m / chi^2_m          before any trial: an inverse gamma of m degrees of freedom
    f ~ (c m + q) / chi^2_(m + n)          given n trials        q = y' A^-1 y, their squared distance from what was predicted (`Conditioned.squares`)

The error of a config is then Student's t with m + n degrees of freedom (Shah, Wilson and Ghahramani
2014, arXiv 1402.4306, equation 5). Its mean is that of a normal, so predictions do not depend on f.
Trials that agree with what was predicted narrow the intervals, and trials that lie far off keep
them wide, until so many agree with each other that their own scatter tells.

m gives the rows of published sources about the highest density after one and after three trials,
which hardly depends on it from 2 to 4, and c has nine tenths of them inside
(`research/error_scale.py`). Neglected: before any trial the widths stay those of `uncertainty`, a
sixth narrower than such a t, since they hold.

Which trials ran while sends stalled, so that they tell nothing about constants, level and
neighbors.

A pipeline over nodes may take several times as long as it should, with a known chance and by a
known factor (`stalls`). Of a trial that ran so, a refit would say that the whole cluster is that
slow. So each trial that can stall is explained both ways, given what the others say of it:

    log odds = log(p / (1 - p)) + (x^2 - (x - w)^2) / 2 v

    x, v    log(measured / predicted) less its mean given all other trials, and its variance (`Conditioned.left_out`); of a single trial those before any
    p, w    chance of a stall, and log of the factor by which it lengthens the step

The trial with the greatest odds above one is set aside, and the rest are asked again. Trials that
agree with each other keep each other: a cluster that is slow throughout is believed from its second
trial on. Neglected: that stalled sends of one cluster differ by a tenth, which is little beside v.

Guarded refit: constants that follow trials only as far as that predicts left-out trials better.

Before any trial it is not known how wrong the constants are: those of a fitted pair are right to
some ten percent, others are off by a factor. So several priors are tried, and each is judged by
what it says of every trial given all the others:

    known     nothing is moved: the constants that were given, with the level's spread as they state it
    level     one factor on all step times, of which nothing is known
    refit     constants and level, as uncertain as clusters of one pair lie apart (`refit`)
    wrong     the same, three times as uncertain, but none by more than a factor of two besides: variances min((3 w)^2, w^2 + (ln 2)^2)

Without that bound the constants that differ most between clusters, such as the host time of a step,
are free by factors of a hundred, which is enough to explain all trials of one batch size by a time
that no rank shortens.

    score     sum_i log p(y_i | all other y)        p: normal, with `OUTLIER` of its weight spread wide, so that one wild trial decides nothing
              (leave-one-out densities: Rasmussen & Williams 2006, eq. 5.10 to 5.12; Geisser & Eddy 1979)

The best score wins, of equal ones the first in this list, where constants are needed; what trials
say of another workload is an average over all of them (`transferred`). So trials that agree with
the constants move them little, and trials that no constants explain move none.
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
    linearised,
    uncertain,
)
from autotune.cost.learn.uncertainty import TAIL, Z90, config_sigma, interval, upper_end
from autotune.space import SearchSpace
from autotune.spec import ConfigTable, Estimate, ParallelConfig, TimeParts, Trial, Workload
from autotune.spec.estimate import PhaseParts
from autotune.spec.post_training import TRAINED

DEGREES = 3.0
"""m"""
SCALE = 0.7
"""c"""


def widening(squares: float, trials: int) -> float:
    """Factor on standard deviations given that many trials, such that the 90% interval of a normal
    is that of the t. `squares`: q."""
    import scipy

    degrees = DEGREES + trials
    variance = (SCALE * DEGREES + squares) / degrees
    return math.sqrt(variance) * float(scipy.special.stdtrit(degrees, 1.0 - TAIL)) / Z90


def unstalled(rows: Sensitivity, errors: Array, prior: UncertainConstants) -> NDArray[np.intp]:
    """Numbers of the trials whose sends did not stall, ascending. `errors`: log(measured /
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
"""configs after which further ones are not looked at: by then constants are known far better than
any config's own error"""
MARGIN = 2.0
"""difference of the left-out scores that the wider prior must gain: its evidence is seven times as
large. With less it takes what `error_scale` explains better"""


@final
class Correction:
    """What a study's trials say about its other configs. What was computed for a config is kept;
    the result depends on the arguments alone."""

    def __init__(self, space: SearchSpace, constants: Calibration | None = None) -> None:
        """`constants`: of the estimates; default: `calibration_for` the workload."""
        self._space = space
        self._prior = uncertain(constants or calibration_for(space.workload))
        self._rows: dict[ParallelConfig, Sensitivity] = {}

    def applied(
        self, config: ParallelConfig, estimate: Estimate, trials: Iterable[Trial]
    ) -> Estimate:
        """The estimate of one config given these trials; unchanged where none was measured, or the
        sends of all stalled. Repeats of a config count once."""
        seen: dict[ParallelConfig, list[float]] = {}
        for trial in trials:
            if trial.is_measured and trial.measurement is not None:
                seen.setdefault(trial.config, []).append(math.log(trial.measurement.step_time_s))
                if len(seen) == ENOUGH:
                    break
        if not seen:
            return estimate
        rows = Sensitivity.joined([self._row(known) for known in seen])
        errors = np.array([float(np.median(logs)) for logs in seen.values()]) - rows.log_step_s
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
    """What the trials `rows` say whose log(measured / predicted) are `errors`, shape (n,), by the
    prior or the wider one; None where the sends of all stalled."""
    ran = unstalled(rows, errors, prior)
    if not len(ran):
        return None
    wider = replace(prior, covariance=WIDE**2 * prior.covariance)
    known, wide = (Conditioned.on(rows.take(ran), errors[ran], some) for some in (prior, wider))
    return wide if left_out_score(wide) > left_out_score(known) + MARGIN else known


def errors_given(known: Conditioned, rows: Sensitivity) -> tuple[Array, Array, Array]:
    """Of the next measurements of configs: mean of log(measured / predicted), the standard
    deviation of the normal with the same 90% interval, and the part of it that is due to constants
    and level; shape (N,) each."""
    center, sigma, shared = known.errors_of(rows)
    wider = widening(known.squares, len(known.rows))
    sigma = np.maximum(wider * sigma, LEAST_SIGMA)
    return center, sigma, np.minimum(wider * shared, sigma)


def moved(
    estimate: Estimate, center: np.ndarray, sigma: np.ndarray, shared: np.ndarray
) -> Estimate:
    """The estimate with its times multiplied by exp(`center`); `sigma`: standard deviation of the
    log step time, of which `shared` is due to constants and level; each of shape (N,), or (1,) for
    one config."""
    alone = not np.ndim(estimate.step_time_s)
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
    return whole.row(0) if alone else whole


def _scaled_parts(estimate: Estimate, factor: np.ndarray) -> tuple[TimeParts, PhaseParts | None]:
    """Parts and phases of a step that takes `factor` times as long. Phases that the trainer does
    not run were told, so its own change, unless the step is shorter than what was told."""
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
    """Half-width of one config's 90% interval once its neighbor on one knob has run as far off as
    expected, as a fraction of the step time."""
    alike = uncertain(Calibration()).own_error
    own, level = float(config_sigma(estimate)) ** 2, float(estimate.level_sigma) ** 2
    together = level + max(own - alike.alone_sigma**2, 0.0) * math.exp(-1.0 / alike.length)
    left = own + level - together**2 / (own + level + LEAST_SIGMA**2)
    _, high = interval(np.ones(1), widening(1.0, 1) * math.sqrt(left))
    return float(high[0]) - 1.0


WIDE = 3.0
"""multiple of the spreads between clusters of one pair in the widest prior"""
WRONG = math.log(2.0)
"""standard deviation of the log of the factor by which a constant may be off in it, at most, beside
what clusters differ by"""
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
    """by how much left-out trials are predicted better than by the constants that were given:
    difference of the scores per trial"""
    believed: tuple[Believed, ...]
    """each prior's answer; without trials that of the constants that were given"""

    @property
    def calibration(self) -> Calibration:
        """The constants with the level among them, and with what is uncertain about the level alone
        as their level's spread."""
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
    """The constants given these trials, by the prior that predicts left-out trials best; those that
    were given where there is no trial."""
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
        found[name] = Believed(
            kind=name, score=left_out_score(last), known=now, said=last, weight=0.0
        )
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
    import scipy

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
    """The measured ones of these trials by workload, in the order in which workloads and configs
    first occur. Repeats of a config count as their median."""
    by_workload: dict[str, tuple[Workload, dict[ParallelConfig, list[float]]]] = {}
    for workload, trial in trials:
        if (
            trial.is_measured
            and trial.measurement is not None
            and trial.measurement.step_time_s > 0
        ):
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
