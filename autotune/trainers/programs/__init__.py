"""Programs that go out with a launch where the trainer is a library and has no program of its own.

They are kept as text (`*.py.txt`): they import libraries that need not be installed here, and nothing here imports them.
"""

from __future__ import annotations

from importlib.resources import files


def program(name: str) -> str:
    """The text of a program, by its file name without `.txt`."""
    return (files(__name__) / f"{name}.txt").read_text(encoding="utf-8")
