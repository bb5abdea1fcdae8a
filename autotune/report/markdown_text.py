"""Text, tables and bars in GitHub-flavored Markdown, from arbitrary text.

A study's names and messages never become markup, links to issues (`#1`) or mentions (`@name`):
special characters are escaped with a backslash or followed by a zero-width space. The only HTML is
allowed by GitHub: `details` and `summary`, and a `span` around a dollar sign, which would otherwise
start a formula.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from html import escape

MAX_IN_CELL = 160
"""maximum number of characters in a cell"""
BAR_LENGTH = 12
"""length of a full bar, characters"""
NO_BREAK = "\u00a0"
"""a non-breaking space"""
_EIGHTHS = " ▏▎▍▌▋▊▉"
_SIGNS = re.compile(r"[\\`*\[\]|~]|(?<!\w)_|_(?!\w)")
_LEADING = re.compile(r"^([-+=>]|\d+(?=[.)](\s|$)))")


def text(words: str, *, most: int = MAX_IN_CELL) -> str:
    """Return one line of text without markup, cut after `most` characters, or earlier if escaping
    would more than double its length."""
    line = " ".join(words.split())
    line = line if len(line) <= most else f"{line[: most - 1]}…"
    line = _SIGNS.sub(r"\\\g<0>", line.replace("&", "&amp;")).replace("<", "&lt;")
    line = _LEADING.sub(
        lambda match: f"\\{match[1]}" if not match[1].isdigit() else f"{match[1]}\\", line
    )
    line = re.sub(r"#(?=\w)", "\\#&#8203;", line)
    line = re.sub(r"@(?=\w)", "@&#8203;", line)
    line = re.sub(r"(https?|www)(?=[:.])", r"\1&#8203;", line).replace("$", "<span>$</span>")
    return line if len(line) <= 2 * most else text(f"{words[: len(words) // 2]}…", most=most)


def code(words: str) -> str:
    """Return the text as inline code in one line, also for table cells."""
    line = " ".join(words.split()).replace("|", "\\|")
    return f"{_fence(line, 1)}{_padded(line)}{_fence(line, 1)}"


def block(words: str, language: str = "") -> str:
    """Return the text as a fenced code block."""
    fence = _fence(words, 3)
    return f"{fence}{language}\n{words}\n{fence}"


def table(heads: Sequence[tuple[str, bool]], rows: Sequence[Sequence[str]]) -> str:
    """Return a table. `heads`: (text, whether the column has numbers). `rows`: cells in Markdown.
    Numbers are not separated from their units."""
    lines = [
        [text(name) for name, _ in heads],
        ["---:" if is_number else "---" for _, is_number in heads],
    ]
    for row in rows:
        lines.append(
            [
                cell.replace(" ", NO_BREAK) if n else cell
                for cell, (_, n) in zip(row, heads, strict=True)
            ]
        )
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines)


def details(summary: str, *parts: str) -> str:
    """Return a section that expands with a click; `summary` is plain text."""
    return "\n\n".join(
        [f"<details><summary>{escape(summary)}</summary>", *filter(None, parts), "</details>"]
    )


def bar(share: float) -> str:
    """Return a bar of block characters, full for a share of 1; at least a thin one for a share
    above 0."""
    eighths = max(round(8 * BAR_LENGTH * min(1.0, share)), 1 if share > 0 else 0)
    return "█" * (eighths // 8) + _EIGHTHS[eighths % 8].strip()


def _fence(words: str, least: int) -> str:
    longest = max(map(len, re.findall("`+", words)), default=0)
    return "`" * max(least, longest + 1)


def _padded(line: str) -> str:
    return f" {line} " if not line or line.startswith("`") or line.endswith("`") else line
