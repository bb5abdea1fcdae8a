"""Remarks about a program for its user: a log whose step times differ from the probe's, that arrives
in bursts or was too long to be read, and existing files that trials overwrite."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from autotune.ports import ProgramSeen
from autotune.spec.texts.as_text import notes_of

SHOWN = 5
"""maximum number of files named in a remark"""


def remarks(seen: ProgramSeen, *, keeps_outputs: bool) -> tuple[str, ...]:
    """Remarks about a program, each with its consequence or remedy. `keeps_outputs`: whether the user
    allowed overwriting files."""
    existing = {path: file for path, file in seen.files.items() if file["existed"]}
    kept = all(file["kept"] for file in existing.values())
    what = "the files are restored after each trial" if kept else "the files were not restored"
    trouble = "".join(seen.troubles[:1])
    return (
        *notes_of(
            (seen.witness, f"{seen.witness}; the probe is used"),
            (
                seen.together > 1,
                f"lines of up to {seen.together} steps arrive at once (the output is buffered, or comes faster than it can be read), so each of these steps gets their mean time; flush the output or print step times to measure step by step",
            ),
        ),
        *seen.remarks,
        *notes_of(
            (seen.left_out, f"not read from the program's log: {seen.left_out}"),
            (trouble, f"the probe ended early ({trouble}), so step times may come from the log"),
            (seen.lost, f"check these existing files: {'; '.join(seen.lost)}"),
            (
                existing and not keeps_outputs,
                f"the program writes to existing files: {listed(existing)}; {what}",
            ),
        ),
    )


def listed(files: Mapping[str, Mapping[str, Any]]) -> str:
    """The first `SHOWN` paths, relative to the current folder if they are in it, and the number of
    others."""
    here = os.getcwd()
    names = [
        os.path.relpath(path, here) if path.startswith(here + os.sep) else path for path in files
    ]
    more = len(names) - SHOWN
    return ", ".join(names[:SHOWN]) + (f" and {more} more" if more > 0 else "")
