"""A step of post-training by phases: laws that hold whatever the constants are, and what was
published."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from autotune.cost import calibration_for, estimate
from autotune.cost.rl.step import passes_of, phases_beside
from autotune.cost.rl.update import FORWARD, Pass
from autotune.cost.traits import loop_traits
from autotune.spec import ClusterSpec, ConfigTable, Estimate, ParallelConfig, Peft, Workload
from autotune.spec.lengths import Lengths
from autotune.spec.post_training import TRAINED, PostTraining, Rollout
from tests.benchmarks import post_training
from tests.benchmarks.post_training import QWEN_7B

CONFIG = ParallelConfig(tp=4, dp=2, zero_stage=1, sequence_parallel=True, accumulation_steps=256)


def step(**given: Any) -> PostTraining:
    values: dict[str, Any] = {
        "algorithm": "grpo", "prompts": 512, "responses": 16, "mini_batches": 16, "engine": "megatron", "micro_batch_tokens": 20480,
        "prompt_lengths": Lengths(values=(180.0,)), "response_lengths": Lengths.of_percentiles({50.0: 900.0, 95.0: 4200.0, 100.0: 8192.0}, 1400.0),
        "rollout": Rollout(tokens_per_s_per_gpu=((1, 9000.0), (2, 8000.0)), memory_fraction=0.6),
    }  # fmt: skip
    return PostTraining(**{**values, **given})


def workload(rl: PostTraining, nodes: int = 1) -> Workload:
    return Workload(
        model=QWEN_7B, cluster=ClusterSpec.of("h100-sxm", num_nodes=nodes, gpus_per_node=8), seq_len=8400, global_batch_size=rl.mini_batch, trainer="verl", rl=rl,
    )  # fmt: skip


def phases(rl: PostTraining, config: ParallelConfig = CONFIG, nodes: int = 1) -> dict[str, float]:
    found = estimate(workload(rl, nodes), config)
    assert found.phases_s is not None
    values = {name: float(value) for name, value in found.phases_s.to_dict().items()}
    assert sum(values.values()) == pytest.approx(float(found.step_time_s))
    assert float(found.time_parts_s.total) == pytest.approx(float(found.step_time_s))
    assert float(found.memory_parts_bytes.total) == pytest.approx(float(found.peak_memory_bytes))
    return {
        **values,
        "step": float(found.step_time_s),
        "oom": float(found.oom_probability),
        "peak": float(found.peak_memory_bytes),
    }


def extra(**knobs: Any) -> ParallelConfig:
    return replace(CONFIG, extra=knobs)


@pytest.mark.parametrize(
    "knobs",
    [
        {},
        {"rollout_tp": 2},
        {"rollout_gpus": 4, "staleness": 0},
        {"rollout_gpus": 4, "staleness": 1},
    ],
)
def test_phases_that_no_trial_runs_are_those_of_the_estimate(knobs: dict[str, Any]) -> None:
    asked, config = workload(step(), nodes=2), replace(CONFIG, extra=knobs)
    whole = phases(asked.rl or step(), config, nodes=2)
    busy = sum(whole[name] for name in TRAINED)
    found = phases_beside(asked, config, calibration_for(asked), busy)
    assert found == pytest.approx(
        {name: whole[name] for name in ("generation", "waiting", "refit")}
    )
    assert (
        phases_beside(asked, config, calibration_for(asked), 2 * busy)["generation"]
        == whole["generation"]
    )


def test_generation_is_what_was_told() -> None:
    tokens = 8192 * 1400.0
    assert phases(step())["generation"] == pytest.approx(tokens / (9000.0 * 8), rel=0.01)
    assert phases(step(), extra(rollout_tp=2))["generation"] == pytest.approx(
        tokens / (8000.0 * 8), rel=0.01
    )
    alone = Rollout(tokens_per_s_per_gpu=((1, 9000.0),), tokens_per_s_per_response=20.0)
    assert phases(step(rollout=alone))["generation"] == pytest.approx(8192 / 20.0)


def test_more_epochs_repeat_the_update_alone() -> None:
    once, twice = phases(step()), phases(step(epochs=2))
    assert twice["update"] == pytest.approx(2.0 * once["update"])
    assert twice["log_prob"] == once["log_prob"]


def test_a_reference_costs_a_forward_pass_and_a_critic_an_update() -> None:
    plain, referred = phases(step()), phases(step(reference=True))
    assert referred["reference"] == pytest.approx(plain["log_prob"], rel=1e-6)
    judged = phases(step(algorithm="ppo", critic=QWEN_7B))
    assert judged["values"] == pytest.approx(plain["log_prob"], rel=1e-6)
    assert judged["update"] == pytest.approx(2.0 * plain["update"], rel=1e-6)
    assert judged["peak"] > plain["peak"]


def test_rope_that_is_not_fused_costs_the_forward_pass_as_much_as_the_backward() -> None:
    fused, apart = phases(step(fused_rope=True)), phases(step(fused_rope=False))
    before, update = (apart[name] - fused[name] for name in ("log_prob", "update"))
    assert before > 0.0
    assert update == pytest.approx(2.0 * before)
    again = replace(CONFIG, recompute="full")
    whole = (
        phases(step(fused_rope=False), again)["update"]
        - phases(step(fused_rope=True), again)["update"]
    )
    assert whole == pytest.approx(3.0 * before)


def test_the_last_stage_of_a_pipeline_unpacks_most_sequences() -> None:
    asked = workload(step(fused_rope=True))
    _, before = passes_of(asked, {"dp": 1, "cp": 1, "micro_batch_size": 1, "meets": False})

    def by_sequence(pp: int) -> float:
        table = ConfigTable.of([replace(CONFIG, tp=8 // pp, pp=pp, dp=1, accumulation_steps=512)])
        forward = Pass.of(asked, table, before, calibration_for(asked), loop_traits(asked))
        none = replace(before, sequences=0.0)
        without = Pass.of(asked, table, none, calibration_for(asked), loop_traits(asked))
        return float((forward.host_s(FORWARD) - without.host_s(FORWARD))[0])

    assert by_sequence(2) == pytest.approx(0.8 * by_sequence(1))
    assert by_sequence(4) == pytest.approx(by_sequence(2))


def test_dpo_generates_nothing_and_sft_updates_alone() -> None:
    dpo = phases(
        step(
            algorithm="dpo", reference=True, rollout=None, prompts=512, responses=2, mini_batches=1
        )
    )
    assert (dpo["generation"], dpo["log_prob"], dpo["refit"]) == (0.0, 0.0, 0.0)
    assert dpo["reference"] > 0.0
    sft = phases(step(algorithm="sft", rollout=None, prompts=512, responses=1, mini_batches=1))
    assert sft["step"] == sft["update"]


@pytest.mark.parametrize(("pure_bf16", "weight_bytes"), [(False, 4.0), (True, 2.0)])
def test_a_reference_model_has_the_type_of_the_policy_in_transformers_trainer(
    pure_bf16: bool, weight_bytes: float
) -> None:
    rl = step(
        algorithm="dpo", rollout=None, responses=2, mini_batches=1, micro_batch_tokens=0,
        prompt_lengths=Lengths(values=(0.0,)), response_lengths=Lengths(values=(512.0,)), engine="fsdp",
    )  # fmt: skip
    plain = replace(workload(rl), trainer="command", loop="hf_trainer", pure_bf16=pure_bf16)
    config = ParallelConfig(dp=8, micro_batch_size=2, accumulation_steps=64)
    used = [
        float(
            estimate(
                replace(plain, rl=replace(rl, reference=is_there)), config
            ).memory_parts_bytes.weights
        )
        for is_there in (True, False)
    ]
    expected = weight_bytes * plain.model.num_parameters
    assert used[0] - used[1] == pytest.approx(expected, rel=0.02)


def test_sides_of_a_split_wait_and_those_of_async_do_not() -> None:
    rl = step(placement="split", rollout_gpus=8)
    split = phases(rl, nodes=2)
    assert split["generation"] > 0.0
    assert split["waiting"] == 0.0
    stale = {
        s: phases(replace(rl, placement="async", staleness=s), nodes=2)
        for s in (0.25, 0.5, 1.0, 2.0)
    }
    assert (
        split["step"]
        > stale[0.25]["step"]
        > stale[0.5]["step"]
        > stale[1.0]["step"]
        == stale[2.0]["step"]
    )
    busy = sum(stale[1.0][name] for name in ("log_prob", "update"))
    assert stale[1.0]["step"] == pytest.approx(max(busy, split["generation"]) + stale[1.0]["refit"])


@pytest.mark.parametrize(
    ("trainer", "loads"), [("verl", False), ("trl", False), ("openrlhf", True)]
)
def test_adapters_have_a_reference_model_of_their_own_in_openrlhf_alone(
    trainer: str, loads: bool
) -> None:
    peaks = []
    for reference in (False, True):
        rl = step(engine="deepspeed", micro_batch_tokens=0, reference=reference)
        adapted = replace(workload(rl), trainer=trainer, peft=Peft())
        peaks.append(
            float(estimate(adapted, replace(CONFIG, tp=1, zero_stage=2)).peak_memory_bytes)
        )
    assert (peaks[1] > peaks[0] + 2**30) is loads
    assert peaks[1] >= peaks[0]


def test_an_engine_takes_its_share_until_states_make_room() -> None:
    tight = step(
        rollout=Rollout(tokens_per_s_per_gpu=((1, 9000.0),), memory_fraction=0.8),
        micro_batch_tokens=10240,
    )
    here, away = (phases(tight, extra(phase_offload=word)) for word in ("none", "all"))
    assert here["oom"] > 0.5 > away["oom"]
    assert away["update"] > here["update"]
    assert away["log_prob"] > here["log_prob"]


def test_one_config_and_many_are_estimated_alike() -> None:
    asked = workload(step())
    configs = [
        extra(micro_batch_tokens=tokens, phase_offload=word)
        for tokens in (10240, 20480)
        for word in ("none", "all")
    ]
    together = estimate(asked, ConfigTable.of(configs))
    for i, config in enumerate(configs):
        alone = estimate(asked, config)
        assert float(together.row(i).step_time_s) == float(alone.step_time_s)
        assert float(together.row(i).oom_probability) == float(alone.oom_probability)


def test_an_estimate_survives_its_document() -> None:
    found = estimate(workload(step()), CONFIG)
    assert Estimate.from_dict(found.to_dict()) == found
    assert (
        "phases_s"
        not in estimate(replace(workload(step()), rl=None, trainer="megatron"), CONFIG).to_dict()
    )


@pytest.fixture(scope="module")
def published() -> dict[str, dict[str, Any]]:
    rows = post_training.rows()
    return {
        sweep: post_training.judge([row for row in rows if row.sweep == sweep])
        for sweep in post_training.SWEEPS
    }


def test_published_phases_come_out_after_one_trial(published: dict[str, dict[str, Any]]) -> None:
    for sweep in published.values():
        assert sweep["update"] < 0.10
        assert sweep["log_prob"] < 0.10


def test_first_picks_of_published_sweeps_are_the_best(published: dict[str, dict[str, Any]]) -> None:
    regrets = [regret for sweep in published.values() for regret in sweep["regret"].values()]
    assert len(regrets) == 4
    assert max(regrets) < 0.05


def test_published_runs_out_of_memory_are_called_and_others_are_not(
    published: dict[str, dict[str, Any]],
) -> None:
    assert [sweep["called"] for sweep in published.values()] == [(0, 0), (4, 4)]
    assert [sweep["false"] for sweep in published.values()] == [(0, 17), (0, 9)]


def test_published_stalenesses_follow_the_law() -> None:
    found = post_training.stale_steps()
    assert [stale for stale, _, _ in found] == [0.1, 0.3]
    for _, printed, predicted in found:
        assert predicted == pytest.approx(printed, rel=0.05)


def test_a_config_whose_speed_was_not_told_is_no_number() -> None:
    found = estimate(workload(step()), extra(rollout_tp=4))
    assert np.isnan(float(found.step_time_s))
