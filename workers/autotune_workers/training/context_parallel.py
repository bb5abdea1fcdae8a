"""Context parallelism: each rank holds some positions of every sequence, and sees the keys and values of all.

The sequence is cut into 2 * cp chunks and rank r holds chunks r and 2 * cp - 1 - r, so that causal attention costs every rank the same
(Llama Team 2024, arXiv:2407.21783, section 3.3.2, whose all-gather of keys and values this is too). Each chunk of queries attends to the
keys up to its own end.
"""

from __future__ import annotations

import functools

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor
from torch.nn.attention.bias import causal_lower_right

from autotune.errors import ConfigError
from autotune_workers.training.collective_ops import GatherFirst
from autotune_workers.training.decoder import DecoderStage


def check_context(seq_len: int, cp: int) -> None:
    """Raises `ConfigError` when the sequence cannot be cut evenly."""
    if cp > 1 and seq_len % (2 * cp):
        raise ConfigError(f"2 * cp must divide seq_len, but cp={cp} and seq_len={seq_len}", field="cp")


def positions_of(seq_len: int, cp: int, rank: int) -> Tensor:
    """Positions that a rank holds, in the order in which it holds them, (seq_len / cp,)."""
    if cp == 1:
        return torch.arange(seq_len)
    chunks = torch.arange(seq_len).chunk(2 * cp)
    return torch.cat((chunks[rank], chunks[2 * cp - 1 - rank]))


def apply_context_parallel(stage: DecoderStage, seq_len: int, group: dist.ProcessGroup, device: torch.device) -> None:
    """Has every layer attend over the whole sequence for the queries of this rank."""
    cp = group.size()
    gathered = torch.cat([positions_of(seq_len, cp, r) for r in range(cp)])
    natural = gathered.argsort().to(device)
    ends = [int(chunk[-1]) + 1 for chunk in positions_of(seq_len, cp, group.rank()).chunk(2)]
    # not compiled: the compiler would have to cut the graph at the collective anyway
    attend = torch.compiler.disable(functools.partial(_attend, group, natural, ends))
    for block in stage.layers.values():
        block.attention.attend = attend


def _attend(group: dist.ProcessGroup, natural: Tensor, ends: list[int], q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """q (b, a, s / cp, d), k and v (b, k, s / cp, d) -> (b, a, s / cp, d)."""
    mine = torch.stack((k, v)).permute(3, 0, 1, 2, 4)
    k, v = GatherFirst.apply(mine, group).index_select(0, natural).permute(1, 2, 3, 0, 4)
    grouped = q.shape[1] != k.shape[1]
    parts = [
        F.scaled_dot_product_attention(
            part,
            k[:, :, :end],
            v[:, :, :end],
            attn_mask=causal_lower_right(part.shape[2], end),
            enable_gqa=grouped,
        )
        for part, end in zip(q.chunk(2, dim=2), ends, strict=True)
    ]
    return torch.cat(parts, dim=2)
