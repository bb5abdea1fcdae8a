"""How a trainer assigns the layers of a model to the ranks of a pipeline.

even      L/p layers each, and one more on the first ranks if p does not divide L
by_cost   every rank is filled up to its share of the multiplied weights; the output projection counts as layers with the same weights (nanotron,
          `get_block_compute_costs`). A rank that reaches its share exactly is full: a 1B model with 16 layers, whose projection has as many weights as
          four layers, ran with 10 layers on the first of two ranks and 5 on each of four, not with 11 and 6 (steps of 51% and 26% of a whole
          micro-batch, 50% and 25% of the weights, and memory accordingly)
edges     embedding and output projection count as one layer each (the knob pp_split): (L+2)/p units per rank, one more on ranks in the middle if p does
          not divide L+2; each layer of multi-token prediction counts as two, because it has a loss of its own
"""

from __future__ import annotations

from autotune.spec import ModelSpec

SPLIT_BY_COST = frozenset({"nanotron"})
"""trainers that split layers by cost"""


def layer_split(trainer: str) -> str:
    """The trainer's split if the config does not set one: even or by_cost."""
    return "by_cost" if trainer in SPLIT_BY_COST else "even"


def cut_layers(model: ModelSpec, p: int, split: str = "even") -> list[float]:
    """Number of layers on each of `p` ranks, without those for multi-token prediction."""
    total = model.num_layers
    if p > 4 * total:
        # the rules of a space exclude such a config, so any small result will do
        return [1.0] * min(p, 3)
    if split == "even":
        return [float(total // p + (rank < total % p)) for rank in range(p)]
    if split == "edges":
        middle = range(1, p - 1) if p > 2 else range(p)
        last = 1 + 2 * model.mtp_layers
        each, spare = divmod(total + 1 + last, p)
        units = [each + (rank in middle[:spare]) for rank in range(p)]
        units[0] += max(0, spare - len(middle))
        edges = [(rank == 0) + last * (rank == p - 1) for rank in range(p)]
        return [float(max(0, n - edge)) for n, edge in zip(units, edges, strict=True)]
    matrices = 3 if model.gated_mlp else 2
    attention = 4 * model.num_attention_heads * model.head_dim * model.hidden_size
    layer = attention + matrices * model.ffn_hidden_size * model.hidden_size
    share = (total * layer + model.vocab_size * model.hidden_size) / p
    counts, rank, filled = [0.0] * p, 0, 0
    for _ in range(total):
        counts[rank] += 1
        filled += layer
        if filled >= share * (rank + 1) and rank < p - 1:
            rank += 1
    return counts
