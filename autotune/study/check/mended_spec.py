"""Corrects the text of a spec with values that the probe observed: keys of its workload, in place, and
its model. Everything else is unchanged.

Only a scalar key that occurs once is replaced; a missing key is added to `workload`. `model` is
replaced as a whole by its number of parameters. The caller must parse the text to verify it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

from autotune.results.knobs_seen import Row

_WORKLOAD = re.compile(r"^(workload[ \t]*:)([ \t]*)(\{?)", re.MULTILINE)
_MODEL = re.compile(r"^model[ \t]*:.*\n(?:[ \t]+.*\n|[ \t]*\n(?=[ \t]))*", re.MULTILINE)
"""the key at the left margin, with the indented lines below it"""


def fixes_of(rows: Iterable[Row]) -> dict[str, Any]:
    """Observed values of rows that differ and can be corrected, by the path of the key."""
    return {row.fix[0]: row.fix[1] for row in rows if row.agrees is False and row.fix is not None}


def mended(text: str, path: str, value: Any) -> str | None:
    """The text with this key of the workload (`workload.seq_len`) or of the model set; None if its
    position is ambiguous."""
    section, _, key = path.partition(".")
    return (
        _with_model(text, f"{{{key}: {value}}}")
        if section == "model"
        else _with_workload(text, key, value)
    )


def _with_model(text: str, model: str) -> str | None:
    """The text with its model replaced; None unless there is exactly one."""
    sections = list(_MODEL.finditer(text))
    return (
        f"{text[: sections[0].start()]}model: {model}\n{text[sections[0].end() :]}"
        if len(sections) == 1
        else None
    )


def _with_workload(text: str, key: str, value: Any) -> str | None:
    section = _WORKLOAD.search(text)
    if section is None:
        return None
    begin = section.end()
    end = _end_of(text, section)
    if end is None:
        return None
    part = text[begin:end]
    occurrences = list(
        re.finditer(rf"(?<![\w.-])({re.escape(key)}[ \t]*:[ \t]*)([^\s,}}\]#\[{{]+)", part)
    )
    if len(occurrences) > 1:
        return None
    if occurrences:
        at = begin + occurrences[0].start(2)
        return text[:at] + str(value) + text[begin + occurrences[0].end(2) :]
    if section[3]:
        return f"{text[:begin]}{key}: {value}, {text[begin:]}"
    indent = re.search(r"\n([ \t]+)\S", part)
    return f"{text[:begin]}\n{indent[1]}{key}: {value}{text[begin:]}" if indent else None


def _end_of(text: str, section: re.Match[str]) -> int | None:
    """Position of the end of the workload: its closing brace, or the next key at the left margin;
    None for nested or unclosed braces."""
    if section[3]:
        closing = text.find("}", section.end())
        return closing if closing >= 0 and "{" not in text[section.end() : closing] else None
    following = re.search(r"^\S", text[section.end() :].partition("\n")[2], re.MULTILINE)
    first = len(text[section.end() :].partition("\n")[0]) + 1
    return section.end() + first + following.start() if following else len(text)
