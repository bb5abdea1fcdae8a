"""Reads tracebacks from one stream of a log: the lines of one rank if prefixes identify ranks,
otherwise all lines.

    Traceback (most recent call last):     header; rich prints it in the top border of a box
      File "train.py", line 3, in main     frames: indented lines, or those up to the bottom of a box
    ValueError: 7 sequences,               the exception; more lines of its text are read if the stream is one rank's, or the line is incomplete
    but 8 were expected

A blank line and `During handling of the above exception` or `The above exception was the direct
cause` join two tracebacks into a chain.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import final

CONTEXT_LINES = 10
"""number of lines before a traceback that are kept with it"""
HEAD_LINES, LAST_LINES = 14, 20
"""number of kept lines of a long traceback: at its beginning, including the lines before it, and at
its end"""
MAX_RAISED = 8
"""largest number of tracebacks kept per stream"""
MORE_LINES = 4
"""largest number of lines of an exception's text that are kept after the first"""
_HEADER = re.compile(r"(?P<before>.*?)(?P<box>╭─* ?)?Traceback \(most recent call last\)")
_EXCEPTION = re.compile(
    r"^(?P<name>(?:\w+\.)+[A-Za-z_]\w*|[A-Z]\w*[A-Z]\w*|[A-Z]\w*(?:Error|Exception)|Exception)(?:\((?P<inner>\w+)\))?(?:: ?(?P<text>.*))?$"
)
"""a dotted name, or a word with two capitals or a usual ending, so that `loss: 2.3` of another rank
does not match. Ray puts the name of the exception that it forwards in parentheses, followed by that
exception's traceback"""
_CONTINUATION = re.compile(r"^(nccl\w+: |Last error:|Original Traceback)")
"""lines that continue exceptions of NCCL and torch"""
_CREATION_FAILED = "because of an error raised in its creation task"
"""Ray's message that an actor could not be created; frames and exception of its constructor follow
(workers of verl and OpenRLHF)"""
_CHAINED = ("During handling of the above exception", "The above exception was the direct cause")
_THROWN = re.compile(r"^terminate called after throwing an instance of '(?P<name>.+)'")
_WHAT = re.compile(r"^\s*what\(\):\s*(?P<text>.*)")
_SUMMARY = re.compile(r"^\s*traceback\s*: ")
_LOG_RECORD = re.compile(
    r"^([WEI]\d{4} |\[|\d{4}-\d\d-\d\d|=====|-----|Exception ignored|During handling|The above exception)"
)


@dataclass(slots=True, eq=False)
class Raised:
    """A traceback, or a chain of them."""

    line: int
    """number of its first line in the log, from 1"""
    steps_done: int
    """number of steps done when it began"""
    lines: list[str]
    """its log lines, without the middle of a long traceback"""
    chain: list[tuple[str, str]] = field(default_factory=list)
    """(name, text) of each exception in the order in which they were raised"""
    left_out: bool = False
    """whether the middle was dropped"""

    def keep(self, line: str) -> None:
        """Adds a line; of a long traceback only the beginning and the end are kept."""
        self.lines.append(line)
        if len(self.lines) > HEAD_LINES + LAST_LINES:
            if not self.left_out:
                self.lines.insert(HEAD_LINES, "...")
                self.left_out = True
            del self.lines[HEAD_LINES + 1]


@final
class TracebackReader:
    """Reads the lines of one stream. `raised`: the tracebacks so far."""

    def __init__(self, *, is_alone: bool) -> None:
        """`is_alone`: whether all lines come from one rank."""
        self.raised: list[Raised] = []
        self._is_alone = is_alone
        self._state = ""
        """"", frames, box, thrown, text or joint"""
        self._lines_left = 0

    def hear(
        self, text: str, line: str, number: int, steps_done: int, before: Iterable[str]
    ) -> None:
        """Reads a log line. `text`: without the prefix; `line`: as logged; `number`: of the line,
        from 1; `before`: the preceding lines."""
        header = None if _SUMMARY.match(text) else _HEADER.match(text)
        if header is not None:
            self._begin(line, number, steps_done, before)
            self._state = "box" if header["box"] else "frames"
            return
        if (thrown := _THROWN.match(text)) is not None:
            self._begin(line, number, steps_done, before)
            self.raised[-1].chain.append((thrown["name"], ""))
            self._state = "thrown"
            return
        if not self._state:
            return
        if self._state == "text" and text.startswith(_CHAINED):
            self._state = "joint"
        elif self._state == "frames" and text and not text[0].isspace():
            self._end_frames(text)
        elif self._state == "box" and text.startswith("╰"):
            self._state = "frames"
        elif self._state == "thrown":
            self._read_what(text)
        elif self._state == "text" and not self._continues_text(text):
            self._state = "joint" if not text.strip() else ""
        elif self._state == "joint" and text.strip() and not text.startswith(_CHAINED):
            self._state = ""
        if self._state:
            self.raised[-1].keep(line)

    def _begin(self, line: str, number: int, steps_done: int, before: Iterable[str]) -> None:
        """Begins a traceback, or continues a chain of them."""
        if self._state == "joint":
            self.raised[-1].keep(line)
            return
        if len(self.raised) == MAX_RAISED:
            del self.raised[MAX_RAISED // 2]
        self.raised.append(Raised(line=number, steps_done=steps_done, lines=[*before, line]))

    def _end_frames(self, text: str) -> None:
        found = _EXCEPTION.match(text)
        if found is None:  # a line from another source in between
            return
        chain = self.raised[-1].chain
        if found["inner"]:  # the exception itself follows after more frames
            chain.append((found["inner"], ""))
            return
        if chain and chain[-1] == (found["name"].rpartition(".")[2], ""):
            del chain[-1]
        chain.append((found["name"], (found["text"] or "").strip()))
        if _CREATION_FAILED in chain[-1][1]:
            return
        self._state, self._lines_left = "text", MORE_LINES

    def _continues_text(self, text: str) -> bool:
        """Adds the line to the exception's text if it continues it. Returns whether it does."""
        name, known = self.raised[-1].chain[-1]
        if (
            not text.strip()
            or self._lines_left == 0
            or _LOG_RECORD.match(text)
            or not (self._is_alone or known.endswith((",", ":")) or _CONTINUATION.match(text))
        ):
            return False
        self._lines_left -= 1
        self.raised[-1].chain[-1] = (name, f"{known}\n{text.rstrip()}".lstrip())
        return True

    def _read_what(self, text: str) -> None:
        self._state = ""
        if (what := _WHAT.match(text)) is not None:
            name, _ = self.raised[-1].chain[-1]
            self.raised[-1].chain[-1] = (name, what["text"])
            self.raised[-1].keep(text)
