"""Small steps that many tests share: files that are written, a value that must be there."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TypeVar


def file_with(path: Path, text: str) -> Path:
    """The file, with this text."""
    path.write_text(text, encoding="utf-8")
    return path


def write(folder: Path, files: Mapping[str, str]) -> Path:
    """Files by their paths in the folder; the first of them."""
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text, encoding="utf-8")
    return folder / next(iter(files))


T = TypeVar("T")


def present(value: T | None) -> T:
    """The value, which must not be None."""
    assert value is not None
    return value
