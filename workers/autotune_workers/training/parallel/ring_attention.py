"""Ring attention: keys and values are passed around the context-parallel ranks, while each rank
attends to those that it has (Liu et al. 2023, arXiv:2310.01889).

    c positions of a chunk (s / 2 cp)    q (b, a, 2 c, d), k and v (b, k, 2 c, d) of a rank: chunks r and 2 cp - 1 - r    lse (b, a, c) log-sum-exp

A rank never has the keys and values of more than two ranks. Results for two sets of keys are
combined with their log-sum-exps, and the backward pass of a block of scores needs only the final
log-sum-exps (Dao 2023, arXiv:2307.08691, sections 3.1.1 and 3.1.2). Gradients of keys and values
are passed on with them, and are back on their rank after a whole round.

Blocks use torch's flash kernels, which on a GPU support only 16-bit tensors. In fp32 on a GPU, the
scores of each block are computed explicitly.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from autotune_workers.training.model.decoder import expanded
from autotune_workers.training.torch_internals import flash_attention, flash_attention_backward

Block = tuple[slice, slice, bool]
"""a block of scores: slices of this rank's queries and of the source rank's keys, and whether it is
on the diagonal, so that it needs a causal mask"""


def ring_attention(group: dist.ProcessGroup, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """q (b, a, s / cp, d), k and v (b, k, s / cp, d) -> (b, a, s / cp, d); causal."""
    return _RingAttention.apply(q, k, v, group)


class _RingAttention(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, q: Tensor, k: Tensor, v: Tensor, group: dist.ProcessGroup) -> Tensor:
        """See `ring_attention`."""
        out = torch.zeros_like(q, dtype=torch.float32)
        lse = q.new_full(q.shape[:3], -torch.inf, dtype=torch.float32)
        pair = torch.stack((k, v))
        for source, has_next in _round(group):
            transfer = _Transfer(pair, group) if has_next else None
            for queries, keys, diagonal in _blocks(group, source, q.shape[2] // 2):
                some_k, some_v = (expanded(x[:, :, keys], q) for x in pair)
                part, part_lse = attend_block(q[:, :, queries], some_k, some_v, causal=diagonal)
                joined = torch.logaddexp(lse[:, :, queries], part_lse)
                old, new = (lse[:, :, queries] - joined).exp(), (part_lse - joined).exp()
                out[:, :, queries] = (
                    old[..., None] * out[:, :, queries] + new[..., None] * part.float()
                )
                lse[:, :, queries] = joined
            pair = pair if transfer is None else transfer.received()
        result = out.to(q.dtype)
        ctx.group = group
        ctx.save_for_backward(q, k, v, result, lse)
        return result

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, Tensor, Tensor, None]:
        """The same round, in which each block adds to the gradients of its queries, keys and
        values."""
        q, k, v, out, lse = ctx.saved_tensors
        q_grad = torch.zeros_like(q, dtype=torch.float32)
        pair = torch.stack((k, v))
        pair_grad = torch.zeros_like(pair, dtype=torch.float32)
        for source, has_next in _round(ctx.group):
            transfer = _Transfer(pair, ctx.group) if has_next else None
            for queries, keys, diagonal in _blocks(ctx.group, source, q.shape[2] // 2):
                some_k, some_v = (expanded(x[:, :, keys], q) for x in pair)
                some_q, some_out, some_grad = (x[:, :, queries] for x in (q, out, grads[0]))
                block_q_grad, *block_pair_grad = attend_block_backward(
                    some_grad, some_q, some_k, some_v, some_out, lse[:, :, queries], causal=diagonal
                )
                q_grad[:, :, queries] += block_q_grad
                for total, grad in zip(pair_grad, block_pair_grad, strict=True):
                    total[:, :, keys] += grad.float().unflatten(1, (k.shape[1], -1)).sum(dim=2)
            pair_grad = _Transfer(pair_grad, ctx.group).received()
            pair = pair if transfer is None else transfer.received()
        k_grad, v_grad = pair_grad.to(k.dtype)
        return q_grad.to(q.dtype), k_grad, v_grad, None


class _Transfer:
    """Sends a tensor to the next rank, and receives one from the previous rank."""

    def __init__(self, x: Tensor, group: dist.ProcessGroup) -> None:
        rank, ranks = group.rank(), group.size()
        self._sent = x.contiguous()
        self._arriving = torch.empty_like(x, memory_format=torch.contiguous_format)
        peers = (dist.get_global_rank(group, (rank + step) % ranks) for step in (1, -1))
        operations = zip((dist.isend, dist.irecv), (self._sent, self._arriving), peers, strict=True)
        self._works = dist.batch_isend_irecv(
            [dist.P2POp(*operation, group=group) for operation in operations]
        )

    def received(self) -> Tensor:
        """Wait for both transfers, and return the previous rank's tensor."""
        for work in self._works:
            work.wait()
        return self._arriving


def _round(group: dist.ProcessGroup) -> Iterator[tuple[int, bool]]:
    """Yield (rank whose keys and values are here, whether others follow) for each rank."""
    ranks = group.size()
    return (((group.rank() - step) % ranks, step + 1 < ranks) for step in range(ranks))


def _blocks(group: dist.ProcessGroup, source: int, chunk: int) -> Iterator[Block]:
    """The blocks of scores between this rank's queries and the keys of rank `source` that are not
    masked by causality."""
    last = 2 * group.size() - 1
    for i, mine in enumerate((group.rank(), last - group.rank())):
        for j, theirs in enumerate((source, last - source)):
            if theirs <= mine:
                yield (
                    slice(i * chunk, (i + 1) * chunk),
                    slice(j * chunk, (j + 1) * chunk),
                    mine == theirs,
                )


def attend_block(q: Tensor, k: Tensor, v: Tensor, *, causal: bool) -> tuple[Tensor, Tensor]:
    """q, k and v (b, a, c, d) -> results (b, a, c, d), and log-sum-exps of the scores (b, a, c)."""
    if _has_flash(q):
        return flash_attention(q, k, v, causal=causal)
    scores = _scores(q, k, causal)
    lse = scores.logsumexp(dim=-1)
    return (scores - lse[..., None]).exp() @ v, lse


def attend_block_backward(
    grad: Tensor, q: Tensor, k: Tensor, v: Tensor, out: Tensor, lse: Tensor, *, causal: bool
) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients of q, k and v (b, a, c, d) from this block. `grad`: of the results; `out`, `lse`: the
    final ones over all keys.

    With P = exp(S - lse): dV = P^T dO, dS = P * (dO V^T - rowsum(dO * O)), dQ = dS K and dK = dS^T
    Q, both times the scale of the scores.
    """
    if _has_flash(q):
        return flash_attention_backward(grad, q, k, v, out, lse.contiguous(), causal=causal)
    probabilities = (_scores(q, k, causal) - lse[..., None]).exp()
    scale = q.shape[-1] ** -0.5
    score_grad = probabilities * (grad @ v.mT - (grad * out).sum(dim=-1, keepdim=True)) * scale
    return score_grad @ k, score_grad.mT @ q, probabilities.mT @ grad


def _scores(q: Tensor, k: Tensor, causal: bool) -> Tensor:
    scores = q @ k.mT * q.shape[-1] ** -0.5
    if not causal:
        return scores
    later = torch.ones(scores.shape[-2:], dtype=torch.bool, device=q.device).triu(1)
    return scores.masked_fill(later, -torch.inf)


def _has_flash(x: Tensor) -> bool:
    return x.device.type == "cpu" or x.dtype is not torch.float32
