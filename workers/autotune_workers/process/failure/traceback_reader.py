"""Tracebacks in the lines of one stream of a log: those of one rank where lines say whose they are,
else those of all.

    Traceback (most recent call last):     header; rich draws it into the top of a box
      File "train.py", line 3, in main     indented: frames; in a box up to its bottom
    ValueError: 7 sequences,               the exception; further lines of its text follow where the stream is one rank's, or the line is not ended
    but 8 were expected

A blank line and `During handling of the above exception` or `The above exception was the direct
cause` join two tracebacks to a chain.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import final

CONTEXT_LINES = 10
"""before a traceback that are kept with it"""
HEAD_LINES, LAST_LINES = 14, 20
"""lines of a long traceback that are kept: at its beginning, with the lines before it, and at its
end"""
MAX_RAISED = 8
"""tracebacks that are kept of a stream"""
MORE_LINES = 4
"""lines of an exception's text that are kept after its first"""
_HEADER = re.compile(r"(?P<before>.*?)(?P<box>╭─* ?)?Traceback \(most recent call last\)")
_EXCEPTION = re.compile(
    r"^(?P<name>(?:\w+\.)+[A-Za-z_]\w*|[A-Z]\w*[A-Z]\w*|[A-Z]\w*(?:Error|Exception)|Exception)(?:\((?P<inner>\w+)\))?(?:: ?(?P<text>.*))?$"
)
"""a dotted name, or a word with two capitals or the usual ending: `loss: 2.3` of another rank is
none; Ray has the name of the exception that it passes on in parentheses, and that one's traceback
behind it"""
_GOES_ON = re.compile(r"^(nccl\w+: |Last error:|Original Traceback)")
"""lines by which NCCL's and torch's exceptions go on"""
_OF_CREATION = "because of an error raised in its creation task"
"""by which Ray says that an actor could not be made; the frames and the exception of its
constructor follow (verl's and OpenRLHF's workers)"""
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
    """line of the log in which it began, from 1"""
    steps_done: int
    """when it began"""
    lines: list[str]
    """its lines of the log, without the middle of a long traceback"""
    chain: list[tuple[str, str]] = field(default_factory=list)
    """name and text of each exception, the first raised first"""
    left_out: bool = False
    """whether the middle is missing"""

    def keep(self, line: str) -> None:
        """Keeps a line of it; of a long one the begin and the end."""
        self.lines.append(line)
        if len(self.lines) > HEAD_LINES + LAST_LINES:
            if not self.left_out:
                self.lines.insert(HEAD_LINES, "...")
                self.left_out = True
            del self.lines[HEAD_LINES + 1]


@final
class TracebackReader:
    """Lines of one stream in; `raised` is what was found so far."""

    def __init__(self, *, is_alone: bool) -> None:
        """`is_alone`: whether all lines are those of one rank's errors."""
        self.raised: list[Raised] = []
        self._is_alone = is_alone
        self._state = ""
        """"", frames, box, thrown, text or joint"""
        self._more = 0

    def hear(
        self, text: str, line: str, number: int, steps_done: int, before: Iterable[str]
    ) -> None:
        """A line of the log: `text` without the prefix, `line` as it came, its number and the lines
        before it."""
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
        elif self._state == "text" and not self._goes_on(text):
            self._state = "joint" if not text.strip() else ""
        elif self._state == "joint" and text.strip() and not text.startswith(_CHAINED):
            self._state = ""
        if self._state:
            self.raised[-1].keep(line)

    def _begin(self, line: str, number: int, steps_done: int, before: Iterable[str]) -> None:
        """A new traceback, or the next one of a chain."""
        if self._state == "joint":
            self.raised[-1].keep(line)
            return
        if len(self.raised) == MAX_RAISED:
            del self.raised[MAX_RAISED // 2]
        self.raised.append(Raised(line=number, steps_done=steps_done, lines=[*before, line]))

    def _end_frames(self, text: str) -> None:
        found = _EXCEPTION.match(text)
        if found is None:  # a line of somebody else in between
            return
        chain = self.raised[-1].chain
        if found["inner"]:  # the exception itself comes behind the frames that follow
            chain.append((found["inner"], ""))
            return
        if chain and chain[-1] == (found["name"].rpartition(".")[2], ""):
            del chain[-1]
        chain.append((found["name"], (found["text"] or "").strip()))
        if _OF_CREATION in chain[-1][1]:
            return
        self._state, self._more = "text", MORE_LINES

    def _goes_on(self, text: str) -> bool:
        """Whether the line belongs to the text of the exception; takes it in."""
        name, known = self.raised[-1].chain[-1]
        if (
            not text.strip()
            or self._more == 0
            or _LOG_RECORD.match(text)
            or not (self._is_alone or known.endswith((",", ":")) or _GOES_ON.match(text))
        ):
            return False
        self._more -= 1
        self.raised[-1].chain[-1] = (name, f"{known}\n{text.rstrip()}".lstrip())
        return True

    def _read_what(self, text: str) -> None:
        self._state = ""
        if (what := _WHAT.match(text)) is not None:
            name, _ = self.raised[-1].chain[-1]
            self.raised[-1].chain[-1] = (name, what["text"])
            self.raised[-1].keep(text)
