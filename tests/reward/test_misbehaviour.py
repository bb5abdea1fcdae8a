"""Trainings that really misbehave, in one small process: each lowers the part of stability that is
meant for it."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from functools import cache

import pytest
import torch
from torch import nn

from autotune.reward import diverged, reward, stability, stability_parts
from autotune.spec import Measurement, Objective
from tests.reward.samples import workload
from tests.shortcuts import present
from tests.study.controller.world import BASELINE

STEPS, WARMUP, VOCABULARY, LENGTH, BATCH = 24, 4, 64, 16, 16
RANKS = 2
Corrupt = Callable[[int, int, nn.Module], None]


def leave(step: int, rank: int, model: nn.Module) -> None:
    """Gradients as they are."""


def gradients(model: nn.Module) -> list[torch.Tensor]:
    """Of all weights."""
    return [p.grad for p in model.parameters() if p.grad is not None]


def times(factor: float, *, step: int | None = None, rank: int | None = None) -> Corrupt:
    """What multiplies the gradients of this step (None: of all) on this rank (None: on all)."""

    def multiply(at: int, of: int, model: nn.Module) -> None:
        if step in (None, at) and rank in (None, of):
            for grad in gradients(model):
                grad *= factor

    return multiply


def train(
    *,
    learning_rate: float = 3e-3,
    dtype: torch.dtype = torch.float32,
    corrupt: Corrupt = leave,
    loss_scale: float = 1.0,
    step_time_s: float = 0.1,
    reference: tuple[float, ...] = (),
) -> Measurement:
    """Trains a small network to continue sequences of a Markov chain on two ranks, one after the
    other; autocast to `dtype`, dynamic loss scaling when `loss_scale` is above 1; `corrupt` meets
    each rank's gradients before they are averaged."""
    torch.manual_seed(0)
    generator = torch.Generator().manual_seed(1)
    chain = torch.softmax(3 * torch.randn(VOCABULARY, VOCABULARY, generator=generator), dim=1)
    model = nn.Sequential(
        nn.Embedding(VOCABULARY, 64), nn.Linear(64, 128), nn.GELU(), nn.Linear(128, VOCABULARY)
    )
    optimizer = torch.optim.AdamW(model.parameters(), lr=learning_rate)
    losses, norms, skipped, bad = [], [], 0, 0
    for step in range(STEPS):
        tokens = [torch.randint(VOCABULARY, (BATCH,), generator=generator)]
        for _ in range(LENGTH):
            tokens.append(torch.multinomial(chain[tokens[-1]], 1, generator=generator).squeeze(1))
        text = torch.stack(tokens, dim=1)
        loss, summed = 0.0, [torch.zeros_like(p) for p in model.parameters()]
        for rank, part in enumerate(text.chunk(RANKS)):
            with torch.autocast("cpu", dtype=dtype, enabled=dtype is not torch.float32):
                logits = model(part[:, :-1])
            own = nn.functional.cross_entropy(logits.float().flatten(0, 1), part[:, 1:].flatten())
            optimizer.zero_grad()
            (own * loss_scale).backward()
            corrupt(step, rank, model)
            for total, grad in zip(summed, gradients(model), strict=True):
                kept = (
                    grad.half().float() if dtype is torch.float16 else grad
                )  # as if the gradients had been kept in fp16
                total += kept / loss_scale / RANKS
            loss += own.item() / RANKS
        for parameter, total in zip(model.parameters(), summed, strict=True):
            parameter.grad = total
        norm = float(torch.nn.utils.get_total_norm(gradients(model)))
        if math.isfinite(norm):
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1e9)
            optimizer.step()
        elif loss_scale > 1:
            loss_scale /= 2
        finite = math.isfinite(norm) and math.isfinite(loss)
        if step >= WARMUP:
            losses.append(loss)
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
    assert (
        diverged(wild) is not None
        or min(stability_parts(wild)[p] for p in ("trend", "fidelity")) < 0.5
    )
    assert stability(wild) < 0.5


def test_fp16_that_overflows_skips_steps() -> None:
    overflowing = against_fp32(dtype=torch.float16, loss_scale=2.0**40)
    assert overflowing.skipped_steps > 5
    failure = diverged(overflowing)
    assert failure is not None or stability_parts(overflowing)["skipped"] < 0.6
    assert stability(overflowing) < 0.6


def test_an_injected_spike_shows_in_the_gradient_norms() -> None:
    spiked = against_fp32(corrupt=times(100.0, step=12))
    assert stability_parts(spiked)["spikes"] < 0.95
    assert diverged(spiked) is None


def test_a_rank_with_corrupted_gradients_learns_something_else() -> None:
    """The second rank adds twice the negative of what it should."""
    corrupted = against_fp32(corrupt=times(-2.0, rank=1))
    assert stability_parts(corrupted)["fidelity"] < 0.5
    assert stability(corrupted) < 0.5


def test_gradients_that_are_not_finite_diverge_with_their_step() -> None:
    failure = present(diverged(train(corrupt=times(math.nan, step=10, rank=1))))
    assert "non-finite" in failure.message


def test_near_the_memory_limit_only_the_headroom_suffers() -> None:
    capacity = 4e9
    close, far = (
        replace(fp32(), peak_memory_bytes=share * capacity, memory_capacity_bytes=capacity)
        for share in (0.98, 0.85)
    )
    assert stability_parts(close)["headroom"] < 0.3
    assert {k: v for k, v in stability_parts(close).items() if k != "headroom"} == stability_parts(
        fp32()
    )
    assert stability(far) >= 0.95


@pytest.mark.parametrize(("weight", "risky_wins"), [(0.05, True), (0.8, False)])
def test_the_ranking_flips_when_the_weight_rises(weight: float, risky_wins: bool) -> None:
    safe = against_fp32(dtype=torch.bfloat16)
    full = replace(safe, peak_memory_bytes=0.98 * 4e9, memory_capacity_bytes=4e9)
    risky = replace(full, step_times_s=(0.08,) * len(safe.losses))
    objective = Objective(stability_weight=weight)
    totals = [
        reward(m, baseline=fp32(), objective=objective, workload=workload(), config=BASELINE).total
        for m in (risky, safe)
    ]
    assert (totals[0] > totals[1]) is risky_wins


def test_a_run_that_skips_a_third_of_its_steps_does_not_win_by_speed() -> None:
    skipping = against_fp32(dtype=torch.float16, loss_scale=2.0**40, step_time_s=0.08)
    objective = Objective(stability_weight=0.0)
    total = reward(
        skipping, baseline=fp32(), objective=objective, workload=workload(), config=BASELINE
    ).total
    assert skipping.skipped_share > 0.3
    assert total < 0.0
