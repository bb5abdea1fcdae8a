"""The model of one rank under Megatron-Core, as a module: its tensors in the order in which
Megatron makes, keeps and frees them.

    T    tokens of a micro-batch on this rank        t    tensor-parallel ranks, which have a part of the stream each (sequence parallelism)
    weights are bf16, their gradients one fp32 buffer, and the distributed optimizer holds fp32 weights and both moments of this rank's slice of them:
    6 + 12 / (dp * cp) bytes a weight, 6 + 12 * ep / (dp * cp) of experts (Megatron-LM, docs/source/api-guide/dist_optimizer.md)

What the trainer updates are the slices of fp32 weights, whose gradients are views of the buffer.
Other ranks of the tensor, data, context and expert groups are there by sizes alone; pipeline stages
are the trainer's. Kernels are those of `megatron_kernels`, which compute nothing: the module is for
dry runs.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from research.megatron_kernels import (
    BF16,
    FP32,
    Dummies,
    KernelCall,
    attention,
    cross_entropy,
    grouped_linear,
    linear,
    move,
    norm,
    norm_linear,
    run,
    swiglu,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class MegatronShape:
    """A model and how it is divided. Widths are those of the whole model."""

    num_layers: int
    hidden_size: int
    num_attention_heads: int
    num_kv_heads: int
    head_dim: int
    vocab_size: int
    ffn_hidden_size: int
    """of dense layers"""
    v_head_dim: int = 0
    """latent attention where above zero, with the next three"""
    qk_rope_head_dim: int = 0
    q_lora_rank: int = 0
    kv_lora_rank: int = 0
    num_experts: int = 0
    """in all layers but the first `num_dense_layers`"""
    num_dense_layers: int = 0
    experts_per_token: int = 0
    expert_ffn_hidden_size: int = 0
    shared_ffn_hidden_size: int = 0
    tp: int = 1
    cp: int = 1
    ep: int = 1
    dp: int = 1


class WeightGroup(nn.Module):
    """Weights that are reduced and updated together: bf16, with their fp32 gradients and this
    rank's slice of the fp32 weights."""

    def __init__(self, shapes: dict[str, tuple[int, ...]], slices: int) -> None:
        super().__init__()
        for name, shape in shapes.items():
            self.register_parameter(
                name, nn.Parameter(torch.empty(shape, dtype=BF16), requires_grad=False)
            )
        count = sum(math.prod(shape) for shape in shapes.values())
        size = -(-count // slices)
        self.main = nn.Parameter(torch.zeros(size, dtype=FP32))
        self.register_buffer("main_grad", torch.zeros(size * slices, dtype=FP32), persistent=False)

    def forward(self, x: Tensor, scratch: Sequence[tuple[int, ...]] = ()) -> Tensor:
        """`x`, from whose backward pass on the gradients of these weights are there. `scratch`:
        bf16 tensors that the backward pass needs for a moment."""
        return _Tied.apply(x, self.main, self.main_grad, scratch)


class _Tied(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, x: Tensor, main: Tensor, buffer: Tensor, scratch: Sequence[tuple[int, ...]]
    ) -> Tensor:
        ctx.buffer, ctx.size, ctx.scratch, ctx.needs_stream = (
            buffer,
            len(main),
            scratch,
            x.requires_grad,
        )
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Any:  # type: ignore[override]
        made = [gradient.new_empty(shape, dtype=BF16) for shape in ctx.scratch]
        del made
        return gradient if ctx.needs_stream else None, ctx.buffer[: ctx.size], None, None


class MegatronEmbedding(nn.Module):
    """Tokens (1, s) -> stream (T / t, hidden). Its weight's gradient is made whole in bf16 and
    added to the buffer."""

    def __init__(self, shape: MegatronShape) -> None:
        super().__init__()
        self.shape = shape
        self.part = WeightGroup(
            {"weight": (shape.vocab_size // shape.tp, shape.hidden_size)}, shape.dp * shape.cp
        )

    def forward(self, tokens: Tensor) -> Tensor:
        """See above."""
        shape, count = self.shape, tokens.shape[1]
        x = run(KernelCall(makes=(count, shape.hidden_size)), tokens)
        if shape.tp > 1:
            x = move(x, count // shape.tp, shape.hidden_size)
        return self.part(x, (tuple(self.part.weight.shape),))


class MegatronLayer(nn.Module):
    """A layer: attention with grouped or latent keys, then a dense MLP or experts."""

    def __init__(self, shape: MegatronShape, number: int, dummies: Dummies) -> None:
        super().__init__()
        self.shape, self.dummies = shape, dummies
        self.has_experts = number >= shape.num_dense_layers and shape.num_experts > 0
        weights = {
            "norm": (2, shape.hidden_size),
            **(_latent_weights(shape) if shape.v_head_dim else _weights(shape)),
        }
        ffn = shape.shared_ffn_hidden_size if self.has_experts else shape.ffn_hidden_size
        weights |= {
            "fc1": (2 * ffn // shape.tp, shape.hidden_size),
            "fc2": (shape.hidden_size, ffn // shape.tp),
        }
        if self.has_experts:
            weights["router"] = (shape.num_experts, shape.hidden_size)
            local, inner = shape.num_experts // shape.ep, shape.expert_ffn_hidden_size
            expert_weights: dict[str, tuple[int, ...]] = {
                "fc1": (local, 2 * inner, shape.hidden_size),
                "fc2": (local, shape.hidden_size, inner),
            }
            self.experts = WeightGroup(expert_weights, max(1, shape.dp * shape.cp // shape.ep))
        self.part = WeightGroup(weights, shape.dp * shape.cp)

    def forward(self, x: Tensor) -> Tensor:
        """Stream -> stream."""
        x = self.part(x)
        mixed = self._latent_attention(x) if self.shape.v_head_dim else self._attention(x)
        x = x + mixed
        return x + (self._mixture(x) if self.has_experts else self._dense(x))

    def _attention(self, x: Tensor) -> Tensor:
        s, w = self.shape, self.part
        heads, groups, size = s.num_attention_heads // s.tp, s.num_kv_heads // s.tp, s.head_dim
        count = len(x) * s.tp
        joined = norm_linear(x, w.qkv, self.dummies, gathered=s.tp)
        # taken from between keys and values, then rotated
        q = move(move(joined, count, heads * size))
        k, v = (move(joined, count, groups * size) for _ in range(2))
        del joined
        return self._attended(q, k, v, heads, size)

    def _latent_attention(self, x: Tensor) -> Tensor:
        s, w = self.shape, self.part
        heads, size = s.num_attention_heads // s.tp, s.head_dim
        count = len(x) * s.tp
        normed = norm(x)
        q = norm_linear(linear(normed, w.q_down, self.dummies), w.q_up, self.dummies)
        latent = linear(normed, w.kv_down, self.dummies)
        del normed
        kv = norm_linear(move(latent, count, s.kv_lora_rank), w.kv_up, self.dummies)
        q, k, v = move(q), move(kv, count, heads * size), move(kv, count, heads * s.v_head_dim)
        del kv
        return self._attended(q, k, v, heads, s.v_head_dim)

    def _attended(self, q: Tensor, k: Tensor, v: Tensor, heads: int, value_width: int) -> Tensor:
        """Under context parallelism each rank has all tokens of some heads meanwhile."""
        s, count = self.shape, len(q)
        if s.cp > 1:
            q, k, v = (move(x, count * s.cp, x.shape[1] // s.cp) for x in (q, k, v))
        out = attention(q, k, v, heads=heads // s.cp, value_width=value_width)
        del q, k, v
        if s.cp > 1:
            out = move(out, count, heads * value_width)
        return linear(out, self.part.proj, self.dummies, scattered=s.tp)

    def _dense(self, x: Tensor) -> Tensor:
        s, w = self.shape, self.part
        inner = swiglu(norm_linear(x, w.fc1, self.dummies, gathered=s.tp))
        return linear(inner, w.fc2, self.dummies, scattered=s.tp)

    def _mixture(self, x: Tensor) -> Tensor:
        """Experts take equally many tokens each, as with a capacity factor of 1 and padding up to
        it."""
        s = self.shape
        normed = norm(x)
        capacity = math.ceil(len(x) * s.experts_per_token / s.num_experts)
        rows = capacity * s.num_experts
        scores = ((len(x), s.num_experts), FP32)
        routed = run(
            KernelCall(
                makes=(rows, s.hidden_size),
                also_keeps=(scores, scores, scores, ((len(x), s.num_experts), torch.bool)),
            ),
            normed,
        )
        routed = self.experts(move(move(routed)))  # all-to-all, then sorted by expert
        routed = grouped_linear(
            swiglu(grouped_linear(routed, self.experts.fc1, self.dummies)),
            self.experts.fc2,
            self.dummies,
        )
        routed = move(move(move(routed)), *x.shape)
        shared = linear(
            swiglu(linear(normed, self.part.fc1, self.dummies)), self.part.fc2, self.dummies
        )
        return routed + shared


class MegatronHead(nn.Module):
    """Stream -> losses by token: the last norm, the output layer of this rank's part of the
    vocabulary, and its cross entropy."""

    def __init__(self, shape: MegatronShape) -> None:
        super().__init__()
        self.shape = shape
        weights = {
            "norm": (shape.hidden_size,),
            "weight": (shape.vocab_size // shape.tp, shape.hidden_size),
        }
        self.part = WeightGroup(weights, shape.dp * shape.cp)
        self._gathered: list[Tensor] = []

    def forward(self, x: Tensor) -> Tensor:
        """See above. The stream of all tensor-parallel ranks is joined in a buffer that lives
        on."""
        count, width = len(x) * self.shape.tp, self.shape.hidden_size
        x = norm(self.part(x))
        if self.shape.tp > 1 and not self._gathered and x.device.type != "meta":
            self._gathered.append(x.new_empty(count, width))
        weight = self.part.weight
        whole = ((count, width),)
        call = KernelCall(
            makes=(count, len(weight)),
            keeps=(0,),
            backward_scratch=whole,
            weights=(tuple(weight.shape),),
        )
        return cross_entropy(run(call, x))


class MegatronModel(nn.Module):
    """Tokens (1, s) -> losses by token."""

    def __init__(self, shape: MegatronShape) -> None:
        super().__init__()
        dummies = Dummies()
        self.embedding = MegatronEmbedding(shape)
        self.layers = nn.ModuleList(
            MegatronLayer(shape, number, dummies) for number in range(shape.num_layers)
        )
        self.head = MegatronHead(shape)

    def forward(self, tokens: Tensor) -> Tensor:
        """See above."""
        x = self.embedding(tokens)
        for layer in self.layers:
            x = layer(x)
        return self.head(x)


def build(**sizes: int) -> dict[str, Any]:
    """The builder that a spec names; `sizes`: the fields of `MegatronShape`."""
    shape = MegatronShape(**sizes)
    return {
        "model": MegatronModel(shape),
        "loss": lambda output, inputs: output.mean(),
        "pp_split": [f"layers.{number}" for number in range(1, shape.num_layers)],
        "shapes": {
            "num_attention_heads": shape.num_attention_heads,
            "vocab_size": shape.vocab_size,
            "hidden_size": shape.hidden_size,
        },
    }


def _weights(s: MegatronShape) -> dict[str, tuple[int, ...]]:
    outer = (s.num_attention_heads + 2 * s.num_kv_heads) * s.head_dim // s.tp
    return {
        "qkv": (outer, s.hidden_size),
        "proj": (s.hidden_size, s.num_attention_heads * s.head_dim // s.tp),
    }


def _latent_weights(s: MegatronShape) -> dict[str, tuple[int, ...]]:
    """Latent attention (arXiv:2405.04434, section 2.1)."""
    heads = s.num_attention_heads // s.tp
    return {
        "q_down": (s.q_lora_rank, s.hidden_size),
        "q_up": (heads * s.head_dim, s.q_lora_rank),
        "kv_down": (s.kv_lora_rank + s.qk_rope_head_dim, s.hidden_size),
        "kv_up": (heads * (s.head_dim - s.qk_rope_head_dim + s.v_head_dim), s.kv_lora_rank),
        "proj": (s.hidden_size, heads * s.v_head_dim),
        "latent_norms": (s.q_lora_rank + s.kv_lora_rank,),
    }
