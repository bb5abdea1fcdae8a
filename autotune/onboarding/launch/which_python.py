"""The Python with which a launch script starts its program, where it is not simply that of PATH.

python3.12 train.py                  the interpreter's name in PATH, where `python` may be another or none
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

from autotune.trainers.launch_files import INTERPRETER

_LAUNCHER = re.compile(r"torchrun|accelerate|deepspeed")
_BY_NAME = frozenset({"conda", "mamba", "micromamba", "pyenv"})


class ChosenPython(NamedTuple):
    """What a script says about it; empty where it says nothing."""

    path: str = ""
    """an interpreter, or the folder of an environment"""
    words: str = ""
    """the command that activates an environment by its name"""
    name: str = "python"
    """what the interpreter is called"""

    def found(self, folders: Iterable[Path]) -> Path | None:
        """The interpreter or environment, by its path in one of these folders."""
        found = (folder / Path(self.path).expanduser() for folder in folders) if self.path else ()
        return next(
            (Path(os.path.normpath(each.absolute())) for each in found if self._is_in(each)), None
        )

    def _is_in(self, path: Path) -> bool:
        """Whether trials find it there."""
        return ((path.parent if path.is_file() else path / "bin") / self.name).exists()


def chosen_python(
    command: Sequence[str], before: Iterable[Sequence[str]], path: str
) -> ChosenPython:
    """By the command that starts the program, else by the last of the commands before it, else by the exported PATH."""
    names = (word.rpartition("/")[2] for word in command)
    name = next((name for name in names if INTERPRETER.fullmatch(name)), "python")
    for word in command:
        folder, _, last = word.rpartition("/")
        if folder and INTERPRETER.fullmatch(last):
            return ChosenPython(path=word, name=name)
        if folder.endswith("bin") and _LAUNCHER.fullmatch(last):
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
    return found._replace(name=name)
