"""How far trials lie from what was predicted says how wide the errors of a study are."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy.stats import chi2, norm

from autotune.cost.learn.correction import DEGREES, SCALE, widening
from autotune.cost.learn.uncertainty import Z90


@pytest.mark.parametrize(("squares", "trials"), [(0.0, 1), (9.0, 1), (3.0, 3), (40.0, 12)])
def test_the_interval_holds_nine_tenths_of_normals_whose_variance_is_uncertain(
    squares: float, trials: int
) -> None:
    """A t is a mixture of normals over the factor of their variance: its posterior is summed up
    here."""
    shares = (np.arange(4000) + 0.5) / 4000
    factors = (SCALE * DEGREES + squares) / chi2.ppf(shares, DEGREES + trials)
    half = Z90 * widening(squares, trials)
    inside = np.mean(2.0 * norm.cdf(half / np.sqrt(factors)) - 1.0)
    assert inside == pytest.approx(0.9, abs=1e-3)


def test_trials_as_far_off_as_expected_change_little_and_far_ones_keep_intervals_wide() -> None:
    assert widening(0.0, 1) < 1.0 < widening(4.0, 1) < widening(16.0, 1)
    assert widening(1.0, 1) == pytest.approx(1.1, abs=0.1)


def test_after_many_trials_the_width_is_that_of_their_scatter() -> None:
    for scatter in (0.3, 1.0, 3.0):
        assert widening(scatter**2 * 1000.0, 1000) == pytest.approx(scatter, rel=0.02)
        assert math.isfinite(widening(0.0, 1000))
