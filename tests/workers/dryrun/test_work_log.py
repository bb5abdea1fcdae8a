"""The arithmetic that a dry run counts, against closed forms of a layer."""

from __future__ import annotations

import pytest
import torch

from autotune_workers.dryrun.played_rank import dry_run
from autotune_workers.dryrun.work_log import FORMULAS, products_of
from tests.workers.trial_ranks import request

TOKENS, SEQ_LEN = 2 * 32, 32


@pytest.mark.thorough
@pytest.mark.parametrize(("model", "routed"), [("llama", 1), ("moe", 2)])
def test_flops_of_a_layer_are_those_of_its_matrices_and_its_scores(model: str, routed: int) -> None:
    asked = request(model, "micro_batch_size=2")
    spec = asked.workload.model
    run = dry_run(asked, rank=0)
    layer = [
        module
        for module in run.modules
        if module.name.startswith("layers.1.") or module.name == "layers.1"
    ]
    width, heads = spec.hidden_size, spec.num_attention_heads * spec.head_dim
    matrices = (
        width * (2 * heads + 2 * spec.num_kv_heads * spec.head_dim)
        + 3 * routed * width * spec.ffn_hidden_size
    )
    matrices += width * spec.num_experts
    products, scores = 2 * TOKENS * matrices, 4 * TOKENS * SEQ_LEN * heads
    assert sum(module.forward_flops for module in layer) == products + scores
    assert sum(module.backward_flops for module in layer) == 2 * products + 5 * scores // 2, (
        "scores are made again"
    )
    head = 6 * TOKENS * width * spec.vocab_size
    assert run.flops == spec.num_layers * (3 * products + 7 * scores // 2) + head


@pytest.mark.thorough
def test_products_are_those_of_the_flops() -> None:
    run = dry_run(
        request("llama", "micro_batch_size=2,accumulation_steps=2,recompute=full"), rank=0
    )
    in_products = sum(2 * p.m * p.n * p.k * p.count for p in run.products)
    spec = request("llama", "micro_batch_size=2").workload.model
    scores = 4 * TOKENS * SEQ_LEN * spec.num_attention_heads * spec.head_dim
    attention = spec.num_layers * (2 * scores + 5 * scores // 2)
    assert run.flops == in_products + attention, "full recomputation runs each layer forward twice"


def test_grouped_product_counts_each_row_once() -> None:
    a, b = torch.empty(12, 8), torch.empty(3, 8, 5)
    out = torch.empty(12, 5)
    assert FORMULAS[torch.ops.aten._grouped_mm](a, b, out_val=out) == 2 * 12 * 8 * 5
    assert products_of(torch.ops.aten._grouped_mm, (a, b)) == [(4, 5, 8, 3)]


@pytest.mark.parametrize("shape", [(1, 3, 8, 8), (2, 3, 16, 16)])
def test_backward_of_a_convolution_is_twice_its_forward(shape: tuple[int, ...]) -> None:
    x, weight = torch.empty(shape), torch.empty(4, 3, 3, 3)
    out = torch.nn.functional.conv2d(x, weight)
    places = ([1, 1], [0, 0], [1, 1], False, [0, 0], 1)
    forward = FORMULAS[torch.ops.aten.convolution](x, weight, None, *places, out_val=out)
    assert forward == 2 * out.numel() * 3 * 3 * 3
    backward = FORMULAS[torch.ops.aten.convolution_backward](
        out, x, weight, None, *places, [True, True, False], out_val=(x, weight, None)
    )
    assert backward == 2 * forward
