"""The user's own program, which a trainer starts with the configuration files that it writes.

The program runs in the folder `cwd`, so that it finds its own files. Its arguments name the
configuration files by absolute paths. If the spec is a file and the program's path is relative,
`cwd` defaults to the spec's folder (`autotune.schema.files`).

`program_name` identifies what trains. Runs with the same name count as runs of one program and
share its correction of predicted step times.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import PurePath
from typing import Any

from autotune.errors import SpecError
from autotune.trainers.base.trainer_option import Option, Reach
from autotune.trainers.launch_files import FOLDER, Launch

COMMAND = "command"
_PYTHON = (".py", ".pyz")


def program_name(trainer: str, options: Mapping[str, Any]) -> str:
    """The trainer's name; for the `command` trainer, the file or module that the command starts."""
    return trainer if trainer != COMMAND else name_in(options.get("argv") or ())


def name_in(words: Sequence[Any]) -> str:
    """The Python file or module that a command starts, or else its first word; empty without
    words."""
    plain = [word for word in words if isinstance(word, str)]
    for at, word in enumerate(plain):
        if (
            word == "-m"
            and at + 1 < len(plain)
            and not plain[at + 1].startswith("torch.distributed")
        ):
            return plain[at + 1]
        if word.endswith(_PYTHON) and not word.startswith("-"):
            return PurePath(word).name
    return PurePath(plain[0]).name if plain else ""


SCRIPT = Option(
    name="script",
    meaning="your own program; default: a program that trains a Hugging Face model",
    default="",
    reach=Reach.PROGRAM,
)
SCRIPT_ARGS = Option(
    name="script_args", meaning="arguments of your own program", default=(), reach=Reach.ARGUMENT
)
CWD = Option(
    name="cwd",
    meaning="folder in which your own program runs, relative to the spec's folder; default: the spec's folder, if the program's path is relative",
    default="",
    reach=Reach.PROGRAM,
)
PROGRAM_OPTIONS = ("script", "entrypoint")
"""options for a program"""


def in_its_folder(launch: Launch, options: Mapping[str, Any]) -> Launch:
    """The launch with its program in the folder of the option `cwd`, if that is set. Raises
    `SpecError` for a folder without a program, and for a relative one."""
    folder = options.get(CWD.name)
    if not folder or launch.cwd:
        return launch
    if not any(options.get(name) for name in PROGRAM_OPTIONS):
        raise SpecError(
            f"cwd {folder!r} is set for your own program, but no program is set",
            remedy="set script to your program, or omit cwd",
            field="trainer.cwd",
        )
    if not os.path.isabs(folder):
        raise SpecError(
            f"a relative folder can only be used if the spec is a file, but cwd is {folder!r}",
            remedy="use an absolute path",
            field="trainer.cwd",
        )
    argv = tuple(f"{FOLDER}/{word}" if word in launch.files else word for word in launch.argv)
    return replace(launch, argv=argv, cwd=folder)
