"""The statements of a shell script, in order: their words as written, and the separator after each.

An array, a substitution `$( )` and a test `[[ ]]` are one word each. Comments, here-documents,
redirections and the parentheses of subshells are left out.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import NamedTuple

_TOKEN = re.compile(
    r"""
      (?P<blank>[ \t\r]+)
    | (?P<comment>(?<![^\s;(])\#[^\n]*)
    | (?P<quoted>\\.|'[^']*'|"(?:[^"\\]|\\.)*"|`[^`\n]*`|\$\{[^{}\n]*(?:\{[^{}\n]*\}[^{}\n]*)*\})
    | (?P<placeholder><(?=[^\s<&(])[^<>\n;|&]*[^\s<>\n;|&]>)
    | (?P<document>\d?<<-?[ \t]*["']?(?P<delimiter>\w+)["']?)
    | (?P<redirection>(?:\d|&)?[<>]+&?[ \t]*(?:"[^"\n]*"|'[^'\n]*'|\([^()\n]*\)|[^\s;|&()<>"']*))
    | (?P<separator>;;|;|&&|\|\||\||&|\n)
    | (?P<opens>\$?\(|\[\[(?=\s))
    | (?P<closes>\)|\]\])
    | (?P<plain>[^\s'"`\\$();|&<>#\[\]]+|.)
    """,
    re.VERBOSE | re.DOTALL,
)


class Statement(NamedTuple):
    """A statement, or the pattern of a `case`."""

    words: tuple[str, ...]
    """as written, including quotes"""
    after: str
    """`;` (also for the end of a line), `;;`, `&&`, `||`, `|`, `&`, or the `)` after a pattern or
    of a subshell"""
    opens: int = 0
    """number of subshells that begin with it"""


def statements_of(text: str) -> Iterator[Statement]:
    """The statements of a script, in time linear in its length. A text that is not a shell script
    is split into words, too."""
    text = text.replace("\r\n", "\n").replace("\\\n", " ")
    words: list[str] = []
    parts: list[str] = []
    """of the current word"""
    closers: list[str] = []
    """of open parentheses and tests"""
    delimiters: list[str] = []
    """of here-documents whose bodies begin after this line"""
    at, opened = 0, 0
    while found := _TOKEN.match(text, at):  # always matches: the last alternative is any character
        kind, token, at = (
            ("document" if found["document"] else found.lastgroup),
            found[0],
            found.end(),
        )
        if kind == "comment":
            continue
        if kind == "opens":
            if token == "(" and not words and not parts and not closers:  # begins a subshell
                opened += 1
            else:
                parts.append(token)
                closers.append("]]" if token == "[[" else ")")
            continue
        if closers:
            parts.append(" " if token == "\n" else token)
            if kind == "closes" and token == closers[-1]:
                closers.pop()
        elif kind in ("quoted", "placeholder", "plain") or token == "]]":
            parts.append(token)
        elif kind == "document":
            delimiters.append(found["delimiter"])
        else:
            if parts:
                words.append("".join(parts))
                parts = []
            if kind in ("separator", "closes"):
                if words or (kind == "closes" and not parts):
                    yield Statement(tuple(words), ";" if token == "\n" else token, opened)
                    opened = 0
                elif token == ";;":
                    yield Statement((), token)
                words = []
            if token == "\n" and delimiters:
                at = _after(text, at, delimiters)
                delimiters = []
    if parts:
        words.append("".join(parts))
    if words:
        yield Statement(tuple(words), ";", opened)


def _after(text: str, at: int, delimiters: list[str]) -> int:
    """Position after the bodies of here-documents."""
    for delimiter in delimiters:
        end = re.compile(rf"^[ \t]*{delimiter}[ \t]*$\n?", re.MULTILINE).search(text, at)
        at = end.end() if end else len(text)
    return at
