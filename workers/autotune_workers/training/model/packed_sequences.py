"""Packed sequences: each sequence is a concatenation of documents with `document_len` tokens, and no
token attends to another document.

The last document of a sequence is shorter if `document_len` does not divide the sequence. Positions
count from 0 in each document, and the last token of a document has no target, so a document is
trained as if it were alone in its sequence. Attention treats documents as sequences of a larger
batch, so its cost is that of training on real documents of this mean length.
"""

from __future__ import annotations

import itertools

import torch
from torch import Tensor

from autotune_workers.training.model.decoder import Attend, DecoderStage, fused_attention
from autotune_workers.training.model.loss import IGNORED


def document_positions(positions: Tensor, document_len: int) -> Tensor:
    """Positions in the sequence -> positions in the document. `document_len` 0: the whole sequence is
    one document."""
    return positions % document_len if document_len else positions


def without_document_ends(targets: Tensor, positions: Tensor, document_len: int) -> Tensor:
    """Targets (b, s) of these positions (s,), with `IGNORED` if the next token is in another
    document."""
    return targets.where((positions + 1) % document_len != 0, IGNORED) if document_len else targets


def counted_targets(seq_len: int, document_len: int) -> int:
    """Number of tokens of a sequence that count in the loss."""
    return seq_len - seq_len // document_len if document_len else seq_len


def apply_documents(stage: DecoderStage, document_len: int) -> None:
    """Restrict the attention of all layers to documents."""
    for block in stage.layers.values():
        block.attention.attend = attend_within_documents(document_len)


def attend_within_documents(document_len: int) -> Attend:
    """Causal attention of whole sequences, restricted to their documents."""

    def within(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """q (b, a, s, d), k and v (b, k, s, d) -> (b, a, s, d)."""
        seq_len = q.shape[2]
        full = seq_len - seq_len % document_len
        folded = (
            x[:, :, :full].unflatten(2, (-1, document_len)).transpose(1, 2).flatten(0, 1)
            for x in (q, k, v)
        )
        done = fused_attention(*folded).unflatten(0, (len(q), -1)).transpose(1, 2).flatten(2, 3)
        if full == seq_len:
            return done
        return torch.cat((done, fused_attention(*(x[:, :, full:] for x in (q, k, v)))), dim=2)

    return within


class SequenceBounds:
    """Attention for a micro-batch of concatenated sequences of unequal length."""

    def __init__(self) -> None:
        self.lengths: list[int] = []
        """tokens of each sequence; empty: each row of the micro-batch is one sequence"""

    def attend(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """Causal attention within each sequence: q (1, a, s, d), k and v (1, k, s, d) -> (1, a, s,
        d)."""
        if len(self.lengths) < 2:
            return fused_attention(q, k, v)
        parts = zip(*(x.split(self.lengths, dim=2) for x in (q, k, v)), strict=True)
        return torch.cat([fused_attention(*part) for part in parts], dim=2)


def document_pieces(start: int, end: int, document_len: int) -> list[tuple[int, int, int]]:
    """The positions from `start` to `end`, split at the beginnings of documents: (first, end, start
    of the document) of each piece."""
    if not document_len:
        return [(start, end, 0)]
    cuts = [start, *range(start - start % document_len + document_len, end, document_len), end]
    return [(a, b, a - a % document_len) for a, b in itertools.pairwise(cuts)]
