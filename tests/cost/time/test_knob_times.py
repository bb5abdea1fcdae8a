"""What the knobs of scale do to the time of a step, against first principles and published
gains."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from autotune.cost import Calibration, estimate
from autotune.cost.layout import attended_len, layout_of
from autotune.cost.time.compute import loss_moved_bytes
from autotune.cost.time.recompute import BUDGETS, repeated
from autotune.cost.time.stalls import HostLink, host_link
from autotune.cost.traits import traits_of
from autotune.spec import ConfigTable, ParallelConfig, Peft, Workload, catalog
from autotune.trainers.base.layer_split import cut_layers
from tests.cost.examples import MODEL, workload

NO_HOST = Calibration(
    layer_host_s=0.0, micro_batch_host_s=0.0, step_host_s=0.0, straggler=0.0, send_host_s=0.0
)
"""a host that never holds a device up"""


def gain(where: Workload, base: ParallelConfig, **changes: object) -> float:
    """Predicted speed with these knobs over that without, less 1."""
    before, after = (
        estimate(where, config, calibration=NO_HOST).step_time_s
        for config in (base, replace(base, **changes))
    )
    return float(before) / float(after) - 1.0


def test_copies_of_shards_keep_the_traffic_inside_a_node() -> None:
    where = workload(nodes=4, per_node=8)
    base = ParallelConfig(dp=32, accumulation_steps=8, zero_stage=3)
    one, copies = (
        estimate(where, replace(base, dp_replicas=n), calibration=NO_HOST).time_parts_s
        for n in (1, 4)
    )
    assert copies.dp_comm < 0.8 * one.dp_comm
    assert copies.compute == one.compute


def test_edges_count_as_one_layer_each() -> None:
    big = replace(MODEL, num_layers=126)
    assert cut_layers(big, 16, "edges") == [7.0, *[8.0] * 14, 7.0]
    assert sum(cut_layers(replace(MODEL, num_layers=61), 8, "edges")) == 61
    assert sum(cut_layers(MODEL, 3, "edges")) == MODEL.num_layers


def test_nanotron_hides_scatters_behind_weight_gradients_where_these_are_long() -> None:
    """Of eight rings of a layer two vanish behind long products; where nothing hides them, the two
    further gathers are in the open too."""

    def tensor_s(efficiency: float, **changes: object) -> float:
        constants = replace(NO_HOST, matmul_efficiency=efficiency)
        config = replace(ParallelConfig(tp=8, dp=4), **changes)
        return float(
            estimate(
                workload(trainer="nanotron"), config, calibration=constants
            ).time_parts_s.tp_comm
        )

    every_ring = tensor_s(0.5)
    assert tensor_s(0.5, sequence_parallel=True) < every_ring
    assert tensor_s(1e-4, sequence_parallel=True) == pytest.approx(0.75 * every_ring, rel=1e-3)
    in_the_open = tensor_s(1e4, sequence_parallel=True)
    assert in_the_open == pytest.approx(1.25 * every_ring, rel=1e-2)


def test_the_styles_of_context_parallelism_move_what_they_should() -> None:
    """With as many heads of keys as of queries the all-to-all moves less than the ring passes; with
    few, the ring hides behind attention."""
    few, many = (workload(replace(MODEL, num_kv_heads=kv), seq_len=8192) for kv in (8, 16))
    config = ParallelConfig(cp=8, dp=4, accumulation_steps=64, zero_stage=1)
    for where in (few, many):
        ring, heads, gather = (
            estimate(
                where, replace(config, cp_style=style), calibration=NO_HOST
            ).time_parts_s.cp_comm
            for style in ("ring", "heads", "gather")
        )
        assert ring < gather, "the same bytes, of which the ring hides a part"
        assert heads > 0
    assert heads < gather


def test_a_smaller_budget_of_activations_repeats_more_and_zero_repeats_all_but_the_last_matmul() -> (
    None
):
    table = ConfigTable.of([ParallelConfig(compile=True, activation_budget=b) for b in BUDGETS])
    again = repeated(MODEL, table, layout_of(workload(), table), traits_of("torchtitan"), 2048.0)
    for shares in (again.matmuls, again.scores, again.moved):
        assert (np.diff(shares) >= 0).all(), "budgets fall"
        assert shares[0] == 0.0
    assert again.moved[2] > 0.9, "what is cheap to compute is dropped first"
    assert again.matmuls[-1] < 1.0
    assert again.scores[-1] == pytest.approx(1.0)


def test_the_order_of_recomputation_is_the_order_of_its_cost() -> None:
    base = ParallelConfig(dp=8, micro_batch_size=4, accumulation_steps=8)
    losses = [-gain(workload(), base, recompute=word) for word in ("norm", "mlp", "full")]
    assert 0 < losses[0] < losses[1] < losses[2]


def test_an_offloaded_optimizer_costs_a_multiple_of_a_short_step_and_less_over_a_link_of_grace() -> (
    None
):
    assert (
        host_link(catalog.gpu("gb200-nvl72")).bytes_per_s
        > 3 * host_link(catalog.gpu("b200-sxm")).bytes_per_s
    )
    assert isinstance(host_link(catalog.gpu("h100-sxm")), HostLink)
    base = ParallelConfig(dp=8, zero_stage=1, accumulation_steps=4)
    assert gain(workload(), base, offload="optimizer") < -0.1
    assert gain(workload(), base, offload="all") < gain(workload(), base, offload="optimizer")


def test_graphs_save_the_time_of_a_host_that_holds_the_device_up() -> None:
    slow = replace(NO_HOST, layer_host_s=0.05)
    base = ParallelConfig(dp=8, accumulation_steps=32)
    plain, layers, step = (
        estimate(workload(), replace(base, cuda_graph=kind), calibration=slow).step_time_s
        for kind in ("none", "layers", "step")
    )
    assert step <= layers < 0.7 * plain


def test_a_fused_loss_is_faster_and_a_chunked_one_costs_next_to_nothing() -> None:
    base = ParallelConfig(dp=8, micro_batch_size=4, accumulation_steps=8)
    assert gain(workload(), base, loss="fused") > 0
    assert -0.05 < gain(workload(), base, loss="chunked") < 0


def test_the_loss_moves_what_its_kernels_read_and_write() -> None:
    table = ConfigTable.of(
        [ParallelConfig(), ParallelConfig(precision="fp32"), ParallelConfig(loss="fused")]
    )
    moved = {
        trainer: loss_moved_bytes(table, traits_of(trainer)).tolist()
        for trainer in ("nanotron", "native", "composer")
    }
    assert moved == {
        "nanotron": [52.0, 56.0, 8.0],
        "native": [36.0, 40.0, 8.0],
        "composer": [34.0, 44.0, 36.0],
    }


def test_packed_documents_attend_to_less() -> None:
    whole = workload(seq_len=8192)
    assert attended_len(whole) == 8192
    assert attended_len(replace(whole, document_len=8192)) < 8192
    packed = replace(whole, document_len=512)
    assert attended_len(packed) == pytest.approx(2 * 512 * (1 - 512 / 8192), rel=1e-3)
    config = ParallelConfig(dp=8, accumulation_steps=32)
    assert estimate(packed, config).step_time_s < estimate(whole, config).step_time_s


def test_adapters_save_the_gradients_of_frozen_weights_and_their_traffic() -> None:
    config = ParallelConfig(dp=32, accumulation_steps=8, zero_stage=3)
    full, lora, qlora = (
        estimate(replace(workload(), peft=peft), config, calibration=NO_HOST).time_parts_s
        for peft in (None, Peft(targets="attention"), Peft(method="qlora", targets="attention"))
    )
    assert 0.62 < lora.compute / full.compute < 0.95
    assert lora.compute < qlora.compute
    assert qlora.dp_comm < lora.dp_comm < full.dp_comm
    assert lora.optimizer < 0.1 * full.optimizer


def test_qlora_gathers_embeddings_in_16_bits() -> None:
    config = ParallelConfig(dp=32, accumulation_steps=8, zero_stage=3)
    exposed = replace(NO_HOST, data_overlap=0.0, inter_decay=0.0, straggler=0.0)

    def more(method: str, vocab_size: int) -> float:
        """Seconds of traffic that the wider embedding adds."""
        narrow, wide = (
            estimate(
                replace(workload(model=replace(MODEL, vocab_size=size)), peft=Peft(method=method)),
                config,
                calibration=exposed,
            ).time_parts_s.dp_comm
            for size in (MODEL.vocab_size, vocab_size)
        )
        return float(wide - narrow)

    assert more("qlora", 4 * MODEL.vocab_size) == pytest.approx(
        more("lora", 4 * MODEL.vocab_size), rel=1e-6
    )


def test_torchtitan_reduces_in_fp32_what_programs_with_everything_in_bf16_reduce_in_bf16() -> None:
    config = ParallelConfig(dp=32, accumulation_steps=8, zero_stage=2)
    exposed = replace(NO_HOST, data_overlap=0.0)
    mixed, pure = (
        [
            estimate(
                replace(workload(trainer=name), pure_bf16=everything), config, calibration=exposed
            ).time_parts_s
            for name in ("torchtitan", "lightning")
        ]
        for everything in (False, True)
    )
    assert pure[0].dp_comm == pytest.approx(mixed[0].dp_comm)
    assert pure[1].dp_comm < mixed[1].dp_comm


def test_muon_multiplies_matrices_and_eight_bits_move_less() -> None:
    config = ParallelConfig(dp=8, zero_stage=1, accumulation_steps=32)
    adamw, eight, muon = (
        estimate(replace(workload(), optimizer=name), config).time_parts_s.optimizer
        for name in ("adamw", "adamw_8bit", "muon")
    )
    assert eight < adamw < muon


@pytest.mark.parametrize(
    ("model", "nodes", "micro_batch", "recompute", "precision", "before", "after"),
    [
        # Tokens/s per H100 without and with async_tp at 8,192 tokens, tp=8, compiled, FSDP over the
        # rest (pytorch/torchtitan at 2887250, benchmarks/asyncTP_llama3_h100_2025-06_torchtitan.md)
        ("llama-70b", 32, 16, "full", "bf16", 597.3, 652.4),
        ("llama-70b", 32, 16, "full", "fp8", 809.8, 942.4),
        ("llama-8b", 8, 12, "selective", "bf16", 4378.0, 4809.4),
        ("llama-8b", 8, 12, "selective", "fp8", 5078.1, 5570.1),
        # and of December 2024 (at 31a17bf, benchmarks/llama3_h100_202412_torchtitan.md)
        ("llama-70b", 32, 16, "full", "fp8", 829.0, 876.0),
    ],
)
def test_async_tp_gains_what_torchtitan_measured(
    model: str,
    nodes: int,
    micro_batch: int,
    recompute: str,
    precision: str,
    before: float,
    after: float,
) -> None:
    where = Workload(
        model=catalog.model(model), cluster=catalog.cluster(f"h100-sxm-{nodes}x8"), seq_len=8192,
        global_batch_size=nodes * micro_batch, trainer="torchtitan",
    )  # fmt: skip
    base = ParallelConfig(
        tp=8,
        dp=nodes,
        micro_batch_size=micro_batch,
        zero_stage=3,
        sequence_parallel=True,
        recompute=recompute,
        precision=precision,
        compile=True,
    )
    plain, overlapped = (
        estimate(where, replace(base, async_tp=value)).step_time_s for value in (False, True)
    )
    assert float(plain) / float(overlapped) == pytest.approx(after / before, abs=0.07)
