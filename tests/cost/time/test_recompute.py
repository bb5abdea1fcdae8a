"""What recomputation costs and saves, by trainer, against the published formulas."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from autotune.cost import Calibration, estimate
from autotune.cost.layout import layout_of
from autotune.cost.memory.activations import LayerActivations, kept_bytes, layer_activations
from autotune.cost.time.recompute import repeated
from autotune.cost.traits import TRAITS, traits_of
from autotune.spec import ConfigTable, ModelSpec, ParallelConfig, Workload, catalog
from tests.cost.examples import EXPERTS, MODEL, workload

GPT = ModelSpec(
    name="gpt", num_layers=16, hidden_size=2048, num_attention_heads=16, vocab_size=51200
)
NO_HOST = Calibration(layer_host_s=0.0, micro_batch_host_s=0.0, step_host_s=0.0, straggler=0.0)
"""a host that never holds a device up"""


def activations(model: ModelSpec, table: ConfigTable) -> LayerActivations:
    """Those of a layer under Megatron-LM."""
    where = workload(model, trainer="megatron")
    experts = model.num_experts > 0
    return layer_activations(
        where, table, layout_of(where, table), Calibration(), traits_of("megatron"), experts=experts
    )


@pytest.mark.parametrize("tp", [1, 2, 8])
def test_activations_are_those_of_the_paper(tp: int) -> None:
    """arXiv 2205.05198, equations 2 and 4, less 2*s*b*h of dropout masks (and 1 of them within
    attention) that today's models lack."""
    for sequence_parallel, whole in ((False, 8.0), (True, 8.0 / tp)):
        table = ConfigTable.of([ParallelConfig(tp=tp, sequence_parallel=sequence_parallel)])
        layer = activations(GPT, table)
        assert layer.everything[0] / GPT.hidden_size == pytest.approx(whole + 24.0 / tp)
        assert layer.boundary[0] / GPT.hidden_size == pytest.approx(
            2.0 / (tp if sequence_parallel else 1)
        )


@pytest.mark.parametrize("trainer", sorted(TRAITS))
@pytest.mark.parametrize("model", [GPT, MODEL, EXPERTS], ids=lambda m: m.name)
def test_full_repeats_more_and_keeps_less_than_selective(trainer: str, model: ModelSpec) -> None:
    none, some, full = (
        estimate(workload(model, trainer=trainer), ParallelConfig(micro_batch_size=4, accumulation_steps=4, recompute=r), calibration=NO_HOST)
        for r in ("none", "selective", "full")
    )  # fmt: skip
    assert none.time_parts_s.compute < some.time_parts_s.compute < full.time_parts_s.compute
    assert full.memory_parts_bytes.activations < some.memory_parts_bytes.activations * 1.01
    assert some.memory_parts_bytes.activations <= none.memory_parts_bytes.activations * 1.01
    assert 1.15 < full.time_parts_s.compute / none.time_parts_s.compute < 1.35


def test_an_early_stop_does_not_repeat_the_down_projection() -> None:
    table = ConfigTable.of([ParallelConfig(recompute=r) for r in ("none", "full")])
    shares = {}
    for trainer in ("megatron", "torchtitan"):
        again = repeated(GPT, table, layout_of(workload(GPT), table), traits_of(trainer), 2048.0)
        assert again.matmuls[0] == again.moved[0] == again.collectives[0] == 0
        shares[trainer] = again.matmuls[1]
    assert shares["megatron"] == 1.0
    assert shares["torchtitan"] == pytest.approx(8 / 12)  # 4 h*h of a layer's 12
    weighed = repeated(
        EXPERTS, table, layout_of(workload(EXPERTS), table), traits_of("torchtitan"), 2048.0
    )
    assert weighed.matmuls[1] == 1.0


def test_torchtitan_computes_grouped_products_of_experts_again_and_keeps_what_all_to_alls_bring() -> (
    None
):
    """Its list of operators whose outputs are kept has `aten.mm` and `all_to_all_single`, but no
    grouped product."""
    table = ConfigTable.of(
        [ParallelConfig(recompute="selective"), ParallelConfig(recompute="selective", dp=4, ep=4)]
    )
    where, traits = workload(EXPERTS, trainer="torchtitan"), traits_of("torchtitan")
    layout = layout_of(where, table)
    again = repeated(EXPERTS, table, layout, traits, 2048.0)
    h, q, kv = (
        EXPERTS.hidden_size,
        EXPERTS.num_attention_heads * EXPERTS.head_dim,
        EXPERTS.num_kv_heads * EXPERTS.head_dim,
    )
    of_experts = EXPERTS.experts_per_token * 3 * h * EXPERTS.ffn_hidden_size
    repeated_products = h * kv + q * h + of_experts
    assert again.matmuls == pytest.approx(
        repeated_products / (h * (q + 2 * kv) + q * h + of_experts)
    )
    assert not again.dispatches.any()
    layer = layer_activations(where, table, layout, Calibration(), traits, experts=True)
    kept, _ = kept_bytes(where, table, layout, traits, layer, experts=True)
    alone = 2 * (2 * h + 2 * q + kv)
    assert list(kept) == pytest.approx([alone, alone + 2 * 2 * EXPERTS.experts_per_token * h])


@pytest.mark.parametrize(
    ("model", "gpus", "seq_len", "reserved"),
    [("qwen3-30b-a3b", 8, 8192, 152.2), ("qwen3-8b", 4, 2048, 121.2)],
)
def test_peaks_of_torchtitan_on_blackwell_are_those_that_it_prints(
    model: str, gpus: int, seq_len: int, reserved: float
) -> None:
    """GB reserved, by torchtitan's own benchmarks of July 2026 (published_unseen_2.csv and
    _3.csv)."""
    gpu = {8: "b200-sxm", 4: "gb200-nvl72"}[gpus]
    cluster = replace(catalog.cluster("h100-sxm-1x8"), gpu=catalog.gpu(gpu), gpus_per_node=gpus)
    asked = Workload(
        model=catalog.model(model),
        cluster=cluster,
        seq_len=seq_len,
        global_batch_size=64,
        trainer="torchtitan",
    )
    micro_batch = 64 // gpus
    found = estimate(
        asked,
        ParallelConfig(
            dp=gpus,
            micro_batch_size=micro_batch,
            zero_stage=3,
            recompute="selective",
            compile=True,
            loss="chunked",
        ),
    )
    assert found.peak_memory_bytes / 1e9 == pytest.approx(reserved, rel=0.1)


def test_experts_keep_their_inputs() -> None:
    table = ConfigTable.of([ParallelConfig()])
    one, many = (
        activations(replace(EXPERTS, experts_per_token=n), table).everything for n in (2, 4)
    )
    mlp = 3.0 * EXPERTS.ffn_hidden_size
    np.testing.assert_allclose(many - one, 2 * 2 * (mlp + EXPERTS.hidden_size))


def test_the_ring_overlaps_with_the_attention_of_long_sequences() -> None:
    shares = []
    for seq_len in (4096, 131072):
        e = estimate(workload(seq_len=seq_len), ParallelConfig(cp=8), calibration=NO_HOST)
        shares.append(e.time_parts_s.cp_comm / e.step_time_s)
    assert shares[1] < shares[0]
