"""Estimates: laws that hold for any model and config, one code path for one or many, clear
errors."""

from __future__ import annotations

from dataclasses import fields, replace
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from autotune.cost import (
    Calibration,
    calibration_for,
    estimate,
    model_flops_per_token,
    training_flops_per_token,
)
from autotune.errors import ConfigError, SpecError
from autotune.spec import (
    ClusterSpec,
    ConfigTable,
    GpuSpec,
    LinkSpec,
    ModelSpec,
    ParallelConfig,
    Peft,
    Workload,
    catalog,
)
from tests.benchmarks.perturbation import perturbed
from tests.cost.examples import EXPERTS, GPU, MODEL, workload
from tests.matrix import examples

LINK = LinkSpec(latency_s=1e-6, bytes_per_s=1e9)
LAW = settings(deadline=None, derandomize=True, max_examples=examples(60))
powers = st.sampled_from([1, 2, 4, 8])
configs = st.builds(
    ParallelConfig,
    tp=powers, pp=powers, dp=powers, cp=st.sampled_from([1, 2]), micro_batch_size=powers, accumulation_steps=st.sampled_from([1, 2, 8, 32]),
    precision=st.sampled_from(["fp32", "bf16", "fp16", "fp8"]), recompute=st.sampled_from(["none", "selective", "full"]),
    zero_stage=st.integers(0, 3), sequence_parallel=st.booleans(), pp_schedule=st.sampled_from(["gpipe", "1f1b", "interleaved_1f1b"]),
    virtual_stages=st.sampled_from([1, 2]), compile=st.booleans(),
)  # fmt: skip


MANY = {"nodes": 128}
"""a cluster for all of these configs"""


def total(parts: object) -> float:
    return sum(getattr(parts, f.name) for f in fields(parts))  # type: ignore[arg-type]


@LAW
@given(config=configs, model=st.sampled_from([MODEL, EXPERTS]))
def test_parts_add_up_and_every_number_is_finite(config: ParallelConfig, model: ModelSpec) -> None:
    e = estimate(workload(model, **MANY), config)
    assert total(e.time_parts_s) == pytest.approx(e.step_time_s)
    assert total(e.memory_parts_bytes) == pytest.approx(e.peak_memory_bytes)
    assert e.step_time_low_s < e.step_time_s < e.step_time_high_s
    assert e.peak_memory_low_bytes < e.peak_memory_bytes < e.peak_memory_high_bytes
    assert 0 <= e.oom_probability <= 1
    assert 0 < e.mfu < 1
    for parts in (e.time_parts_s, e.memory_parts_bytes):
        assert all(np.isfinite(v) and v >= 0 for v in parts.to_dict().values())


@LAW
@given(config=configs, more=st.floats(1.0, 4.0))
def test_more_memory_never_makes_a_config_less_likely_to_fit(
    config: ParallelConfig, more: float
) -> None:
    here = workload(**MANY)
    larger = replace(
        here, cluster=replace(here.cluster, gpu=replace(GPU, memory_bytes=GPU.memory_bytes * more))
    )
    assert estimate(larger, config).oom_probability <= estimate(here, config).oom_probability


@LAW
@given(config=configs)
def test_more_micro_batches_and_larger_ones_take_longer(config: ParallelConfig) -> None:
    here = estimate(workload(**MANY), config)
    longer = estimate(
        workload(**MANY), replace(config, accumulation_steps=config.accumulation_steps * 2)
    )
    larger = estimate(
        workload(**MANY), replace(config, micro_batch_size=config.micro_batch_size * 2)
    )
    assert longer.step_time_s > here.step_time_s
    assert larger.step_time_s > here.step_time_s
    # the optimizer's step may need more than the passes do
    assert larger.peak_memory_bytes >= here.peak_memory_bytes
    more, less = larger.memory_parts_bytes, here.memory_parts_bytes
    assert more.activations + more.logits > less.activations + less.logits


@LAW
@given(config=configs)
def test_recomputation_trades_time_for_memory(config: ParallelConfig) -> None:
    none, full = (
        estimate(workload(**MANY), replace(config, recompute=r)) for r in ("none", "full")
    )
    assert full.step_time_s > none.step_time_s
    if config.micro_batch_size * config.accumulation_steps > 1:
        # one layer is rebuilt whole, so that a rank of one layer and one micro-batch saves nothing
        assert full.memory_parts_bytes.activations <= none.memory_parts_bytes.activations * 1.6


@LAW
@given(config=configs)
def test_each_zero_stage_needs_no_more_state_than_the_one_before(config: ParallelConfig) -> None:
    parts = [
        estimate(workload(**MANY), replace(config, zero_stage=z)).memory_parts_bytes
        for z in range(4)
    ]
    states = [p.weights + p.gradients + p.optimizer for p in parts]
    assert all(b <= a * (1 + 1e-9) for a, b in pairwise(states))


@LAW
@given(rows=st.lists(configs, min_size=1, max_size=20))
def test_many_configs_are_computed_as_one_is(rows: list[ParallelConfig]) -> None:
    table = estimate(workload(**MANY), rows)
    for i in (0, len(rows) - 1):
        one = estimate(workload(**MANY), rows[i])
        row = table.row(i)
        assert row.time_parts_s.to_dict() == pytest.approx(one.time_parts_s.to_dict())
        assert row.memory_parts_bytes.to_dict() == pytest.approx(one.memory_parts_bytes.to_dict())
        assert row.oom_probability == pytest.approx(one.oom_probability)


def test_order_of_rows_does_not_matter_and_blocks_join() -> None:
    rng = np.random.default_rng(0)
    size = 40_000
    columns = {
        n: 2 ** rng.integers(0, 3, size)
        for n in ("tp", "pp", "dp", "micro_batch_size", "accumulation_steps")
    }
    table = ConfigTable(columns)
    order = rng.permutation(size)
    straight, shuffled = estimate(workload(), table), estimate(workload(), table.take(order))
    np.testing.assert_allclose(shuffled.step_time_s, np.asarray(straight.step_time_s)[order])
    assert len(straight) == size
    assert np.asarray(straight.time_parts_s.compute).shape == (size,)


def test_context_and_expert_parallelism_cost_their_own_traffic() -> None:
    cp = estimate(workload(), ParallelConfig(cp=4, dp=2))
    assert cp.time_parts_s.cp_comm > 0
    assert cp.time_parts_s.ep_comm == 0
    ep = estimate(workload(EXPERTS), ParallelConfig(ep=4, dp=8))
    assert ep.time_parts_s.ep_comm > 0
    alone = estimate(workload(EXPERTS), ParallelConfig(dp=8))
    assert ep.memory_parts_bytes.weights < alone.memory_parts_bytes.weights


def test_longer_sequences_spend_more_per_token() -> None:
    short, long = (estimate(workload(seq_len=s), ParallelConfig()) for s in (2048, 32768))
    assert long.tokens_per_s < short.tokens_per_s
    assert model_flops_per_token(MODEL, 32768) > model_flops_per_token(MODEL, 2048)


def test_flops_are_six_per_weight_and_token_beside_attention() -> None:
    flops = model_flops_per_token(MODEL, 1)
    weights = MODEL.num_parameters - MODEL.embedding_parameters
    assert flops == pytest.approx(6 * weights, rel=0.01)


def test_frozen_weights_need_four_flops_and_packed_documents_fewer_scores() -> None:
    every = training_flops_per_token(workload())
    assert every == model_flops_per_token(MODEL, 2048)
    weights = MODEL.num_parameters - MODEL.embedding_parameters
    assert every - training_flops_per_token(replace(workload(), peft=Peft())) == pytest.approx(
        2 * weights, rel=0.01
    )
    packed = training_flops_per_token(replace(workload(), document_len=64))
    assert model_flops_per_token(MODEL, 1) < packed < every


ODD = ModelSpec(name="odd", num_layers=2, hidden_size=62, num_attention_heads=31, vocab_size=100)


@pytest.mark.parametrize(
    ("model", "configs", "match"),
    [
        (MODEL, ParallelConfig(tp=3), "num_attention_heads"),
        (MODEL, ParallelConfig(pp=32), "num_layers"),
        (MODEL, ParallelConfig(dp=1 << 20), "must be at most the [0-9]+ GPUs"),
        (ODD, ParallelConfig(tp=2), "use 1"),
        (MODEL, [ParallelConfig(), ParallelConfig(tp=3)], "tp must divide"),
        (MODEL, ConfigTable({"dp": np.array([1, 0])}), "dp must be at least 1"),
        *(
            (MODEL, what, "ParallelConfig")
            for what in ("tp=2", 7, None, [1], ["tp=2"], [ParallelConfig(), "tp=2"])
        ),
    ],
)
def test_what_is_no_config_of_the_model_is_refused(
    model: ModelSpec, configs: Any, match: str
) -> None:
    with pytest.raises(ConfigError, match=match):
        estimate(workload(model), configs)


@pytest.mark.parametrize(
    ("spec", "changes", "match"),
    [
        (LINK, {"bytes_per_s": 0.0}, "bytes_per_s"),
        (LINK, {"bytes_per_s": 1e-300}, r"bytes_per_s must be 1 to 1e\+30"),
        (LINK, {"bytes_per_s": 1e300}, r"bytes_per_s must be 1 to 1e\+30"),
        (LINK, {"latency_s": 1e300}, "latency_s must be at most 3600 s"),
        (GPU, {"memory_bytes": -1.0}, "memory_bytes"),
        (GPU, {"memory_bytes": 1e-300}, r"memory_bytes must be 1 to 1e\+30"),
        (GPU, {"memory_bytes": 1e300}, r"memory_bytes must be 1 to 1e\+30"),
        (
            GPU,
            {"peak_flops_per_s": {"bf16": 1e-300}},
            r"peak_flops_per_s\.bf16 must be 1 to 1e\+30",
        ),
        (GPU, {"peak_flops_per_s": {"bf16": 1e300}}, r"peak_flops_per_s\.bf16 must be 1 to 1e\+30"),
    ],
)
def test_impossible_hardware_and_figures_that_would_overflow_are_refused(
    spec: LinkSpec | GpuSpec, changes: dict[str, Any], match: str
) -> None:
    with pytest.raises(SpecError, match=match):
        replace(spec, **changes)


def test_sgd_keeps_no_moments_and_adamw_two_in_fp32() -> None:
    here = replace(workload(), trainer="native")
    adamw, sgd = (
        estimate(
            replace(here, optimizer=o), ParallelConfig(accumulation_steps=2)
        ).memory_parts_bytes
        for o in ("adamw", "sgd")
    )
    assert adamw.optimizer == pytest.approx(2 * adamw.gradients)
    assert sgd.optimizer == 0


def test_names_in_place_of_model_and_cluster_are_refused_with_the_remedy() -> None:
    with pytest.raises(
        SpecError,
        match=r"model must be a ModelSpec, but is 'llama-8b'; autotune.spec.catalog.model\(NAME\)",
    ):
        replace(workload(), model="llama-8b")  # type: ignore[arg-type]
    with pytest.raises(SpecError, match="cluster must be a ClusterSpec"):
        replace(workload(), cluster=None)  # type: ignore[arg-type]


def test_the_slowest_hardware_that_is_let_in_still_has_finite_times() -> None:
    link = LinkSpec(latency_s=3600.0, bytes_per_s=1.0)
    gpu = replace(GPU, memory_bytes=1.0, memory_bytes_per_s=1.0, peak_flops_per_s={"bf16": 1.0})
    here = workload(EXPERTS)
    slow = replace(here, cluster=replace(here.cluster, gpu=gpu, intra_node=link, inter_node=link))
    for config in ("tp=2,pp=2,dp=2,ep=2", "tp=2,pp=1,dp=2,cp=2,zero_stage=3"):
        e = estimate(slow, ParallelConfig.parse(config))
        assert all(
            np.isfinite(getattr(e, name))
            for name in ("step_time_high_s", "mfu", "peak_memory_high_bytes")
        )


def test_a_gpu_without_bf16_computes_attention_and_head_in_fp16() -> None:
    """One V100, GPT of 8 layers and width 2,048, full recomputation: 0.454 s measured by Alpa
    (OSDI'22, its results_intra_ablation_ref.tsv)."""
    model = ModelSpec(
        name="gpt", num_layers=8, hidden_size=2048, num_attention_heads=16, vocab_size=25600, ffn_hidden_size=8192, tied_embeddings=True
    )  # fmt: skip
    v100 = ClusterSpec.of("v100-32gb", num_nodes=1, gpus_per_node=1)
    here = Workload(model=model, cluster=v100, seq_len=1024, global_batch_size=8, trainer="alpa")
    e = estimate(here, ParallelConfig(micro_batch_size=8, precision="fp16", recompute="full"))
    assert e.step_time_s == pytest.approx(0.454, rel=0.2)


def test_absurd_sizes_do_not_overflow() -> None:
    huge = ModelSpec(
        name="huge", num_layers=1 << 20, hidden_size=1 << 22, num_attention_heads=1 << 16, vocab_size=1 << 24,
    )  # fmt: skip
    where = ClusterSpec.of("h100-sxm", num_nodes=1 << 20, gpus_per_node=8)
    w = Workload(model=huge, cluster=where, seq_len=1 << 27, global_batch_size=1 << 30)
    with np.errstate(all="raise", under="ignore"):
        e = estimate(
            w,
            ParallelConfig(tp=8, pp=1 << 20, micro_batch_size=1 << 20, accumulation_steps=1 << 30),
        )
    assert np.isfinite(e.step_time_s)
    assert np.isfinite(e.peak_memory_bytes)
    assert e.oom_probability == 1


def test_no_configs_give_an_empty_estimate() -> None:
    assert len(estimate(workload(), [])) == 0


def test_constants_change_what_is_predicted() -> None:
    config = ParallelConfig(tp=2, dp=4)
    base = calibration_for(workload())
    slow = replace(base, matmul_efficiency=base.matmul_efficiency / 2)
    assert (
        estimate(workload(), config, calibration=slow).step_time_s
        > estimate(workload(), config).step_time_s
    )


def test_a_stronger_gpu_is_faster() -> None:
    def step(name: str) -> float:
        w = Workload(
            model=catalog.model("llama-8b"), cluster=catalog.cluster(name), seq_len=4096, global_batch_size=64, trainer="megatron"
        )  # fmt: skip
        return float(
            estimate(w, ParallelConfig(tp=8, micro_batch_size=2, accumulation_steps=32)).step_time_s
        )

    assert step("h100-sxm-1x8") < step("a100-80gb-1x8")


def test_ranks_that_share_cores_do_not_run_faster_together() -> None:
    w = Workload(
        model=catalog.model("nano-gpt"), cluster=ClusterSpec.of("cpu", num_nodes=1, gpus_per_node=4), seq_len=64, global_batch_size=16
    )  # fmt: skip
    constants = replace(calibration_for(w), full_speed_ranks=2.0)
    two = estimate(
        w, ParallelConfig(dp=2, accumulation_steps=8, precision="fp32"), calibration=constants
    )
    four = estimate(
        w, ParallelConfig(dp=4, accumulation_steps=4, precision="fp32"), calibration=constants
    )
    assert four.step_time_s > 0.95 * two.step_time_s


def test_ranks_on_the_cpu_share_the_cores_that_the_cluster_names() -> None:
    four = ParallelConfig(dp=4, accumulation_steps=4, precision="fp32")

    def step(cores: int) -> float:
        cluster = replace(ClusterSpec.of("cpu", num_nodes=1, gpus_per_node=4), cores_per_node=cores)
        w = Workload(
            model=catalog.model("nano-gpt"), cluster=cluster, seq_len=64, global_batch_size=16
        )
        return float(estimate(w, four).step_time_s)

    assert step(1) > 1.5 * step(2) > 2 * step(4)
    assert step(8) == step(4)


def test_memory_that_waits_for_another_stream_is_reserved_but_need_not_fit() -> None:
    w = replace(workload(trainer="nanotron"), cluster=catalog.cluster("h100-sxm-4x8"))
    base = replace(calibration_for(w), waiting_in_layer=0.0, waiting_at_head=0.0)
    ahead = replace(base, waiting_in_layer=2.0, waiting_at_head=10.0)
    config = ParallelConfig(
        tp=8, dp=4, micro_batch_size=8, accumulation_steps=4, sequence_parallel=True
    )
    without, waiting = (estimate(w, config, calibration=c) for c in (base, ahead))
    assert waiting.peak_memory_bytes > without.peak_memory_bytes
    assert waiting.oom_probability == pytest.approx(without.oom_probability)
    # nothing waits where tensors are not gathered, and it never takes memory that others need
    whole = replace(config, sequence_parallel=False)
    assert (
        estimate(w, whole, calibration=ahead).peak_memory_bytes
        == estimate(w, whole, calibration=base).peak_memory_bytes
    )
    large = replace(config, micro_batch_size=64)
    need = estimate(w, large, calibration=base).peak_memory_bytes
    assert estimate(w, large, calibration=ahead).peak_memory_bytes == max(
        need,
        min(
            estimate(w, large, calibration=ahead).peak_memory_bytes,
            w.cluster.gpu.memory_bytes * ahead.usable_fraction,
        ),
    )


@pytest.mark.parametrize("trainer", ["megatron", "command"])
def test_unfused_attention_stores_the_score_matrix_whatever_the_precision(trainer: str) -> None:
    w = replace(workload(trainer=trainer), cluster=catalog.cluster("a100-80gb-1x8"))
    configs = [ParallelConfig(tp=2, dp=4, precision=p) for p in ("fp16", "bf16")]
    half, brain = (estimate(w, c) for c in configs)
    assert half.step_time_s <= brain.step_time_s  # gradients of fp16 may be half as large
    for config, flash in zip(configs, (half, brain), strict=True):
        unfused = estimate(replace(w, unfused_attention=True), config)
        assert unfused.memory_parts_bytes.activations > 1.2 * flash.memory_parts_bytes.activations
        assert unfused.step_time_s > 1.02 * flash.step_time_s


def test_megatron_has_no_fused_attention_on_a_gpu_without_bf16() -> None:
    w = replace(
        workload(trainer="megatron"),
        cluster=ClusterSpec.of("v100-32gb", num_nodes=1, gpus_per_node=8),
    )
    config = ParallelConfig(tp=2, dp=4, precision="fp16")
    assert estimate(w, config) == estimate(replace(w, unfused_attention=True), config)
    torch_program = replace(w, trainer="command")
    unfused = replace(torch_program, unfused_attention=True)
    assert estimate(torch_program, config).step_time_s < estimate(unfused, config).step_time_s


def test_untied_embedding_and_head_are_both_reduced_without_a_pipeline() -> None:
    wide = replace(MODEL, vocab_size=MODEL.vocab_size * 8, tied_embeddings=False)
    tied = replace(wide, tied_embeddings=True)
    traffic = [estimate(workload(m), ParallelConfig(dp=8)).time_parts_s for m in (wide, tied)]
    assert traffic[0].dp_comm > traffic[1].dp_comm
    assert traffic[0].optimizer > traffic[1].optimizer


def test_hardware_without_measurements_is_named_and_has_wider_intervals() -> None:
    unknown = calibration_for(workload())
    assert "datasheet" in unknown.source
    known = calibration_for(
        replace(workload(trainer="nanotron"), cluster=catalog.cluster("h100-sxm-1x8"))
    )
    assert "nanotron_h100" in known.source
    assert unknown.time_sigma > known.time_sigma
    mixed = calibration_for(
        replace(workload(trainer="megatron"), cluster=catalog.cluster("h100-sxm-1x8"))
    )
    assert mixed.trainer == "megatron"


def test_a_gpu_of_any_name_works_from_its_datasheet() -> None:
    other = GpuSpec(
        name="other", memory_bytes=1e11, peak_flops_per_s={"bf16": 1e15}, memory_bytes_per_s=3e12
    )
    w = replace(workload(), cluster=replace(workload().cluster, gpu=other))
    assert np.isfinite(estimate(w, ParallelConfig(precision="fp32")).step_time_s)


def test_calibrations_survive_a_round_trip_and_refuse_nonsense() -> None:
    c = Calibration(gpu="x", hop_s=3e-6)
    assert Calibration.from_dict(c.to_dict()) == c
    with pytest.raises(SpecError, match="matmul_efficiency"):
        Calibration.from_dict({"matmul_eficiency": 1.0})
    with pytest.raises(SpecError, match="above zero"):
        Calibration(matmul_efficiency=0.0)


def test_perturbed_worlds_differ_but_stay_physical() -> None:
    base = Calibration()
    worlds = [perturbed(base, np.random.default_rng(seed), 0.3) for seed in range(20)]
    assert len({w.matmul_efficiency for w in worlds}) > 10
    assert all(w.matmul_efficiency <= 1 and w.data_overlap <= 1 for w in worlds)
    assert perturbed(base, np.random.default_rng(1), 0.3) == worlds[1]


def test_absurd_batches_do_not_overflow() -> None:
    absurd = ParallelConfig(dp=1 << 30, micro_batch_size=1 << 30, accumulation_steps=1 << 30)
    e = estimate(workload(), ConfigTable.of([absurd])).row(0)
    assert e.tokens_per_s == pytest.approx(2.0**90 * 2048 / e.step_time_s)
    assert e.oom_probability == 1.0
