"""Stand-ins: values of a draft that are still to be filled in, as the comments say that `autotune init` and `import` write beside them."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

from autotune.cli.output import note

_COMMENT = re.compile(r"#\s*fill in\b")
_KEY = re.compile(r"\s*(?:- )?([\w.-]+):")


def note_stand_ins(spec: str) -> None:
    """Says, on stderr, which lines of the spec file still have such a comment. Standard input (`-`) and pipes cannot be read twice."""
    path = Path(spec)
    if spec == "-" or not path.is_file():
        return
    found = list(stand_ins(path.read_text(encoding="utf-8")))
    if found:
        lines = ", ".join(f"line {number}{f' ({key})' if key else ''}" for number, key in found)
        note(
            f"note: {spec} still says `fill in` at {lines}: what is predicted and counted there is of a stand-in; "
            "write your own value and delete the comment"
        )


def stand_ins(text: str) -> Iterator[tuple[int, str]]:
    """Line, from 1, and key of each value with such a comment, behind it or on the line above it; an empty key for an entry of a list."""
    lines = text.splitlines()
    for number, line in enumerate(lines, start=1):
        if (comment := _COMMENT.search(line)) is None:
            continue
        is_above = not line[: comment.start()].strip()
        at = number + 1 if is_above and number < len(lines) else number
        key = _KEY.match(lines[at - 1])
        yield at, key[1] if key is not None else ""
