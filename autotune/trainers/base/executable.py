"""The executable of a launch: the file on this machine that its first argument names, and the
Python that runs it.

A name without a folder is looked for in the environment of the launch (`Launch.python`), then on
PATH (of the launch, if it sets one), then next to the Python of this process, which has `torchrun`.
If an environment is set, a Python program (`python`, `torchrun`) must come from it, because one on
PATH would train with another Python. A name with a folder is relative to the folder in which the
launch runs.
"""

from __future__ import annotations

import os
import shlex
import shutil
import sys
from collections.abc import Mapping
from pathlib import Path

from autotune.trainers.launch_files import INTERPRETER, Launch

_BEGINNING_BYTES = 1024
"""bytes that are read from the beginning of a program"""
_BEGINNING_LINES = 4
"""lines after the first that are read from a shell script that starts Python"""


def search_path(environment: Mapping[str, str], first: str = "") -> str:
    """The folders in which programs are looked for, joined as in PATH. `first`: a folder before all
    others."""
    return os.pathsep.join([
        *filter(None, [first]), _path(environment), str(Path(sys.executable).parent),
    ])  # fmt: skip


def find_executable(launch: Launch) -> str:
    """The path of the executable; empty if this machine has none."""
    name = launch.argv[0]
    if os.path.dirname(name):
        name = os.path.normpath(os.path.join(os.path.abspath(launch.cwd), name))
    own = (
        shutil.which(name, path=launch.programs_folder)
        if launch.python and not os.path.dirname(name)
        else None
    )
    found = own or shutil.which(name, path=search_path(launch.env, launch.programs_folder)) or ""
    is_of_another_python = (
        launch.python and not own and not os.path.dirname(name) and python_of(found, launch.env)
    )
    return "" if is_of_another_python else found


def is_from_own_environment(launch: Launch) -> bool:
    """Whether the executable was found only in autotune's own environment."""
    name = launch.argv[0]
    is_named = bool(launch.python or os.path.dirname(name))
    return not is_named and not shutil.which(name, path=_path(launch.env))


def _path(environment: Mapping[str, str]) -> str:
    return environment.get("PATH") or os.environ.get("PATH") or os.defpath


def python_of(executable: str, environment: Mapping[str, str]) -> str:
    """The Python that runs an executable: the executable itself, or the interpreter named in its
    first lines (as in `torchrun`); empty if it is not a Python program."""
    if INTERPRETER.fullmatch(Path(executable).name):
        return executable
    try:
        with open(executable, "rb") as file:
            first, *more = file.read(_BEGINNING_BYTES).decode(errors="replace").splitlines() or [""]
    except OSError:
        return ""
    words = _words(first[2:]) if first.startswith("#!") else []
    words = [word for word in words if Path(word).name != "env" and not word.startswith("-")]
    if words and Path(words[0]).name in ("sh", "bash"):
        words = _executed(more)
    if not words or not INTERPRETER.fullmatch(Path(words[0]).name):
        return ""
    return shutil.which(words[0], path=search_path(environment)) or ""


def _executed(lines: list[str]) -> list[str]:
    """The command that a short shell script executes. pip writes Python programs like this if the
    path of the interpreter is long or contains a space: the second line is `'''exec' "/a
    path/bin/python" "$0" "$@"`."""
    for line in lines[:_BEGINNING_LINES]:
        first, *rest = _words(line) or [""]
        if first == "exec":
            return rest
    return []


def _words(line: str) -> list[str]:
    """The words of a shell line; empty if the line continues."""
    try:
        return shlex.split(line)
    except ValueError:
        return []
