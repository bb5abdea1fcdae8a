"""Dry runs correct the formulas: what was run is exact, what was not is near or said to be wide,
and what dry runs do not play stays as it was.

`data/dry_runs.json` holds dry runs of two architectures of `tests.benchmarks.architectures` (torch
2.13): a Llama and a recommender, of which formulas know no more than the number of weights.
"""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from autotune.cost import Calibration, calibration_for, estimate
from autotune.cost.learn.dry_runs import ConfigDryRun, DryRuns, shortened
from autotune.plan.dry_runs import MOST_RUNS, TOP, next_run, profile_study
from autotune.plan.plan import plan
from autotune.ports import DryRunLimits
from autotune.space import SearchSpace
from autotune.spec import DryRun, ParallelConfig, Workload

KEPT = json.loads((Path(__file__).parents[1] / "data" / "dry_runs.json").read_text())["of"]
WITHIN = 0.05
"""error that need not be said"""


def points_of(kept: dict[str, Any]) -> dict[ParallelConfig, ConfigDryRun]:
    points = [
        ConfigDryRun(**{**one, "config": ParallelConfig.from_dict(one["config"])})
        for one in kept["points"]
    ]
    return {point.config: point for point in points}


def corrected(
    workload: Workload, points: dict[ParallelConfig, ConfigDryRun]
) -> tuple[SearchSpace, Calibration, DryRuns]:
    """What is known when pins and leaders among these configs have been run, by what was kept of
    them."""
    space, constants = SearchSpace.of(workload, list(points)), calibration_for(workload)
    found = DryRuns(fingerprint="")
    for _ in range(MOST_RUNS):
        config = next_run(found, space, constants)
        if config is None:
            break
        found = replace(found, points=(*found.points, points[config]))
    return space, replace(constants, dry_runs=found), found


@pytest.mark.parametrize("kept", KEPT, ids=[kept["name"] for kept in KEPT])
def test_the_best_of_a_plan_are_exact_and_others_near_or_said_to_be_wide(
    kept: dict[str, Any],
) -> None:
    workload, points = Workload.from_dict(kept["workload"]), points_of(kept)
    space, constants, found = corrected(workload, points)
    assert len(found.points) < len(points)
    assert all(
        found.is_known(row.config) for row in plan(space, calibration=constants, top=TOP).rows
    )
    said = estimate(workload, space.table, calibration=constants)
    run = np.array([points[config].allocated_bytes for config in space])
    right = run * (1.0 + constants.fragmentation) + constants.framework_bytes
    known = np.array([found.is_known(config) for config in space])
    assert np.asarray(said.peak_memory_bytes)[known] == pytest.approx(right[known])
    held = np.asarray(said.peak_memory_bytes) - constants.framework_bytes
    errors = np.abs(held / (run * (1.0 + constants.fragmentation)) - 1.0)[~known]
    reach = (np.asarray(said.peak_memory_high_bytes) / np.asarray(said.peak_memory_bytes) - 1.0)[
        ~known
    ]
    assert np.median(errors) < WITHIN
    assert np.mean(errors > np.maximum(WITHIN, reach)) <= 0.1  # intervals are of 90%
    by_formulas = estimate(workload, space.table, calibration=calibration_for(workload))
    before = np.abs(
        (np.asarray(by_formulas.peak_memory_bytes) - constants.framework_bytes) / run - 1.0
    )[~known]
    assert np.median(errors) < np.median(before)


def test_more_micro_batches_add_their_inputs_alone() -> None:
    workload, points = Workload.from_dict(KEPT[1]["workload"]), points_of(KEPT[1])
    config = next(c for c in points if c.accumulation_steps == 2)
    constants = replace(
        calibration_for(workload), dry_runs=DryRuns(fingerprint="", points=(points[config],))
    )
    longer = replace(config, accumulation_steps=8)
    assert shortened(longer) == config
    two, eight = (estimate(workload, one, calibration=constants) for one in (config, longer))
    inputs = 3.0 * points[config].parts_bytes["inputs"] * (1.0 + constants.fragmentation)
    assert float(eight.peak_memory_bytes) - float(two.peak_memory_bytes) == pytest.approx(inputs)
    assert float(two.memory_parts_bytes.optimizer) == points[config].parts_bytes["optimizer"]


def test_a_pipeline_runs_all_its_micro_batches() -> None:
    config = ParallelConfig(pp=4, accumulation_steps=32)  # each has a buffer for its messages
    assert shortened(config) == config
    assert shortened(replace(config, pp=1)).accumulation_steps == 2


def test_what_nothing_pins_is_wider() -> None:
    workload, points = Workload.from_dict(KEPT[0]["workload"]), points_of(KEPT[0])
    plain = [p for c, p in points.items() if c.recompute == "none" and c.zero_stage == 0]
    constants = replace(
        calibration_for(workload), dry_runs=DryRuns(fingerprint="", points=tuple(plain))
    )
    known, other = plain[0].config, replace(plain[0].config, recompute="full", zero_stage=3, dp=8)
    near, far = (estimate(workload, one, calibration=constants) for one in (known, other))
    assert float(far.peak_memory_high_bytes / far.peak_memory_bytes) > 1.05 * float(
        near.peak_memory_high_bytes / near.peak_memory_bytes
    )


def test_products_are_corrected_by_their_flops() -> None:
    workload, points = Workload.from_dict(KEPT[0]["workload"]), points_of(KEPT[0])
    config, point = next(iter(points.items()))
    twice = replace(point, product_flops=2.0 * point.product_flops)
    constants = calibration_for(workload)
    one, two = (
        estimate(
            workload,
            config,
            calibration=replace(constants, dry_runs=DryRuns(fingerprint="", points=(p,))),
        )
        for p in (point, twice)
    )
    assert float(two.time_parts_s.compute) > float(one.time_parts_s.compute)


def test_other_trainers_are_not_corrected() -> None:
    workload, points = Workload.from_dict(KEPT[0]["workload"]), points_of(KEPT[0])
    other, config = replace(workload, trainer="torchtitan"), next(iter(points))
    constants = calibration_for(other)
    runs = DryRuns(fingerprint="", points=tuple(points.values()))
    assert estimate(other, config, calibration=replace(constants, dry_runs=runs)) == estimate(
        other, config, calibration=constants
    )


def test_the_ranks_of_a_pipeline_are_run_and_the_fullest_counts() -> None:
    class Ranks:
        asked: list[int] = []  # noqa: RUF012

        def run(
            self, workload: Workload, config: ParallelConfig, *, pp_rank: int, limits: DryRunLimits
        ) -> DryRun:
            from tests.dry_run_fake import FakeDryRunner

            self.asked.append(pp_rank)
            return FakeDryRunner().run(workload, config, pp_rank=pp_rank, limits=limits)

    from autotune import api

    study = api.load_study(
        {
            "name": "s",
            "model": "gpt2-small",
            "cluster": "h100-sxm-1x8",
            "workload": {"seq_len": 512, "global_batch_size": 64},
            "space": {"pp": [4], "precision": ["bf16"]},
        }
    )
    found = profile_study(
        study, runner=Ranks(), configs=[ParallelConfig(pp=4, dp=2, accumulation_steps=32)]
    )  # type: ignore[arg-type]
    assert Ranks.asked == [0, 2, 3]
    assert found.points[0].config.accumulation_steps == 32
