r"""Regular expressions from a spec, which are matched against the log of a training job line by
line.

engine      RE2, whose time grows with the length of the line, whatever the pattern: Python's matcher backtracks, and no interrupt ends it
syntax      RE2's: Python's without lookahead, lookbehind and references back; `\d`, `\w`, `\s` and `\b` are ASCII's
limits      the length of a pattern, the memory of a compiled one, and the part of a line that is searched
"""

from __future__ import annotations

import re
import re._constants as op  # type: ignore[import-not-found]
import re._parser as parser  # type: ignore[import-not-found]
import warnings
from collections.abc import Callable
from typing import Any

from autotune.errors import SpecError

Finder = Callable[[str], str | None]
"""finds what a pattern's groups take of a line: the first of them that takes something; None for a
line that does not match"""

MAX_PATTERN = 300
"""characters of a pattern"""
MAX_SEARCHED = 500
"""characters of a line that are searched"""
MAX_MEMORY_BYTES = 1 << 20
"""of a compiled pattern, which bounds the time of the slowest: less than 0.1 s a line"""
_SYNTAX = "use RE2 syntax: https://github.com/google/re2/wiki/Syntax"
_REMEDIES = (
    (
        r"\(\?<?[=!]",
        "put the surrounding text into the pattern itself, because only the pattern's group is read",
    ),
    (
        r"escape sequence: \\[1-9]|\(\?P=",
        "repeat the group's pattern instead of referring to the group",
    ),
    (r"escape sequence: \\Z", r"write $ in place of \Z"),
    (r"escape sequence: \\[uUN]", "write the character itself"),
    (
        r"repetition operator: .\+|\(\?>",
        "remove the possessive quantifier or atomic group, because RE2 never backtracks",
    ),
    (
        r"repetition size|too large",
        "use smaller repetition counts, or match only the text around the number",
    ),
)
"""by what RE2 says of a pattern, or the pattern has"""
_LEFT_OUT = re.compile(r"(?<!\\)\{,\d*\}")
"""a repetition without a lower bound, which is plain text to RE2"""


def compile_pattern(pattern: object, *, field: str) -> Finder:
    """The function that looks for the pattern. Raises `SpecError` when it is not a regular
    expression, has no group, or is too long."""
    import re2  # a thirtieth of a second, which only programs with patterns of their own need

    if not isinstance(pattern, str) or not 0 < len(pattern) <= MAX_PATTERN:
        raise SpecError(
            f"a pattern must be text of 1 to {MAX_PATTERN} characters, but is {pattern!r}",
            field=field,
        )
    if left_out := _LEFT_OUT.search(pattern):
        remedy = f"write {left_out[0].replace('{', '{0')}"
        raise SpecError(
            f"the pattern {pattern!r} has a repetition without a lower bound",
            remedy=remedy,
            field=field,
        )
    options = re2.Options()
    options.log_errors, options.max_mem = False, MAX_MEMORY_BYTES
    try:
        compiled = re2.compile(_encoded(pattern), options)
    except re2.error as error:
        said = _text(error.args[0])
        remedy = next(
            (remedy for sign, remedy in _REMEDIES if re.search(sign, f"{said}\n{pattern}")), _SYNTAX
        )
        message = f"{pattern!r} is not a valid RE2 regular expression: {said}"
        raise SpecError(message, remedy=remedy, field=field) from None
    if not compiled.groups:
        raise SpecError(
            f"the pattern {pattern!r} has no group",
            remedy="put brackets around the number, as in 'loss=([0-9.]+)'",
            field=field,
        )

    def find(line: str) -> str | None:
        found = compiled.search(_encoded(line))
        return (
            _text(next((group for group in found.groups() if group), b"")) or None
            if found
            else None
        )

    return find


def mark(pattern: str) -> str:
    """The longest text that every match of the pattern contains, as far as it is plain to see;
    empty where there is none."""
    runs, run = [""], ""
    try:
        with warnings.catch_warnings(action="ignore"):
            tree = parser.parse(pattern)
    except re.error:  # what RE2 alone has
        return ""
    # a class of POSIX, which Python reads otherwise
    if tree.state.flags & re.IGNORECASE or "[:" in pattern:
        return ""
    for code, argument in tree:
        run = run + chr(argument) if code is op.LITERAL else ""
        runs.append(run)
    return max(runs, key=len)


def _encoded(text: str) -> bytes:
    return text.encode(errors="replace")


def _text(found: Any) -> str:
    return found.decode(errors="replace") if isinstance(found, bytes) else str(found)
