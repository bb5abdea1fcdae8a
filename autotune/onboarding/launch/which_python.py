"""The Python with which a launch script starts its program, where it is not simply that of PATH.

/envs/train/bin/python train.py      the interpreter
../venv/bin/torchrun train.py        the environment whose launcher it is
source venv/bin/activate             the environment
export PATH=/envs/train/bin:$PATH    likewise, where the path says that it is one
conda activate train                 an environment by its name, which only the shell can find
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

_PYTHON = re.compile(r"python[0-9.]*")
_LAUNCHER = re.compile(r"torchrun|accelerate|deepspeed")
_BY_NAME = frozenset({"conda", "mamba", "micromamba", "pyenv"})


class ChosenPython(NamedTuple):
    """What a script says about it; empty where it says nothing."""

    path: str = ""
    """an interpreter, or the folder of an environment"""
    words: str = ""
    """the command that activates an environment by its name"""

    def found(self, folders: Iterable[Path]) -> Path | None:
        """The interpreter or environment, by its path in one of these folders."""
        found = (folder / Path(self.path).expanduser() for folder in folders) if self.path else ()
        return next(
            (Path(os.path.normpath(each.absolute())) for each in found if _has_python(each)), None
        )


def _has_python(path: Path) -> bool:
    """Whether trials, which start `python`, find it there."""
    return (path.parent / "python" if path.is_file() else path / "bin" / "python").exists()


def chosen_python(
    command: Sequence[str], before: Iterable[Sequence[str]], path: str
) -> ChosenPython:
    """By the command that starts the program, else by the last of the commands before it, else by the exported PATH."""
    for word in command:
        folder, _, name = word.rpartition("/")
        if folder and _PYTHON.fullmatch(name):
            return ChosenPython(path=word)
        if folder.endswith("bin") and _LAUNCHER.fullmatch(name):
            return ChosenPython(path=folder.rpartition("/")[0] or ".")
    first = path.partition(":")[0]
    is_environment = first.endswith("/bin") and re.search(r"conda|env", first) is not None
    found = ChosenPython(path=first.removesuffix("/bin") if is_environment else "")
    for words in before:
        if words[0] in ("source", ".") and words[-1].endswith("/bin/activate"):
            found = ChosenPython(path=words[-1].removesuffix("/bin/activate"))
        elif words[0] in _BY_NAME and "activate" in words[1:2]:
            found = ChosenPython(words=" ".join(words))
        elif words[0] in ("source", ".") and len(words) == 3 and words[1].endswith("/bin/activate"):
            # conda's own script, with the name of an environment
            found = ChosenPython(words=" ".join(words))
    return found
