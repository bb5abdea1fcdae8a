"""NCCL's flight recorder in a program that torch runs: which collectives each rank had begun when
the program fell silent.

Variables turn it on, so that any trainer can be asked. A rank of torch's NCCL backend opens a named
pipe; a byte written into it has the rank write its last collectives to a file within about a second
(ProcessGroupNCCL.hpp, `DumpPipe`; the file is what `torchfrtrace` reads). Each entry names its
process group and its number in it, and ranks of a group begin the same collectives in the same
order: the rank with the lowest number keeps the others waiting. Groups that one `split_group` makes
have the same name in torch before 2.13, so a group is given by its name and its ranks, as
`torchfrtrace` tells it.

    TORCH_NCCL_DEBUG_INFO_PIPE_FILE       first part of the pipes' names: PART0.pipe for rank 0
    TORCH_FR_DUMP_TEMP_FILE               first part of the files' names; TORCH_NCCL_DEBUG_INFO_TEMP_FILE in torch before 2.9
    TORCH_FR_BUFFER_SIZE                  entries that are kept; TORCH_NCCL_TRACE_BUFFER_SIZE in torch before 2.9

Imports the standard library only. A file is a pickle of plain values, and is read as nothing else.
The folder may belong to another user, as whom the program runs, so links in it are not followed.
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
"""collectives that a rank keeps, torch's own default"""
DUMP_S = 4.0
"""time that ranks get to write their files; torch looks into the pipe once a second"""
MAX_FILE_BYTES = 64 << 20
"""a longer file is not read"""
SHOWN_RANKS = 8
"""ranks of a process group that are listed"""
Begun = dict[str, dict[str, list[Any]]]
"""by rank and process group: the number of the last collective that the rank began in the group,
and its name"""


def variables(folder: str, environment: Mapping[str, str]) -> dict[str, str]:
    """What turns the recorder on with its files in `folder`; empty where the environment of the
    program already says what it wants of it."""
    pipe, file = os.path.join(folder, "pipe-"), os.path.join(folder, "rank-")
    wanted = {
        "TORCH_NCCL_DEBUG_INFO_PIPE_FILE": pipe,
        **dict.fromkeys(("TORCH_FR_DUMP_TEMP_FILE", "TORCH_NCCL_DEBUG_INFO_TEMP_FILE"), file),
        **dict.fromkeys(("TORCH_FR_BUFFER_SIZE", "TORCH_NCCL_TRACE_BUFFER_SIZE"), str(ENTRIES)),
    }
    return {} if any(name in environment for name in wanted) else wanted


def collectives_begun(folder: str, dump_s: float = DUMP_S) -> Begun:
    """Asks all ranks whose pipes lie in `folder`, and reads what they write within `dump_s`.
    Without pipes it is empty, at once."""
    asked = [
        path.name.removeprefix("pipe-").removesuffix(".pipe")
        for path in Path(folder).glob("pipe-*.pipe")
        if _ask(path)
    ]
    found: Begun = {}
    end_s = time.monotonic() + dump_s
    while len(found) < len(asked) and time.monotonic() < end_s:
        for rank in asked:
            if rank not in found and (begun := _read(Path(folder, f"rank-{rank}"))) is not None:
                found[rank] = begun
        time.sleep(0.02)
    return found


def _ask(pipe: Path) -> bool:
    """Whether somebody reads that pipe, who is then asked."""
    with contextlib.suppress(OSError):
        writer = _open(pipe, os.O_WRONLY, stat.S_ISFIFO)
        try:
            return os.write(writer, b"1") == 1
        finally:
            os.close(writer)
    return False


def _open(path: Path, flags: int, is_kind: Callable[[int], bool]) -> int:
    """Opens a file of that kind without waiting. Raises `OSError` for any other kind, and for a
    link."""
    descriptor = os.open(path, flags | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC)
    if not is_kind(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise OSError(f"{path} is a different kind of file")
    return descriptor


def _read(file: Path) -> dict[str, list[Any]] | None:
    """The last collective of each group in that file; None while it is not whole."""
    try:
        with os.fdopen(_open(file, os.O_RDONLY, stat.S_ISREG), "rb") as record:
            content = record.read(MAX_FILE_BYTES + 1)
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
    """A group's name and ranks; its name alone where torch does not tell the ranks. The first of
    many ranks suffice: groups of one split share none."""
    if not ranks:
        return name
    shown = ", ".join(ranks[:SHOWN_RANKS])
    return f"{name} (ranks {shown}{', ...' if len(ranks) > SHOWN_RANKS else ''})"


class _PlainValues(pickle.Unpickler):
    """Reads numbers, texts and their collections; whatever names a class or a function is
    refused."""

    def find_class(self, module: str, name: str) -> Any:
        raise pickle.UnpicklingError(f"{module}.{name} is not a plain value")
