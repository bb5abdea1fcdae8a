"""Losses of configs that saw other batches are compared at the same number of tokens, within the noise of the
data."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from autotune.reward import (
    LossCurve,
    compare_at_equal_tokens,
    diverged,
    loss_in_words,
    stability,
    stability_parts,
)
from autotune.spec import LossComparison, Measurement, ParallelConfig
from tests.matrix import examples, sampled
from tests.shortcuts import present

SEQ_LEN, WARMUP = 64, 3
NOISE_BATCH = 32.0
"""B_noise, sequences: below it progress goes with tokens, above it with steps"""
HEALTHY_SEEDS = 1000


def curve(
    batch: int,
    seed: int,
    *,
    steps: int = 20,
    noise: float = 0.05,
    shift: float = 0.0,
    running_mean: int = 1,
    number: int = 1,
    precision: str = "bf16",
) -> LossCurve:
    """A training of one model as it is with this batch: S = S_min (1 + B_noise / B) steps bring it
    equally far, from ln(8000) towards 3.5.

    `noise` is the standard deviation of a loss at a batch of 64, and falls with the square root of
    the batch. `running_mean`: losses in each line of the log.
    """
    rng = np.random.default_rng((seed, batch, number))
    n = steps + running_mean - 1
    done = WARMUP + np.arange(n)
    true = 3.5 + 5.5 * np.exp(-done * (batch / (batch + NOISE_BATCH)) / 15.0)
    seen = true + rng.normal(size=n) * noise * math.sqrt(64 / batch)
    printed = np.convolve(seen, np.ones(running_mean) / running_mean, mode="valid") + shift
    config = ParallelConfig(
        dp=1, micro_batch_size=batch, accumulation_steps=number, precision=precision
    )
    return LossCurve(
        config=config,
        tokens_per_step=batch * SEQ_LEN,
        first_step=WARMUP,
        losses=tuple(map(float, printed)),
    )


def judged(mine: LossCurve, others: Sequence[LossCurve]) -> Measurement:
    """The measurement of the trial with that curve."""
    return Measurement(
        step_times_s=(0.1,) * len(mine.losses),
        tokens_per_step=mine.tokens_per_step,
        losses=mine.losses,
        loss_comparison=compare_at_equal_tokens(mine, others),
    )


@pytest.mark.parametrize("steps", sampled([4, 6, 10, 20, 60], [10]))
@pytest.mark.parametrize("batch", sampled([16, 64, 256], [16]))
@pytest.mark.parametrize(
    ("noise", "running_mean"), sampled([(0.05, 1), (0.5, 1), (0.75, 1), (0.5, 8)], [(0.5, 1)])
)
def test_of_healthy_configs_with_other_batches_and_other_data_at_least_99_of_100_score_one(
    batch: int, steps: int, noise: float, running_mean: int
) -> None:
    penalized = 0
    seeds = HEALTHY_SEEDS // 5 if steps == 60 else HEALTHY_SEEDS // 2
    for seed in range(seeds):
        others = [
            curve(b, seed, steps=steps, noise=noise, running_mean=running_mean, number=k)
            for k, b in enumerate((64, 64, 32), start=2)
        ]
        mine = curve(batch, seed, steps=steps, noise=noise, running_mean=running_mean)
        penalized += stability(judged(mine, others)) < 0.99
    assert penalized <= 0.01 * seeds


@pytest.mark.parametrize("others", [1, 2, 5])
def test_a_loss_half_a_nat_above_the_others_is_found(others: int) -> None:
    for seed in range(100):
        found = judged(
            curve(64, seed, shift=0.5), [curve(64, seed, number=k) for k in range(2, 2 + others)]
        )
        assert stability_parts(found)["equal_tokens"] < 0.9
        assert diverged(found) is None


def test_the_same_excess_late_in_training_where_losses_are_low_costs_more() -> None:
    for seed in range(100):
        others = [curve(64, seed, number=k, steps=100) for k in (2, 3)]
        assert (
            stability_parts(judged(curve(64, seed, shift=0.5, steps=100), others))["equal_tokens"]
            < 0.4
        )


def test_of_another_batch_what_it_falls_short_of_the_expected_is_found() -> None:
    """A smaller batch once it has seen as many tokens, a larger one once it has taken as many
    steps. It is expected ahead, by how much nobody knows."""
    others = [curve(64, 0, number=k) for k in (2, 3)]
    assert compare_at_equal_tokens(curve(16, 0, steps=9, shift=2.0), others) is None
    for batch, steps in ((16, 80), (256, 20)):
        assert (
            stability_parts(judged(curve(batch, 0, steps=steps, shift=2.0), others))["equal_tokens"]
            < 0.9
        )


def test_a_loss_that_rises_for_a_too_high_learning_rate_is_found() -> None:
    for seed in range(100):
        healthy = curve(64, seed, noise=0.2)
        rising = replace(healthy, losses=tuple(x + 0.35 * i for i, x in enumerate(healthy.losses)))
        found = judged(rising, [curve(64, seed, number=k, noise=0.2) for k in (2, 3)])
        assert stability(found) < 0.5


def test_a_flat_loss_of_few_noisy_steps_is_not_called_rising() -> None:
    rng = np.random.default_rng(0)
    called = 0
    for steps in (4, 8, 16, 40):
        for _ in range(250):
            losses = tuple(map(float, 4 + 0.5 * rng.normal(size=steps)))
            m = Measurement(step_times_s=(0.1,) * steps, tokens_per_step=64, losses=losses)
            called += stability(m) < 0.99
    assert called <= 10


def test_a_larger_batch_that_learns_less_from_a_token_is_no_less_stable() -> None:
    """At equal tokens it has taken a quarter of the steps, and its loss is above by more than a
    nat: it is compared at equal steps."""
    small, large = curve(64, 0, number=2), curve(256, 0)
    at_equal_tokens = float(np.interp(5 * 256, (WARMUP + np.arange(20)) * 64, small.losses))
    assert large.losses[5 - WARMUP] > at_equal_tokens + 0.5
    compared = present(compare_at_equal_tokens(large, [small]))
    assert compared.excess < 0.1


def test_without_losses_in_common_there_is_no_comparison() -> None:
    assert compare_at_equal_tokens(curve(64, 0), []) is None
    assert compare_at_equal_tokens(curve(64, 0, steps=6), [curve(64, 0, number=2)]) is None
    assert (
        compare_at_equal_tokens(
            replace(curve(64, 0), losses=(math.nan,) * 20), [curve(64, 0, number=2)]
        )
        is None
    )
    own = curve(64, 0)
    assert compare_at_equal_tokens(own, [own]) is None, "a config is no evidence about itself"


def test_the_losses_of_fp32_are_preferred_and_then_those_of_the_nearest_batch() -> None:
    bf16 = [curve(64, 0, number=k, shift=0.6) for k in (2, 3, 4)]
    exact = curve(64, 0, number=5, precision="fp32")
    mine = curve(64, 0, shift=0.6)
    against_all = present(compare_at_equal_tokens(mine, [*bf16, curve(128, 0, number=6)]))
    assert against_all.curves == 3
    assert against_all.unexplained == 0
    against_fp32 = present(
        compare_at_equal_tokens(
            mine, [*bf16, exact, curve(32, 0, steps=80, number=7, precision="fp32")]
        )
    )
    assert against_fp32.curves == 1
    assert against_fp32.excess == pytest.approx(0.6, abs=0.15)


@settings(deadline=None, derandomize=True, max_examples=examples(60))
@given(
    seed=st.integers(0, 10_000),
    scale=st.floats(1e-3, 1e3),
    shift=st.floats(0, 2),
    order=st.permutations(range(4)),
)
def test_neither_the_unit_of_the_loss_nor_the_order_of_the_others_matters(
    seed: int, scale: float, shift: float, order: list[int]
) -> None:
    mine, others = curve(64, seed, shift=shift), [curve(64, seed, number=k) for k in (2, 3, 4, 5)]

    def scaled(c: LossCurve) -> LossCurve:
        return replace(c, losses=tuple(scale * x for x in c.losses))

    plain = compare_at_equal_tokens(mine, others)
    other = compare_at_equal_tokens(scaled(mine), [scaled(others[i]) for i in order])
    assert plain is not None
    assert other is not None
    assert other.unexplained == pytest.approx(plain.unexplained, abs=1e-9)
    assert (other.tokens, other.curves) == (plain.tokens, plain.curves)


@settings(deadline=None, derandomize=True, max_examples=examples(60))
@given(seed=st.integers(0, 10_000), shift=st.floats(0, 2), more=st.floats(0, 2))
def test_a_higher_loss_never_scores_better(seed: int, shift: float, more: float) -> None:
    others = [curve(64, seed, number=k) for k in (2, 3)]
    low, high = (judged(curve(64, seed, shift=x), others) for x in (shift, shift + more))
    assert stability_parts(high)["equal_tokens"] <= stability_parts(low)["equal_tokens"] + 1e-9


def test_a_comparison_is_stored_with_its_measurement() -> None:
    m = judged(curve(64, 0, shift=0.5), [curve(64, 0, number=2)])
    assert m.loss_comparison is not None
    assert Measurement.from_dict(m.to_dict()) == m
    document = m.to_dict()
    del document["loss_comparison"]
    assert Measurement.from_dict(document).loss_comparison is None, (
        "documents of earlier versions have none"
    )


def test_how_the_loss_was_judged_is_said_in_words() -> None:
    m = Measurement(step_times_s=(0.1,), tokens_per_step=64, losses=(4.0,))
    assert "only their trend" in loss_in_words(m)
    assert "step by step" in loss_in_words(replace(m, reference_losses=(4.0,)))
    compared = LossComparison(excess=0.51, noise=0.07, loss=4.1, tokens=40_960, curves=3)
    assert loss_in_words(replace(m, loss_comparison=compared)) == (
        "after 40,960 tokens, the loss was 0.51 above that of 3 other trials (4.1), on different batches; noise 0.07"
    )
    assert loss_in_words(replace(m, losses=())) == ""
