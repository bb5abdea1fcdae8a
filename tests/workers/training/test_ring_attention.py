"""The parts of ring attention that need no ranks: the blocks of scores, and the two ways to compute
one."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, cast

import pytest
import torch

from autotune_workers.training.parallel import ring_attention
from autotune_workers.training.parallel.context_parallel import positions_of

CHUNK = 3


@dataclass(frozen=True)
class Place:
    """A process group as far as blocks need it."""

    place: int
    ranks: int

    def rank(self) -> int:
        return self.place

    def size(self) -> int:
        return self.ranks


@pytest.mark.parametrize("ranks", [2, 3, 4])
def test_blocks_are_the_scores_that_causality_leaves(ranks: int) -> None:
    seq_len = 2 * ranks * CHUNK
    for rank in range(ranks):
        mine = positions_of(seq_len, ranks, rank)
        for source in range(ranks):
            theirs = positions_of(seq_len, ranks, source)
            seen = torch.zeros((len(mine), len(theirs)), dtype=torch.int64)
            for queries, keys, diagonal in ring_attention._blocks(
                cast("Any", Place(rank, ranks)), source, CHUNK
            ):
                block = torch.ones((CHUNK, CHUNK), dtype=torch.int64)
                seen[queries, keys] += block.tril() if diagonal else block
            assert torch.equal(seen, (theirs[None, :] <= mine[:, None]).long())


@pytest.mark.parametrize("causal", [True, False])
def test_a_block_without_a_flash_kernel_is_the_same(
    causal: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    generator = torch.Generator().manual_seed(0)
    q, k, v, grad = (torch.randn((2, 3, 8, 4), generator=generator) for _ in range(4))
    results = []
    for has_flash in (True, False):
        monkeypatch.setattr(ring_attention, "_has_flash", lambda _, has=has_flash: has)
        out, lse = ring_attention.attend_block(q, k, v, causal=causal)
        results.append(
            (
                out,
                lse,
                *ring_attention.attend_block_backward(grad, q, k, v, out, lse, causal=causal),
            )
        )
    for kernel, plain in zip(*results, strict=True):
        torch.testing.assert_close(kernel, plain, rtol=1e-4, atol=1e-5)
