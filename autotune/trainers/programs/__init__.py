"""Training programs that are exported with a launch, for trainers that are libraries without a program of their own.

They are stored as text (`*.py.txt`), because they import libraries that need not be installed here.
"""

from __future__ import annotations

from importlib.resources import files


def program(name: str) -> str:
    """The source of a program, by its file name without `.txt`."""
    return (files(__name__) / f"{name}.txt").read_text(encoding="utf-8")
