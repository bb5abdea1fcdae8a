"""The stop rules keep what they promise on series with the outliers that shared machines have."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from autotune.spec import MeasureSpec
from autotune.stopping import LOSING_ERROR, evidence_slower, median_interval, trial_decision

NOISES = [(0.03, 0.05), (0.03, 0.2), (0.1, 0.1), (0.01, 0.0)]
"""Relative spread of a step, and share of steps that take ten times as long."""


def series(
    rng: np.random.Generator, shape: tuple[int, int], spread: float, outliers: float
) -> np.ndarray:
    """Step times, one trial per row."""
    times = np.exp(rng.normal(0.0, spread, shape))
    return np.where(rng.random(shape) < outliers, 10 * times, times)


def true_median(spread: float, outliers: float) -> float:
    """Of `series`: the point that half of the steps fall under. An outlier never does."""
    return math.exp(spread * stats.norm.ppf(0.5 / (1 - outliers)))


@pytest.mark.parametrize(("n", "rank"), [(6, 1), (8, 1), (9, 2), (20, 6), (30, 10)])
def test_interval_is_the_tabled_pair_of_order_statistics(n: int, rank: int) -> None:
    assert median_interval(range(1, n + 1)) == (rank, n + 1 - rank)


def test_too_few_steps_say_nothing_of_the_median() -> None:
    assert median_interval([1.0] * 5) == (0.0, math.inf)
    assert median_interval([]) == (0.0, math.inf)


@pytest.mark.parametrize(("spread", "outliers"), NOISES)
@pytest.mark.parametrize("n", [6, 11, 30])
def test_interval_covers_the_median_as_often_as_it_says(
    spread: float, outliers: float, n: int
) -> None:
    trials = 4000
    middle = true_median(spread, outliers)
    rows = series(np.random.default_rng(n), (trials, n), spread, outliers)
    covered = sum(low <= middle <= high for low, high in map(median_interval, rows))
    # three standard errors of a share of 95% in so many trials
    assert covered / trials >= 0.95 - 3 * math.sqrt(0.95 * 0.05 / trials)


@pytest.mark.parametrize(("spread", "outliers"), NOISES)
def test_few_trials_end_with_a_median_that_is_wrongly_called_known(
    spread: float, outliers: float
) -> None:
    """The rule looks after every step and stops when it likes what it sees; even so, few of all
    trials may end with a false claim."""
    measure = MeasureSpec(precision=0.03, max_steps=30)
    middle = true_median(spread, outliers)
    rows = series(np.random.default_rng(1), (600, 30), spread, outliers)
    wrong = 0
    for row in rows:
        n = next(n for n in range(1, 31) if trial_decision(row[:n], measure, None).stop)
        claimed = "known" in trial_decision(row[:n], measure, None).reason
        wrong += claimed and abs(np.median(row[:n]) / middle - 1) > measure.precision
    assert wrong / len(rows) <= 0.05


@pytest.mark.thorough
@pytest.mark.parametrize(("spread", "outliers"), NOISES)
def test_a_trial_as_good_as_the_best_is_rarely_given_up(spread: float, outliers: float) -> None:
    measure = MeasureSpec(precision=1e-9, max_steps=30)
    best = true_median(spread, outliers)
    rows = series(np.random.default_rng(2), (800, 30), spread, outliers)
    lost = sum(
        any(trial_decision(row[:n], measure, best).stopped_early for n in range(1, 31))
        for row in rows
    )
    assert lost / len(rows) <= LOSING_ERROR + 3 * math.sqrt(LOSING_ERROR / len(rows))


@pytest.mark.parametrize(("spread", "outliers"), NOISES)
def test_a_trial_as_good_as_the_best_survives_its_first_look(
    spread: float, outliers: float
) -> None:
    """One in 64 at most is given up where no more than a quarter of the steps is slower by far, as
    here."""
    measure = MeasureSpec(min_steps=30)
    best = true_median(spread, outliers)
    rows = series(np.random.default_rng(3), (4000, 3), spread, outliers)
    lost = np.mean([trial_decision(row.tolist(), measure, best).stop for row in rows])
    assert lost <= 1 / 64 + 3 * math.sqrt(1 / 64 / len(rows))


def test_a_trial_slower_by_far_ends_at_its_first_look() -> None:
    measure = MeasureSpec(min_steps=30)
    far = [1.2, 9.0, 1.3]
    assert not trial_decision(far[:2], measure, 1.0).stop
    verdict = trial_decision(far, measure, 1.0)
    assert verdict.stopped_early
    assert (
        verdict.reason
        == "cannot win: the first 3 steps took more than 1.1 s each; winning needs 1 s or less"
    )
    for going_on in (
        trial_decision([1.2, 1.09, 1.3], measure, 1.0),
        trial_decision(far, measure, None),
        trial_decision(far, MeasureSpec(min_steps=30, first_look=0), 1.0),
        trial_decision([], MeasureSpec(min_steps=30, first_look=0), 1.0),
    ):
        assert not going_on.stop


def test_a_trial_twice_as_slow_ends_after_six_steps_whatever_the_outliers() -> None:
    measure = MeasureSpec(precision=1e-9, first_look=0)
    times = [2.0, 2.1, 20.0, 1.9, 2.0, 2.05]
    assert not trial_decision(times[:5], measure, 1.0).stop
    verdict = trial_decision(times, measure, 1.0)
    assert verdict.stopped_early
    assert "cannot win" in verdict.reason


def test_one_fast_step_is_no_reason_to_go_on_for_ever() -> None:
    slow = [2.0] * 20
    assert evidence_slower([*slow, 0.5], 1.0) > 1 / LOSING_ERROR


def test_thousands_of_slower_steps_are_evidence_too() -> None:
    """A measurement may have 100,000 steps; a stake of 90% multiplies beyond what a float holds
    after 1,100."""
    assert evidence_slower([2.0, 2.0, 0.5], 1.0) == pytest.approx((1.5**2 * 0.5 + 1.9**2 * 0.1) / 2)
    assert math.isfinite(evidence_slower([2.0] * 100_000, 1.0))
    measure = MeasureSpec(min_steps=3000, max_steps=100_000, precision=1e-9)
    assert trial_decision([2.0 + 1e-4 * i for i in range(3000)], measure, 1.9).stopped_early


def test_verdict_waits_for_the_least_and_ends_at_the_most_steps() -> None:
    measure = MeasureSpec(min_steps=8, max_steps=10, precision=0.001)
    assert not trial_decision([1.0] * 7, measure, None).stop
    assert trial_decision([1.0] * 8, measure, None).stop
    uneven = [1.0, 2.0] * 5
    assert not trial_decision(uneven[:9], measure, None).stop
    last = trial_decision(uneven, measure, None)
    assert last.stop
    assert not last.stopped_early


@settings(deadline=None, derandomize=True)
@given(st.lists(st.floats(1e-3, 1e3), min_size=1, max_size=60), st.floats(1e-2, 1e2))
def test_interval_scales_with_its_unit_and_holds_the_median(
    times: list[float], unit: float
) -> None:
    low, high = median_interval(times)
    assert low <= np.median(times) <= high
    scaled = median_interval([unit * t for t in times])
    assert scaled == pytest.approx((unit * low, unit * high))


def test_the_interval_of_very_many_steps_is_narrow_and_finite() -> None:
    low, high = median_interval([1.0 + (i % 1000) * 1e-3 for i in range(20_000)])
    assert 1.45 < low < high < 1.55
