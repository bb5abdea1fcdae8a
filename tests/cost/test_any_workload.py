"""Laws of estimates over the whole catalog: random models, GPUs, trainers and kinds of training,
and random configs that are legal in them."""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np
import pytest

from autotune.cost import estimate
from autotune.cost.traits import TRAITS
from autotune.space import LAWS
from autotune.spec import (
    KNOBS,
    ClusterSpec,
    ConfigTable,
    Estimate,
    ParallelConfig,
    Peft,
    Workload,
    catalog,
)
from tests.matrix import examples

WORKLOADS = examples(120)
CONFIGS = 800
"""that are drawn for each, of which one in sixteen is legal"""
BATCH_LAWS = ("world_size", "batch")
"""laws of the job's size, which changes here"""
DRAWN: Mapping[str, tuple[Any, ...]] = {
    "tp": (1, 1, 2, 4, 8), "pp": (1, 1, 2, 4, 8), "dp": (1, 2, 8, 32), "cp": (1, 1, 1, 2, 4), "ep": (1, 1, 1, 2, 4),
    "micro_batch_size": (1, 2, 4, 16), "accumulation_steps": (1, 2, 8, 64),
    **{n: KNOBS[n].values for n in ("recompute", "zero_stage", "pp_schedule", "compile", "sequence_parallel", "loss")},
}  # fmt: skip


@dataclass(frozen=True)
class Drawn:
    """A workload, legal configs of it, and what they cost."""

    workload: Workload
    table: ConfigTable
    cost: Estimate


def drawn(rng: random.Random) -> Drawn:
    """One workload and its configs. Without offloading to the host, which recomputation and slower
    memory make shorter."""
    gpu = rng.choice(catalog.gpu_names())
    cluster = ClusterSpec.of(
        gpu, num_nodes=rng.choice((1, 2, 4, 16)), gpus_per_node=rng.choice((1, 4, 8))
    )
    workload = Workload(
        model=catalog.model(rng.choice(catalog.model_names())),
        cluster=cluster,
        seq_len=rng.choice((256, 512, 1024, 2048, 8192)),
        global_batch_size=64,
        trainer=rng.choice(sorted(TRAITS)),
        optimizer=rng.choice(("adamw", "sgd", "adamw_8bit", "muon")),
        document_len=rng.choice((0, 0, 128)),
        peft=rng.choice(
            (None, None, Peft(), Peft(method="qlora", rank=64), Peft(targets="attention"))
        ),
    )
    kinds = {**DRAWN, "precision": tuple(cluster.gpu.peak_flops_per_s)}
    columns = [{name: rng.choice(values) for name, values in kinds.items()} for _ in range(CONFIGS)]
    table = ConfigTable.of([ParallelConfig(**config) for config in columns])
    lawful = [law.check(workload, table) for law in LAWS if law.name not in BATCH_LAWS]
    table = table.take(np.flatnonzero(np.all(lawful, axis=0)))
    return Drawn(workload, table, estimate(workload, table))


@pytest.fixture(scope="module")
def everything() -> list[Drawn]:
    rng = random.Random(0)
    return [drawn(rng) for _ in range(WORKLOADS)]


def grown(table: ConfigTable, name: str) -> ConfigTable:
    """The same configs with one more of a count."""
    return ConfigTable.of(
        [replace(c, **{name: getattr(c, name) + 1}) for c in (table[i] for i in range(len(table)))]
    )


def assert_none_falls(
    case: Drawn, other: Estimate, what: str, *names: str, slack: float = 1e-9
) -> None:
    """No figure of the other estimate is below that of the case."""
    for name in names:
        here, there = np.asarray(getattr(case.cost, name)), np.asarray(getattr(other, name))
        fallen = np.flatnonzero(there < here * (1.0 - slack) - 1e-12)
        if len(fallen):
            row = int(fallen[np.argmin(there[fallen] / here[fallen])])
            w = case.workload
            pytest.fail(
                f"{what}, yet {name} falls from {here[row]:g} to {there[row]:g}: "
                f"{case.table[row]} of {w.model.name} by {w.trainer} on {w.cluster.name}, {w.seq_len} tokens, {w.peft}"
            )


def test_there_is_something_to_judge(everything: list[Drawn]) -> None:
    assert sum(len(case.table) for case in everything) > 40 * WORKLOADS
    assert {case.workload.peft is None for case in everything} == {True, False}


def test_figures_are_finite_intervals_hold_them_and_no_utilization_is_above_one(
    everything: list[Drawn],
) -> None:
    for case in everything:
        cost = case.cost
        for parts in (cost.time_parts_s, cost.memory_parts_bytes):
            for field in fields(parts):
                part = np.asarray(getattr(parts, field.name))
                assert (np.isfinite(part) & (part >= 0)).all(), (field.name, case.workload)
        assert (cost.step_time_low_s <= cost.step_time_s).all()
        assert (cost.step_time_s <= cost.step_time_high_s).all()
        assert (cost.step_time_s <= cost.stalled_step_time_s).all()
        assert (cost.peak_memory_low_bytes <= cost.peak_memory_bytes).all()
        assert (cost.peak_memory_bytes <= cost.peak_memory_high_bytes).all()
        assert ((cost.oom_probability >= 0) & (cost.oom_probability <= 1)).all()
        assert ((cost.mfu > 0) & (cost.mfu < 1)).all(), case.workload


@pytest.mark.thorough
def test_more_work_takes_no_less_time_and_memory(everything: list[Drawn]) -> None:
    needs = ("peak_memory_bytes", "oom_probability")
    for case in everything:
        larger = estimate(case.workload, grown(case.table, "micro_batch_size"))
        assert_none_falls(case, larger, "a sequence more per micro-batch", "step_time_s", *needs)
        longer = estimate(replace(case.workload, seq_len=case.workload.seq_len + 64), case.table)
        assert_none_falls(case, longer, "64 tokens more per sequence", "step_time_s", *needs)
        more = estimate(case.workload, grown(case.table, "accumulation_steps"))
        assert_none_falls(case, more, "a micro-batch more", "step_time_s")


@pytest.mark.thorough
def test_slower_hardware_is_no_faster(everything: list[Drawn]) -> None:
    """To a thousandth: traffic of gradients and of a ring of context parallelism may both hide
    behind the same kernels."""
    for case in everything:
        cluster = case.workload.cluster
        gpu, watts = cluster.gpu, cluster.gpu.rated_watts or cluster.gpu.power_watts
        slower = {
            "half the memory bandwidth": replace(cluster, gpu=replace(gpu, memory_bytes_per_s=gpu.memory_bytes_per_s / 2)),
            "half the bandwidth between nodes": replace(cluster, inter_node=replace(cluster.inter_node, bytes_per_s=cluster.inter_node.bytes_per_s / 2)),
            "half the bandwidth inside nodes": replace(cluster, intra_node=replace(cluster.intra_node, bytes_per_s=cluster.intra_node.bytes_per_s / 2)),
        }  # fmt: skip
        if watts:
            slower["a limit of power"] = replace(
                cluster, gpu=replace(gpu, power_watts=0.6 * watts, rated_watts=watts)
            )
        for what, there in slower.items():
            assert_none_falls(
                case,
                estimate(replace(case.workload, cluster=there), case.table),
                what,
                "step_time_s",
                slack=1e-3,
            )


@pytest.mark.thorough
def test_recomputation_is_no_faster(everything: list[Drawn]) -> None:
    for case in everything:
        plain = ConfigTable.of(
            [replace(case.table[i], recompute="none") for i in range(len(case.table))]
        )
        without = Drawn(case.workload, plain, estimate(case.workload, plain))
        for word in ("selective", "full"):
            table = ConfigTable.of(
                [replace(case.table[i], recompute=word) for i in range(len(case.table))]
            )
            assert_none_falls(
                without, estimate(case.workload, table), f"{word} recomputation", "step_time_s"
            )
