"""Finds the line of user code that raised an error or is running. Frames of autotune, installed
packages and the standard library are skipped."""

from __future__ import annotations

import os
import re
import sysconfig
import traceback
from types import FrameType

_NOT_USER_CODE = (
    f"{os.sep}autotune_workers{os.sep}",
    f"{os.sep}site-packages{os.sep}",
    sysconfig.get_path("stdlib"),
    "<frozen",
)
"""parts of the names of files that are not user code"""
_DUMPED = re.compile(r'^  File "(.+)", line (\d+) in ', re.MULTILINE)
"""a frame in the output of `faulthandler`"""


def error_with_line(error: BaseException) -> str:
    """The error's type and text with the line of user code that raised it, such as `ValueError: bad
    width (model.py:12)`."""
    text = f"{type(error).__name__}: {' '.join(str(error).split())[:500]}".rstrip(": ")
    place = user_line(error)
    return f"{text} ({place})" if place else text


def user_line(error: BaseException) -> str:
    """FILE:LINE of the innermost frame of user code in the traceback; empty if there is none."""
    if isinstance(error, SyntaxError) and error.filename:
        return f"{error.filename}:{error.lineno}"
    return _innermost(traceback.extract_tb(error.__traceback__))


def running_line(frame: FrameType | None = None) -> str:
    """FILE:LINE of the running user code, in this thread or in the given frame of another; empty if
    there is none."""
    return _innermost(traceback.extract_stack(frame))


def dumped_line(text: str) -> str:
    """FILE:LINE of the user code in a `faulthandler` dump, which has the most recent call first;
    empty if there is none."""
    _, _, current = text.rpartition("Current thread ")
    lines = [f"{file}:{line}" for file, line in _DUMPED.findall(current) if _is_user_code(file)]
    return lines[0] if lines else ""


def _innermost(frames: traceback.StackSummary) -> str:
    user_frames = [frame for frame in frames if _is_user_code(frame.filename)]
    return f"{user_frames[-1].filename}:{user_frames[-1].lineno}" if user_frames else ""


def _is_user_code(file: str) -> bool:
    return not any(part in file for part in _NOT_USER_CODE)
