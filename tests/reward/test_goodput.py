from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from autotune.reward import (
    efficiency,
    known_noise_scale,
    learning_rate_factor,
    noise_scale,
    with_noise_scale,
)
from tests.reward.samples import healthy
from tests.shortcuts import present

LAW = settings(deadline=None, derandomize=True)


def squared_norms(
    rng: np.random.Generator, *, batch: int, steps: int, signal: np.ndarray, sigma: float
) -> list[float]:
    """|gradient|^2 of batches whose sequences each add independent noise to the true gradient."""
    noise = rng.standard_normal((steps, len(signal))) * sigma / math.sqrt(batch)
    return [float(g @ g) for g in signal + noise]


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("known", [4.0, 30.0])
def test_a_known_noise_scale_is_recovered_within_a_fifth(known: float, seed: int) -> None:
    rng = np.random.default_rng(seed)
    size, steps = 2000, 300
    signal = rng.standard_normal(size)
    sigma = math.sqrt(known * float(signal @ signal) / size)
    small, big = (
        squared_norms(rng, batch=b, steps=steps, signal=signal, sigma=sigma) for b in (2, 16)
    )
    found = present(noise_scale(small, big, small=2, big=16))
    assert found.value == pytest.approx(known, rel=0.2)
    assert found.low <= found.value <= found.high
    assert found.high / found.low < 2


def test_a_pure_signal_has_no_noise() -> None:
    found = present(noise_scale([4.0] * 5, [4.0] * 5, small=1, big=8))
    assert (found.value, found.low, found.high) == (0.0, 0.0, 0.0)


def test_a_signal_that_drowns_is_infinitely_noisy() -> None:
    found = present(noise_scale([8.0] * 4, [0.9] * 4, small=1, big=8))
    assert math.isinf(found.value)


@pytest.mark.parametrize(
    ("small", "big", "sizes"),
    [
        ([1.0], [1.0], (1, 2)),
        ([1.0, 1.0], [1.0, 1.0], (2, 2)),
        ([1.0, math.nan], [1.0, 1.0], (1, 2)),
    ],
)
def test_what_cannot_be_estimated_is_not(
    small: list[float], big: list[float], sizes: tuple[int, int]
) -> None:
    assert noise_scale(small, big, small=sizes[0], big=sizes[1]) is None


@LAW
@given(batch=st.integers(1, 4096), reference=st.integers(1, 4096), phi=st.floats(0, 1e9))
def test_efficiency_lies_between_its_limits(batch: int, reference: int, phi: float) -> None:
    found = efficiency(batch, reference, phi)
    low, high = sorted((1.0, reference / batch))
    assert low * (1 - 1e-9) <= found <= high * (1 + 1e-9)
    assert efficiency(batch, reference, None) <= found * (1 + 1e-9)


def test_in_pure_noise_a_larger_batch_costs_nothing() -> None:
    assert efficiency(64, 8, math.inf) == 1.0
    assert efficiency(64, 8, 0.0) == 1 / 8


def test_the_learning_rate_follows_the_batch() -> None:
    assert learning_rate_factor(64, 16, "adamw") == 2.0
    assert learning_rate_factor(64, 16, "sgd") == 4.0


def test_where_no_signal_was_found_the_lower_end_counts() -> None:
    lost = healthy(gradient_noise_scale=math.inf, gradient_noise_interval=(40.0, math.inf))
    assert known_noise_scale(lost) == 40.0
    assert known_noise_scale(healthy(gradient_noise_scale=math.inf)) == math.inf
    assert known_noise_scale(healthy(gradient_noise_scale=math.nan)) is None


def test_a_baseline_that_tells_no_noise_scale_borrows_one() -> None:
    telling = healthy(gradient_noise_scale=3.0, gradient_noise_interval=(2.0, 5.0))
    filled = with_noise_scale(healthy(), [None, healthy(), telling])
    assert (filled.gradient_noise_scale, filled.gradient_noise_interval) == (3.0, (2.0, 5.0))
    own = healthy(gradient_noise_scale=7.0)
    assert with_noise_scale(own, [telling]) is own
