"""The cross entropy of each token, from whole logits or chunk by chunk, with a vocabulary that may
be split over tensor-parallel ranks.

    n tokens of a micro-batch    h hidden_size    V' token ids whose logits this rank computes (V / tp)    z log-normalizer of a token, (n,)

`full` computes all logits at once. `chunked` computes the logits of one chunk of tokens at a time,
in the forward and again in the backward pass, and stores only z for each token (Wijmans et al.
2024, arXiv:2411.09009, section 4, without the fused kernel). It computes the output projection once
more, and needs 1 / `CHUNKS` of the logits' memory. The vocabulary is split as in Shoeybi et al.
2019 (arXiv:1909.08053), section 3.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor

CHUNKS = 8
"""number of chunks of a micro-batch's tokens for `chunked`"""
IGNORED = -100
"""target of a token that does not count in the loss, as in torch"""


@dataclass(frozen=True, slots=True, kw_only=True)
class VocabularySlice:
    """The token ids whose logits a rank computes."""

    start: int
    """the first id"""
    size: int
    """number of ids"""
    group: dist.ProcessGroup | None = None
    """ranks that together have all ids; None if this rank has all"""


def token_losses(logits: Tensor, targets: Tensor, vocabulary: VocabularySlice) -> Tensor:
    """Logits (n, V') and targets (n,) -> losses (n,) in nats; 0 for `IGNORED` targets."""
    logits = logits.float()
    if vocabulary.group is None:
        return F.cross_entropy(logits, targets, reduction="none", ignore_index=IGNORED)
    return _VocabularyParallelLoss.apply(logits, targets, vocabulary)


def chunked_token_losses(
    hidden: Tensor, weight: Tensor, targets: Tensor, vocabulary: VocabularySlice
) -> Tensor:
    """Hidden states (n, h), the output projection's weight (V', h) and targets (n,) -> losses (n,),
    the same as `token_losses` of the logits.

    If the vocabulary is split, the gradient of `hidden` is this rank's term of a sum over ranks.
    """
    return _ChunkedLoss.apply(hidden, weight.to(hidden.dtype), targets, vocabulary)


class _VocabularyParallelLoss(torch.autograd.Function):
    """Cross entropy of logits that are split over the vocabulary, without gathering them."""

    @staticmethod
    def forward(ctx: Any, logits: Tensor, targets: Tensor, vocabulary: VocabularySlice) -> Tensor:
        """fp32 logits (n, V') and targets (n,) -> losses (n,)."""
        losses, normalizer = _losses(logits, targets, vocabulary)
        ctx.vocabulary = vocabulary
        ctx.save_for_backward(logits, targets, normalizer)
        return losses

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None, None]:
        """Softmax minus one-hot."""
        logits, targets, normalizers = ctx.saved_tensors
        return _gradient(logits, targets, normalizers, grads[0], ctx.vocabulary), None, None


class _ChunkedLoss(torch.autograd.Function):
    """Output projection and cross entropy with the logits of only one chunk at a time."""

    @staticmethod
    def forward(
        ctx: Any, hidden: Tensor, weight: Tensor, targets: Tensor, vocabulary: VocabularySlice
    ) -> Tensor:
        """(n, h), (V', h) and (n,) -> losses (n,)."""
        pairs = [
            _losses(F.linear(hidden[rows], weight).float(), targets[rows], vocabulary)
            for rows in _chunks(len(hidden))
        ]
        losses, normalizers = (torch.cat(parts) for parts in zip(*pairs, strict=True))
        ctx.vocabulary = vocabulary
        ctx.save_for_backward(hidden, weight, targets, normalizers)
        return losses

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, Tensor, None, None]:
        """Recompute each chunk's logits. The weight's gradient is summed over chunks in fp32."""
        hidden, weight, targets, normalizers = ctx.saved_tensors
        hidden_grad = torch.empty_like(hidden)
        weight_grad = torch.zeros_like(weight, dtype=torch.float32)
        for rows in _chunks(len(hidden)):
            logits = F.linear(hidden[rows], weight).float()
            grad = _gradient(
                logits, targets[rows], normalizers[rows], grads[0][rows], ctx.vocabulary
            )
            grad = grad.to(hidden.dtype)
            hidden_grad[rows] = grad @ weight
            weight_grad += grad.T @ hidden[rows]
        return hidden_grad, weight_grad.to(weight.dtype), None, None


def _chunks(count: int) -> Iterator[slice]:
    size = -(-count // CHUNKS)
    return (slice(start, start + size) for start in range(0, count, size))


def _losses(logits: Tensor, targets: Tensor, vocabulary: VocabularySlice) -> tuple[Tensor, Tensor]:
    """fp32 logits (n, V') and targets (n,) -> losses and log-normalizers, (n,) each."""
    top = logits.amax(dim=-1) if vocabulary.size else logits.new_full(logits.shape[:1], -torch.inf)
    if vocabulary.group is not None:
        dist.all_reduce(top, dist.ReduceOp.MAX, group=vocabulary.group)
    index, inside = _place(targets, vocabulary)
    if vocabulary.size:
        picked = torch.where(inside, logits.gather(-1, index[:, None]).squeeze(-1) - top, 0.0)
    else:
        picked = torch.zeros_like(top)
    sums = torch.stack(((logits - top[:, None]).exp_().sum(dim=-1), picked))
    if vocabulary.group is not None:
        dist.all_reduce(sums, group=vocabulary.group)
    log_sum = sums[0].log()
    return torch.where(targets == IGNORED, 0.0, log_sum - sums[1]), log_sum + top


def _gradient(
    logits: Tensor,
    targets: Tensor,
    normalizers: Tensor,
    loss_grad: Tensor,
    vocabulary: VocabularySlice,
) -> Tensor:
    """Gradient of fp32 logits (n, V') from that of the losses (n,): softmax minus one-hot."""
    loss_grad = torch.where(targets == IGNORED, 0.0, loss_grad)
    index, inside = _place(targets, vocabulary)
    grad = (logits - normalizers[:, None]).exp_().mul_(loss_grad[:, None])
    if vocabulary.size:
        grad.scatter_add_(-1, index[:, None], -(loss_grad * inside)[:, None])
    return grad


def _place(targets: Tensor, vocabulary: VocabularySlice) -> tuple[Tensor, Tensor]:
    """The index of each target in this rank's logits, and whether it is there at all, (n,) each."""
    inside = (targets >= vocabulary.start) & (targets < vocabulary.start + vocabulary.size)
    return torch.where(inside, targets - vocabulary.start, 0), inside
