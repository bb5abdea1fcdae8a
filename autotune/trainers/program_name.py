"""The name of what trains: runs of one name are of one program, whose level of speed they share."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import PurePath
from typing import Any

COMMAND = "command"
_PYTHON = (".py", ".pyz")


def program_name(trainer: str, options: Mapping[str, Any]) -> str:
    """The trainer's name; of the trainer `command` the file or module that its words start."""
    return trainer if trainer != COMMAND else name_in(options.get("argv") or ())


def name_in(words: Sequence[Any]) -> str:
    """The file or module of Python that a command starts, else its last word before options; empty without words."""
    plain = [word for word in words if isinstance(word, str)]
    for at, word in enumerate(plain):
        if word == "-m" and at + 1 < len(plain) and not plain[at + 1].startswith("torch.distributed"):
            return plain[at + 1]
        if word.endswith(_PYTHON) and not word.startswith("-"):
            return PurePath(word).name
    return PurePath(plain[0]).name if plain else ""
