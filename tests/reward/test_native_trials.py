"""The native trainer's own trials, held against an fp32 run of the same batches: what they lower,
and what they leave alone."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist

from autotune.reward import diverged, known_noise_scale, reward, stability, stability_parts
from autotune.spec import Measurement, Objective, ParallelConfig
from autotune_workers.training.parallel.mesh import RankContext
from autotune_workers.training.run_trial import TrialFailed, run_trial
from tests.workers.trial_ranks import request

pytestmark = pytest.mark.thorough

STEPS = 16
PLAIN = "micro_batch_size=4,accumulation_steps=2"


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RankContext]:
    """A gang of one in this process."""
    place: Path = tmp_path_factory.mktemp("gang") / "store"
    dist.init_process_group("gloo", store=dist.FileStore(str(place), 1), rank=0, world_size=1)
    try:
        yield RankContext(rank=0, world_size=1, device=torch.device("cpu"))
    finally:
        dist.destroy_process_group()


def trained(
    alone: RankContext, precision: str, *, rate: float = 1e-2, **changes: Any
) -> Measurement:
    """A trial's measurement; its step times are those of an idle machine, since the test's is
    not."""
    asked = request("llama", f"{PLAIN},precision={precision}", steps=STEPS, **changes)
    try:
        found = run_trial(
            replace(asked, trainer_options={"learning_rate": rate}), alone, lambda _: True
        ).measurement
    except TrialFailed as failed:
        found = failed.measurement or Measurement(step_times_s=())
    return replace(found, step_times_s=(0.1,) * len(found.step_times_s))


@pytest.fixture(scope="module")
def fp32(alone: RankContext) -> Measurement:
    return trained(alone, "fp32")


def against(measurement: Measurement, reference: Measurement) -> Measurement:
    return replace(measurement, reference_losses=reference.losses)


@pytest.mark.parametrize("precision", ["fp32", "bf16", "fp16"])
def test_healthy_trials_are_stable_in_every_precision(
    alone: RankContext, fp32: Measurement, precision: str
) -> None:
    found = against(trained(alone, precision), fp32)
    assert found.losses[-1] < found.losses[0]
    assert stability_parts(found)["fidelity"] >= 0.95
    assert stability(found) >= 0.95


@pytest.mark.parametrize("rate", [1.0, 1e4])
def test_too_high_a_learning_rate_leaves_the_reference(
    alone: RankContext, fp32: Measurement, rate: float
) -> None:
    wild = against(trained(alone, "fp32", rate=rate), fp32)
    assert diverged(wild) is not None or stability_parts(wild)["fidelity"] < 0.5
    assert stability(wild) < 0.5


def test_at_98_percent_of_the_memory_limit_only_the_headroom_suffers(
    alone: RankContext, fp32: Measurement
) -> None:
    peak = fp32.peak_memory_bytes
    if not peak:
        pytest.skip("this system does not tell a process its peak memory")
    full = replace(fp32, memory_capacity_bytes=peak / 0.98)
    assert stability_parts(full)["headroom"] == pytest.approx(0.25)
    assert {k: v for k, v in stability_parts(full).items() if v < 0.95} == {
        "headroom": pytest.approx(0.25)
    }


def test_the_ranking_of_real_trials_flips_with_the_weight(
    alone: RankContext, fp32: Measurement
) -> None:
    safe = against(trained(alone, "bf16"), fp32)
    wild = against(trained(alone, "bf16", rate=0.3), fp32)
    assert diverged(wild) is None
    assert stability(wild) < 0.95 <= stability(safe)
    hasty = replace(wild, step_times_s=tuple(t / 1.1 for t in wild.step_times_s))
    config = ParallelConfig.parse(f"{PLAIN},precision=bf16")
    workload = request("llama", f"{PLAIN},precision=bf16").workload

    def total(measurement: Measurement, weight: float) -> float:
        objective = Objective(stability_weight=weight)
        return reward(
            measurement, baseline=fp32, objective=objective, workload=workload, config=config
        ).total

    assert total(hasty, 0.0) > total(safe, 0.0)
    assert total(hasty, 0.8) < total(safe, 0.8)


def test_the_learning_rate_follows_the_batch(alone: RankContext) -> None:
    """Told for the smallest of the batches 2 and 8, it is twice as high at 8."""
    several = request("llama", f"{PLAIN},precision=fp32", steps=4)
    several = replace(several, workload=replace(several.workload, global_batch_size=(2, 8)))
    runs = [
        run_trial(
            replace(asked, trainer_options={"learning_rate": rate}), alone, lambda _: True
        ).measurement.losses
        for asked, rate in (
            (several, 5e-3),
            (request("llama", f"{PLAIN},precision=fp32", steps=4), 1e-2),
        )
    ]
    assert runs[0] == runs[1]


def test_accumulated_micro_batches_tell_the_noise_scale(fp32: Measurement) -> None:
    assert known_noise_scale(fp32) is not None
