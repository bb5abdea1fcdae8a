"""Each law holds where it should, reads only the knobs that it names, and says why it is broken."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from autotune.space import LAWS, Law, legal, reasons, why_not
from autotune.spec import (
    FIELDS,
    KNOBS,
    PRECISIONS,
    ConfigTable,
    ModelSpec,
    ParallelConfig,
    Workload,
    catalog,
)
from autotune.trainers import trainer

DENSE = ModelSpec(
    name="dense",
    num_layers=8,
    hidden_size=96,
    num_attention_heads=12,
    num_kv_heads=6,
    vocab_size=50257,
)
EXPERTS = ModelSpec(
    name="experts",
    num_layers=8,
    hidden_size=96,
    num_attention_heads=12,
    vocab_size=50257,
    num_experts=4,
    experts_per_token=2,
)


def workload(
    model: ModelSpec = DENSE, cluster: str = "h100-sxm-4x6", seq_len: int = 60
) -> Workload:
    return Workload(
        model=model, cluster=catalog.cluster(cluster), seq_len=seq_len, global_batch_size=24
    )


BROKEN: list[tuple[str, dict[str, Any], str]] = [
    (
        "world_size",
        {"dp": 24, "tp": 2},
        "at most the 24 GPUs of h100-sxm-4x6, but tp=2, pp=1, dp=24, cp=1",
    ),
    ("tp_heads", {"tp": 5}, "num_attention_heads=12; use 1, 2, 3, 4 or 6"),
    ("tp_kv_heads", {"tp": 4}, "num_kv_heads=6; use 1, 2, 3 or 6"),
    ("tp_ffn", {"tp": 5}, "ffn_hidden_size=384; use 1, 2, 3, 4 or 6"),
    ("tp_within_node", {"tp": 12}, "gpus_per_node=6; use 1, 2, 3 or 6"),
    ("tp_within_node", {"tp": 4, "dp": 2}, "gpus_per_node=6"),
    ("cp_sequence", {"cp": 4}, "seq_len=60 and cp=4"),
    ("cp_style", {"cp_style": "heads"}, "cp=1 and cp_style=heads; use cp_style=ring"),
    ("cp_heads", {"cp_style": "heads", "cp": 2, "tp": 2}, "tp=2, cp=2 and num_kv_heads=6"),
    (
        "replicas_divide",
        {"dp_replicas": 4, "dp": 6, "zero_stage": 1},
        "dp=6 and dp_replicas=4; use 1, 2, 3 or 6",
    ),
    ("replicas_shards", {"dp_replicas": 2, "dp": 4}, "zero_stage=0, dp * cp = 4 and dp_replicas=2"),
    (
        "replicas_shards",
        {"dp_replicas": 4, "dp": 4, "zero_stage": 3},
        "fewer replicas than dp * cp",
    ),
    ("ep_dispatch", {"dispatcher": "flex"}, "ep=1 and dispatcher=flex"),
    ("ep_overlap", {"ep_overlap": True}, "ep=1 and accumulation_steps=1"),
    ("zero_ranks", {"zero_stage": 1}, "zero_stage=1 and dp * cp = 1"),
    (
        "zero_pipeline",
        {"zero_stage": 2, "pp": 2, "dp": 2},
        "zero_stage=2 and pp=2; use zero_stage=1",
    ),
    ("ep_experts", {"ep": 2, "dp": 2}, "num_experts=0; use 1 (dense is a dense model)"),
    ("ep_ranks", {"ep": 2}, "ep=2 and dp * cp = 1; use 1"),
    ("pp_layers", {"pp": 12}, "pp=12, virtual_stages=1 and num_layers=8"),
    ("pp_layers", {"pp": 3, "virtual_stages": 3}, "pp=3, virtual_stages=3"),
    ("pp_layers", {"pp": 11, "pp_split": "edges"}, "at most num_layers + 2, but pp=11"),
    ("pp_split", {"pp_split": "edges"}, "pp=1 and pp_split=edges"),
    ("pp_schedule", {"pp_schedule": "gpipe"}, "pp_schedule=gpipe and virtual_stages=1"),
    ("pp_schedule", {"virtual_stages": 2}, "virtual_stages=2"),
    ("pp_virtual_stages", {"pp": 2, "virtual_stages": 2}, "or an interleaved schedule"),
    ("pp_virtual_stages", {"pp": 2, "pp_schedule": "interleaved_1f1b"}, "use virtual_stages >= 2"),
    ("sp_tensor_parallel", {"sequence_parallel": True}, "tp=1"),
    ("sp_sequence", {"sequence_parallel": True, "tp": 8}, "seq_len=60, tp=8"),
    ("sp_async_tp", {"async_tp": True, "tp": 2}, "tp=2 and sequence_parallel=false"),
    ("budget", {"activation_budget": 40}, "compile=false, recompute=none and activation_budget=40"),
    ("batch", {"micro_batch_size": 5}, "must be the global batch size 24, but micro_batch_size=5"),
    ("pp_fill", {"pp": 2, "accumulation_steps": 1}, "accumulation_steps=1 and pp=2"),
    (
        "pp_interleave",
        {"pp": 2, "pp_schedule": "interleaved_1f1b", "virtual_stages": 2, "accumulation_steps": 3},
        "accumulation_steps=3 and pp=2",
    ),
    ("precision", {"precision": "tf32"}, "use fp32 or fp16"),
    ("pure_bf16", {"precision": "fp16"}, "precision=fp16; use bf16 or fp8"),
]


@pytest.mark.parametrize(("law", "values", "words"), BROKEN)
def test_a_broken_law_says_law_values_and_remedy(
    law: str, values: dict[str, Any], words: str
) -> None:
    work = (
        workload(cluster="v100-32gb-1x1")
        if law == "precision"
        else replace(workload(), pure_bf16=law == "pure_bf16")
    )
    found = next(one for one in LAWS if one.name == law)
    config = ParallelConfig(**values)
    assert not found.check(work, ConfigTable.of([config]))[0]
    reason = found.reason(work, config)
    assert words in reason
    assert reason in reasons(work, config)
    assert ";" in reason


def test_every_law_is_broken_above() -> None:
    assert {law for law, _, _ in BROKEN} == {law.name for law in LAWS}
    assert len({law.name for law in LAWS}) == len(LAWS)


def test_torchtitan_shards_gradients_and_optimizer_beside_pipeline_stages() -> None:
    """Its published runs of Llama 3.1 405B on 512 H100 have FSDP 8, TP 8 and PP 8."""
    published = ParallelConfig(
        tp=8,
        pp=8,
        dp=8,
        micro_batch_size=4,
        accumulation_steps=8,
        zero_stage=2,
        sequence_parallel=True,
        pp_split="edges",
    )
    where = Workload(
        model=catalog.model("llama-405b"),
        cluster=catalog.cluster("h100-sxm-96gb-64x8"),
        seq_len=8192,
        global_batch_size=256,
        trainer="torchtitan",
    )
    assert why_not(where, published) is None
    assert not trainer("torchtitan").limits(where, published, {"hf_assets_path": "/assets"})
    assert "use zero_stage=2" in str(why_not(where, replace(published, zero_stage=3)))
    assert "use zero_stage=1" in str(why_not(replace(where, trainer="megatron"), published))


def test_experts_that_stay_whole_may_lie_on_the_ranks_of_tensor_parallelism_too() -> None:
    """Megatron-Core takes ep from tp * cp * dp under --expert-tensor-parallel-size 1; elsewhere
    tensor parallelism cuts the experts."""
    config = ParallelConfig(tp=2, dp=12, ep=4, accumulation_steps=2)
    whole = replace(workload(EXPERTS), trainer="megatron")
    assert why_not(whole, config) is None
    assert why_not(workload(EXPERTS), config) is None, "4 divides 12"
    wide = replace(config, dp=6, ep=4, accumulation_steps=4)
    assert why_not(whole, wide) is None
    assert (
        "taken from the dp * cp ranks, so ep must divide the number of these ranks, but ep=4 and dp * cp = 6"
        in str(why_not(workload(EXPERTS), wide))
    )
    assert "but ep=4 and tp * dp * cp = 6" in str(why_not(whole, replace(wide, tp=1)))


@pytest.mark.parametrize(
    "values",
    [
        {"dp": 24},
        {"tp": 6, "dp": 4, "accumulation_steps": 6},
        {"tp": 2, "sequence_parallel": True, "dp": 12, "accumulation_steps": 2},
        {"pp": 3, "dp": 8, "accumulation_steps": 3},
        {"pp": 2, "dp": 12, "zero_stage": 1, "accumulation_steps": 2, "pp_schedule": "gpipe"},
        {
            "pp": 2,
            "virtual_stages": 3,
            "pp_schedule": "interleaved_zero_bubble",
            "dp": 2,
            "accumulation_steps": 12,
        },
        {"cp": 2, "dp": 12, "accumulation_steps": 2, "zero_stage": 3},
        {"cp": 2, "zero_stage": 1, "accumulation_steps": 24},
        {"cp": 3, "cp_style": "heads", "dp": 8, "accumulation_steps": 3, "zero_stage": 1},
        {"dp": 12, "dp_replicas": 3, "accumulation_steps": 2, "zero_stage": 3},
        {
            "pp": 2,
            "virtual_stages": 5,
            "pp_schedule": "interleaved_1f1b",
            "pp_split": "edges",
            "accumulation_steps": 24,
            "dp": 1,
        },
        {"tp": 2, "sequence_parallel": True, "async_tp": True, "dp": 12, "accumulation_steps": 2},
        {
            "dp": 24,
            "compile": True,
            "activation_budget": 40,
            "offload": "all",
            "cuda_graph": "step",
            "loss": "fused",
        },
        {
            "dp": 8,
            "precision": "fp8",
            "accumulation_steps": 3,
            "recompute": "full",
            "compile": True,
        },
    ],
)
def test_what_trains_is_legal(values: dict[str, Any]) -> None:
    assert why_not(workload(), ParallelConfig(**values)) is None


def test_experts_are_dealt_to_data_parallel_ranks() -> None:
    work = workload(EXPERTS)
    assert why_not(work, ParallelConfig(dp=12, ep=4, accumulation_steps=2)) is None
    assert "num_experts=4; use 1, 2 or 4" in str(
        why_not(work, ParallelConfig(dp=12, ep=3, accumulation_steps=2))
    )
    assert "ep must divide the number of these ranks" in str(
        why_not(work, ParallelConfig(dp=6, ep=4, accumulation_steps=4))
    )


def test_on_the_cpu_fp16_trains_and_fp8_does_not() -> None:
    work = workload(cluster="cpu-1x4")
    fits = {
        precision: why_not(work, ParallelConfig(dp=4, accumulation_steps=6, precision=precision))
        is None
        for precision in PRECISIONS
    }
    assert fits == {
        "fp32": True,
        "tf32": False,
        "bf16": True,
        "fp16": True,
        "fp8": False,
        "mxfp8": False,
        "nvfp4": False,
    }


VALUES: dict[str, st.SearchStrategy[Any]] = {
    **dict.fromkeys(("tp", "pp", "dp", "cp", "ep"), st.sampled_from([1, 2, 3, 4, 6, 8])),
    **dict.fromkeys(
        ("micro_batch_size", "accumulation_steps"), st.sampled_from([1, 2, 3, 4, 6, 12, 24])
    ),
    "virtual_stages": st.integers(1, 4),
    "dp_replicas": st.integers(1, 4),
    **{name: st.sampled_from(knob.values) for name, knob in KNOBS.items() if knob.values},
}
configs = st.fixed_dictionaries(VALUES)
works = st.sampled_from(
    [workload(), workload(EXPERTS), workload(seq_len=64), workload(cluster="cpu-1x4")]
)


@settings(deadline=None, derandomize=True)
@given(st.sampled_from(LAWS), works, configs, configs)
def test_a_law_reads_only_the_knobs_that_it_names(
    law: Law, work: Workload, one: dict[str, Any], other: dict[str, Any]
) -> None:
    mixed = {name: (one if name in law.fields else other)[name] for name in FIELDS}
    table = ConfigTable.of([ParallelConfig(**one), ParallelConfig(**mixed)])
    first, second = law.check(work, table)
    assert first == second


@settings(deadline=None, derandomize=True)
@given(works, st.lists(configs, min_size=1, max_size=20))
def test_many_at_once_are_judged_as_each_alone(
    work: Workload, values: list[dict[str, Any]]
) -> None:
    rows = [ParallelConfig(**row) for row in values]
    assert legal(work, ConfigTable.of(rows)).tolist() == [
        why_not(work, row) is None for row in rows
    ]


@settings(deadline=None, derandomize=True)
@given(st.lists(st.integers(1, 1 << 30), min_size=9, max_size=9))
def test_absurd_sizes_break_laws_and_never_wrap_around(sizes: list[int]) -> None:
    names = (
        "tp",
        "pp",
        "dp",
        "cp",
        "ep",
        "micro_batch_size",
        "accumulation_steps",
        "virtual_stages",
    )
    config = ParallelConfig(**dict(zip(names, sizes, strict=False)))
    if config.world_size > 24:
        assert "at most the 24 GPUs" in str(why_not(workload(), config))
    # 2^64: 0 when it wraps
    huge = ParallelConfig(micro_batch_size=1 << 30, accumulation_steps=1 << 30, dp=16)
    assert any("global batch size" in reason for reason in reasons(workload(), huge))


def test_a_mask_has_one_entry_per_row() -> None:
    table = ConfigTable({"tp": np.array([1, 2, 3])})
    assert legal(workload(), table).shape == (3,)


def test_tensor_parallelism_may_span_the_nodes_of_one_nvlink_domain() -> None:
    nodes = workload(cluster="h100-sxm-16x4")
    racks = replace(nodes, cluster=replace(nodes.cluster, gpus_per_domain=24))
    law = next(law for law in LAWS if law.name == "tp_within_node")
    table = ConfigTable.of(
        [
            ParallelConfig(tp=tp, dp=dp)
            for tp, dp in [(4, 16), (6, 4), (12, 2), (8, 8), (16, 4), (24, 2)]
        ]
    )
    assert law.check(nodes, table).tolist() == [True, False, False, False, False, False]
    # a job of 64 takes 4 nodes of each of four domains, one of 48 takes 6 of each of two
    assert law.check(racks, table).tolist() == [True, True, True, True, True, True]
    assert not law.check(racks, ConfigTable.of([ParallelConfig(tp=32, dp=2)])).any()
    assert "a job of 64 GPUs has 16 in each domain of 24; use 1, 2, 4, 8 or 16" in law.reason(
        racks, ParallelConfig(tp=32, dp=2)
    )
