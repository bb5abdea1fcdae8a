"""What is wrong with a text that is no YAML: the parser's findings in words that somebody who writes specs understands.

PyYAML says what its scanner expected (`expected <block end>, but found '<scalar>'`). People make few mistakes: a tab, an indentation that fits no line
above, a bracket or quote that is never closed, a colon inside plain text.
"""

from __future__ import annotations

import re
from typing import Any

from autotune.errors import SpecError
from autotune.schema.source_text import SourceText

_WORDS: tuple[tuple[str, str, str], ...] = (
    (r"character '\\t'", "YAML does not allow tabs for indentation", "replace the tab with spaces"),
    (
        r"mapping values are not allowed",
        "a key and its colon cannot begin here",
        "check the indentation of this line and the one above; quote text that contains a colon and a space",
    ),
    (
        r"expected <block end>|expected the node content|expected <document start>",
        "this does not match the lines above",
        "indent the keys of a mapping equally, and begin each list entry with `- `",
    ),
    (
        r"expected ',' or '\]'",
        "the list that begins on line {begin} is not closed, or lacks a comma",
        "put `,` between its entries and `]` after them",
    ),
    (
        r"expected ',' or '\}'",
        "the braces that open on line {begin} are not closed, or lack a comma",
        "put `,` between the entries and `}}` after them",
    ),
    (
        r"could not find expected ':'",
        "the key that begins on line {begin} has no colon",
        "write `key: value`, with a space after the colon",
    ),
    (
        r"unexpected end of stream",
        "the quote that opens on line {begin} is not closed",
        "close it on the same line",
    ),
    (
        r"unknown escape character",
        "a backslash in double quotes begins an escape that YAML does not know",
        "use single quotes",
    ),
    (
        r"character '.' that cannot start any token",
        "an unquoted value cannot begin with this character",
        "put quotes around the value",
    ),
    (
        r"found undefined alias",
        "`*` begins the name of an anchor, but there is no anchor with this name",
        "put quotes around the text",
    ),
)
"""patterns of the parser's words, what they mean, and what to do; the first that matches counts"""


def yaml_mistake(error: Exception, source: SourceText, *, what: str) -> SpecError:
    """The parser's error as a `SpecError`, with its place when the parser knows it."""
    if isinstance(error, RecursionError):
        return SpecError(f"the {what}{_named(source)} is not YAML: it is nested too deeply")
    mark: Any = getattr(error, "problem_mark", None)
    begin: Any = getattr(error, "context_mark", None) or mark
    problem = str(getattr(error, "problem", None) or "")
    if mark is None or not problem:
        return SpecError(f"the {what}{_named(source)} is not YAML: {' '.join(str(error).split())}")
    message, remedy = problem, ""
    for pattern, words, todo in _WORDS:
        if re.search(pattern, problem):
            message, remedy = words.format(begin=begin.line + 1), todo.format()
            break
    lines = source.text.splitlines()
    line = lines[mark.line] if mark.line < len(lines) else ""
    if "mapping values" in problem and (glued := re.match(r"\s*[\w.-]+:(?=[^\s:])", line)):
        message, remedy = "a colon needs a space after it", f"write `{glued[0].strip()} ...`"
        return SpecError(
            f"the {what} is not YAML: {message}", remedy=remedy, place=source.place(mark.line + 1, glued.end())
        )
    place = source.place(mark.line + 1, mark.column + 1)
    return SpecError(f"the {what} is not YAML: {message}", remedy=remedy, place=place)


def _named(source: SourceText) -> str:
    return f" in {source.file}" if source.file else ""
