"""Recomputation: what is computed again, by trainer; `activations.py` has what is kept instead.

    full         every layer is computed again from its input (Chen et al., arXiv 1604.06174)
    selective    depends on the trainer (`Traits.selective`):
      scores       attention scores and values, from queries, keys and values (Korthikanti et al., arXiv 2205.05198, section 5)
      attention    the whole attention block, from its input
      operators    all operators except attention, every second matmul and all-to-alls, whose outputs are kept (torchtitan's per-operator policy: its list of
                   operators has `aten.mm`, but not the grouped products of experts, which are all computed again)
    norm         both norms and the MLP's activation function (`layernorm` and `moe_act` of Megatron's --recompute-modules)
    mlp          the MLP, or the experts with their dispatch (`mlp` and `moe`)

Under torch.compile a budget of b percent of the saved activations is kept instead (`torch._functorch.config.activation_memory_budget`). The compiler drops first
what costs least to compute again per byte: outputs of norms and of the activation function, then those of matmuls by their FLOPs per element, attention last where
the sequence is long. 0 percent keeps the input of each layer alone.

torch's checkpoint stops as soon as the last saved tensor is restored (`set_checkpoint_early_stop`): the MLP's down projection and the collective behind
it are not repeated, unless the outputs of experts must still be weighted. Neglected: memory-bound work of a recomputed attention block.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from autotune.cost.layout import Column, Layout, layer_attention_flops, layer_matmuls, weighed
from autotune.cost.time.elementwise import moved_elements
from autotune.cost.time.experts import whole_expert_share
from autotune.cost.traits import Traits
from autotune.spec import KNOBS, ConfigTable, ModelSpec

BUDGETS: tuple[int, ...] = KNOBS["activation_budget"].values
"""percent of the saved activations that the compiler may keep, by the index in a table's column"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Repeated:
    """Shares of a layer's forward pass that its backward pass computes again, for every row."""

    matmuls: Column
    scores: Column
    moved: Column
    """memory-bound work, and launches by the host"""
    collectives: Column
    """of tensor parallelism"""
    dispatches: Column
    """of tokens to their experts and back"""


def repeated(
    model: ModelSpec, table: ConfigTable, layout: Layout, traits: Traits, seq_len: float | Column
) -> Repeated:
    """The shares that are computed again; `seq_len`: tokens per sequence that attend to one another, the same for all rows or of each."""
    work = dict.fromkeys(("inputs", "output", "up", "down"), 0.0)
    grouped = dict.fromkeys(("up", "down"), 0.0)
    for matmul in layer_matmuls(model):
        work[matmul.part] += weighed(model, matmul)
        if matmul.expert:
            grouped[matmul.part] += weighed(model, matmul)
    qkv, out, up, down = work.values()
    all_four = qkv + out + up + down
    stops = traits.stops_early and not model.num_experts
    # with sequence parallelism each of the two collectives is a gather before and a scatter after its matmuls
    gather = np.where(layout.sequence_parallel, 0.25, 0.0)
    keys = model.hidden_size * model.num_kv_heads * model.head_dim
    experts = grouped["up"] + grouped["down"]
    gate = (up - grouped["up"]) / 2.0 if model.gated_mlp else down - grouped["down"]
    some_matmuls, some_scores, some_moved, some_gathers = {
        "scores": (0.0, 1.0, 0.0, 0.0),
        "attention": (qkv / all_four, 1.0, 0.0, 0.0),  # its gathered input is what is kept
        "operators": ((keys + out + gate + experts) / all_four, 0.0, 1.0, 2.0),
    }[traits.selective]
    behind = np.where(layout.sequence_parallel, 0.25, 0.5)
    ringless = whole_expert_share(model, layout)
    mlp_rings = (2.0 - 2.0 * ringless) / (4.0 - 2.0 * ringless)
    moved = moved_elements(model, table, layout, traits)
    mlp_share = moved.mlp / moved.total
    activation = mlp_share * (1.0 if not model.num_experts else 0.5)  # tokens are not sorted again
    budget = _budgets(model, table, seq_len)

    def shares(*, full: Any, selective: Any, norm: Any, mlp: Any, kept_by_compiler: Any) -> Column:
        found = np.asarray(kept_by_compiler, dtype=np.float64)
        for word, share in (("full", full), ("selective", selective), ("norm", norm), ("mlp", mlp)):
            found = np.where(table.is_word("recompute", word), share, found)
        return found

    return Repeated(
        matmuls=shares(
            full=1.0 - stops * down / all_four,
            selective=some_matmuls,
            norm=0.0,
            mlp=(up + down * (1.0 - stops)) / all_four,
            kept_by_compiler=budget[0],
        ),
        scores=shares(
            full=1.0, selective=some_scores, norm=0.0, mlp=0.0, kept_by_compiler=budget[1]
        ),
        moved=shares(
            full=1.0,
            selective=some_moved,
            norm=moved.norms / moved.total + activation,
            mlp=mlp_share,
            kept_by_compiler=budget[2],
        ),
        # the MLP's gather before its first matmul, and what follows its second one
        collectives=shares(
            full=1.0 - stops * behind,
            selective=some_gathers * gather,
            norm=0.0,
            mlp=mlp_rings - stops * behind,
            kept_by_compiler=budget[0] * 2.0 * gather,
        ),
        dispatches=shares(full=1.0, selective=0.0, norm=0.0, mlp=1.0, kept_by_compiler=budget[0]),
    )


def _budgets(model: ModelSpec, table: ConfigTable, seq_len: float | Column) -> NDArray[np.float64]:
    """Shares of (matmuls, scores, memory-bound work) that are computed again under each row's budget, shape (3, N)."""
    if not isinstance(seq_len, np.ndarray):
        return _by_budget(model, seq_len)[:, table.activation_budget]
    lengths, of_row = np.unique(seq_len, return_inverse=True)
    found = np.stack([_by_budget(model, float(length)) for length in lengths])
    return found[of_row, :, table.activation_budget].T


def _by_budget(model: ModelSpec, seq_len: float) -> NDArray[np.float64]:
    """Shares of (matmuls, scores, memory-bound work) that are computed again, by the index of the budget, shape (3, number of budgets)."""
    h, f = float(model.hidden_size), float(model.active_ffn_width)
    q, kv = (
        float(model.num_attention_heads * model.head_dim),
        float(model.num_kv_heads * model.head_dim),
    )
    up = (2.0 if model.gated_mlp else 1.0) * f
    # (elements per token, FLOPs to compute them again, kind), cheapest per element first
    matmuls = [(h, 2.0 * h * q), (q + 2.0 * kv, 2.0 * h * (q + 2.0 * kv)), (up, 2.0 * h * up)]
    scores = (q, layer_attention_flops(model, seq_len))
    items = sorted(
        [*((*item, 0) for item in matmuls), (*scores, 1)], key=lambda item: item[1] / item[0]
    )
    items = [(2.0 * h + f, 0.0, 2), *items]
    all_flops = (sum(flops for _, flops in matmuls) + 2.0 * f * h, scores[1], 1.0)
    found = np.zeros((3, len(BUDGETS)))
    for column, percent in enumerate(BUDGETS):
        dropped = (1.0 - percent / 100.0) * sum(elements for elements, _, _ in items)
        for elements, flops, kind in items:
            share = min(1.0, dropped / elements)
            if flops or kind == 2:  # without attention there are no scores
                found[kind, column] += share if kind == 2 else share * flops / all_flops[kind]
            dropped -= share * elements
    return found
