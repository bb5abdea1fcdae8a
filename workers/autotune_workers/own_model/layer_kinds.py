"""The repeated layers of a module by kind, and the shape of a decoder with the same weights, kind by kind.

    D   weights of a layer without its routed experts, averaged over its kinds          A, N   weights of attention and norms of the shape
    E   routed experts of a layer          X   weights of all of them          h   hidden size          3 h f   weights of a gated MLP of width f

    width of an expert    f = X / (3 h E)
    shared width          f = (D - A - N - h E) / (3 h)      of layers with experts
    dense width           f = (D - A - N) / (3 h)            of layers without

What a mixer of another kind (state space, linear attention, convolution) has more than attention is in the width of the MLP: matmul FLOPs follow from
weights, so they are right too. Neglected: rounding to whole widths, at most 1.5 h weights a layer.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from torch import nn

from autotune.errors import SpecError
from autotune.spec import LayerKind, ModelSpec

_OTHER_MIXERS = ("linear", "lightning", "delta", "mamba", "recurrent", "conv", "ssm")
"""words in the names of layers that mix tokens without scores"""
_GATE = 3
"""matrices of a gated MLP"""


def layer_kinds(blocks: Sequence[nn.Module]) -> tuple[LayerKind, ...]:
    """The blocks by what they are made of, in the order of their first appearance. Weights that two blocks share count in the first."""
    seen: set[int] = set()
    groups: dict[tuple[Any, ...], int] = {}
    for block in blocks:
        own = [(name, parameter) for name, parameter in block.named_parameters() if id(parameter) not in seen]
        seen.update(id(parameter) for _, parameter in own)
        experts = sum(parameter.numel() for name, parameter in own if "experts" in name.split("."))
        made_of = tuple(type(child).__name__ for child in block.children()) or (type(block).__name__,)
        key = (made_of, sum(parameter.numel() for _, parameter in own), experts, _attends(block))
        groups[key] = groups.get(key, 0) + 1
    everywhere = set.intersection(*(set(made_of) for made_of, *_ in groups)) if len(groups) > 1 else set()
    return tuple(
        LayerKind(
            name=_name(made_of, everywhere), count=count, parameters=weights, expert_parameters=experts, attends=attends
        )
        for (made_of, weights, experts, attends), count in groups.items()
    )


def decoder_of_kinds(kinds: Sequence[LayerKind], told: Mapping[str, Any]) -> dict[str, Any] | None:
    """Fields of a decoder with the weights of these layers. `told`: hidden_size and vocab_size, and what else is known. None where no decoder has so few
    weights a layer, or nothing tells how many experts there are or a token visits."""
    hidden = int(told["hidden_size"])
    with_experts = [kind for kind in kinds if kind.expert_parameters]
    without = [kind for kind in kinds if not kind.expert_parameters]
    experts, visited = int(told.get("num_experts") or 0), int(told.get("experts_per_token") or 0)
    if with_experts and not (experts and visited):
        return None
    kept = ("hidden_size", "vocab_size", "num_attention_heads", "num_kv_heads", "attention_head_dim", "tied_embeddings")
    base: dict[str, Any] = {
        "num_layers": sum(kind.count for kind in kinds),
        "num_attention_heads": 1,
        "gated_mlp": True,
        **{name: told[name] for name in (*kept, "max_positions") if told.get(name)},
    }
    for narrower in ({}, {"num_kv_heads": 1}, {"num_kv_heads": 1, "attention_head_dim": 1}):
        sizes = {**base, **narrower}
        try:
            shape = ModelSpec(name="decoder", ffn_hidden_size=1, **sizes)
        except SpecError:
            return None
        fixed = shape.attention_parameters + shape.norm_parameters
        dense = _width(_average(without, "parameters") - fixed, hidden)
        router = hidden * experts
        shared = _width(
            _average(with_experts, "parameters") - _average(with_experts, "expert_parameters") - fixed - router, hidden
        )
        if (not without or dense >= 1) and (not with_experts or shared >= 0):
            break
    else:
        return None
    if not with_experts:
        return {**sizes, "ffn_hidden_size": dense}
    found = {
        **sizes,
        "num_experts": experts,
        "experts_per_token": visited,
        "ffn_hidden_size": max(1, _width(_average(with_experts, "expert_parameters") / experts, hidden)),
        "shared_ffn_hidden_size": shared,
    }
    if without:
        found |= {"num_dense_layers": sum(kind.count for kind in without), "dense_ffn_hidden_size": dense}
    return found


def _average(kinds: Sequence[LayerKind], name: str) -> float:
    layers = sum(kind.count for kind in kinds)
    return sum(kind.count * getattr(kind, name) for kind in kinds) / layers if layers else 0.0


def _width(weights: float, hidden: int) -> int:
    return round(weights / (_GATE * hidden))


def _attends(block: nn.Module) -> bool:
    """Whether a module inside computes scores of tokens: it is called attention, and no other kind of mixer."""
    return any(
        ("attention" in name or name.endswith("attn")) and not any(word in name for word in (*_OTHER_MIXERS, "norm"))
        for name in (type(module).__name__.lower() for module in block.modules())
    )


def _name(made_of: Sequence[str], everywhere: set[str]) -> str:
    """The classes that set the layers apart, without norms; all of them where nothing does."""
    plain = [name for name in dict.fromkeys(made_of) if "Norm" not in name]
    return " + ".join([name for name in plain if name not in everywhere] or plain or list(made_of))
