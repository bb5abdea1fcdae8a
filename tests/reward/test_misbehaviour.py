"""Trainings that really misbehave, in one small process: each lowers the part of stability that is meant for it."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import cache

import pytest
import torch
from torch import nn

from autotune.reward import diverged, reward, stability, stability_parts
from autotune.spec import Measurement, Objective
from tests.controller.world import BASELINE
from tests.reward.samples import workload

STEPS, WARMUP, VOCABULARY, LENGTH, BATCH = 24, 4, 64, 16, 16
Corrupt = Callable[[int, nn.Module], None]


def leave(step: int, model: nn.Module) -> None:
    """Gradients as they are."""


def train(
    *,
    learning_rate: float = 3e-3,
    dtype: torch.dtype = torch.float32,
    corrupt: Corrupt = leave,
    loss_scale: float = 1.0,
    step_time_s: float = 0.1,
    reference: tuple[float, ...] = (),
) -> Measurement:
    """Trains a small network to continue sequences of a Markov chain; autocast to `dtype`, dynamic loss scaling when `loss_scale` is above 1."""
    torch.manual_seed(0)
    generator = torch.Generator().manual_seed(1)
    chain = torch.softmax(3 * torch.randn(VOCABULARY, VOCABULARY, generator=generator), dim=1)
    model = nn.Sequential(nn.Embedding(VOCABULARY, 64), nn.Linear(64, 128), nn.GELU(), nn.Linear(128, VOCABULARY))
    optimizer = torch.optim.AdamW(model.parameters(), lr=learning_rate)
    losses, norms, skipped, bad = [], [], 0, 0
    for step in range(STEPS):
        tokens = [torch.randint(VOCABULARY, (BATCH,), generator=generator)]
        for _ in range(LENGTH):
            tokens.append(torch.multinomial(chain[tokens[-1]], 1, generator=generator).squeeze(1))
        text = torch.stack(tokens, dim=1)
        with torch.autocast("cpu", dtype=dtype, enabled=dtype is not torch.float32):
            logits = model(text[:, :-1])
        loss = nn.functional.cross_entropy(logits.float().flatten(0, 1), text[:, 1:].flatten())
        optimizer.zero_grad()
        (loss * loss_scale).backward()
        for parameter in model.parameters():
            assert parameter.grad is not None
            if dtype is torch.float16:  # as if the gradients had been kept in fp16
                parameter.grad = parameter.grad.half().float()
            parameter.grad /= loss_scale
        corrupt(step, model)
        norm = float(torch.nn.utils.get_total_norm([p.grad for p in model.parameters() if p.grad is not None]))
        if math.isfinite(norm):
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1e9)
            optimizer.step()
        elif loss_scale > 1:
            loss_scale /= 2
        finite = math.isfinite(norm) and math.isfinite(loss.item())
        if step >= WARMUP:
            losses.append(loss.item())
            norms.append(norm)
            skipped += not finite and loss_scale > 1
            bad += not finite and loss_scale <= 1
    return Measurement(
        step_times_s=(step_time_s,) * len(losses),
        tokens_per_step=256,
        losses=tuple(losses),
        grad_norms=tuple(norms),
        skipped_steps=skipped,
        nonfinite_steps=bad,
        reference_losses=reference,
    )


@cache
def fp32() -> Measurement:
    torch.set_num_threads(1)
    return train()


def against_fp32(**options: object) -> Measurement:
    return train(reference=fp32().losses, **options)  # type: ignore[arg-type]


def test_healthy_trainings_are_stable_in_fp32_and_bf16() -> None:
    assert fp32().losses[-1] < fp32().losses[0]
    assert stability(fp32()) >= 0.95
    assert stability(against_fp32(dtype=torch.bfloat16)) >= 0.95


def test_too_high_a_learning_rate_shows() -> None:
    wild = against_fp32(learning_rate=3.0)
    assert diverged(wild) is not None or min(stability_parts(wild)[p] for p in ("trend", "fidelity")) < 0.5
    assert stability(wild) < 0.5


def test_fp16_that_overflows_skips_steps() -> None:
    overflowing = against_fp32(dtype=torch.float16, loss_scale=2.0**40)
    assert overflowing.skipped_steps > 5
    failure = diverged(overflowing)
    assert failure is not None or stability_parts(overflowing)["skipped"] < 0.6
    assert stability(overflowing) < 0.6


def test_an_injected_spike_shows_in_the_gradient_norms() -> None:
    def spike(step: int, model: nn.Module) -> None:
        if step == 12:
            for parameter in model.parameters():
                assert parameter.grad is not None
                parameter.grad *= 100.0

    spiked = against_fp32(corrupt=spike)
    assert stability_parts(spiked)["spikes"] < 0.95
    assert diverged(spiked) is None


def test_a_rank_with_corrupted_gradients_learns_something_else() -> None:
    def corrupt(step: int, model: nn.Module) -> None:
        """One of two ranks adds the negative of what it should."""
        for parameter in model.parameters():
            assert parameter.grad is not None
            parameter.grad *= -1.0 if step % 2 else 0.5

    corrupted = against_fp32(corrupt=corrupt)
    assert stability_parts(corrupted)["fidelity"] < 0.95
    assert stability(corrupted) < stability(fp32())


def test_gradients_that_are_not_finite_diverge() -> None:
    def poison(step: int, model: nn.Module) -> None:
        if step == 10:
            for parameter in model.parameters():
                assert parameter.grad is not None
                parameter.grad *= math.nan

    assert diverged(train(corrupt=poison)) is not None


@pytest.mark.parametrize(("weight", "risky_wins"), [(0.05, True), (0.8, False)])
def test_the_ranking_flips_when_the_weight_rises(weight: float, risky_wins: bool) -> None:
    risky = against_fp32(dtype=torch.float16, loss_scale=2.0**40, step_time_s=0.08)
    safe = against_fp32(dtype=torch.bfloat16)
    objective = Objective(stability_weight=weight)
    totals = [
        reward(m, baseline=fp32(), objective=objective, workload=workload(), config=BASELINE).total
        for m in (risky, safe)
    ]
    assert (totals[0] > totals[1]) is risky_wins
