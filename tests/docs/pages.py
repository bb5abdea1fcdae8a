"""Pages of the documentation, cut into fenced blocks. What the tests do with a block stands in an
HTML comment on the line before it.

(nothing)                  it is run by the fast tests
<!-- run: slow -->         it is run by the slow tests
<!-- run: service -->      it is run while a service is up, which stands in for the one that the page started
<!-- not run: reason -->   it is not run, for that reason
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
_FENCE = re.compile(
    r"^(?:<!-- (?P<marker>(?:run|not run): [^\n]*?) -->\n)?```(?P<language>\w+)(?: title=\"(?P<title>[^\"]+)\")?\n(?P<text>.*?)^```$",
    re.DOTALL | re.MULTILINE,
)
_COMMENT = re.compile(r"\s+# (?P<words>.*)$")
_EXIT = re.compile(r"exits with (\d+)")


@dataclass(frozen=True, slots=True, kw_only=True)
class Block:
    """A fenced block of a page."""

    page: str
    """path of the page, relative to the repository"""
    line: int
    """line of the page at which it begins"""
    language: str
    """what stands behind the fence"""
    title: str
    """name of the file that it shows, empty where it shows none"""
    marker: str
    """`run: ...` or `not run: ...`, empty where there is none"""
    text: str
    """its lines"""

    @property
    def kind(self) -> str:
        """fast, slow, service or none: which tests run it."""
        if self.marker.startswith("not run"):
            return "none"
        return self.marker.removeprefix("run: ") or "fast"


@dataclass(frozen=True, slots=True, kw_only=True)
class Command:
    """One line of a console block."""

    line: str
    """what the reader types, without the comment behind it"""
    exit_code: int
    """what it must end with"""


def page_paths() -> list[Path]:
    """README and every page of the site."""
    return [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]


def blocks(path: Path) -> list[Block]:
    """The fenced blocks of a page, in their order."""
    text = path.read_text(encoding="utf-8")
    return [
        Block(
            page=path.relative_to(ROOT).as_posix(),
            line=text.count("\n", 0, found.start()) + 1,
            language=found["language"],
            title=found["title"] or "",
            marker=found["marker"] or "",
            text=found["text"],
        )
        for found in _FENCE.finditer(text)
    ]


def commands(block: Block) -> list[Command]:
    """The lines of a console block that begin with `$ `."""
    typed = [line[2:] for line in block.text.splitlines() if line.startswith("$ ")]
    return [_command(line) for line in typed]


def _command(line: str) -> Command:
    comment = _COMMENT.search(line)
    words = comment["words"] if comment else ""
    code = _EXIT.search(words)
    return Command(
        line=line[: comment.start()] if comment else line, exit_code=int(code[1]) if code else 0
    )
