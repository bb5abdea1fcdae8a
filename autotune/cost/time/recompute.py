"""Recomputation: the work that is repeated, by trainer; `activations.py` computes the activations
kept.

    full         every layer is computed again from its input (Chen et al., arXiv 1604.06174)
    selective    depends on the trainer (`Traits.selective`):
      scores       attention scores and values, from queries, keys and values (Korthikanti et al., arXiv 2205.05198, section 5)
      attention    the whole attention block, from its input
      operators    all operators except attention, every second matmul and all-to-alls, whose outputs are kept (torchtitan's per-operator policy: its list of
                   operators has `aten.mm`, but not the grouped products of experts, which are all computed again)
    norm         both norms and the MLP's activation function (`layernorm` and `moe_act` of Megatron's --recompute-modules)
    mlp          the MLP, or the experts with their dispatch (`mlp` and `moe`)

Under torch.compile a budget of b percent of the saved activations is kept instead
(`torch._functorch.config.activation_memory_budget`). The compiler first drops the tensors that are
cheapest to recompute per byte: outputs of norms and of the activation function, then those of
matmuls by their FLOPs per element, and attention last if the sequence is long. 0 percent keeps only
the input of each layer.

torch's checkpoint stops as soon as the last saved tensor is restored (`set_checkpoint_early_stop`):
the MLP's down projection and the collective behind it are not repeated, unless the outputs of
experts must still be weighted. Neglected: memory-bound work of a recomputed attention block.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any

import numpy as np
from numpy.typing import NDArray

from autotune.cost.layout import Column, Layout, layer_attention_flops, layer_matmuls, weighed
from autotune.cost.time.elementwise import moved_elements
from autotune.cost.time.experts import whole_expert_share
from autotune.cost.traits import Traits
from autotune.spec import KNOBS, ConfigTable, ModelSpec

BUDGETS: tuple[int, ...] = KNOBS["activation_budget"].values
"""percent of the saved activations that the compiler may keep, by index in a table's column"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Repeated:
    """Shares of a layer's forward pass that its backward pass repeats, shape (N,) each."""

    matmuls: Column
    scores: Column
    moved: Column
    """memory-bound work, and launches by the host"""
    collectives: Column
    """of tensor parallelism"""
    dispatches: Column
    """transfers of tokens to their experts and back"""


def repeated(
    model: ModelSpec, table: ConfigTable, layout: Layout, traits: Traits, seq_len: float | Column
) -> Repeated:
    """Return the repeated shares of every row. `seq_len`: tokens per sequence that attend to each
    other, one number or one per row."""
    work = _Work.of(model)
    stops = traits.stops_early and not model.num_experts
    behind = np.where(layout.sequence_parallel, 0.25, 0.5)
    # with sequence parallelism each of the two collectives is a gather before and a scatter after
    # its matmuls
    gather = np.where(layout.sequence_parallel, 0.25, 0.0)
    moved = moved_elements(model, table, layout, traits)
    mlp = moved.mlp / moved.total
    activation = mlp * (1.0 if not model.num_experts else 0.5)  # tokens are not sorted again
    by_word = {
        "full": _shares(
            1.0 - stops * work.down / work.all_four,
            scores=1.0,
            moved=1.0,
            collectives=1.0 - stops * behind,
            dispatches=1.0,
        ),
        "selective": _selective(model, traits, work, gather),
        "norm": _shares(0.0, moved=moved.norms / moved.total + activation),
        "mlp": _shares(
            (work.up + work.down * (1.0 - stops)) / work.all_four,
            moved=mlp,
            # its gather before the first matmul, and what follows the second one
            collectives=_mlp_rings(model, layout) - stops * behind,
            dispatches=1.0,
        ),
    }
    matmuls, scores, other = _budgets(model, table, seq_len)
    found = _shares(
        matmuls, scores=scores, moved=other, collectives=matmuls * 2.0 * gather, dispatches=matmuls
    )
    for word, shares in by_word.items():
        rows = table.is_word("recompute", word)
        found = {part: np.where(rows, share, found[part]) for part, share in shares.items()}
    return Repeated(**found)


def _shares(
    matmuls: float | Column,
    *,
    scores: float | Column = 0.0,
    moved: float | Column = 0.0,
    collectives: float | Column = 0.0,
    dispatches: float | Column = 0.0,
) -> dict[str, Any]:
    """Return the shares that one recomputation mode repeats, by the field names of `Repeated`."""
    return {
        "matmuls": matmuls,
        "scores": scores,
        "moved": moved,
        "collectives": collectives,
        "dispatches": dispatches,
    }


@dataclass(frozen=True, slots=True, kw_only=True)
class _Work:
    """Work of a layer's matmuls by part, and that of experts among it."""

    inputs: float
    output: float
    up: float
    down: float
    experts_up: float
    experts_down: float

    @classmethod
    def of(cls, model: ModelSpec) -> _Work:
        """Compute the work from the shapes of a layer."""
        found = dict.fromkeys((field.name for field in fields(cls)), 0.0)
        for matmul in layer_matmuls(model):
            found[matmul.part] += weighed(model, matmul)
            if matmul.expert:
                found[f"experts_{matmul.part}"] += weighed(model, matmul)
        return cls(**found)

    @property
    def all_four(self) -> float:
        """Of all parts."""
        return self.inputs + self.output + self.up + self.down


def _selective(model: ModelSpec, traits: Traits, work: _Work, gather: Column) -> dict[str, Any]:
    """Return the shares that the trainer's selective recomputation repeats. `gather`: share of one
    gather in the collectives."""
    if traits.selective == "scores":
        return _shares(0.0, scores=1.0)
    if traits.selective == "attention":  # its gathered input is what is kept
        return _shares(work.inputs / work.all_four, scores=1.0)
    keys = model.hidden_size * model.num_kv_heads * model.head_dim
    experts = work.experts_up + work.experts_down
    gate = (work.up - work.experts_up) / 2.0 if model.gated_mlp else work.down - work.experts_down
    matmuls = (keys + work.output + gate + experts) / work.all_four
    return _shares(matmuls, moved=1.0, collectives=2.0 * gather)


def _mlp_rings(model: ModelSpec, layout: Layout) -> Column:
    """Return the share of the MLP in the collectives of tensor parallelism."""
    ringless = whole_expert_share(model, layout)
    return (2.0 - 2.0 * ringless) / (4.0 - 2.0 * ringless)


def _budgets(model: ModelSpec, table: ConfigTable, seq_len: float | Column) -> NDArray[np.float64]:
    """Return the shares of (matmuls, scores, memory-bound work) that are computed again under each
    row's budget, shape (3, N)."""
    if not isinstance(seq_len, np.ndarray):
        return _by_budget(model, seq_len)[:, table.activation_budget]
    lengths, of_row = np.unique(seq_len, return_inverse=True)
    found = np.stack([_by_budget(model, float(length)) for length in lengths])
    return found[of_row, :, table.activation_budget].T


def _by_budget(model: ModelSpec, seq_len: float) -> NDArray[np.float64]:
    """Return the shares of (matmuls, scores, memory-bound work) that are computed again, by the
    index of the budget, shape (3, number of budgets)."""
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
