"""Allowed folders: files that a spec names must lie in one of them once all links are followed.

A path that is refused gets one answer, whether it lies elsewhere or does not exist, so that a spec cannot be used to look for files.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path


def find_within(text: str, roots: Iterable[Path], *, partial: bool = False, as_named: bool = False) -> Path | None:
    """The file or folder `text`, relative to one of the folders or absolute; None where no allowed folder has it.

    `partial`: it may also be the beginning of the names of files (`corpus` for `corpus.bin` and `corpus.idx`). `as_named`: a link is not followed
    in the last part of the path: the interpreter of a virtual environment is a link to another folder.
    """
    if "\0" in text:
        return None
    for root in roots:
        try:
            base = root.resolve()
            named = base / text
            path = named.parent.resolve() / named.name if as_named and named.name != ".." else named.resolve()
            if not path.is_relative_to(base):
                continue
            is_there = path.is_file() or path.is_dir()
            if is_there or (partial and any(path.parent.glob(_literal(path.name) + "*"))):
                return path
        except (OSError, RuntimeError, ValueError):  # the path is too long, or its links form a loop
            continue
    return None


def _literal(name: str) -> str:
    """The name as a pattern that matches nothing else."""
    return "".join(f"[{letter}]" if letter in "*?[" else letter for letter in name)
