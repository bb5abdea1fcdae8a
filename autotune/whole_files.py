"""Files that appear under their names when they are complete, or not at all. Imports the standard
library only."""

from __future__ import annotations

import contextlib
import os
import secrets
from collections.abc import Iterator
from pathlib import Path

_NAME_BYTES = 200
"""of the file's own name in that of its part; file systems allow 255"""


@contextlib.contextmanager
def whole_file(path: Path, *, mode: int = 0o600) -> Iterator[Path]:
    """A new, empty file beside `path` to write to, with a name that no other file has. It takes the
    place of `path` at the end, and is removed where that fails.

    `mode`: its permissions, less those that the umask takes. Raises `OSError`.
    """
    with part_of(path, mode=mode) as part:
        yield part
        with part.open("rb+") as file:
            os.fsync(file.fileno())
        part.replace(path)


@contextlib.contextmanager
def part_of(path: Path, *, mode: int = 0o600) -> Iterator[Path]:
    """The same, for whoever puts it in the place of `path` themselves: at the end it is removed."""
    name = os.fsdecode(os.fsencode(path.name)[:_NAME_BYTES])
    part = path.with_name(f".{name}.{secrets.token_hex(8)}.part")
    os.close(os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, mode))
    try:
        yield part
    finally:
        part.unlink(missing_ok=True)
