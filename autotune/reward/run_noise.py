"""Noise between runs: how much two runs of the same config differ, beyond the noise between the
steps of one run.

    y_cr     ln speed of config c in round r of the finals        sigma    standard deviation of y_cr about its config's mean, after the round's common shift
    nu       degrees of freedom                                    R        number of rounds in which two configs were measured together

    sigma^2 | data ~ scaled inverse chi-square(nu_0 + nu, (nu_0 s_0^2 + SS) / (nu_0 + nu))          Gelman et al. 2013, section 2.6

The prior is s_0^2 = 2%^2 + the variance of a typical run's mean from its steps, with the weight of
nu_0 = 3 runs. The data are the rounds of the finals: in round r, each config differs from the mean
of its earlier rounds by d_cr, and SS grows by sum_c (d_cr - mean_c d_cr)^2 / (1 + 1 / (r - 1)) with
C - 1 degrees of freedom (Helmert contrasts). A shift of all configs in a round, by drift of the
machine, cancels.

The difference of two ln speeds over R rounds has the standard error sigma sqrt(2 / R) and follows
Student's t. If the best of m configs is selected, the quantile is that of 1 - alpha / m
(Bonferroni), because the best of many is too good on average.
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
"""s_0: prior relative standard deviation between runs"""
PRIOR_FREEDOM = 3.0
"""nu_0: weight of the prior in runs. It is small enough that two rounds on a machine with twice the
prior's noise outweigh it: intervals then cover the truth in 96% of studies, with a weight of 4 in
92.5% (`python -m tests.benchmarks.run_noise`)"""
CONFIDENCE = 0.95
"""confidence of intervals"""
CHANGE_CONFIDENCE = 0.99
"""confidence of the interval outside of which two runs indicate a change of the machine"""
DISTURBED = 4.0
"""a run with more than this multiple of the variance of its config's steadiest run is discarded as
disturbed"""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunNoise:
    """Posterior of sigma."""

    variance: float = BETWEEN_RUNS_SD**2
    """sigma^2: scale of the posterior"""
    freedom: float = PRIOR_FREEDOM
    """nu_0 + nu: degrees of freedom"""

    @classmethod
    def of(
        cls, measurements: Iterable[Measurement], squares: float = 0.0, freedom: float = 0.0
    ) -> RunNoise:
        """The noise of runs like these measurements, updated with a sum of squares that has
        `freedom` degrees of freedom."""
        within = [within_run_variance(m) for m in measurements]
        return cls.of_typical(float(np.median(within)) if within else 0.0, squares, freedom)

    @classmethod
    def of_typical(cls, within: float, squares: float, freedom: float) -> RunNoise:
        """As `of`, with the median `within_run_variance` of the runs."""
        prior = BETWEEN_RUNS_SD**2 + within
        total = PRIOR_FREEDOM + freedom
        return cls(variance=(PRIOR_FREEDOM * prior + squares) / total, freedom=total)

    def behind(self, confidence: float) -> float:
        """The smallest significant difference in ln speed by which one run is slower than another,
        at this one-sided confidence."""
        return t_quantile(self.freedom, confidence) * math.sqrt(2 * self.variance)

    def half_width(
        self,
        rounds: float,
        *,
        configs: int = 1,
        confidence: float = CONFIDENCE,
        within: float = 0.0,
    ) -> float:
        """Half-width of the two-sided interval of a difference of ln speeds over this number of
        rounds. `configs`: m, the number of configs of which the best is selected.

        `within`: variance of the difference from the steps of these runs (`within_run_variance` of
        both). It widens the interval of a config whose steps have a slow tail.
        """
        alpha, rounds = (1.0 - confidence) / max(1, configs), max(1, rounds)
        variance = max(2 * self.variance / rounds, within + 2 * BETWEEN_RUNS_SD**2 / rounds)
        return t_quantile(self.freedom, 1.0 - alpha / 2) * math.sqrt(variance)


def within_run_variance(measurement: Measurement) -> float:
    """Variance of the ln of a run's mean step time, from its steps: s^2 / (n mean^2), enlarged for
    correlated steps. 0 with fewer than two steps."""
    times = np.asarray(measurement.step_times_s, dtype=float)
    n, mean = len(times), float(times.mean()) if len(times) else 0.0
    if n < 2 or not mean > 0:
        return 0.0
    residuals = times - mean
    return (
        float(residuals @ residuals) / (n - 1) / n / mean**2 * steps_per_independent_one(residuals)
    )


def undisturbed(runs: Sequence[Measurement]) -> list[bool]:
    """For each run of one config, whether its variance is within a factor of `DISTURBED` of the
    steadiest one. Load from other processes in one run makes its steps much more uneven than those
    of the others, while a config with a slow tail has it in all runs."""
    variances = [BETWEEN_RUNS_SD**2 + within_run_variance(m) for m in runs]
    return [v <= DISTURBED * min(variances) for v in variances]


def steady_rounds(default: Sequence[Measurement]) -> list[bool]:
    """For each round of the finals, whether it counts. `default`: the baseline's run in each round.
    It is first in even rounds and last in odd ones, so rounds 2i and 2i + 1 lie between two of its
    runs. If these differ by more than the noise between runs, the machine changed or a run was
    disturbed, and neither round counts."""
    noise, steady = RunNoise.of(default), [True] * len(default)
    for r in range(0, len(default) - 1, 2):
        first, last = default[r : r + 2]
        log_ratio = abs(math.log(first.median_tokens_per_s / last.median_tokens_per_s))
        steady[r] = steady[r + 1] = log_ratio <= noise.half_width(1, confidence=CHANGE_CONFIDENCE)
    return steady


def squares_of_rounds(speeds: Sequence[Sequence[float]]) -> tuple[float, int]:
    """SS and its degrees of freedom. `speeds`: for each config its speeds by round, nan for a run
    that does not count. Configs that dropped out have fewer rounds."""
    logs = [np.log(np.asarray(rounds, dtype=float)) for rounds in speeds]
    squares, freedom = 0.0, 0
    for r in range(1, max((len(rounds) for rounds in logs), default=0)):
        shifts, variances = list[float](), list[float]()
        for rounds in logs:
            earlier = _finite(rounds[:r])
            if len(rounds) > r and len(earlier) and math.isfinite(rounds[r]):
                shifts.append(rounds[r] - earlier.mean())
                variances.append(1 + 1 / len(earlier))
        if len(shifts) > 1:
            d, v = np.array(shifts), np.array(variances)
            common = float((d / v).sum() / (1 / v).sum())
            squares += float(((d - common) ** 2 / v).sum())
            freedom += len(d) - 1
    return squares, freedom


def _finite(values: NDArray[np.float64]) -> NDArray[np.float64]:
    return values[np.isfinite(values)]
