"""The noise between runs: by how much two measurements of one config differ, more than the steps of
one run tell.

    y_cr     ln speed of config c in round r of the finals        sigma    standard deviation of y about its config's, after the round's common shift
    nu       degrees of freedom                                    R        rounds that two configs were measured in together

    sigma^2 | data ~ scaled inverse chi-square(nu_0 + nu, (nu_0 s_0^2 + SS) / (nu_0 + nu))          Gelman et al. 2013, section 2.6

The prior is s_0^2 = 2%^2 + what the steps of a typical run tell of its mean, worth nu_0 = 3 runs.
Data are the rounds of the finals: in round r each config moves from the mean of its earlier rounds
by d_cr; SS adds sum_c (d_cr - mean_c d_cr)^2 / (1 + 1 / (r - 1)) with C - 1 degrees of freedom
(Helmert's contrasts). Runs that foreign load disturbed tell by their median step. What moves all
configs of a round together, a machine that drifts, cancels.

Differences of ln speeds over R rounds have the standard error sigma sqrt(2 / R) and follow
Student's t. Where the best of m configs is looked at, the quantile is that of 1 - alpha / m
(Bonferroni): the best of many is on average too good.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from autotune.reward.autocorrelation import steps_per_independent_one
from autotune.reward.student_t import t_quantile
from autotune.spec import Measurement

BETWEEN_RUNS_SD = 0.02
"""s_0: relative standard deviation between runs, before any config was measured twice"""
PRIOR_FREEDOM = 3.0
"""nu_0: runs that the prior is worth. So few that two rounds of a machine with twice the prior's
noise are believed: its intervals hold in 96% of studies, with 4 runs in 92.5% (`python -m
tests.benchmarks.run_noise`)"""
CONFIDENCE = 0.95
"""of intervals"""
CHANGE_CONFIDENCE = 0.99
"""of the interval that the difference of two runs must leave before the machine is held to have
changed"""
DISTURBED = 4.0
"""times the variance of the steadiest run of a config, above which a run was disturbed and does not
count"""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunNoise:
    """What is known of sigma."""

    variance: float = BETWEEN_RUNS_SD**2
    """sigma^2, its posterior scale"""
    freedom: float = PRIOR_FREEDOM
    """nu_0 + nu"""

    @classmethod
    def of(
        cls, measurements: Iterable[Measurement], squares: float = 0.0, freedom: float = 0.0
    ) -> RunNoise:
        """The noise of runs like these, updated by a sum of squares with so many degrees of
        freedom."""
        within = [within_run_variance(m) for m in measurements]
        return cls.of_typical(float(np.median(within)) if within else 0.0, squares, freedom)

    @classmethod
    def of_typical(cls, within: float, squares: float, freedom: float) -> RunNoise:
        """The same of runs whose median `within_run_variance` is known."""
        prior = BETWEEN_RUNS_SD**2 + within
        total = PRIOR_FREEDOM + freedom
        return cls(variance=(PRIOR_FREEDOM * prior + squares) / total, freedom=total)

    def behind(self, confidence: float) -> float:
        """By how much in ln speed one run must be behind another before chance of this probability
        does not explain it; one-sided."""
        return t_quantile(self.freedom, confidence) * math.sqrt(2 * self.variance)

    def half_width(
        self,
        rounds: float,
        *,
        configs: int = 1,
        confidence: float = CONFIDENCE,
        within: float = 0.0,
    ) -> float:
        """Half-width of the two-sided interval of a difference of ln speeds over so many rounds;
        `configs`: m, the best of which is looked at.

        `within`: variance of the difference that the steps of these very runs tell
        (`within_run_variance` of both). Runs of a config whose steps have a slow tail say less than
        typical runs do.
        """
        alpha, rounds = (1.0 - confidence) / max(1, configs), max(1, rounds)
        variance = max(2 * self.variance / rounds, within + 2 * BETWEEN_RUNS_SD**2 / rounds)
        return t_quantile(self.freedom, 1.0 - alpha / 2) * math.sqrt(variance)


def within_run_variance(measurement: Measurement) -> float:
    """Variance of the ln of a run's mean step time that its steps tell: s^2 / (n mean^2), times how
    many neighbouring steps count as one; 0 with fewer than two steps."""
    times = np.asarray(measurement.step_times_s, dtype=float)
    n, mean = len(times), float(times.mean()) if len(times) else 0.0
    if n < 2 or not mean > 0:
        return 0.0
    residuals = times - mean
    return (
        float(residuals @ residuals) / (n - 1) / n / mean**2 * steps_per_independent_one(residuals)
    )


def undisturbed(runs: Sequence[Measurement]) -> list[bool]:
    """Which runs of one config say as much as the best of them, within a factor of `DISTURBED` in
    variance: a burst of foreign load in one run makes its steps far more uneven than those of the
    others, while a config that has a slow tail has it in all of its runs."""
    variances = [BETWEEN_RUNS_SD**2 + within_run_variance(m) for m in runs]
    return [v <= DISTURBED * min(variances) for v in variances]


def steady_rounds(default: Sequence[Measurement]) -> list[bool]:
    """Which rounds of the finals count, by the baseline's run in each. It opens even rounds and
    closes odd ones, so rounds 2i and 2i + 1 lie between two of its runs. Where these differ by more
    than the noise between runs, the machine changed in one of the two rounds, or disturbed a run:
    neither counts."""
    noise, steady = RunNoise.of(default), [True] * len(default)
    for r in range(0, len(default) - 1, 2):
        first, last = default[r : r + 2]
        log_ratio = abs(math.log(first.median_tokens_per_s / last.median_tokens_per_s))
        steady[r] = steady[r + 1] = log_ratio <= noise.half_width(1, confidence=CHANGE_CONFIDENCE)
    return steady


def squares_of_rounds(speeds: Sequence[Sequence[float]]) -> tuple[float, int]:
    """SS and its degrees of freedom from the speeds of each config in its rounds, in order; nan for
    a run that does not count. Configs may have dropped out."""
    logs = [np.log(np.asarray(rounds, dtype=float)) for rounds in speeds]
    squares, freedom = 0.0, 0
    for r in range(1, max((len(rounds) for rounds in logs), default=0)):
        both = [
            (rounds[r], known)
            for rounds in logs
            if len(rounds) > r and len(known := _known(rounds[:r]))
        ]
        moves = np.array([now - known.mean() for now, known in both if math.isfinite(now)])
        sizes = np.array([1 + 1 / len(known) for now, known in both if math.isfinite(now)])
        if len(moves) > 1:
            centre = float((moves / sizes).sum() / (1 / sizes).sum())
            squares += float(((moves - centre) ** 2 / sizes).sum())
            freedom += len(moves) - 1
    return squares, freedom


def _known(values: NDArray[np.float64]) -> NDArray[np.float64]:
    return values[np.isfinite(values)]
