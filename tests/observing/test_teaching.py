"""Observed runs set the level of predictions of their program and GPU type, and a review names the
nearest of them."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from datetime import UTC, datetime

import pytest

from autotune import api
from autotune.cost import estimate
from autotune.spec import Measurement, ObservedRun, ParallelConfig, Study, Trial, TrialStatus
from autotune.store import MemoryStore
from autotune.study.assembly import assemble
from autotune.testing.stores import pending, run_trial, running_study

AT = datetime(2026, 11, 3, tzinfo=UTC)
SPEC = {
    "name": "taught",
    "model": "llama-1b",
    "cluster": "h100-sxm-1x8",
    "workload": {"seq_len": 2048, "global_batch_size": 64},
    "space": {
        "tp": [1, 2],
        "micro_batch_size": [1, 2, 4],
        "zero_stage": [1],
        "precision": ["bf16"],
    },
    "trainer": "megatron",
}
CONFIG = ParallelConfig(
    dp=8, micro_batch_size=2, accumulation_steps=4, precision="bf16", zero_stage=1
)


@pytest.fixture
def store() -> Iterator[MemoryStore]:
    with closing(MemoryStore()) as made:
        yield made


def seen(
    study: Study, config: ParallelConfig, times: float, *, program: str = "megatron"
) -> ObservedRun:
    """A run of that config that took so many times the predicted time."""
    predicted = estimate(study.workload, config)
    step_s = float(predicted.step_time_s) * times
    measured = Measurement(
        step_times_s=(step_s,) * 5,
        tokens_per_step=64 * 2048,
        num_ranks=8,
        flops_per_token=float(predicted.mfu)
        * 989e12
        * 8
        * float(predicted.step_time_s)
        / (64 * 2048),
        peak_flops_per_s=989e12,
    )
    return ObservedRun(
        program=program,
        workload=study.workload,
        config=config,
        measurement=measured,
        started_at=AT,
        ended_at=AT,
    )


def moved(study: Study, store: MemoryStore) -> float:
    """Plan's prediction of the config over that without runs."""
    with_runs = api.estimate_of(study, CONFIG, store=store)[0]
    return float(with_runs.step_time_s) / float(api.estimate_of(study, CONFIG)[0].step_time_s)


def test_runs_set_the_level_of_plan_estimate_and_the_first_trial(store: MemoryStore) -> None:
    study = api.load_study(SPEC)
    assert moved(study, store) == 1.0
    before = assemble(study, store)
    other = replace(CONFIG, micro_batch_size=4, accumulation_steps=2)
    store.keep_observed(seen(study, other, 1.6))
    once = moved(study, store)
    assert 1.15 < once <= 1.65
    for size in (1, 2):
        config = replace(CONFIG, micro_batch_size=size, accumulation_steps=8 // size)
        store.keep_observed(seen(study, config, 1.6))
    assert moved(study, store) == pytest.approx(1.6, rel=0.1)
    found, source = api.estimate_of(study, CONFIG, store=store)
    assert "3 observed runs" in source
    plain, _ = api.estimate_of(study, CONFIG)
    width = math.log(float(found.step_time_high_s) / float(found.step_time_low_s))
    assert width < math.log(float(plain.step_time_high_s) / float(plain.step_time_low_s))
    row = api.plan_of(study, store=store, top=1).rows[0]
    assert float(row.estimate.step_time_s) == pytest.approx(
        float(api.estimate_of(study, row.config, store=store)[0].step_time_s)
    )
    ratio = assemble(study, store).predict(CONFIG).step_time_s / before.predict(CONFIG).step_time_s
    assert float(ratio) == pytest.approx(moved(study, store))


def test_runs_of_another_program_or_gpu_and_misread_ones_teach_nothing(store: MemoryStore) -> None:
    study = api.load_study(SPEC)
    argv = [
        "torchrun",
        "train.py",
        "--mb={micro_batch_size}",
        "--acc={accumulation_steps}",
        "--tp={tp}",
        "--dp={dp}",
    ]
    own = api.load_study({**SPEC, "trainer": {"kind": "command", "argv": argv}})
    elsewhere = api.load_study({**SPEC, "cluster": "a100-80gb-1x8"})
    store.keep_observed(seen(elsewhere, CONFIG, 1.6))
    store.keep_observed(seen(study, CONFIG, 0.1))  # beyond the peak
    store.keep_observed(seen(own, CONFIG, 1.6, program="other.py"))
    assert moved(study, store) == moved(own, store) == 1.0
    store.keep_observed(seen(own, CONFIG, 1.6, program="train.py"))
    assert moved(own, store) > 1.15
    assert moved(study, store) == 1.0


def test_a_review_names_the_nearest_measurement_of_before(store: MemoryStore) -> None:
    study = api.load_study(SPEC)
    near, far = replace(CONFIG, micro_batch_size=1, accumulation_steps=8), ParallelConfig(tp=2, dp=4, micro_batch_size=4, accumulation_steps=4, precision="bf16", zero_stage=1)  # fmt: skip
    text = (
        str({**SPEC, "baseline": CONFIG.to_dict()})
        .replace("'", '"')
        .replace("True", "true")
        .replace("False", "false")
        .replace("None", "null")
    )
    found = api.review(text + "\n", store=store).earlier
    assert found.kind == "published"
    store.keep_observed(seen(study, far, 1.2))
    kept = store.keep_observed(seen(study, near, 1.3))
    earlier = api.review(text + "\n", store=store).earlier
    assert (earlier.kind, earlier.where) == ("observed", kept.id)
    assert dict(earlier.differs) == {"micro_batch_size": (2, 1), "accumulation_steps": (4, 8)}
    assert earlier.step_time_s == pytest.approx(kept.step_time_s)
    lease = running_study(store, study)
    measured = seen(study, CONFIG, 1.0).measurement
    trial = Trial(
        config=CONFIG,
        number=0,
        study=lease.study,
        status=TrialStatus.COMPLETED,
        measurement=measured,
    )
    run_trial(store, lease, replace(pending(0, CONFIG), status=trial.status, measurement=measured))
    earlier = api.review(text + "\n", store=store).earlier
    assert (earlier.kind, earlier.where, dict(earlier.differs)) == ("trial", f"{lease.study}/0", {})
