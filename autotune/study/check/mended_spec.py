"""A spec's text with what the probe saw in place of what it says: keys of its workload, written
where they stand, and its model. Everything else stays as it is.

Only a scalar that stands once is written; a key that is missing is added to `workload`. `model` is
replaced as a whole by the number of its weights. Whoever writes the text reads it back.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

from autotune.results.knobs_seen import Row

_WORKLOAD = re.compile(r"^(workload[ \t]*:)([ \t]*)(\{?)", re.MULTILINE)
_MODEL = re.compile(r"^model[ \t]*:.*\n(?:[ \t]+.*\n|[ \t]*\n(?=[ \t]))*", re.MULTILINE)
"""the key at the margin, with the lines that are further in"""


def fixes_of(rows: Iterable[Row]) -> dict[str, Any]:
    """What can be written, of rows that differ, by the path of its key."""
    return {row.fix[0]: row.fix[1] for row in rows if row.agrees is False and row.fix is not None}


def mended(text: str, path: str, value: Any) -> str | None:
    """The text with that key of the workload (`workload.seq_len`) or of the model; None where it
    cannot be said where to write it."""
    section, _, key = path.partition(".")
    return (
        _with_model(text, f"{{{key}: {value}}}")
        if section == "model"
        else _with_workload(text, key, value)
    )


def _with_model(text: str, model: str) -> str | None:
    """The text with another model in place of the one that is written there."""
    found = list(_MODEL.finditer(text))
    return (
        f"{text[: found[0].start()]}model: {model}\n{text[found[0].end() :]}"
        if len(found) == 1
        else None
    )


def _with_workload(text: str, key: str, value: Any) -> str | None:
    found = _WORKLOAD.search(text)
    if found is None:
        return None
    begin = found.end()
    end = _end_of(text, found)
    if end is None:
        return None
    part = text[begin:end]
    stands = list(
        re.finditer(rf"(?<![\w.-])({re.escape(key)}[ \t]*:[ \t]*)([^\s,}}\]#\[{{]+)", part)
    )
    if len(stands) > 1:
        return None
    if stands:
        at = begin + stands[0].start(2)
        return text[:at] + str(value) + text[begin + stands[0].end(2) :]
    if found[3]:
        return f"{text[:begin]}{key}: {value}, {text[begin:]}"
    indent = re.search(r"\n([ \t]+)\S", part)
    return f"{text[:begin]}\n{indent[1]}{key}: {value}{text[begin:]}" if indent else None


def _end_of(text: str, found: re.Match[str]) -> int | None:
    """Where the workload ends: its closing brace, or the next key at the margin."""
    if found[3]:
        closing = text.find("}", found.end())
        return closing if closing >= 0 and "{" not in text[found.end() : closing] else None
    following = re.search(r"^\S", text[found.end() :].partition("\n")[2], re.MULTILINE)
    first = len(text[found.end() :].partition("\n")[0]) + 1
    return found.end() + first + following.start() if following else len(text)
