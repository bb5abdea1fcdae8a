"""What trials train on: windows of one token stream, the same ones in the same order for every config.

Sequence k of a study starts at a place that depends on (seed, k) alone; optimizer step t of a global batch of B holds the sequences
t*B to t*B + B - 1. How a config spreads them over ranks and micro-batches changes nothing but rounding. A text is read as bytes (256
tokens); a `.bin` file holds token ids as little-endian uint16, or uint32 where the vocabulary needs it. Without a file, the text that
ships is used: Alice's Adventures in Wonderland (Lewis Carroll, 1865; public domain).
"""

from __future__ import annotations

from importlib import resources
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from autotune.errors import RunnerError


class TokenStream:
    """A token stream and the windows that are cut from it."""

    def __init__(self, data: str | None, *, seq_len: int, vocab_size: int, seed: int) -> None:
        """Raises `RunnerError` when the file cannot be read or is too short."""
        self.seq_len = seq_len
        self._seed = seed
        self._vocab_size = vocab_size
        self._name = name = data or "the text that ships"
        self._tokens = _read(data, vocab_size)
        if len(self._tokens) <= seq_len:
            raise RunnerError(
                f"data must hold more than seq_len={seq_len} tokens, but {name} holds {len(self._tokens)}",
                remedy="use a longer file or shorter sequences",
                field="data",
            )

    def sequences(self, indices: NDArray[np.int64]) -> Tensor:
        """The sequences of these numbers, int64 (len(indices), seq_len + 1): inputs, and targets one further on.

        Raises `RunnerError` on an id beyond the vocabulary.
        """
        room = len(self._tokens) - self.seq_len
        starts = (_mix(indices, self._seed) % np.uint64(room)).astype(np.int64)
        windows = starts[:, None] + np.arange(self.seq_len + 1)
        tokens = self._tokens[windows].astype(np.int64)
        if tokens.max(initial=0) >= self._vocab_size:
            raise RunnerError(
                f"token ids must be under vocab_size={self._vocab_size}, but {self._name} holds {tokens.max()}",
                remedy="bytes need a vocabulary of 256; tokenize the file for this model otherwise",
                field="data",
            )
        return torch.from_numpy(tokens)


def rows_of(step: int, *, dp: int, dp_rank: int, micro_batch_size: int, accumulation_steps: int) -> NDArray[np.int64]:
    """Numbers of the sequences that a data-parallel rank sees in a step, micro-batch by micro-batch.

    Micro-batch m of rank d holds the rows (m * dp + d) * micro_batch_size onwards of the step's global batch.
    """
    batch = dp * micro_batch_size * accumulation_steps
    blocks = np.arange(accumulation_steps, dtype=np.int64)[:, None] * dp + dp_rank
    return (step * batch + blocks * micro_batch_size + np.arange(micro_batch_size)).reshape(-1)


def _read(data: str | None, vocab_size: int) -> NDArray[Any]:
    if data is None:
        text = resources.files("autotune_workers").joinpath("text", "alice.txt").read_bytes()
        return np.frombuffer(text, dtype=np.uint8)
    try:
        if Path(data).suffix == ".bin":
            return np.memmap(data, dtype="<u2" if vocab_size <= 1 << 16 else "<u4", mode="r")
        return np.frombuffer(Path(data).read_bytes(), dtype=np.uint8)
    except (OSError, ValueError) as error:
        raise RunnerError(f"the data file {data} cannot be read: {error}", field="data") from None


def _mix(indices: NDArray[np.int64], seed: int) -> NDArray[np.uint64]:
    """SplitMix64 (Steele, Lea and Flood 2014): a well-spread 64-bit number for each index, with a stream for each seed."""
    with np.errstate(over="ignore"):
        z = (indices.astype(np.uint64) + np.uint64(1)) * np.uint64(0x9E3779B97F4A7C15)
        z += np.uint64(seed % (1 << 64)) * np.uint64(0xD1342543DE82EF95)
        z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        return z ^ (z >> np.uint64(31))
