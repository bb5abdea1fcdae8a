"""A draft: a spec with comments that say where each value was found and what is still to be filled in."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from autotune.errors import SpecError
from autotune.schema.files import name_of

WIDTH = 110
"""characters of a mapping that stands on one line"""
COMMENT_COLUMN = 44
"""column at which the comments begin"""


@dataclass(frozen=True, slots=True)
class Item:
    """An entry of a list."""

    value: str
    """a text"""
    comment: str = ""
    """where it was found, or what to fill in"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """A key of the spec."""

    key: str
    """its name"""
    value: Any = None
    """plain values; None with `parts`"""
    comment: str = ""
    """where it was found, or what to fill in"""
    parts: tuple[Entry, ...] = ()
    """the keys inside, each on a line of its own"""
    items: tuple[Item, ...] = ()
    """the entries of a list, each on a line of its own"""
    below: tuple[str, ...] = ()
    """comments under it"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Draft:
    """A first spec."""

    heading: tuple[str, ...]
    """comments at the top"""
    entries: tuple[Entry, ...]
    """the spec's keys in their order"""
    fill_in: tuple[str, ...] = ()
    """keys whose value is only a stand-in"""
    notes: tuple[str, ...] = ()
    """what was kept and what was not understood, in words"""

    @property
    def document(self) -> dict[str, Any]:
        """The spec as plain values."""
        return {entry.key: _value(entry) for entry in self.entries}

    @property
    def text(self) -> str:
        """The spec as YAML."""
        lines = [f"# {line}" for line in self.heading]
        for entry in self.entries:
            lines += _lines(entry, "")
        return "\n".join(lines) + "\n"

    def with_values(self, values: Mapping[str, Any]) -> Draft:
        """With values that somebody said, by the path of their key: `workload.seq_len`."""

        def said(entry: Entry, path: str) -> Entry:
            if path in values:
                return replace(entry, value=values[path], comment="as was said")
            inside = {key: values[f"{path}.{key}"] for key in _keys(entry.value) if f"{path}.{key}" in values}
            if not inside:
                return replace(entry, parts=tuple(said(part, f"{path}.{part.key}") for part in entry.parts))
            left = [words for words in entry.comment.split("; ") if not _asks_for(words, inside)]
            words = "; ".join([*filter(None, left), f"{', '.join(inside)} as was said"])
            return replace(entry, value={**entry.value, **inside}, comment=words)

        entries = tuple(said(entry, entry.key) for entry in self.entries)
        return replace(self, entries=entries, fill_in=tuple(key for key in self.fill_in if key not in values))

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON values."""
        return {
            "spec": self.document,
            "text": self.text,
            "fill_in": list(self.fill_in),
            "notes": list(self.notes),
        }


def _keys(value: Any) -> tuple[str, ...]:
    return tuple(value) if isinstance(value, dict) else ()


def _asks_for(words: str, keys: Iterable[str]) -> bool:
    return any(words.startswith(f"fill in: {key}") for key in keys)


def file_name(path: str) -> str:
    """A study's name by the name of a file or folder."""
    stem = path.rstrip("/").rsplit("/", 1)[-1].rsplit(".", 1)[0]
    found = name_of(stem)
    if not found:
        raise SpecError(f"{path!r} has no name", field="FILE")
    return found


def _value(entry: Entry) -> Any:
    if entry.items:
        return [item.value for item in entry.items]
    return {part.key: _value(part) for part in entry.parts} if entry.parts else entry.value


def _lines(entry: Entry, indent: str) -> Iterator[str]:
    if entry.parts:
        yield _commented(f"{indent}{entry.key}:", entry.comment)
        for part in entry.parts:
            yield from _lines(part, indent + "  ")
    elif entry.items:
        yield _commented(f"{indent}{entry.key}:", entry.comment)
        for item in entry.items:
            yield _commented(f"{indent}  - {_flow(item.value)}", item.comment)
    elif isinstance(entry.value, dict) and len(_flow(entry.value)) > WIDTH:
        inside = tuple(Entry(key=_flow(key), value=value) for key, value in entry.value.items())
        yield from _lines(replace(entry, value=None, parts=inside), indent)
        return
    else:
        yield _commented(f"{indent}{entry.key}: {_flow(entry.value)}", entry.comment)
    yield from (f"{indent}# {line}" for line in entry.below)


def _commented(line: str, comment: str) -> str:
    """The comment behind a short line, above a long one."""
    if not comment or len(line) <= COMMENT_COLUMN:
        return f"{line:<{COMMENT_COLUMN}}  # {comment}" if comment else line
    return f"{line[: len(line) - len(line.lstrip())]}# {comment}\n{line}"


def _flow(value: Any) -> str:
    """A value in one line of YAML."""
    import yaml  # imported here because it is slow to import

    text: str = yaml.safe_dump(value, default_flow_style=True, sort_keys=False, width=1 << 20, allow_unicode=True)
    return text.removesuffix("\n").removesuffix("\n...")
