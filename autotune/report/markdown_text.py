"""Text, tables and bars in GitHub-flavored Markdown, from words that may hold anything.

A name or a message of a study never becomes markup, a link to an issue (`#1`) or a call of a person
(`@name`): signs that mean something get a backslash, or a zero-width space behind them. The only
HTML is what GitHub lets through: `details` and `summary`, and a `span` around a dollar sign, which
else begins a formula.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from html import escape

MOST_IN_CELL = 160
"""characters of a cell; the rest is cut"""
BAR_SIGNS = 12
"""signs of a whole bar"""
NO_BREAK = "\u00a0"
"""a space at which no line ends"""
_EIGHTHS = " ▏▎▍▌▋▊▉"
_SIGNS = re.compile(r"[\\`*\[\]|~]|(?<!\w)_|_(?!\w)")
_LEADING = re.compile(r"^([-+=>]|\d+(?=[.)](\s|$)))")


def text(words: str, *, most: int = MOST_IN_CELL) -> str:
    """One line of text that shows as it is; cut after `most` characters, or earlier where it would
    take more than twice as many."""
    line = " ".join(words.split())
    line = line if len(line) <= most else f"{line[: most - 1]}…"
    line = _SIGNS.sub(r"\\\g<0>", line.replace("&", "&amp;")).replace("<", "&lt;")
    line = _LEADING.sub(
        lambda found: f"\\{found[1]}" if not found[1].isdigit() else f"{found[1]}\\", line
    )
    line = re.sub(r"#(?=\w)", "\\#&#8203;", line)
    line = re.sub(r"@(?=\w)", "@&#8203;", line)
    line = re.sub(r"(https?|www)(?=[:.])", r"\1&#8203;", line).replace("$", "<span>$</span>")
    return line if len(line) <= 2 * most else text(f"{words[: len(words) // 2]}…", most=most)


def code(words: str) -> str:
    """The words in code signs, in one line; also for cells of a table."""
    line = " ".join(words.split()).replace("|", "\\|")
    return f"{_ticks(line, 1)}{_padded(line)}{_ticks(line, 1)}"


def block(words: str, language: str = "") -> str:
    """The lines as a block of code."""
    fence = _ticks(words, 3)
    return f"{fence}{language}\n{words}\n{fence}"


def table(heads: Sequence[tuple[str, bool]], rows: Sequence[Sequence[str]]) -> str:
    """`heads`: (text, whether it is a number); `rows`: cells in Markdown. A number is not parted
    from its unit."""
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
    """A part that opens with a click; `summary` is text."""
    return "\n\n".join(
        [f"<details><summary>{escape(summary)}</summary>", *filter(None, parts), "</details>"]
    )


def bar(share: float) -> str:
    """A bar of blocks, whole for 1; at least a thin one for what is not 0."""
    eighths = max(round(8 * BAR_SIGNS * min(1.0, share)), 1 if share > 0 else 0)
    return "█" * (eighths // 8) + _EIGHTHS[eighths % 8].strip()


def _ticks(words: str, least: int) -> str:
    longest = max(map(len, re.findall("`+", words)), default=0)
    return "`" * max(least, longest + 1)


def _padded(line: str) -> str:
    return f" {line} " if not line or line.startswith("`") or line.endswith("`") else line
