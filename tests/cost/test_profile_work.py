"""The work and traffic that a profile composes are those of dry runs, and estimates take them from it."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from autotune.cost import calibration_for, estimate
from autotune.cost.profile import Profile
from autotune.cost.profile_traffic import rank_work
from autotune.cost.profile_work import ProfiledOperation, SegmentWork, Size, Work
from autotune.errors import DryRunError
from autotune.spec import ParallelConfig
from tests.cost.test_profile import DOCUMENT, profile, workload

__all__ = ["profile"]
CONFIGS = [
    ParallelConfig(dp=8, micro_batch_size=2),
    ParallelConfig(tp=2, dp=4, micro_batch_size=4, zero_stage=3, recompute="full"),
    ParallelConfig(tp=4, pp=2, accumulation_steps=4, recompute="selective"),
]


@pytest.mark.parametrize(
    "run", DOCUMENT["runs"], ids=lambda run: f"{run['config']} L={run['layers']} s={run['seq_len']}"
)
def test_composed_work_and_traffic_are_those_of_dry_runs(profile: Profile, run: dict[str, Any]) -> None:
    config = ParallelConfig.parse(run["config"])
    here = workload(run["layers"], run["seq_len"], config.global_batch_size)
    found = rank_work(profile, here, config, run["pp_rank"])
    calls: Counter[tuple[str, str, int]] = Counter()
    for kind, axis, num_bytes, count in run["collectives"]:
        calls[kind, axis, num_bytes] += count
    assert found.flops == run["flops"]
    assert found.products == {(m, n, k, dtype): count for m, n, k, dtype, count in run["products"]}
    assert found.collectives == calls


def test_recomputation_alone_adds_flops(profile: Profile) -> None:
    none, full = (
        rank_work(profile, workload(), ParallelConfig(precision="bf16", recompute=mode)) for mode in ("none", "full")
    )
    assert none.flops_again == 0
    assert full.flops - full.flops_again == none.flops


def test_work_outlives_json(profile: Profile) -> None:
    for work in profile.work.values():
        assert Work.from_dict(json.loads(json.dumps(work.to_dict()))) == work


def test_work_that_was_not_run_is_refused(profile: Profile) -> None:
    with pytest.raises(DryRunError, match="recompute=mlp"):
        rank_work(profile, workload(), ParallelConfig(precision="bf16", recompute="mlp"))


def test_two_degrees_tell_how_a_size_is_cut() -> None:
    assert Size(8.0, (1, 1, 0)).cut_as(Size(4.0, (1, 1, 0))) == Size(16.0, (1, 1, 1))
    assert Size(8.0, (1, 1, 0)).cut_as(Size(8.0, (1, 1, 0))) == Size(8.0, (1, 1, 0))
    assert Size(8.0, (1, 1, 0)).cut_as(Size(5.0, (1, 1, 0))) is None


def test_native_decoders_take_as_long_by_a_profile_as_by_the_formulas(profile: Profile) -> None:
    """Both count the same work: what a profile adds are collectives of embedding and loss."""
    constants = calibration_for(workload(32))
    formulas = np.asarray(estimate(workload(32), CONFIGS, calibration=constants).step_time_s)
    profiled = np.asarray(estimate(workload(32), CONFIGS, calibration=replace(constants, profile=profile)).step_time_s)
    assert profiled == pytest.approx(formulas, rel=0.03)


def test_estimates_take_products_and_collectives_from_the_profile(profile: Profile) -> None:
    def twice(work: SegmentWork) -> SegmentWork:
        return work.times(2)

    more = {
        kind: replace(work, layers={mode: twice(layer) for mode, layer in work.layers.items()})
        for kind, work in profile.work.items()
    }
    here = workload(32)
    constants = replace(calibration_for(here), layer_host_s=0.0, micro_batch_host_s=0.0, memory_efficiency=1e9)
    one, two = (
        estimate(here, CONFIGS, calibration=replace(constants, profile=replace(profile, work=work)))
        for work in (profile.work, more)
    )
    assert (np.asarray(two.time_parts_s.compute) > 1.3 * np.asarray(one.time_parts_s.compute)).all()
    assert np.asarray(two.time_parts_s.tp_comm)[1] > 1.8 * np.asarray(one.time_parts_s.tp_comm)[1]


def test_other_trainers_keep_the_formulas(profile: Profile) -> None:
    here = replace(workload(), trainer="megatron")
    constants = calibration_for(here)
    found, without = (estimate(here, CONFIGS, calibration=replace(constants, profile=x)) for x in (profile, None))
    assert np.array_equal(np.asarray(found.step_time_s), np.asarray(without.step_time_s))


def test_rows_of_experts_are_told_from_tokens() -> None:
    one, width = Size(1.0, (0, 0, 0)), Size(512.0, (0, 0, 0))

    def product(rows: Size) -> ProfiledOperation:
        return ProfiledOperation(Size(1.0, (1, 1, 0)), (rows, width, width, one), "bfloat16", 0.0, False)

    assert not product(Size(1.0, (1, 1, 0))).is_of_an_expert
    assert product(Size(0.25, (1, 1, 0))).is_of_an_expert
