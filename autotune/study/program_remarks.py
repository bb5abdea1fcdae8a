"""What was seen of a program that a person should know, in words: a log that tells another pace,
comes in bursts or was too long to be read, files that trials replace."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from typing import Any

from autotune.ports import ProgramSeen

SHOWN = 5
"""files that are named"""


def remarks(seen: ProgramSeen, *, keeps_outputs: bool) -> Iterator[str]:
    """Each with what follows of it."""
    if seen.witness:
        yield f"{seen.witness}; the probe is used"
    if seen.together > 1:
        yield (
            f"lines of up to {seen.together} steps arrive at once (the output is buffered, or comes faster than it can be read), so each of these steps gets their mean time; flush the output or print step times to measure step by step"
        )
    yield from seen.remarks
    if seen.left_out:
        yield f"left out of the program's log: {seen.left_out}"
    if seen.troubles:
        yield f"the probe ended early ({seen.troubles[0]}), so step times may come from the log"
    if seen.lost:
        yield f"check these existing files: {'; '.join(seen.lost)}"
    existing = {path: file for path, file in seen.files.items() if file["existed"]}
    if existing and not keeps_outputs:
        kept = all(file["kept"] for file in existing.values())
        what = "the files are restored after each trial" if kept else "the files were not restored"
        yield f"the program writes to existing files: {listed(existing)}; {what}"


def listed(files: Mapping[str, Mapping[str, Any]]) -> str:
    """Paths, the first ones, relative to the present folder where they lie in it."""
    here = os.getcwd()
    names = [
        os.path.relpath(path, here) if path.startswith(here + os.sep) else path for path in files
    ]
    more = len(names) - SHOWN
    return ", ".join(names[:SHOWN]) + (f" and {more} more" if more > 0 else "")
