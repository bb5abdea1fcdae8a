"""Context parallelism: each rank has some positions of every sequence, and attention works on all
positions.

    gather    every rank gathers the keys and values of all positions (Llama Team 2024, arXiv:2407.21783, section 3.3.2)
    ring      keys and values are passed from rank to rank, see `ring_attention`
    heads     an all-to-all gives each rank all positions of some heads, and a second one returns the results (Jacobs et al. 2023,
              arXiv:2309.14509, section 3.1)

With `gather` and `ring`, the sequence is split into 2 * cp chunks, and rank r has chunks r and 2 *
cp - 1 - r, so that causal attention costs the same on all ranks. With `heads`, every rank attends
over whole sequences, and rank r has the r-th of cp chunks.
"""

from __future__ import annotations

import functools

import torch
import torch.distributed as dist
from torch import Tensor
from torch.nn.attention.bias import causal_lower_right

from autotune.spec import Workload
from autotune_workers.training.model.decoder import Attend, DecoderStage, fused_attention
from autotune_workers.training.model.packed_sequences import document_pieces
from autotune_workers.training.parallel.collective_ops import Exchange, GatherFirst
from autotune_workers.training.parallel.ring_attention import ring_attention


def positions_of(seq_len: int, cp: int, rank: int, style: str = "gather") -> Tensor:
    """The positions of a rank, in its order, (seq_len / cp,)."""
    if cp == 1 or style == "heads":
        return torch.arange(seq_len).chunk(cp)[rank]
    chunks = torch.arange(seq_len).chunk(2 * cp)
    return torch.cat((chunks[rank], chunks[2 * cp - 1 - rank]))


def apply_context_parallel(
    stage: DecoderStage,
    style: str,
    workload: Workload,
    group: dist.ProcessGroup,
    device: torch.device,
) -> None:
    """Make all layers attend over the whole sequence for this rank's queries."""
    for block in stage.layers.values():
        attend = _attend(style, block.attention.attend, workload, group, device)
        # not compiled, because the compiler would break the graph at the collective anyway
        block.attention.attend = torch.compiler.disable(attend)


def _attend(
    style: str, whole: Attend, workload: Workload, group: dist.ProcessGroup, device: torch.device
) -> Attend:
    """The attention function of a style. `whole`: attention over whole sequences."""
    if style == "heads":
        return functools.partial(_attend_by_heads, group, whole)
    if style == "ring":
        return functools.partial(ring_attention, group)
    cp, seq_len = group.size(), workload.seq_len
    gathered = torch.cat([positions_of(seq_len, cp, r) for r in range(cp)])
    chunks = [(int(c[0]), int(c[-1]) + 1) for c in positions_of(seq_len, cp, group.rank()).chunk(2)]
    pieces = [
        piece
        for start, end in chunks
        for piece in document_pieces(start, end, workload.document_len)
    ]
    return functools.partial(_attend_to_gathered, group, gathered.argsort().to(device), pieces)


def _attend_to_gathered(
    group: dist.ProcessGroup,
    natural: Tensor,
    pieces: list[tuple[int, int, int]],
    q: Tensor,
    k: Tensor,
    v: Tensor,
) -> Tensor:
    """q (b, a, s / cp, d), k and v (b, k, s / cp, d) -> (b, a, s / cp, d). `natural`: indices that
    sort the gathered positions; `pieces`: (first, end, first key) of this rank's contiguous
    queries."""
    mine = torch.stack((k, v)).permute(3, 0, 1, 2, 4)
    k, v = GatherFirst.apply(mine, group).index_select(0, natural).permute(1, 2, 3, 0, 4)
    sizes = [end - start for start, end, _ in pieces]
    parts = [
        fused_attention(
            part,
            k[:, :, first:end],
            v[:, :, first:end],
            mask=causal_lower_right(end - start, end - first),
        )
        for part, (start, end, first) in zip(q.split(sizes, dim=2), pieces, strict=True)
    ]
    return torch.cat(parts, dim=2)


def _attend_by_heads(
    group: dist.ProcessGroup, whole: Attend, q: Tensor, k: Tensor, v: Tensor
) -> Tensor:
    """q (b, a, s / cp, d), k and v (b, k, s / cp, d) -> (b, a, s / cp, d), with attention on (b, a /
    cp, s, d)."""
    results = whole(*(_all_to_all(x, group, split=1, joined=2) for x in (q, k, v)))
    return _all_to_all(results, group, split=2, joined=1)


def _all_to_all(x: Tensor, group: dist.ProcessGroup, *, split: int, joined: int) -> Tensor:
    """Split axis `split` over the ranks of the group, and join their parts of axis `joined`."""
    ranks = group.size()
    parts = torch.stack(x.chunk(ranks, dim=split))
    exchanged = Exchange.apply(parts, [1] * ranks, [1] * ranks, group)
    return torch.cat(tuple(exchanged), dim=joined)
