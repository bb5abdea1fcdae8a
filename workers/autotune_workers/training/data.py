"""Training data: windows of one token stream, the same ones in the same order for every config.

The start of sequence k of a study depends only on (seed, k). Optimizer step t with a global batch of
B contains the sequences t*B to t*B + B - 1. Their distribution over ranks and micro-batches affects
only rounding. `token_file` reads the tokens.
"""

from __future__ import annotations

from typing import Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from autotune.ports import TrialRequest
from autotune_workers.training.token_file import beyond_vocabulary, token_file


class SequenceSource(Protocol):
    """A source of training sequences."""

    def sequences(self, indices: NDArray[np.int64]) -> Tensor:
        """The sequences with these numbers, int64 (len(indices), seq_len + 1). Targets are the
        inputs shifted by one."""


class TokenStream:
    """A token stream, from which sequences are taken as windows."""

    def __init__(self, data: str | None, *, seq_len: int, vocab_size: int, seed: int) -> None:
        """`data`: path of the file; None for the bundled text. Raises `RunnerError` if it cannot be
        read, is too short, or has ids beyond the vocabulary."""
        self.seq_len = seq_len
        self._seed = seed
        self._vocab_size, self._data = vocab_size, data
        self._tokens = token_file(data, seq_len=seq_len, vocab_size=vocab_size)

    def sequences(self, indices: NDArray[np.int64]) -> Tensor:
        """See `SequenceSource`. Raises `RunnerError` for an id beyond the vocabulary, with the
        largest id of the whole file, so that the message is the same on all ranks."""
        room = len(self._tokens) - self.seq_len
        starts = (_mix(indices, self._seed) % np.uint64(room)).astype(np.int64)
        windows = starts[:, None] + np.arange(self.seq_len + 1)
        tokens = self._tokens[windows].astype(np.int64)
        if tokens.max(initial=0) >= self._vocab_size:
            raise beyond_vocabulary(self._data, int(self._tokens.max()), self._vocab_size)
        return torch.from_numpy(tokens)


def token_stream(request: TrialRequest) -> TokenStream:
    """The token stream of the request's data."""
    workload = request.workload
    return TokenStream(
        request.data,
        seq_len=workload.seq_len,
        vocab_size=workload.model.vocab_size,
        seed=request.seed,
    )


def rows_of(
    step: int, *, dp: int, dp_rank: int, micro_batch_size: int, accumulation_steps: int
) -> NDArray[np.int64]:
    """Numbers of the sequences of a data-parallel rank in a step, micro-batch by micro-batch.

    Micro-batch m of rank d begins at row (m * dp + d) * micro_batch_size of the step's global batch.
    """
    batch = dp * micro_batch_size * accumulation_steps
    blocks = np.arange(accumulation_steps, dtype=np.int64)[:, None] * dp + dp_rank
    return (step * batch + blocks * micro_batch_size + np.arange(micro_batch_size)).reshape(-1)


def seed_of(index: int, seed: int) -> int:
    """The seed of sample `index` of a study, under 2^63."""
    return int(_mix(np.array([index], dtype=np.int64), seed)[0] >> np.uint64(1))


def _mix(indices: NDArray[np.int64], seed: int) -> NDArray[np.uint64]:
    """SplitMix64 (Steele, Lea and Flood 2014): a pseudo-random 64-bit number for each index and
    seed."""
    with np.errstate(over="ignore"):
        z = (indices.astype(np.uint64) + np.uint64(1)) * np.uint64(0x9E3779B97F4A7C15)
        z += np.uint64(seed % (1 << 64)) * np.uint64(0xD1342543DE82EF95)
        z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        return z ^ (z >> np.uint64(31))
