"""Writes files atomically: a file appears under its name only when it is complete. Imports the
standard library only."""

from __future__ import annotations

import contextlib
import os
import secrets
from collections.abc import Iterator
from pathlib import Path

_NAME_BYTES = 200
"""maximum length of the file's name within the name of its temporary file; file systems allow
255"""


@contextlib.contextmanager
def whole_file(path: Path, *, mode: int = 0o600) -> Iterator[Path]:
    """Context manager of a new, empty file in the folder of `path`. At the end it replaces `path`; on
    an error it is removed.

    `mode`: its permissions, reduced by the umask. Raises `OSError`.
    """
    with part_of(path, mode=mode) as part:
        yield part
        with part.open("rb+") as file:
            os.fsync(file.fileno())
        part.replace(path)


@contextlib.contextmanager
def part_of(path: Path, *, mode: int = 0o600) -> Iterator[Path]:
    """As `whole_file`, but the caller replaces `path`; the file is removed at the end if it still
    exists."""
    name = os.fsdecode(os.fsencode(path.name)[:_NAME_BYTES])
    part = path.with_name(f".{name}.{secrets.token_hex(8)}.part")
    os.close(os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, mode))
    try:
        yield part
    finally:
        part.unlink(missing_ok=True)
