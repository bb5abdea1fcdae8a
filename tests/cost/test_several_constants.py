"""Several sets of constants at once give what each gives by itself, and so do rows that pack their
sequences differently."""

from __future__ import annotations

from dataclasses import fields, replace
from typing import Any

import numpy as np
import pytest

from autotune.cost import calibration_for, estimate
from autotune.cost.estimator import BLOCK, one_by_one, sensitivity, step_times, step_times_by
from autotune.cost.learn.refit import uncertain
from autotune.cost.learn.uncertainty import Z90
from autotune.spec import (
    ClusterSpec,
    ConfigTable,
    Estimate,
    ParallelConfig,
    Peft,
    Workload,
    catalog,
)
from tests.cost.rl.test_step import step
from tests.cost.rl.test_step import workload as post_training

CONFIGS = [
    ParallelConfig(dp=8, micro_batch_size=2, accumulation_steps=4, zero_stage=3, recompute="full"),
    ParallelConfig(
        tp=2,
        dp=4,
        micro_batch_size=1,
        accumulation_steps=16,
        sequence_parallel=True,
        precision="fp8",
    ),
    ParallelConfig(tp=2, pp=2, dp=2, accumulation_steps=32, compile=True, activation_budget=40),
    ParallelConfig(cp=2, dp=4, micro_batch_size=4, accumulation_steps=4, zero_stage=1),
]


def plain(model: str = "llama-8b", **given: Any) -> Workload:
    values = {
        "cluster": ClusterSpec.of("h100-sxm", num_nodes=1, gpus_per_node=8),
        "seq_len": 16384,
        "global_batch_size": 64,
        "trainer": "torchtitan",
    }
    return Workload(model=catalog.model(model), **{**values, **given})  # type: ignore[arg-type]


PACKED = [
    replace(CONFIGS[0], micro_batch_size=m, accumulation_steps=64, extra={"micro_batch_tokens": t})
    for m in (1, 2)
    for t in (10240, 20480, 40960)
]
WORKLOADS = {
    "dense": (plain(), CONFIGS),
    "over nodes": (plain(cluster=ClusterSpec.of("a100-80gb", num_nodes=4, gpus_per_node=2), trainer="megatron"), CONFIGS),
    "experts": (plain("mixtral-8x7b"), [replace(CONFIGS[0], ep=8), replace(CONFIGS[0], ep=4, ep_overlap=True)]),
    "adapters": (plain(peft=Peft(method="qlora")), CONFIGS[:1]),
    "eager": (plain(unfused_attention=True, trainer="hf_trainer"), CONFIGS[:1]),
    "CPU": (plain("nano-gpt", cluster=ClusterSpec.of("cpu", num_nodes=1, gpus_per_node=8), seq_len=128), [replace(each, precision="fp32", activation_budget=100) for each in CONFIGS]),
    "post-training": (post_training(step(engine="fsdp")), PACKED),
    "post-training by Megatron-LM": (post_training(step()), [replace(each, tp=4, dp=2, zero_stage=1, recompute="none") for each in PACKED]),
}  # fmt: skip


@pytest.mark.parametrize("name", WORKLOADS)
def test_each_set_of_constants_gives_what_it_gives_alone(name: str) -> None:
    workload, configs = WORKLOADS[name]
    table, prior = ConfigTable.of(configs), uncertain(calibration_for(workload))
    here = prior.at(np.zeros(len(prior.names) + 1)).constants
    ends = prior.ends(Z90)
    together = step_times_by(workload, table, here, one_by_one(here, ends))
    alone = [
        step_times(workload, table)(replace(here, **{name: value})).total
        for name, values in ends.items()
        for value in values
    ]
    assert together.shape == (2 * len(prior.names), len(configs))
    np.testing.assert_allclose(together, np.stack(alone), rtol=1e-12)
    assert len(np.unique(together[:, 0])) > len(prior.names) / 2, "most constants matter"


def test_derivatives_are_differences_of_single_constants_also_of_more_rows_than_a_block_holds() -> (
    None
):
    workload, configs = WORKLOADS["dense"]
    constants = calibration_for(workload)
    names = ("matmul_efficiency", "intra_efficiency", "layer_host_s")
    table = ConfigTable.of(configs).take(np.arange(BLOCK // 2 + 1) % len(configs))
    rows = sensitivity(workload, table, constants, names)
    times = step_times(workload, table)
    for k, name in enumerate(names):
        lower = replace(constants, **{name: getattr(constants, name) * np.exp(-0.04)})
        np.testing.assert_allclose(
            rows.jacobian[:, k], (rows.log_step_s - np.log(times(lower).total)) / 0.04, rtol=1e-12
        )
    assert (rows.jacobian[:, -1] == 1.0).all()


@pytest.mark.parametrize("name", ["post-training", "post-training by Megatron-LM"])
def test_rows_that_pack_differently_are_estimated_as_each_alone(name: str) -> None:
    workload, configs = WORKLOADS[name]
    together = estimate(workload, ConfigTable.of(configs))
    for row, config in enumerate(configs):
        alone = estimate(workload, config)
        for part in fields(Estimate):
            one, many = getattr(alone, part.name), getattr(together, part.name)
            if hasattr(one, "to_dict"):
                assert one.to_dict() == {
                    n: pytest.approx(v[row], rel=1e-12) for n, v in many.to_dict().items()
                }
            else:
                assert float(one) == pytest.approx(float(many[row]), rel=1e-12)
    assert len({float(each) for each in together.step_time_s}) > 1
