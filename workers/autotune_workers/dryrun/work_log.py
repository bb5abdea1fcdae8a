"""The arithmetic of one rank: FLOPs by module and phase, and the shapes of its matrix products.

A multiplication and an addition are two FLOPs. `torch.utils.flop_counter.flop_registry` knows most operations; what it lacks is added here:
the CPU's flash attention, attention with fewer heads of keys than of queries, grouped products (one for all experts) and products of a matrix and a vector. Attention counts all scores, those that a
causal mask hides too, as the registry does. Element-wise work is not counted.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from math import prod
from typing import Any

import torch
from torch import Tensor
from torch.utils.flop_counter import flop_registry

from autotune.spec import MatrixProduct, Phase

aten = torch.ops.aten
Formula = Callable[..., int]


def _attention(q: Tensor, k: Tensor, v: Tensor, *_: Any, **__: Any) -> int:
    """Scores and their product with the values; q (b, a, s, d), k and v (b, k, s', d) with as many heads as q or fewer."""
    return 2 * prod(q.shape[:-1]) * k.shape[-2] * (q.shape[-1] + v.shape[-1])


def _attention_backward(_: Tensor, q: Tensor, k: Tensor, v: Tensor, *__: Any, **___: Any) -> int:
    """Scores again, and the gradients of scores, queries, keys and values: five products."""
    return 2 * prod(q.shape[:-1]) * k.shape[-2] * (3 * q.shape[-1] + 2 * v.shape[-1])


def _grouped(a: Tensor, b: Tensor, *_: Any, out_val: Any = None, **__: Any) -> int:
    """Each row of the result is one product of a row and one group's matrix: 2 * elements of the result * inner width."""
    rows_are_grouped = a.dim() == 2 and b.dim() == 2  # (m, t) by (t, n): the inner axis is divided among the groups
    return 2 * a.shape[0] * a.shape[1] * b.shape[1] if rows_are_grouped else 2 * out_val.numel() * a.shape[-1]


def _vector(*arguments: Any, **_: Any) -> int:
    """A matrix, or a vector, by a vector."""
    matrix = next(a for a in arguments if isinstance(a, Tensor) and (a.dim() == 2 or len(arguments) == 2))
    return 2 * matrix.numel()


FORMULAS: dict[Any, Formula] = {
    **flop_registry,
    **dict.fromkeys(
        (
            aten._scaled_dot_product_flash_attention_for_cpu,
            aten._scaled_dot_product_flash_attention,
            aten._scaled_dot_product_cudnn_attention,
            aten._scaled_dot_product_efficient_attention,
        ),
        _attention,
    ),
    **dict.fromkeys(
        (
            aten._scaled_dot_product_flash_attention_for_cpu_backward,
            aten._scaled_dot_product_flash_attention_backward,
            aten._scaled_dot_product_cudnn_attention_backward,
            aten._scaled_dot_product_efficient_attention_backward,
        ),
        _attention_backward,
    ),
    aten._grouped_mm: _grouped,
    aten.mv: _vector,
    aten.addmv: _vector,
    aten.dot: _vector,
}
"""FLOPs by operation, from its arguments and its result"""


def products_of(packet: Any, args: tuple[Any, ...]) -> list[tuple[int, int, int, int]]:
    """(m, n, k, count) of the matrix products of an operation; empty where it is none, or they stay within a kernel."""
    if packet in (aten.mm, aten._scaled_mm):
        a, b = args[:2]
    elif packet is aten.addmm:
        a, b = args[1:3]
    elif packet in (aten.bmm, aten.baddbmm):
        a, b = args[:2] if packet is aten.bmm else args[1:3]
        return [(a.shape[1], b.shape[2], a.shape[2], a.shape[0])]
    elif packet is aten._grouped_mm:
        return _grouped_products(args[0], args[1], args[2] if len(args) > 2 else None)
    else:
        return []
    return [(a.shape[0], b.shape[1], a.shape[1], 1)]


def _grouped_products(a: Tensor, b: Tensor, ends: Tensor | None) -> list[tuple[int, int, int, int]]:
    """Groups of equal size."""
    groups = a.shape[0] if a.dim() == 3 else b.shape[0] if b.dim() == 3 else len(ends) if ends is not None else 1
    if a.dim() == 3:
        return [(a.shape[1], b.shape[-1] // (1 if b.dim() == 3 else groups), a.shape[2], groups)]
    if b.dim() == 3:
        return [(a.shape[0] // groups, b.shape[2], a.shape[1], groups)]
    return [(a.shape[0], b.shape[1], a.shape[1] // groups, groups)]


class WorkLog:
    """Counts the work of a step."""

    def __init__(self) -> None:
        self.flops: Counter[tuple[str, Phase]] = Counter()
        """by module and phase"""
        self._products: Counter[tuple[int, int, int, str]] = Counter()

    def note(
        self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], out: Any, place: tuple[str, Phase]
    ) -> None:
        """An operation that has a formula was called. `place`: module and phase."""
        packet = func._overloadpacket
        self.flops[place] += FORMULAS[packet](*args, **kwargs, out_val=out)
        dtype = str((args[1] if packet in (aten.addmm, aten.baddbmm) else args[0]).dtype).removeprefix("torch.")
        for m, n, k, count in products_of(packet, args):
            self._products[m, n, k, dtype] += count

    def products(self, micro_batches: int) -> tuple[MatrixProduct, ...]:
        """The products of one of so many micro-batches."""
        return tuple(
            MatrixProduct(m=m, n=n, k=k, dtype=dtype, count=max(1, round(count / micro_batches)))
            for (m, n, k, dtype), count in self._products.items()
        )
