"""A context in which no file outside of one folder is read, whatever path a text names and however it is quoted.

Python reports each opening of a file before it happens (PEP 578). Within the context, one outside of the folder is refused as if its owner had forbidden it; the
files of Python and its packages, which are imported when they are needed, stay readable. What lies elsewhere on `sys.path` must be imported before.
"""

from __future__ import annotations

import errno
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path
from typing import Any

_FOLDER: ContextVar[str] = ContextVar("folder", default="")
_CODE = tuple(os.path.realpath(path) + os.sep for path in (Path(__file__).parents[1], sys.prefix, sys.base_prefix))
"""where Python's own code lies, that of the packages of its environment, and ours"""
_installed = False


@contextmanager
def reading_only(folder: Path) -> Iterator[None]:
    """Within it, files outside of the folder raise `PermissionError` when they are opened. It holds for this thread."""
    global _installed
    if not _installed:
        _installed = True
        sys.addaudithook(_refuse)
    token = _FOLDER.set(os.path.realpath(folder) + os.sep)
    try:
        yield
    finally:
        _FOLDER.reset(token)


def _refuse(event: str, arguments: tuple[Any, ...]) -> None:
    folder = _FOLDER.get() if event == "open" else ""
    if not folder or not isinstance(arguments[0], str | bytes | os.PathLike):
        return
    path = os.path.realpath(os.fsdecode(arguments[0]))
    if not path.startswith((folder, *_CODE, "/proc/self/", "/dev/null")):
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), path)
