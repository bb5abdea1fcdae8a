"""Real ranks of the native trainer whose gradients are spoilt: the part of stability that is meant
for it shows it, in a trial like any other."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

from autotune.reward import diverged, known_noise_scale, stability, stability_parts
from autotune.spec import Measurement, MeasureSpec
from autotune.testing.runners import ended, events_until_ended
from autotune_workers.runners.local import LocalRunner
from autotune_workers.training.faults import Fault
from tests.workers.requests import PATIENT, request

pytestmark = pytest.mark.thorough

STEPS, SPIKE = 24, 12
CORRUPTED, SPIKED, OVERFLOWING = 1, 2, 3
FAULTS = (
    Fault(kind="corrupt", rank=1, trial=CORRUPTED),
    *(Fault(kind="spike", rank=rank, trial=SPIKED, step=SPIKE) for rank in range(2)),
)


@pytest.fixture(scope="module")
def trials() -> Iterator[dict[int, Measurement]]:
    """A healthy trial, one for each fault, and one in fp16 whose loss scale is far too large, on
    the same two ranks; their step times are those of an idle machine."""
    unhurried = {"start_timeout_s": 240.0, "step_timeout_s": 120.0, "trial_timeout_s": 500.0}
    measure = replace(
        PATIENT, warmup_steps=0, min_steps=STEPS, max_steps=STEPS, precision=0.0, **unhurried
    )
    with LocalRunner(max_ranks=2, device="cpu", faults=FAULTS) as runner:
        found = {number: _run(runner, number, measure=measure) for number in (0, CORRUPTED, SPIKED)}
        yield found | {
            OVERFLOWING: _run(
                runner, OVERFLOWING, precision="fp16", loss_scale=2.0**40, measure=measure
            )
        }


def _run(
    runner: LocalRunner,
    number: int,
    *,
    measure: MeasureSpec,
    precision: str = "fp32",
    **options: Any,
) -> Measurement:
    config = {"dp": 2, "micro_batch_size": 4, "precision": precision}
    asked = request(
        number, config=config, trainer_options={"learning_rate": 3e-3, **options}, measure=measure
    )
    runner.start(asked)
    end = ended(events_until_ended(runner, [asked.id], deadline_s=600.0))
    assert end.measurement is not None, end.failure
    return replace(end.measurement, step_times_s=(0.1,) * len(end.measurement.step_times_s))


def held_against(healthy: Measurement, trial: Measurement) -> Measurement:
    return replace(trial, reference_losses=healthy.losses)


def test_without_a_fault_all_is_well(trials: dict[int, Measurement]) -> None:
    assert trials[0].losses[-1] < trials[0].losses[0]
    assert stability(held_against(trials[0], trials[0])) >= 0.95


def test_a_rank_with_corrupted_gradients_leaves_the_reference(
    trials: dict[int, Measurement],
) -> None:
    found = held_against(trials[0], trials[CORRUPTED])
    assert diverged(found) is not None or stability_parts(found)["fidelity"] < 0.5
    assert stability(found) < 0.5


def test_a_spike_shows_in_the_gradient_norms_and_nowhere_before(
    trials: dict[int, Measurement],
) -> None:
    healthy, found = trials[0], trials[SPIKED]
    assert found.grad_norms[SPIKE] == pytest.approx(100 * healthy.grad_norms[SPIKE], rel=0.01)
    assert found.losses[:SPIKE] == pytest.approx(healthy.losses[:SPIKE], rel=1e-3)
    assert stability_parts(found)["spikes"] < 0.95 <= stability_parts(healthy)["spikes"]
    assert diverged(found) is None


def test_a_spike_is_not_taken_for_the_noise_of_the_gradient(trials: dict[int, Measurement]) -> None:
    usual, found = (known_noise_scale(trials[n]) for n in (0, SPIKED))
    assert usual is not None
    assert found is not None
    assert usual / 3 < found < 3 * usual


def test_too_large_a_loss_scale_overflows_fp16_and_skips_steps(
    trials: dict[int, Measurement],
) -> None:
    found = held_against(trials[0], trials[OVERFLOWING])
    assert found.skipped_steps > STEPS / 4
    assert found.nonfinite_steps == 0
    assert diverged(found) is not None or stability_parts(found)["skipped"] < 0.6
    assert stability(found) < 0.6
