"""A key that a file of settings lacks, written in its section: TOML, YAML and JSON. The file is
read again, so that nothing is written where it means something else.

[compile]            enable = true          at the end of a file that has no such section, behind the header of one that has it
optimizer:           zero_stage: 1          with the indentation of the section
{                    "key": 1,              behind the line that opens the section

JSON as `json.dumps` indents it is written anew, so that sections and commas come out right.
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
"""what a line becomes that goes: to a shell it is nothing, and the command goes on"""


def text_of(lines: list[str]) -> str:
    """The text of the lines that stay."""
    return "\n".join(line for line in lines if line != GONE)


def with_values(lines: list[str], values: Mapping[str, str | None]) -> bool:
    """Gives a JSON file these values, by their paths; None: the key goes, and its section if
    nothing else is in it. False, and nothing changes, if the file is not as `json.dumps` indents
    it, or has keys with dots, or cannot hold all of them."""
    text = text_of(lines)
    try:
        document = json.loads(text)
    except ValueError:
        return False
    indent = next((n for n in (2, 4, 1, 8) if json.dumps(document, indent=n) == text), None)
    if indent is None or not isinstance(document, dict):
        return False
    held = dict(flat(document))
    if any(at_path(document, path) != value for path, value in held.items()):
        return False  # a dot belongs to a key
    told = {
        path: value if isinstance(held.get(path), str) else _typed(value)
        for path, value in values.items()
        if value is not None
    }
    kept = without(document, lambda path, _: path in values and values[path] is None)
    changed = merged(kept, nested(told))
    if any(at_path(changed, path) != value for path, value in told.items()):
        return False
    written = json.dumps(changed, indent=indent).splitlines()
    matcher = difflib.SequenceMatcher(a=list(lines), b=written, autojunk=False)
    for _, begin, end, first, last in reversed(matcher.get_opcodes()):
        if lines[begin:end] == written[first:last]:
            continue
        new = "\n".join(written[first:last])
        if begin == end:  # behind the line before it
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
    """Gives a file of settings a key that it lacks, and says behind which line, which then holds
    both; nowhere where no file can take it."""
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
    try:
        return path in dict(flat(parse_document(name, text_of(lines))))
    except AutotuneError:
        return False


def _add_to_toml(lines: list[str], sections: list[str], rest: list[str], value: str) -> int | None:
    *inner, key = rest
    text = f"{key} = {_written_value(value)}"
    if inner:  # a section of its own, at the end
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
        at, end = found  # a line that holds new keys has several of the text
        behind = [*lines[at][end:].split("\n"), *lines[at + 1 :]]
        following = next((line for line in behind if line.strip() and line.lstrip()[0] != "#"), "")
        if not following:
            return None
        indent = following[: len(following) - len(following.lstrip())]
    if at < 0:  # behind the last line of the file
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
