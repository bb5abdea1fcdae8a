"""Experts: what they weigh, how tokens reach them, and what that takes."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from autotune.cost import Calibration, estimate
from autotune.cost.layout import layer_weights, layout_of, model_flops_per_token
from autotune.cost.time.experts import expert_layer_s, gradient_bytes, rows_per_expert
from autotune.cost.time.recompute import repeated
from autotune.cost.time.traffic import tensor_layer_s
from autotune.cost.traits import traits_of
from autotune.spec import ClusterSpec, ConfigTable, ModelSpec, ParallelConfig, Workload, catalog
from tests.cost.examples import EXPERTS, workload

DENSE = replace(EXPERTS, num_experts=0, experts_per_token=0)


def _table(**knobs: object) -> ConfigTable:
    return ConfigTable.of([ParallelConfig.from_dict(knobs)])


def _sent_s(work: Workload, **knobs: object) -> float:
    """Seconds of sending tokens to the experts and back in one forward pass, in bf16 with the
    default constants."""
    table = _table(**knobs)
    return _forward_s(work, table, Calibration())


def _forward_s(work: Workload, table: ConfigTable, constants: Calibration) -> float:
    """Half of forward and backward pass, which send the same."""
    both = expert_layer_s(
        work,
        table,
        layout_of(work, table),
        constants,
        traits_of(work.trainer),
        np.zeros(1),
        np.array([2.0]),
    )
    return float(both[0]) / 2


def _deepseek_layer(gpu: str, nodes: int, experts: int) -> Workload:
    """The published benchmark: 4,096 tokens of width 7,168 to 8 of 8 experts per rank."""
    model = replace(
        catalog.model("deepseek-v3"),
        num_experts=experts,
        num_dense_layers=0,
        dense_ffn_hidden_size=0,
    )
    cluster = ClusterSpec.of(gpu, num_nodes=nodes)
    return Workload(
        model=model,
        cluster=cluster,
        seq_len=4096,
        global_batch_size=experts // 8,
        trainer="megatron",
    )


def test_multi_token_prediction_adds_the_weights_and_the_work_of_one_layer_and_one_output_projection() -> (
    None
):
    plain = catalog.model("deepseek-v3")
    predicting = replace(plain, mtp_layers=1)
    assert plain.num_parameters == pytest.approx(671e9, rel=0.002)
    # its model card: 14B for the module, of which 1.85B are copies of the embedding and the output
    # projection
    assert predicting.num_parameters - plain.num_parameters == pytest.approx(
        14e9 - 1.85e9, rel=0.05
    )
    # NVIDIA prints both TFLOP/s and tokens/s of its recipes: 249.7 GFLOP per token without and
    # 260.3 with the module
    assert model_flops_per_token(plain, 4096) == pytest.approx(249.7e9, rel=0.03)
    assert model_flops_per_token(predicting, 4096) == pytest.approx(260.3e9, rel=0.03)


@pytest.mark.parametrize(
    ("name", "total", "active"),
    [
        ("qwen3-235b-a22b", 235.1e9, 22.2e9),
        ("qwen3-30b-a3b", 30.5e9, 3.35e9),
        ("mixtral-8x7b", 46.7e9, 12.9e9),
        ("mixtral-8x22b", 140.6e9, 39.1e9),
        ("gpt-oss-120b", 116.8e9, 5.7e9),
        ("gpt-oss-20b", 20.9e9, 4.2e9),
    ],
)
def test_models_with_experts_have_the_weights_that_their_makers_print(
    name: str, total: float, active: float
) -> None:
    model = catalog.model(name)
    assert model.num_parameters == pytest.approx(total, rel=0.005)
    # gpt-oss counts one of its two embeddings
    assert model.active_parameters == pytest.approx(active, rel=0.2)


def test_ranks_of_one_layer_hold_all_its_weights_whether_experts_are_cut_or_whole() -> None:
    table = _table(tp=2, dp=4, ep=4, sequence_parallel=True)
    for trainer, copies in (("native", 1.0), ("megatron", 2.0)):
        work = workload(EXPERTS, trainer=trainer)
        layout = layout_of(work, table)
        _, experts = layer_weights(EXPERTS, layout)
        whole = EXPERTS.num_experts * EXPERTS.mlp_parameters
        assert experts[0] * 8 == pytest.approx(whole * copies)  # eight ranks
        assert layout.expert_shard_group.size[0] == copies


def test_whole_experts_get_the_tokens_of_one_rank_and_cut_ones_those_of_its_tensor_parallel_group() -> (
    None
):
    table = _table(tp=2, dp=4, ep=4, sequence_parallel=True)
    rows = {
        t: float(rows_per_expert(EXPERTS, layout_of(workload(EXPERTS, trainer=t), table))[0])
        for t in ("native", "megatron")
    }
    assert rows["native"] == 2048 * 2 * 4 / 8
    assert rows["megatron"] == rows["native"] / 2


@pytest.mark.parametrize(("ranks", "published_gb_per_s"), [(8, 536.0), (8, 530.0)])
def test_sending_tokens_inside_a_node_takes_about_what_hybrid_ep_prints_for_b200(
    ranks: int, published_gb_per_s: float
) -> None:
    """docs/README_Hybrid-EP.md of deepseek-ai/DeepEP: bandwidth counts a token once per rank that
    it visits."""
    visited = ranks * (1 - (1 - 1 / ranks) ** 8)
    published_s = 4096 * 7168 * 2 * visited / (published_gb_per_s * 1e9)
    predicted_s = (
        _sent_s(_deepseek_layer("b200-sxm", 1, 64), dp=ranks, ep=ranks, dispatcher="flex") / 2
    )
    assert predicted_s == pytest.approx(published_s, rel=0.2)


@pytest.mark.parametrize(("nodes", "published_gb_per_s"), [(4, 47.4), (8, 41.2)])
def test_sending_tokens_between_nodes_takes_about_what_hybrid_ep_prints_for_h100(
    nodes: int, published_gb_per_s: float
) -> None:
    """The same page: bandwidth counts a token once per node that it visits."""
    visited = nodes * (1 - (1 - 1 / nodes) ** 8)
    published_s = 4096 * 7168 * 2 * visited / (published_gb_per_s * 1e9)
    work = _deepseek_layer("h100-sxm", nodes, 64 * nodes)
    table = _table(dp=8 * nodes, ep=8 * nodes, dispatcher="flex")
    constants = Calibration(inter_efficiency=0.85)
    predicted_s = _forward_s(work, table, constants) / 2
    assert predicted_s == pytest.approx(published_s, rel=0.25)


def test_flex_sends_a_token_at_most_once_to_each_rank_and_node() -> None:
    one_visit = replace(EXPERTS, experts_per_token=1)
    for nodes in (1, 4):
        work = workload(EXPERTS, nodes=nodes, trainer="megatron")
        ranks = min(8, 8 * nodes)
        assert _sent_s(work, dp=8 * nodes, ep=ranks, dispatcher="flex") < _sent_s(
            work, dp=8 * nodes, ep=ranks
        )
    # with one visit there is nothing to save
    work = workload(one_visit, nodes=1, trainer="megatron")
    assert _sent_s(work, dp=8, ep=8, dispatcher="flex") == pytest.approx(_sent_s(work, dp=8, ep=8))


def test_allgather_moves_every_token_to_every_rank() -> None:
    work = workload(EXPERTS, nodes=1, trainer="megatron")
    assert _sent_s(work, dp=8, ep=8, dispatcher="allgather") > _sent_s(work, dp=8, ep=8)


def test_nothing_is_sent_when_every_rank_has_all_experts() -> None:
    assert _sent_s(workload(EXPERTS, trainer="megatron"), dp=8, dispatcher="flex") == 0


def test_overlap_hides_most_of_the_traffic_and_none_of_the_rest() -> None:
    work = replace(_deepseek_layer("b200-sxm", 1, 64), global_batch_size=64)
    parts = {
        overlap: estimate(
            work,
            ParallelConfig(dp=8, ep=8, accumulation_steps=8, ep_overlap=overlap),
            calibration=Calibration(),
        ).time_parts_s
        for overlap in (False, True)
    }
    assert parts[True].ep_comm < 0.5 * parts[False].ep_comm
    assert parts[True].total < parts[False].total


def test_every_micro_batch_adds_the_gradients_of_all_experts_however_few_tokens_they_got() -> None:
    few, many = (_table(dp=8, ep=8, micro_batch_size=size) for size in (1, 8))
    work = workload(EXPERTS, trainer="megatron")
    bytes_of = [
        gradient_bytes(EXPERTS, layout_of(work, t), traits_of("megatron"))[0] for t in (few, many)
    ]
    assert bytes_of[0] == bytes_of[1] == 6 * EXPERTS.mlp_parameters


def _layer_rings_s(trainer: str, model: ModelSpec, recompute: str = "none") -> float:
    """Seconds of one layer's tensor-parallel collectives over two ranks."""
    work = workload(model, trainer=trainer)
    table = _table(tp=2, dp=4, ep=4, sequence_parallel=True, recompute=recompute)
    layout, constants = layout_of(work, table), Calibration(latency_factor=0.0, tensor_hop_s=0.0)
    again = repeated(model, table, layout, traits_of(trainer), 2048.0).collectives
    return float(tensor_layer_s(work, table, layout, constants, again)[0])


def test_a_layer_of_whole_experts_has_the_tensor_parallel_collectives_of_its_attention_alone() -> (
    None
):
    """Megatron's dispatcher takes each rank's own tokens to the experts and brings them back;
    shared experts are cut like a dense MLP."""
    shared = replace(EXPERTS, shared_ffn_hidden_size=2048)
    dense = _layer_rings_s("megatron", DENSE)
    assert _layer_rings_s("megatron", EXPERTS) == pytest.approx(dense / 2)
    assert _layer_rings_s("megatron", shared) == pytest.approx(dense)
    # the MLP's forward pass is repeated: nothing is sent again, where a dense MLP's two rings are
    assert _layer_rings_s("megatron", EXPERTS, "mlp") == pytest.approx(dense / 2)
    assert _layer_rings_s("megatron", DENSE, "mlp") == pytest.approx(dense * 10 / 8)


def test_dense_models_take_no_time_for_experts() -> None:
    constants = Calibration()
    slow = replace(constants, expert_host_s=1.0, grouped_efficiency=0.1, dispatch_efficiency=0.1)
    config = ParallelConfig(dp=8, accumulation_steps=4)
    same = [estimate(workload(DENSE), config, calibration=c).step_time_s for c in (constants, slow)]
    assert same[0] == same[1]
