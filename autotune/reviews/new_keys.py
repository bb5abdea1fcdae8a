"""Adds a missing key to a settings file, in its section: TOML, YAML and JSON. The result is parsed
to check that the key has the intended meaning.

[compile]            enable = true          at the end of a file without the section, or after the section's header
optimizer:           zero_stage: 1          with the indentation of the section
{                    "key": 1,              after the line that opens the section

JSON that is formatted as by `json.dumps` is rewritten, so that sections and commas are correct.
"""

from __future__ import annotations

import difflib
import json
import re
from collections.abc import Mapping
from pathlib import PurePosixPath
from typing import Any

from autotune.errors import AutotuneError
from autotune.trainers.present_configuration import (
    DOCUMENTS,
    at_path,
    flat,
    merged,
    nested,
    parse_document,
    without,
)

GONE = "\\"
"""replaces a removed line: to a shell, a line with only a backslash continues the command"""


def text_of(lines: list[str]) -> str:
    """The text of the lines that are not removed."""
    return "\n".join(line for line in lines if line != GONE)


def with_values(lines: list[str], values: Mapping[str, str | None]) -> bool:
    """Sets values in a JSON file by path; None removes the key, and its section if that becomes
    empty. Returns False without a change if the file is not formatted as by `json.dumps`, has keys
    with dots, or cannot contain all values."""
    text = text_of(lines)
    try:
        document = json.loads(text)
    except ValueError:
        return False
    indent = next((n for n in (2, 4, 1, 8) if json.dumps(document, indent=n) == text), None)
    if indent is None or not isinstance(document, dict):
        return False
    old_values = dict(flat(document))
    if any(at_path(document, path) != value for path, value in old_values.items()):
        return False  # a key contains a dot
    new_values = {
        path: value if isinstance(old_values.get(path), str) else _typed(value)
        for path, value in values.items()
        if value is not None
    }
    kept = without(document, lambda path, _: path in values and values[path] is None)
    changed = merged(kept, nested(new_values))
    if any(at_path(changed, path) != value for path, value in new_values.items()):
        return False
    written = json.dumps(changed, indent=indent).splitlines()
    matcher = difflib.SequenceMatcher(a=list(lines), b=written, autojunk=False)
    for _, begin, end, first, last in reversed(matcher.get_opcodes()):
        if lines[begin:end] == written[first:last]:
            continue
        new = "\n".join(written[first:last])
        if begin == end:  # inserted after the line before
            lines[begin - 1] += f"\n{new}"
        else:
            lines[begin:end] = [new if last > first else GONE, *[GONE] * (end - begin - 1)]
    return True


def _typed(value: str) -> Any:
    try:
        return json.loads(value)
    except ValueError:
        return value


def with_key(lines: Mapping[str, list[str]], path: str, value: str) -> list[tuple[str, int]]:
    """Adds a missing key to a settings file, and returns [(file, line index)] of the line after
    which it was added, which then contains both; empty if no file can take it."""
    files = [name for name in lines if name.endswith(DOCUMENTS)]
    for name in files:
        before = list(lines[name])
        try:
            document = parse_document(name, text_of(before))
        except AutotuneError:
            continue
        sections, inside = [], document
        for section in path.split(".")[:-1]:
            if not isinstance(inside.get(section), dict):
                break
            sections.append(section)
            inside = inside[section]
        rest = path.split(".")[len(sections) :]
        if rest[0] in inside:
            continue
        place = _ADDS[PurePosixPath(name).suffix.lower()](lines[name], sections, rest, value)
        if place is not None and _has_key(name, lines[name], path):
            return [(name, place)]
        lines[name][:] = before
    return []


def _has_key(name: str, lines: list[str], path: str) -> bool:
    """Whether the file can be parsed and has the key."""
    try:
        return path in dict(flat(parse_document(name, text_of(lines))))
    except AutotuneError:
        return False


def _add_to_toml(lines: list[str], sections: list[str], rest: list[str], value: str) -> int | None:
    *inner, key = rest
    text = f"{key} = {_written_value(value)}"
    if inner:  # a new section at the end
        at = max((n for n, line in enumerate(lines) if line.strip()), default=0)
        lines[at] += f"\n\n[{'.'.join((*sections, *inner))}]\n{text}"
        return at
    header = f"[{'.'.join(sections)}]"
    header_at = next(
        (n for n, line in enumerate(lines) if line.partition("#")[0].strip() == header), None
    )
    if header_at is not None:
        lines[header_at] += f"\n{text}"
    return header_at


def _add_to_yaml(lines: list[str], sections: list[str], rest: list[str], value: str) -> int | None:
    *inner, key = rest
    at, end, indent = -1, 0, ""
    for section in sections:
        opens = re.compile(
            rf"^{indent}(\s*)[\"']?{re.escape(section)}[\"']?\s*:[ \t]*(#.*)?$", re.MULTILINE
        )
        places = (
            (n, opens.search(line, end if n == at else 0))
            for n, line in enumerate(lines)
            if n >= at
        )
        found = next(((n, match.end()) for n, match in places if match), None)
        if found is None:
            return None
        at, end = found  # an element with keys added before contains several lines of the text
        behind = [*lines[at][end:].split("\n"), *lines[at + 1 :]]
        following = next((line for line in behind if line.strip() and line.lstrip()[0] != "#"), "")
        if not following:
            return None
        indent = following[: len(following) - len(following.lstrip())]
    if at < 0:  # after the last line of the file
        at = max((n for n, line in enumerate(lines) if line.strip()), default=0)
        end = len(lines[at])
    rows = [f"{indent}{'  ' * depth}{section}:" for depth, section in enumerate(inner)]
    rows.append(f"{indent}{'  ' * len(inner)}{key}: {value}")
    lines[at] = "\n".join([lines[at][:end], *rows]) + lines[at][end:]
    return at


def _add_to_json(lines: list[str], sections: list[str], rest: list[str], value: str) -> int | None:
    *inner, key = rest
    begin = "".join(f'"{section}": {{' for section in inner)
    entry = f'{begin}"{key}": {_written_value(value)}{"}" * len(inner)},'
    at = next((n for n, line in enumerate(lines) if line.lstrip().startswith("{")), None)
    if at is not None and not sections and lines[at].strip() != "{":
        before, _, behind = lines[at].partition("{")
        lines[at] = f"{before}{{{entry} {behind.lstrip()}"
        return at
    for section in sections:
        opens = re.compile(rf'\s*"{re.escape(section)}"\s*:\s*\{{\s*$')
        at = next(
            (n for n, line in enumerate(lines) if at is not None and n > at and opens.match(line)),
            None,
        )
    if at is None:
        return None
    following = lines[at + 1] if at + 1 < len(lines) else ""
    indent = following[: len(following) - len(following.lstrip())]
    lines[at] += f"\n{indent}{entry}"
    return at


_ADDS = {".toml": _add_to_toml, ".yaml": _add_to_yaml, ".yml": _add_to_yaml, ".json": _add_to_json}


def _written_value(value: str) -> str:
    """A value as TOML and JSON write it."""
    is_plain = re.fullmatch(r"true|false|null|-?\d+(\.\d+)?|\[.*\]", value) is not None
    return value if is_plain else f'"{value}"'
