"""Reads and checks the file of training tokens. Does not import torch, so that a study with a bad
file is refused before anything is started.

A `.bin` file has token ids as little-endian uint16, or uint32 if the vocabulary needs it; any other
file is read as bytes (256 tokens). Without a file, the bundled text is used: Alice's Adventures in
Wonderland (Lewis Carroll, 1865; public domain).
"""

from __future__ import annotations

from importlib import resources
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from autotune.errors import RunnerError

CHECKED_IDS = 1 << 22
"""number of ids compared with the vocabulary when a file is opened; all ids of a smaller file"""
RUNS = 64
"""evenly spaced runs of ids that are checked in a larger file"""


def token_file(data: str | None, *, seq_len: int, vocab_size: int) -> NDArray[Any]:
    """The token ids of the file, memory-mapped if it is a `.bin` file. Raises `RunnerError` if the
    file cannot be read, has too few tokens, or ids beyond the vocabulary."""
    tokens = _read(data, vocab_size)
    if len(tokens) <= seq_len:
        raise RunnerError(
            f"data must have more than seq_len={seq_len} tokens, but {_name(data)} has {len(tokens)}",
            remedy="use a longer file or shorter sequences",
            field="data",
        )
    if (largest := _largest(tokens)) >= vocab_size:
        raise beyond_vocabulary(data, largest, vocab_size)
    return tokens


def beyond_vocabulary(data: str | None, largest: int, vocab_size: int) -> RunnerError:
    """The error for a file with token ids beyond the vocabulary."""
    return RunnerError(
        f"token ids must be below vocab_size={vocab_size}, but {_name(data)} has {largest}",
        remedy="plain bytes need a vocabulary of 256; otherwise tokenize the file for this model",
        field="data",
    )


def _name(data: str | None) -> str:
    return data or "the bundled text"


def _largest(tokens: NDArray[Any]) -> int:
    """The largest of the checked ids."""
    if len(tokens) <= CHECKED_IDS:
        return int(tokens.max())
    length = CHECKED_IDS // RUNS
    starts = np.linspace(0, len(tokens) - length, RUNS, dtype=np.int64)
    return max(int(tokens[start : start + length].max()) for start in starts)


def _read(data: str | None, vocab_size: int) -> NDArray[Any]:
    if data is None:
        text = resources.files("autotune_workers").joinpath("text", "alice.txt").read_bytes()
        return np.frombuffer(text, dtype=np.uint8)
    try:
        if Path(data).suffix == ".bin":
            return _ids(Path(data), vocab_size)
        return np.frombuffer(Path(data).read_bytes(), dtype=np.uint8)
    except (OSError, ValueError) as error:
        raise RunnerError(
            f"the data file {data} cannot be read: {error}",
            remedy="check that the file exists and is readable on every training node, or omit `data` to use the bundled text",
            field="data",
        ) from None


def _ids(path: Path, vocab_size: int) -> NDArray[Any]:
    """Maps a file of little-endian unsigned integers: two bytes each if the vocabulary fits,
    otherwise four."""
    dtype = np.dtype("<u2" if vocab_size <= 1 << 16 else "<u4")
    if path.stat().st_size % dtype.itemsize:
        raise RunnerError(
            f"a .bin file must have one {dtype.itemsize}-byte id per token for vocab_size={vocab_size}, "
            f"but the size of {path}, {path.stat().st_size} bytes, is not a multiple of that size",
            remedy=f"write the ids as {dtype.name} (numpy: `ids.astype('{dtype.str}').tofile(path)`), or use another suffix for text",
            field="data",
        )
    return np.memmap(path, dtype=dtype, mode="r")
