"""Small steps that many tests share: files that are written."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path


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
