"""The executable of a launch: which file its first argument is on this machine, and which Python
runs it.

A name without a folder is looked for in the environment that the launch names (`Launch.python`), in
PATH (the launch's own, where it sets one) and last beside the Python of this process, where its
`torchrun` is. Where an environment is named, a Python program (`python`, `torchrun`) is that
environment's or none: what PATH has would train with another Python. A name with a folder is
relative to the folder in which the launch runs.
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
"""of a program that are read"""
_BEGINNING_LINES = 4
"""after the first, of a shell script that starts a Python"""


def search_path(environment: Mapping[str, str], first: str = "") -> str:
    """Where programs are looked for; `first`: a folder before all others."""
    return os.pathsep.join([
        *filter(None, [first]), _path(environment), str(Path(sys.executable).parent),
    ])  # fmt: skip


def find_executable(launch: Launch) -> str:
    """The file that is started; empty when this machine has none."""
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
    """Whether the executable is autotune's own, because nothing else has one of this name."""
    name = launch.argv[0]
    is_named = bool(launch.python or os.path.dirname(name))
    return not is_named and not shutil.which(name, path=_path(launch.env))


def _path(environment: Mapping[str, str]) -> str:
    return environment.get("PATH") or os.environ.get("PATH") or os.defpath


def python_of(executable: str, environment: Mapping[str, str]) -> str:
    """The Python that runs an executable: itself, or the one that its first lines name (as in
    `torchrun`); empty when it is no Python program."""
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
    """What a shell script of a few lines becomes. pip writes Python programs so where the path of
    the interpreter is long or has a space: the second line is `'''exec' "/a path/bin/python" "$0"
    "$@"`."""
    for line in lines[:_BEGINNING_LINES]:
        first, *rest = _words(line) or [""]
        if first == "exec":
            return rest
    return []


def _words(line: str) -> list[str]:
    """The words of a line of the shell; none of one that goes on in the next."""
    try:
        return shlex.split(line)
    except ValueError:
        return []
