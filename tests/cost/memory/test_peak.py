"""The memory model against figures from published runs and first principles, part by part."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from autotune import load_study
from autotune.api import plan_of
from autotune.cost import calibration_for, estimate
from autotune.cost.layout import layout_of, stages_of
from autotune.cost.memory.constants import MEMORY_CONSTANTS, memory_source
from autotune.cost.memory.peak import HOLDS, fullest, rank_memories
from autotune.cost.traits import TRAITS, traits_of
from autotune.errors import InfeasibleError, SpecError
from autotune.spec import (
    ClusterSpec,
    ConfigTable,
    MemoryParts,
    ModelSpec,
    ParallelConfig,
    Peft,
    Workload,
    catalog,
)
from autotune.spec.workload import LOOPS
from tests.cost.examples import EXPERTS, MODEL, workload

GIB = 2.0**30


def parts(where: Workload, config: ParallelConfig) -> MemoryParts:
    return estimate(where, config).memory_parts_bytes


@pytest.mark.parametrize(
    ("config", "allocated"),
    [
        (ParallelConfig(tp=2, dp=8, accumulation_steps=8, zero_stage=1), 49.2e9),
        (ParallelConfig(tp=4, dp=4, accumulation_steps=16, zero_stage=1), 30.2e9),
        (ParallelConfig(tp=2, pp=2, dp=4, accumulation_steps=16, zero_stage=1), 33.2e9),
        (ParallelConfig(dp=16, accumulation_steps=4, zero_stage=1, recompute="full"), 65.5e9),
    ],
    ids=str,
)
def test_megatron_bridge_keeps_gradients_in_fp32(config: ParallelConfig, allocated: float) -> None:
    """Peaks of Qwen3 8B by Megatron-Bridge's own recipe, which reduces in fp32 as a launch does
    (`bf16_mixed`); sources in published_unseen_2.csv."""
    where = Workload(
        model=catalog.model("qwen3-8b"), cluster=catalog.cluster("h100-sxm-2x8"), seq_len=4096, global_batch_size=64,
        trainer="megatron_bridge",
    )  # fmt: skip
    found = estimate(where, config)
    weights = float(found.memory_parts_bytes.weights)
    assert float(found.memory_parts_bytes.gradients) == pytest.approx(2.0 * weights)
    assert float(found.peak_memory_bytes) / (
        1.0 + calibration_for(where).fragmentation
    ) == pytest.approx(allocated, rel=0.1)
    reduced_in_16_bits = estimate(replace(where, trainer="nvidia_recipes"), config)
    assert float(reduced_in_16_bits.memory_parts_bytes.gradients) == pytest.approx(weights)


@pytest.mark.parametrize("virtual", [1, 2, 4])
def test_one_micro_batch_of_logits_lives_on_the_last_rank_except_under_gpipe_and_zero_bubble(
    virtual: int,
) -> None:
    where = workload(trainer="megatron")

    def logits(schedule: str, pp: int, v: int) -> float:
        config = ParallelConfig(pp=pp, accumulation_steps=8, pp_schedule=schedule, virtual_stages=v)
        # so that the last rank is the fullest
        wide = replace(where, model=replace(MODEL, vocab_size=4_000_000))
        return float(parts(wide, config).logits)

    alone = logits("1f1b", 1, 1)
    schedule = "1f1b" if virtual == 1 else "interleaved_1f1b"
    assert logits(schedule, 4, virtual) == alone
    assert logits("gpipe", 4, 1) == pytest.approx(8 * alone)
    if virtual > 1:
        assert alone < logits("interleaved_zero_bubble", 4, virtual) < 3 * alone


def test_a_7b_with_eight_virtual_stages_is_not_charged_logits_for_every_micro_batch_in_flight() -> (
    None
):
    """56.5 GiB were measured; with a copy of the logits for every micro-batch in flight the
    estimate is half as much again."""
    model = ModelSpec(
        name="7b", num_layers=32, hidden_size=4096, num_attention_heads=32, ffn_hidden_size=11008, vocab_size=128256, gated_mlp=True
    )  # fmt: skip
    where = Workload(
        model=model,
        cluster=catalog.cluster("h100-sxm-1x8"),
        seq_len=4096,
        global_batch_size=64,
        trainer="megatron",
    )
    config = ParallelConfig(
        pp=4, dp=2, micro_batch_size=2, accumulation_steps=16, zero_stage=1, pp_schedule="interleaved_1f1b", virtual_stages=8,
    )  # fmt: skip
    one_stage = replace(config, pp_schedule="1f1b", virtual_stages=1)
    interleaved, plain = (float(estimate(where, c).peak_memory_bytes) for c in (config, one_stage))
    assert interleaved < 1.6 * plain


def test_every_recomputation_keeps_less_than_the_one_before_it_and_a_budget_lies_between() -> None:
    where = workload(trainer="megatron")
    kept = {
        word: float(
            parts(where, ParallelConfig(pp=4, accumulation_steps=8, recompute=word)).activations
        )
        for word in ("none", "norm", "mlp", "full")
    }
    assert kept["none"] > kept["norm"] > kept["full"]
    assert kept["none"] > kept["mlp"] > kept["full"]
    budgets = [
        float(
            parts(
                where, ParallelConfig(pp=4, accumulation_steps=8, compile=True, activation_budget=b)
            ).activations
        )
        for b in (100, 80, 60, 40, 20, 0)
    ]
    assert budgets == sorted(budgets, reverse=True)
    assert budgets[-1] == pytest.approx(kept["full"], rel=0.02)


def test_offloading_takes_states_or_activations_off_the_device() -> None:
    where = workload(trainer="megatron")
    plain, optimizer, activations = (
        parts(where, ParallelConfig(dp=2, accumulation_steps=8, offload=word))
        for word in ("none", "optimizer", "activations")
    )
    assert optimizer.optimizer == 0
    assert optimizer.gradients == plain.gradients
    assert activations.activations < plain.activations / 2


def test_replicas_are_sharded_over_the_ranks_of_one_replica() -> None:
    where = workload(trainer="torchtitan")
    sharded, hybrid = (
        parts(where, ParallelConfig(dp=8, zero_stage=3, dp_replicas=r)) for r in (1, 2)
    )
    assert hybrid.optimizer == pytest.approx(2 * sharded.optimizer)


def test_optimizers_keep_what_their_papers_say() -> None:
    where = workload(trainer="megatron")
    states = {
        name: float(parts(replace(where, optimizer=name), ParallelConfig()).optimizer)
        for name in ("adamw", "adamw_8bit", "muon", "adafactor", "sgd")
    }
    weights = float(parts(where, ParallelConfig()).weights) / 2
    assert states["adamw"] == pytest.approx(12 * weights)
    assert states["adamw_8bit"] == pytest.approx(6.03 * weights, rel=0.01)
    assert states["sgd"] == pytest.approx(4 * weights)
    assert 8 * weights < states["muon"] < states["adamw"]
    assert states["sgd"] < states["adafactor"] < 4.01 * weights


def test_frozen_weights_have_no_gradients_and_four_bits_take_a_quarter() -> None:
    where = workload(trainer="megatron")
    lora, qlora = (
        parts(replace(where, peft=Peft(method=method, rank=8)), ParallelConfig())
        for method in ("lora", "qlora")
    )
    whole = parts(where, ParallelConfig())
    assert lora.gradients == qlora.gradients == lora.optimizer == 0
    assert whole.weights < lora.weights < 1.1 * whole.weights
    assert qlora.weights < 0.4 * lora.weights


@pytest.mark.parametrize("trainer", ["command", "hf_trainer", "deepspeed"])
def test_frozen_layers_are_gathered_as_they_are_kept_and_no_gradient_of_theirs_is_reduced(
    trainer: str,
) -> None:
    """Two layers at a time under FSDP, at 2 or 0.52 bytes a weight, and the whole embedding and
    output projection, which no adapter trains."""
    where, config = workload(trainer=trainer), ParallelConfig(dp=4, zero_stage=3)
    edge = (1 if MODEL.tied_embeddings else 2) * MODEL.vocab_size * MODEL.hidden_size
    layer = (MODEL.num_parameters - edge) / MODEL.num_layers
    constants = calibration_for(where)

    def gathered(peft: Peft | None) -> float:
        found = parts(replace(where, peft=peft), config)
        inside = found.total / (1.0 + constants.fragmentation) - (found.total - found.framework)
        return inside - constants.framework_bytes

    assert gathered(Peft(method="lora", rank=1)) == pytest.approx(
        2.0 * (edge + 2.0 * layer), rel=0.01
    )
    assert gathered(Peft(method="qlora", rank=1)) == pytest.approx(
        2.0 * edge + 0.516 * 2.0 * layer, rel=0.01
    )
    assert gathered(None) > gathered(Peft(method="lora", rank=1))


@pytest.mark.parametrize(
    ("upcast", "trainer", "stage", "pair"),
    [
        (None, "hf_trainer", 0, 4.0 + 4.0 + 2.0),
        (True, "hf_trainer", 3, 4.0 + 4.0 + 2.0),
        (None, "hf_trainer", 3, 2.0 + 2.0),
        (False, "hf_trainer", 0, 2.0 + 2.0),
        (None, "lightning", 0, 2.0 + 2.0),
    ],
)
def test_embedding_and_output_projection_beside_four_bits_are_in_fp32_if_peft_casts_them(
    upcast: bool | None, trainer: str, stage: int, pair: float
) -> None:
    """`prepare_model_for_kbit_training` casts both, and autocast copies the projection in 16 bits;
    no library casts what ZeRO-3 shards."""
    where = replace(
        workload(trainer=trainer, model=replace(MODEL, tied_embeddings=False)),
        peft=Peft(method="qlora", rank=8, upcast=upcast),
    )
    wider = replace(where, model=replace(where.model, vocab_size=2 * MODEL.vocab_size))
    config = ParallelConfig(dp=2, zero_stage=stage)
    more = parts(wider, config).weights - parts(where, config).weights
    ranks = 2 if stage == 3 else 1
    assert more * ranks == pytest.approx(pair * MODEL.vocab_size * MODEL.hidden_size)


@pytest.mark.parametrize(
    ("precision", "recompute", "stage", "held"),
    [
        ("bf16", "full", 0, 4.0),
        ("bf16", "none", 0, 4.0 + 2.0),
        ("fp32", "none", 0, 4.0),
        ("bf16", "none", 3, 4.0),
    ],
)
def test_frozen_weights_in_fp32_are_cast_by_each_product(
    precision: str, recompute: str, stage: int, held: float
) -> None:
    """Without recomputation the casts in 16 bits of all layers wait for the backward pass."""
    where = workload(trainer="hf_trainer", model=replace(MODEL, tied_embeddings=True))
    deeper = replace(where.model, num_layers=MODEL.num_layers + 1)
    config = ParallelConfig(dp=2, precision=precision, recompute=recompute, zero_stage=stage)

    def weights(model: ModelSpec, **peft: bool) -> float:
        adapted = replace(where, model=model, peft=Peft(rank=1, library="peft", **peft))
        return float(parts(adapted, config).weights)

    in_fp32 = weights(deeper, frozen_fp32=True) - weights(where.model, frozen_fp32=True)
    layer = deeper.num_parameters - where.model.num_parameters
    more = in_fp32 - (weights(deeper) - weights(where.model))
    assert more * (2 if stage == 3 else 1) == pytest.approx((held - 2.0) * layer, rel=0.01)
    assert weights(where.model, frozen_fp32=True) > weights(where.model)


@pytest.mark.parametrize("trainer", ["command", "megatron"])
@pytest.mark.parametrize("stage", [0, 1, 2, 3])
def test_a_program_that_keeps_all_in_bf16_needs_eight_bytes_per_weight(
    trainer: str, stage: int
) -> None:
    """Weights, gradients and two moments of 2 bytes each; FSDP that keeps weights gathered (ZeRO 2
    without master weights) has them twice."""
    pure = replace(workload(trainer=trainer, seq_len=128), pure_bf16=True)
    config = ParallelConfig(dp=4, zero_stage=stage) if stage else ParallelConfig()
    found, weights = parts(pure, config), MODEL.num_parameters
    shards = 4 if stage else 1
    assert found.optimizer == pytest.approx(4 * weights / shards, rel=0.01)
    # where gradients take their place
    going = found.activations + found.logits if trainer == "command" else 0.0
    assert found.gradients + going == pytest.approx(
        2 * weights / (shards if stage >= 2 else 1), rel=0.01
    )
    gathered = 2 * weights if stage == 2 and trainer == "command" else 0
    whole = stage < 2 or (stage == 2 and trainer == "megatron")
    assert found.weights == pytest.approx(
        2 * weights / (1 if whole else shards) + gathered, rel=0.01
    )
    offloaded = parts(pure, replace(config, offload="optimizer"))
    assert offloaded.optimizer == 0


@pytest.mark.parametrize(("casts", "sharded"), [(True, 4), (False, 2)])
def test_weights_in_bf16_are_kept_in_fp32_where_accelerate_shards_them(
    casts: bool, sharded: int
) -> None:
    """Under DDP they take 2 bytes each; accelerate's FSDP shards 4 and torch's own what it is
    given."""
    where = replace(workload(trainer="command"), pure_bf16=True, shards_in_fp32=casts)
    ddp, fsdp = (parts(where, ParallelConfig(dp=4, zero_stage=stage)).weights for stage in (0, 3))
    assert ddp == pytest.approx(2 * MODEL.num_parameters, rel=0.01)
    assert fsdp == pytest.approx(sharded * MODEL.num_parameters / 4, rel=0.01)


def test_adapters_and_eight_bit_moments_of_a_program_in_bf16() -> None:
    pure = replace(workload(trainer="command"), pure_bf16=True)
    assert parts(
        replace(pure, optimizer="adamw_8bit"), ParallelConfig()
    ).optimizer == pytest.approx(2.03 * MODEL.num_parameters, rel=0.01)
    mixed, half = (
        parts(
            replace(workload(trainer="command"), peft=Peft(rank=64), pure_bf16=p), ParallelConfig()
        ).weights
        for p in (False, True)
    )
    frozen = 2.0 * MODEL.num_parameters
    assert half - frozen == pytest.approx((mixed - frozen) / 2, rel=0.01)


def test_steps_of_a_program_in_bf16_reduce_and_update_half_as_many_bytes() -> None:
    where = workload(trainer="command")
    config = ParallelConfig(dp=8, micro_batch_size=1, accumulation_steps=1)
    mixed, pure = (
        estimate(replace(where, pure_bf16=p), config).time_parts_s for p in (False, True)
    )
    assert pure.optimizer == pytest.approx(mixed.optimizer / 2)
    assert pure.compute == mixed.compute
    host = replace(config, zero_stage=1, offload="optimizer")
    mixed, pure = (estimate(replace(where, pure_bf16=p), host).time_parts_s for p in (False, True))
    assert mixed.optimizer / 2 < pure.optimizer < 2 / 3 * mixed.optimizer, (
        "6 bytes over the link become 4, updates half"
    )


def test_megatron_keeps_gradients_of_fp16_in_fp16() -> None:
    """`--accumulate-allreduce-grads-in-fp32` is implied by bf16 alone."""
    where = workload(trainer="megatron")
    half, brain = (parts(where, ParallelConfig(precision=p)).gradients for p in ("fp16", "bf16"))
    assert brain == 2 * half


def test_deepspeed_steps_over_a_group_of_weights_at_a_time_under_zero_3_alone() -> None:
    big = replace(workload(trainer="deepspeed"), model=catalog.model("llama-8b"))
    lean = ParallelConfig(dp=2, recompute="full", loss="fused")
    third, first = (parts(big, replace(lean, zero_stage=stage)).optimizer for stage in (3, 1))
    states = 12.0 * catalog.model("llama-8b").num_parameters / 2
    assert 0.999 * states < third < states + 4e9 < first


def test_more_visits_and_experts_need_more_memory_and_expert_parallelism_less() -> None:
    where = workload(EXPERTS, trainer="megatron")
    one, two = (estimate(where, ParallelConfig(dp=8, ep=ep)) for ep in (1, 4))
    assert two.peak_memory_bytes < one.peak_memory_bytes
    more = replace(where, model=replace(EXPERTS, experts_per_token=4))
    assert (
        parts(more, ParallelConfig(dp=8)).activations
        > parts(where, ParallelConfig(dp=8)).activations
    )


def test_every_pair_says_which_memory_constants_are_fitted_and_assumed_ones_have_the_wider_error_bar() -> (
    None
):
    known, other = memory_source("h100-sxm", "nanotron"), memory_source("h100-sxm", "torchtitan")
    assert "activation_factor" in known.fitted
    assert not other.fitted
    assert set(other.assumed) == set(MEMORY_CONSTANTS)
    assert not memory_source("b200-sxm", "nanotron").fitted

    def width(gpu: str, trainer: str) -> float:
        where = Workload(
            model=MODEL, cluster=ClusterSpec.of(gpu, num_nodes=1, gpus_per_node=8), seq_len=2048, global_batch_size=8, trainer=trainer
        )  # fmt: skip
        return calibration_for(where).memory_sigma

    assert (
        width("h100-sxm", "nanotron")
        < width("b200-sxm", "nanotron")
        <= width("h100-sxm", "torchtitan")
    )


@pytest.mark.parametrize(
    ("trainer", "kept_whole"),
    [
        ("native", {"alone", "pipeline"}),  # accumulates without reducing
        ("hf_trainer", {"alone", "pipeline"}),
        ("torchtitan", {"pipeline"}),  # torch's schedules reduce once in a step
        ("deepspeed", set()),
    ],
)
def test_gradients_are_whole_under_fsdp_while_a_trainer_puts_their_reduction_off(
    trainer: str, kept_whole: set[str]
) -> None:
    where = workload(trainer=trainer)

    def gradients(zero_stage: int, pp: int) -> float:
        return float(
            parts(
                where, ParallelConfig(dp=8, pp=pp, zero_stage=zero_stage, accumulation_steps=4)
            ).gradients
        )

    for name, pp in (("alone", 1), ("pipeline", 2)):
        whole, many = gradients(1, pp), gradients(3, pp)
        assert whole / many == pytest.approx(1.0 if name in kept_whole else 8.0)


def test_zero_2_reduces_the_gradients_of_each_micro_batch_where_it_keeps_them_cut() -> None:
    def traffic(trainer: str, accumulation_steps: int) -> float:
        config = ParallelConfig(dp=16, zero_stage=2, accumulation_steps=accumulation_steps)
        return float(estimate(workload(trainer=trainer), config).time_parts_s.dp_comm)

    assert traffic("deepspeed", 4) > 2.0 * traffic("deepspeed", 1) > 0
    assert traffic("native", 4) < 1.2 * traffic("native", 1)


def test_gradients_that_a_program_of_ones_own_may_have_sharded_fill_its_gpu_at_most_and_put_it_at_the_limit() -> (
    None
):
    gpu_bytes = catalog.cluster("h100-sxm-4x8").gpu.memory_bytes
    model = catalog.model("llama-70b")
    config = ParallelConfig(dp=32, zero_stage=3, accumulation_steps=4, recompute="full")

    def found(trainer: str) -> tuple[float, float]:
        asked = Workload(
            model=model,
            cluster=catalog.cluster("h100-sxm-4x8"),
            trainer=trainer,
            seq_len=4096,
            global_batch_size=128,
        )
        estimated = estimate(asked, config)
        return float(estimated.memory_parts_bytes.total), float(estimated.oom_probability)

    native, command = found("native"), found("command")
    assert native[0] > 2 * gpu_bytes
    assert native[1] > 0.99
    assert 0.9 * gpu_bytes < command[0] <= gpu_bytes
    assert command[1] == pytest.approx(HOLDS, abs=0.05), (
        "at the limit: nothing says whether the program holds them"
    )


def test_only_what_comes_and_goes_loses_the_rest_of_its_blocks() -> None:
    """fms-hf-tuning with Liger on one A100: an 8B in bf16 allocates 80.3 of 85 GB, nearly all of
    them states, and runs with 4 and 8 sequences of 4,096 tokens. With 32 it fails."""
    asked = Workload(
        model=catalog.model("llama-8b"), cluster=ClusterSpec.of("a100-80gb", num_nodes=1, gpus_per_node=1), trainer="hf_trainer",
        seq_len=4096, global_batch_size=(4, 8, 32), pure_bf16=True,
    )  # fmt: skip
    table = [ParallelConfig(micro_batch_size=n, recompute="full", loss="fused") for n in (4, 8, 32)]
    found, fragmentation = estimate(asked, table), calibration_for(asked).fragmentation
    assert found.peak_memory_bytes[:2] / (1.0 + fragmentation) == pytest.approx(80.3e9, rel=0.02)
    assert (found.oom_probability[:2] < 0.5).all()
    assert found.oom_probability[2] > 0.5


def test_a_program_whose_loop_is_known_has_the_memory_of_that_loop() -> None:
    """Llama 8B on eight H100: transformers' Trainer keeps whole gradients until the last
    micro-batch, so that nothing but full recomputation fits."""
    asked = Workload(
        model=catalog.model("llama-8b"), cluster=catalog.cluster("h100-sxm-1x8"), trainer="command",
        seq_len=5120, global_batch_size=128,
    )  # fmt: skip
    config = ParallelConfig(dp=8, zero_stage=3, accumulation_steps=16)
    own, known, trainer = (
        estimate(where, config)
        for where in (
            asked,
            replace(asked, loop="hf_trainer"),
            replace(asked, trainer="hf_trainer"),
        )
    )
    assert known.memory_parts_bytes == trainer.memory_parts_bytes
    assert known.step_time_s == trainer.step_time_s
    assert float(known.oom_probability) > 0.5 > float(own.oom_probability) > 0.1
    with pytest.raises(SpecError, match="loop"):
        replace(asked, loop="composer")


@pytest.mark.parametrize("loop", LOOPS)
def test_each_loop_is_known_and_is_only_of_a_program_of_ones_own(loop: str) -> None:
    assert loop in TRAITS
    spec = {
        "model": "llama-1b", "cluster": "h100-sxm-1x8", "workload": {"seq_len": 2048, "global_batch_size": 64, "loop": loop},
        "trainer": {"kind": "command", "argv": ["train"]}, "runner": "simulated", "space": {"micro_batch_size": [1]},
    }  # fmt: skip
    assert load_study(spec).workload.loop == loop
    with pytest.raises(
        InfeasibleError,
        match=rf"workload\.loop={loop}: the native trainer has its own training loop",
    ) as refused:
        plan_of(load_study({**spec, "trainer": "native"}), top=1)
    assert "use command with your own program" in f"{refused.value}{refused.value.remedy}"


def test_the_peak_is_of_the_rank_that_holds_most_and_the_risk_of_the_one_that_needs_most() -> None:
    """Of this pipeline the first rank has the most in reserve, and from five sequences on the last
    one needs more at once."""
    where = Workload(
        model=catalog.model("gemma-3-12b"), cluster=catalog.cluster("mi325x-2x8"), seq_len=2048, global_batch_size=64,
        trainer="nanotron",
    )  # fmt: skip
    config = ParallelConfig(
        tp=4,
        pp=4,
        dp=8,
        accumulation_steps=64,
        precision="fp32",
        recompute="full",
        sequence_parallel=True,
    )
    table = ConfigTable.of([replace(config, micro_batch_size=size) for size in range(2, 9)])
    constants, traits = calibration_for(where), traits_of("nanotron")
    stages = stages_of(where.model, table, traits.split)
    ranks = rank_memories(where, table, layout_of(where, table), stages, constants, traits)
    peak, needed = np.array([r.parts.total for r in ranks]), np.array([r.needed for r in ranks])
    assert (peak.argmax(axis=0) != needed.argmax(axis=0)).any()
    found = fullest(ranks)
    assert found.parts.total == pytest.approx(peak.max(axis=0))
    assert found.needed == pytest.approx(needed.max(axis=0))
    assert (np.diff(np.asarray(estimate(where, table).peak_memory_bytes)) > 0).all()


@pytest.mark.parametrize("trainer", ["command", "hf_trainer", "native"])
@pytest.mark.parametrize("name", ["gemma-2-9b", "llama-8b"])
def test_what_is_expected_to_run_shows_no_more_memory_than_its_gpu_has(
    trainer: str, name: str
) -> None:
    asked = Workload(
        model=catalog.model(name),
        cluster=catalog.cluster("h100-sxm-1x8"),
        trainer=trainer,
        seq_len=4096,
        global_batch_size=64,
    )
    table = ConfigTable.of(
        ParallelConfig(
            dp=8,
            micro_batch_size=micro,
            accumulation_steps=8 // micro,
            recompute=recompute,
            zero_stage=stage,
        )
        for micro in (1, 2, 4, 8)
        for recompute in ("none", "full")
        for stage in (0, 1, 2, 3)
    )
    found = estimate(asked, table)
    runs = np.asarray(found.oom_probability) <= 0.5
    assert runs.any()
    assert not runs.all()
    assert (np.asarray(found.peak_memory_bytes)[runs] <= asked.cluster.gpu.memory_bytes).all()
    assert np.asarray(found.memory_parts_bytes.total) == pytest.approx(
        np.asarray(found.peak_memory_bytes)
    )
