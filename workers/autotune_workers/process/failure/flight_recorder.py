"""Reads NCCL's flight recorder of a program's ranks: which collectives each rank had begun when the
program hung.

Environment variables turn the recorder on, so it works with any trainer. Each rank with torch's
NCCL backend opens a named pipe; when a byte is written into it, the rank dumps its last collectives
to a file within about a second (ProcessGroupNCCL.hpp, `DumpPipe`; `torchfrtrace` reads the same
file). Each entry has its process group and its number in the group. Ranks of a group begin the same
collectives in the same order, so the rank with the lowest number keeps the others waiting. Groups
made by one `split_group` have the same name in torch before 2.13, so a group is identified by its
name and ranks, as in `torchfrtrace`.

    TORCH_NCCL_DEBUG_INFO_PIPE_FILE       prefix of the pipes' names: PREFIX0.pipe for rank 0
    TORCH_FR_DUMP_TEMP_FILE               prefix of the files' names; TORCH_NCCL_DEBUG_INFO_TEMP_FILE in torch before 2.9
    TORCH_FR_BUFFER_SIZE                  number of entries; TORCH_NCCL_TRACE_BUFFER_SIZE in torch before 2.9

Imports the standard library only. A file is a pickle; only plain values are loaded. The folder may
belong to the user that runs the program, so links in it are not followed.
"""

from __future__ import annotations

import contextlib
import io
import os
import pickle
import re
import stat
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

ENTRIES = 2000
"""number of collectives that a rank records, torch's default"""
DUMP_S = 4.0
"""longest wait for the ranks' files, seconds; torch checks the pipe once a second"""
MAX_FILE_BYTES = 64 << 20
"""larger files are not read"""
SHOWN_RANKS = 8
"""largest number of ranks listed for a process group"""
Begun = dict[str, dict[str, list[Any]]]
"""by rank and process group: [number of the last collective that the rank began in the group, its
name]"""


def variables(folder: str, environment: Mapping[str, str]) -> dict[str, str]:
    """The variables that turn the recorder on with its files in `folder`; empty if `environment`
    already sets one of them."""
    pipe, file = os.path.join(folder, "pipe-"), os.path.join(folder, "rank-")
    wanted = {
        "TORCH_NCCL_DEBUG_INFO_PIPE_FILE": pipe,
        **dict.fromkeys(("TORCH_FR_DUMP_TEMP_FILE", "TORCH_NCCL_DEBUG_INFO_TEMP_FILE"), file),
        **dict.fromkeys(("TORCH_FR_BUFFER_SIZE", "TORCH_NCCL_TRACE_BUFFER_SIZE"), str(ENTRIES)),
    }
    return {} if any(name in environment for name in wanted) else wanted


def collectives_begun(folder: str, dump_s: float = DUMP_S) -> Begun:
    """Makes all ranks with pipes in `folder` write their files, and reads those written within
    `dump_s`. Returns an empty dict at once if there are no pipes."""
    ranks = [
        path.name.removeprefix("pipe-").removesuffix(".pipe")
        for path in Path(folder).glob("pipe-*.pipe")
        if _request_dump(path)
    ]
    begun_by_rank: Begun = {}
    end_s = time.monotonic() + dump_s
    while len(begun_by_rank) < len(ranks) and time.monotonic() < end_s:
        for rank in ranks:
            if (
                rank not in begun_by_rank
                and (begun := _read(Path(folder, f"rank-{rank}"))) is not None
            ):
                begun_by_rank[rank] = begun
        time.sleep(0.02)
    return begun_by_rank


def _request_dump(pipe: Path) -> bool:
    """Requests a dump through the pipe. Returns whether a rank reads the pipe."""
    with contextlib.suppress(OSError):
        writer = _open(pipe, os.O_WRONLY, stat.S_ISFIFO)
        try:
            return os.write(writer, b"1") == 1
        finally:
            os.close(writer)
    return False


def _open(path: Path, flags: int, is_kind: Callable[[int], bool]) -> int:
    """Opens a file of the given kind without blocking. Raises `OSError` for other kinds and for
    links."""
    descriptor = os.open(path, flags | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC)
    if not is_kind(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise OSError(f"{path} is a different kind of file")
    return descriptor


def _read(file: Path) -> dict[str, list[Any]] | None:
    """The last collective of each group in the file; None while it is missing or incomplete."""
    try:
        with os.fdopen(_open(file, os.O_RDONLY, stat.S_ISREG), "rb") as opened:
            content = opened.read(MAX_FILE_BYTES + 1)
        if len(content) > MAX_FILE_BYTES:
            return {}
        dump = _PlainValues(io.BytesIO(content)).load()
        ranks = {str(name): group.get("ranks") for name, group in dump.get("pg_config", {}).items()}
        last: dict[str, list[Any]] = {}
        for entry in dump["entries"]:
            if not entry.get("is_p2p"):
                name, number = str(entry["process_group"][0]), int(entry["collective_seq_id"])
                group = _with_ranks(name, re.findall(r"\d+", str(ranks.get(name))))
                last[group] = max(last.get(group, [0, ""]), [number, str(entry["profiling_name"])])
        return last
    except (
        OSError,
        EOFError,
        KeyError,
        IndexError,
        TypeError,
        ValueError,
        AttributeError,
        pickle.UnpicklingError,
    ):
        return None


def _with_ranks(name: str, ranks: list[str]) -> str:
    """The group's name with its ranks; its name alone if the ranks are unknown. The first ranks
    suffice, because groups of one split are disjoint."""
    if not ranks:
        return name
    shown = ", ".join(ranks[:SHOWN_RANKS])
    return f"{name} (ranks {shown}{', ...' if len(ranks) > SHOWN_RANKS else ''})"


class _PlainValues(pickle.Unpickler):
    """Unpickles numbers, strings and collections of them. Raises for anything that names a class or
    function."""

    def find_class(self, module: str, name: str) -> Any:
        raise pickle.UnpicklingError(f"{module}.{name} is not a plain value")
