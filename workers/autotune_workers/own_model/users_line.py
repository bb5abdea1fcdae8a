"""The line of the user's own code: that an error came by, or that runs now. Frames of autotune,
installed packages and the standard library are none."""

from __future__ import annotations

import os
import re
import sysconfig
import traceback
from types import FrameType

_OURS = (
    f"{os.sep}autotune_workers{os.sep}",
    f"{os.sep}site-packages{os.sep}",
    sysconfig.get_path("stdlib"),
    "<frozen",
)
"""parts of file names that are not the user's"""
_DUMPED = re.compile(r'^  File "(.+)", line (\d+) in ', re.MULTILINE)
"""a frame in what `faulthandler` writes"""


def said(error: BaseException) -> str:
    """The error with the last line of the user's own code on its way: `ValueError: bad width
    (model.py:12)`."""
    text = f"{type(error).__name__}: {' '.join(str(error).split())[:500]}".rstrip(": ")
    place = user_line(error)
    return f"{text} ({place})" if place else text


def user_line(error: BaseException) -> str:
    """FILE:LINE of the innermost frame that is the user's; empty where there is none."""
    if isinstance(error, SyntaxError) and error.filename:
        return f"{error.filename}:{error.lineno}"
    return _innermost(traceback.extract_tb(error.__traceback__))


def running_line(frame: FrameType | None = None) -> str:
    """FILE:LINE of the user's code that runs now, in this thread or in the frame of another; empty
    where none does."""
    return _innermost(traceback.extract_stack(frame))


def dumped_line(text: str) -> str:
    """FILE:LINE of the user's code in what `faulthandler` wrote of a process that died, which lists
    the most recent call first; empty where there is none."""
    _, _, current = text.rpartition("Current thread ")
    own = [f"{file}:{line}" for file, line in _DUMPED.findall(current) if not _is_ours(file)]
    return own[0] if own else ""


def _innermost(frames: traceback.StackSummary) -> str:
    own = [frame for frame in frames if not _is_ours(frame.filename)]
    return f"{own[-1].filename}:{own[-1].lineno}" if own else ""


def _is_ours(file: str) -> bool:
    return any(part in file for part in _OURS)
