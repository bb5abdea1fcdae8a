"""Distributions of lengths: what is told comes back, and what cannot be is refused."""

from __future__ import annotations

import numpy as np
import pytest

from autotune.errors import SpecError
from autotune.spec.lengths import Lengths


def test_percentiles_and_mean_are_reproduced() -> None:
    told = {50.0: 900.0, 95.0: 4200.0, 100.0: 8192.0}
    found = Lengths.of_percentiles(told, 1400.0)
    assert found.mean == pytest.approx(1400.0, rel=0.005)
    assert found.longest == 8192.0
    assert found.at(np.array([0.5, 0.95])) == pytest.approx([900.0, 4200.0], rel=0.02)
    assert not found.assumed


def test_a_mean_without_percentiles_is_an_assumption_and_truncated_at_the_longest() -> None:
    found = Lengths.of_percentiles({100.0: 1024.0}, 900.0)
    assert found.mean == pytest.approx(900.0, rel=0.01)
    assert found.longest == 1024.0
    assert "only the mean" in found.assumed
    assert "`max` is not set" in Lengths.of_percentiles({50.0: 700.0}, 900.0).assumed


@pytest.mark.parametrize(
    ("percentiles", "mean", "words"),
    [
        ({}, None, "need a mean or percentiles"),
        ({50.0: 900.0, 95.0: 800.0}, None, "must not decrease"),
        ({50.0: 900.0, 95.0: 1000.0, 100.0: 1100.0}, 3000.0, "have a mean between"),
        ({100.0: 500.0}, 900.0, "cannot exceed the longest length"),
    ],
)
def test_impossible_lengths_are_rejected(
    percentiles: dict[float, float], mean: float | None, words: str
) -> None:
    with pytest.raises(SpecError, match=words):
        Lengths.of_percentiles(percentiles, mean)


def test_histograms_and_files_keep_their_mean_and_their_longest() -> None:
    counted = Lengths.of_histogram({512: 300, 1024: 100, 4096: 1})
    assert counted.mean == pytest.approx((512 * 300 + 1024 * 100 + 4096) / 401, rel=0.01)
    assert counted.longest == 4096.0
    seen = Lengths.of(np.random.default_rng(0).lognormal(6.0, 1.0, 50_000))
    assert len(seen.values) == 1024
    assert seen.mean == pytest.approx(np.exp(6.5), rel=0.05)
    with pytest.raises(SpecError, match="have at least one length"):
        Lengths.of_histogram({})


def test_empty_or_negative_lengths_are_rejected() -> None:
    for values in ((), (-1.0, 5.0), (float("nan"),)):
        with pytest.raises(SpecError, match="numbers of tokens"):
            Lengths(values=values)
