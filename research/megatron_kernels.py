"""The kernels of Megatron-Core and Transformer Engine as far as memory goes: what each makes, what
it keeps for its backward pass, and what that makes.

Nothing is computed, so these serve dry runs alone. T tokens of this rank, t tensor-parallel ranks;
under sequence parallelism the stream has T/t rows. What is kept follows the sources of Megatron-LM
(23e00ed) and Transformer Engine 2.11, with which the rows of `published.simumax` were measured:

    norm_linear     TE LayerNormLinear: keeps its input, the normalized input and fp32 inverse norms; gathers the normalized input again in its backward pass
    linear          keeps its input; adds its weight's gradient to the fp32 buffer (`gradient_accumulation_fusion`) and hands autograd a dummy in its place
    attention       cuDNN's: keeps q, k, v, the output and fp32 log-sum-exps (arXiv:2205.14135, section 3.1), no scores
    swiglu          keeps its input
    cross_entropy   TE's fused one: writes the gradient over the logits
    move            rotary embedding, permutation, all-to-all: keep nothing of the size of their input

Dummies of Transformer Engine's linears are made once for each shape and live on
(`get_dummy_wgrad`); that of Megatron's output layer is made each time.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

BF16, FP32 = torch.bfloat16, torch.float32
Size = tuple[int, ...]


class Dummies:
    """Stands for the gradients of weights that kernels have added to the fp32 buffer themselves:
    one for each shape, for good."""

    def __init__(self) -> None:
        self._made: dict[Size, Tensor] = {}

    def of(self, shape: Size, like: Tensor) -> None:
        """That of a weight of this shape."""
        if shape not in self._made and like.device.type != "meta":
            self._made[shape] = like.new_empty(shape, dtype=BF16)


@dataclass(frozen=True, slots=True, kw_only=True)
class KernelCall:
    """One call of a kernel."""

    makes: Size
    """shape of what it returns, in bf16"""
    keeps: Sequence[int] = ()
    """numbers of the inputs that are kept"""
    keeps_output: bool = False
    also_keeps: Sequence[tuple[Size, torch.dtype]] = ()
    """further tensors that it makes and keeps"""
    scratch: Sequence[Size] = ()
    """bf16 tensors that it needs beside its result while it runs"""
    backward_scratch: Sequence[Size] = ()
    """those that its backward pass needs beside the gradients"""
    weights: Sequence[Size] = ()
    """of its weights, whose gradients go to the fp32 buffer"""
    dummies: Dummies | None = None
    """where the dummies of these weights are; None where each is made anew"""
    takes_over: bool = False
    """whether the gradient of the first input is written over that input"""
    dtype: torch.dtype = BF16
    """of what it returns"""


class _Kernel(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, call: KernelCall, *inputs: Tensor) -> Tensor:
        first = inputs[0]
        also = [first.new_empty(shape, dtype=dtype) for shape, dtype in call.also_keeps]
        scratch = [first.new_empty(shape, dtype=BF16) for shape in call.scratch]
        out = first.new_empty(call.makes, dtype=call.dtype)
        del scratch
        ctx.call, ctx.like = call, [(x.shape, x.dtype, x.requires_grad) for x in inputs]
        ctx.save_for_backward(
            *(inputs[i] for i in call.keeps), *also, *((out,) if call.keeps_output else ())
        )
        return out

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Any:  # type: ignore[override]
        call: KernelCall = ctx.call
        kept = ctx.saved_tensors
        made = [gradient.new_empty(shape, dtype=BF16) for shape in call.backward_scratch]
        for shape in call.weights:
            if call.dummies is None:
                made.append(gradient.new_empty(shape, dtype=BF16))
            else:
                call.dummies.of(shape, gradient)
        if call.takes_over:
            return (None, kept[0].detach(), *(None for _ in ctx.like[1:]))
        return (
            None,
            *(gradient.new_empty(s, dtype=d) if needs else None for s, d, needs in ctx.like),
        )


def run(call: KernelCall, *inputs: Tensor) -> Tensor:
    """What the kernel returns."""
    return _Kernel.apply(call, *inputs)


def norm(x: Tensor) -> Tensor:
    """RMS norm alone."""
    return run(KernelCall(makes=tuple(x.shape), keeps=(0,), also_keeps=(((len(x),), FP32),)), x)


def norm_linear(x: Tensor, weight: Tensor, dummies: Dummies, *, gathered: int = 1) -> Tensor:
    """RMS norm and projection in one. `gathered`: ranks whose parts of the stream are joined
    between them."""
    rows, (outer, inner) = len(x) * gathered, weight.shape
    whole = ((rows, inner),) if gathered > 1 else ()
    return run(
        KernelCall(
            makes=(rows, outer),
            keeps=(0,),
            also_keeps=((tuple(x.shape), BF16), ((len(x),), FP32)),
            scratch=whole,
            backward_scratch=(*whole, (rows, inner)),
            weights=(tuple(weight.shape),),
            dummies=dummies,
        ),
        x,
    )


def linear(x: Tensor, weight: Tensor, dummies: Dummies, *, scattered: int = 1) -> Tensor:
    """Projection. `scattered`: ranks among which its result is summed and cut."""
    outer = weight.shape[0]
    whole = ((len(x), outer),) if scattered > 1 else ()
    return run(
        KernelCall(
            makes=(len(x) // scattered, outer),
            keeps=(0,),
            scratch=whole,
            backward_scratch=whole,
            weights=(tuple(weight.shape),),
            dummies=dummies,
        ),
        x,
    )


def grouped_linear(x: Tensor, weights: Tensor, dummies: Dummies) -> Tensor:
    """Projection by as many experts as `weights` (experts, out, in) has, of equally many rows each;
    they share one dummy."""
    _, outer, inner = weights.shape
    return run(
        KernelCall(makes=(len(x), outer), keeps=(0,), weights=((outer, inner),), dummies=dummies), x
    )


def attention(q: Tensor, k: Tensor, v: Tensor, *, heads: int, value_width: int) -> Tensor:
    """Causal attention of rows of tokens: (tokens, heads * value_width)."""
    return run(
        KernelCall(
            makes=(len(q), heads * value_width),
            keeps=(0, 1, 2),
            keeps_output=True,
            also_keeps=(((heads, len(q)), FP32),),
        ),
        q,
        k,
        v,
    )


def swiglu(x: Tensor) -> Tensor:
    """Half as wide."""
    return run(KernelCall(makes=(len(x), x.shape[1] // 2), keeps=(0,)), x)


def move(x: Tensor, *shape: int) -> Tensor:
    """The same numbers, or some of them, at other places."""
    return run(KernelCall(makes=shape or tuple(x.shape)), x)


def cross_entropy(logits: Tensor) -> Tensor:
    """Losses by token, fp32."""
    rows = len(logits)
    return run(
        KernelCall(
            makes=(rows,), keeps=(0,), also_keeps=(((rows, 3), FP32),), takes_over=True, dtype=FP32
        ),
        logits,
    )
