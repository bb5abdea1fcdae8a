"""Plans: the order, what is counted out and why, and what would make a model fit."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from autotune.cost import estimate
from autotune.errors import SpecError
from autotune.plan.plan import plan, what_if
from autotune.space import SearchSpace
from autotune.spec import ParallelConfig, SpaceSpec, Workload, catalog, config_label

SPACE = SpaceSpec(
    name="test",
    knobs={
        "tp": (1, 2, 4, 8),
        "pp": (1, 2, 4),
        "micro_batch_size": (1, 2, 4, 8),
        "zero_stage": (0, 1, 3),
        "recompute": ("none", "full"),
    },
)


def workload(model: str = "llama-8b", cluster: str = "h100-sxm-2x8", batch: int = 128) -> Workload:
    return Workload(
        model=catalog.model(model), cluster=catalog.cluster(cluster), seq_len=4096, global_batch_size=batch, trainer="megatron"
    )  # fmt: skip


def test_rows_come_by_expected_speed_and_everything_is_accounted_for() -> None:
    space = SearchSpace.build(workload(), SPACE)
    result = plan(space, top=None)
    values = [r.estimate.tokens_per_s * (1 - r.estimate.oom_probability) for r in result.rows]
    assert values == sorted(values, reverse=True)
    assert [r.rank for r in result.rows] == list(range(1, len(values) + 1))
    assert result.feasible == len(result.rows)
    assert result.feasible + result.infeasible["memory"] == len(space)
    assert all(result.infeasible[law] == count for law, count in space.excluded.items())
    assert result.nearest_miss is None
    assert len(plan(space, top=3).rows) == 3
    assert result.source


def test_a_config_that_may_well_run_out_of_memory_does_not_come_first() -> None:
    space = SearchSpace.build(workload(), SPACE)
    predicted = estimate(space.workload, space.table)
    chance = np.asarray(predicted.oom_probability)
    fastest = np.asarray(predicted.tokens_per_s)[chance <= 0.5].max()
    best = plan(space, top=1).rows[0].estimate
    assert best.tokens_per_s * (1 - best.oom_probability) >= fastest * 0.5
    assert best.oom_probability < 0.4


def test_a_model_that_fits_nowhere_gets_the_nearest_miss_and_remedies() -> None:
    space = SearchSpace.build(
        workload("llama-70b", "h100-sxm-1x8"), SpaceSpec(knobs={"micro_batch_size": (1, 2)})
    )
    result = plan(space)
    assert result.rows == ()
    assert result.feasible == 0
    assert result.infeasible["memory"] == 2
    miss = result.nearest_miss
    assert miss is not None
    assert miss.config.micro_batch_size == 1
    assert miss.remedies
    assert "GPUs" in miss.remedies[0] or "would need" in miss.remedies[0]
    assert result.to_dict()["nearest_miss"]["remedies"] == list(miss.remedies)


def test_a_single_change_that_fits_is_named() -> None:
    space = SearchSpace.build(
        workload("llama-8b", "h100-sxm-1x8"), SpaceSpec(knobs={"micro_batch_size": (1,)})
    )
    result = plan(space)
    assert result.nearest_miss is not None
    assert any("zero_stage" in words for words in result.nearest_miss.remedies)


def test_the_document_holds_what_the_command_promises() -> None:
    document = plan(SearchSpace.build(workload(), SPACE), top=2).to_dict()
    assert [row["rank"] for row in document["configs"]] == [1, 2]
    assert set(document) >= {"configs", "feasible", "infeasible"}
    assert document["configs"][0]["estimate"]["time_parts_s"]["compute"] > 0


def test_more_gpus_train_a_budget_of_tokens_sooner_and_for_more_money() -> None:
    rows = what_if(workload(), SPACE, [8, 16, 32], tokens=1e11)
    days = [row.days for row in rows]
    costs = [row.cost_usd for row in rows]
    assert all(d is not None for d in days)
    assert days == sorted(days, key=lambda d: -(d or 0.0))
    # eight GPUs hold the model in a pipeline alone, so that memory costs them about what they save
    # in traffic
    assert (costs[0] or 0.0) < 1.05 * (costs[1] or 0.0)
    assert (costs[1] or 0.0) < (costs[2] or 0.0)
    assert rows[0].estimate is not None
    assert rows[0].days == pytest.approx(1e11 / rows[0].estimate.tokens_per_s / 86400)
    assert rows[0].config is not None
    assert rows[0].config.world_size == 8


def test_counts_that_are_no_whole_nodes_or_hold_nothing_say_why() -> None:
    odd, small = what_if(workload("llama-70b"), SPACE, [12, 1])
    assert "whole number of nodes" in odd.reason
    assert odd.config is None
    assert small.config is None
    assert small.reason
    assert small.to_dict()["config"] is None


def test_an_unknown_price_gives_days_but_no_cost() -> None:
    w = workload()
    free = replace(w, cluster=replace(w.cluster, gpu=replace(w.cluster.gpu, usd_per_hour=None)))
    (row,) = what_if(free, SPACE, [16], tokens=1e10)
    assert row.days is not None
    assert row.cost_usd is None


def test_impossible_budgets_are_refused() -> None:
    with pytest.raises(SpecError, match="tokens"):
        what_if(workload(), SPACE, [16], tokens=-1.0)
    with pytest.raises(SpecError, match="gpus"):
        what_if(workload(), SPACE, [0])


def test_labels_of_the_tables_are_read_back() -> None:
    space = SearchSpace.build(workload(), SPACE)
    for i in range(len(space)):
        assert ParallelConfig.parse(config_label(space[i])) == space[i]
    assert ParallelConfig.parse("tp2 pp4 dp1 cp2 mb3 acc8 fp16 full-recompute zero1 sp i-1f1b v2 compile") == ParallelConfig(
        tp=2, pp=4, cp=2, micro_batch_size=3, accumulation_steps=8, precision="fp16", recompute="full", zero_stage=1,
        sequence_parallel=True, pp_schedule="interleaved_1f1b", virtual_stages=2, compile=True,
    )  # fmt: skip
