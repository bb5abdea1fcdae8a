"""The user's own program, which a trainer starts with the configuration files that it writes.

The program runs in its own folder `cwd`, so that the files that it opens are found there; its arguments name the configuration files by their whole
path. In a spec that is a file, `cwd` is that file's folder where the program's path is relative (`autotune.schema.files`).
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from autotune.errors import SpecError
from autotune.trainers.launch_files import FOLDER, Launch
from autotune.trainers.trainer_option import Option, Reach

SCRIPT = Option(
    name="script",
    meaning="your own program; default: one that trains a Hugging Face model",
    default="",
    reach=Reach.PROGRAM,
)
SCRIPT_ARGS = Option(name="script_args", meaning="arguments of your own program", default=(), reach=Reach.ARGUMENT)
CWD = Option(
    name="cwd",
    meaning="folder in which your own program runs, relative to the spec's; default: the spec's, if the program's path is relative",
    default="",
    reach=Reach.PROGRAM,
)
PROGRAM_OPTIONS = ("script", "entrypoint")
"""options that name a program"""


def in_its_folder(launch: Launch, options: Mapping[str, Any]) -> Launch:
    """The launch with its program in the folder of the option `cwd`, if it is set."""
    folder = options.get(CWD.name)
    if not folder or launch.cwd:
        return launch
    if not any(options.get(name) for name in PROGRAM_OPTIONS):
        raise SpecError(
            f"cwd is the folder of your own program, but no program is named and cwd is {folder!r}",
            remedy="name the program with script, or leave cwd out",
            field="trainer.cwd",
        )
    if not os.path.isabs(folder):
        raise SpecError(
            f"a relative folder is read only where the spec itself is a file, but cwd is {folder!r}",
            remedy="give an absolute path",
            field="trainer.cwd",
        )
    argv = tuple(f"{FOLDER}/{word}" if word in launch.files else word for word in launch.argv)
    return replace(launch, argv=argv, cwd=folder)
