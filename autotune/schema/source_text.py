"""The text that a spec was read from, to show errors with the line of their field.

    field        keys and list indices, joined by dots: `budget.max_trials`, `space.tp.0`
    entry        a key with its value, or one item of a list: what an error points at

The text is parsed for places only after an error, so that valid specs cost no time.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, TypeVar

from autotune.errors import AutotuneError, CatalogError, ConfigError, SourcePlace, SpecError

MAX_BRACKETS = 100
"""maximum number of open brackets in YAML, including quoted ones; PyYAML takes seconds for a
kilobyte of them"""
MAX_CHARACTERS = 1 << 16
"""length of a text above which errors show no lines, because PyYAML takes seconds to parse it"""
WIDTH = 100
"""maximum number of characters of a line in an excerpt"""
MAX_CARETS = 40
"""maximum number of carets under a value"""
_BEFORE = 40
"""number of characters shown before the place in lines longer than `WIDTH`"""


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceText:
    """The text of one document."""

    text: str
    """YAML or JSON"""
    file: str = ""
    """path as the caller passed it; empty for a text without a file"""
    included: dict[str, SourceText] = field(default_factory=dict)
    """texts of the files whose contents were inserted, by the key that had the file's path"""

    def place(self, line: int, column: int, length: int = 1) -> SourcePlace:
        """Return the place of `length` characters at this line and column, both counted from 1."""
        lines = self.text.splitlines() or [""]
        last = min(line, len(lines))
        return SourcePlace(
            file=self.file,
            line=line,
            column=column,
            excerpt=_excerpt(lines[:last][-2:], last, column, length),
        )

    def place_of(self, field: str) -> SourcePlace | None:
        """Return the place of a field, or of the innermost mapping or list around it in the text;
        None if the text has neither."""
        key, _, rest = field.partition(".")
        if key in self.included and rest and (inner := self.included[key].place_of(rest)):
            return inner
        entry = _entry(_root(self.text), field)
        if entry is None:
            return None
        start, end = entry
        length = end.column - start.column if end.line == start.line else 1
        return self.place(start.line + 1, start.column + 1, max(1, length))

    def locate(self, error: AutotuneError, *, but: Collection[str] = ()) -> None:
        """Add places to an error and its `others`. `but`: keys whose values are not from the
        text."""
        for mistake in (error, *error.others):
            if any(f"{mistake.field}.".startswith(f"{key}.") for key in but):
                continue
            if mistake.field and (place := self.place_of(mistake.field)):
                mistake.place = place
                error.add_note(place.excerpt)  # shown in Python tracebacks


@lru_cache(maxsize=1)
def _root(text: str) -> Any:
    """Return the root of the text's YAML nodes, which have places; None if it cannot be parsed.
    Cached for the next error in the same text."""
    import yaml

    if len(text) > MAX_CHARACTERS or open_brackets(text) > MAX_BRACKETS:
        return None
    try:
        # JSON may be indented with tabs
        return yaml.compose(text.replace("\t", " "), Loader=yaml.SafeLoader)
    except (yaml.YAMLError, ValueError, RecursionError):
        return None


def open_brackets(text: str) -> int:
    """Return the maximum number of brackets that are open at once."""
    most = depth = 0
    for sign in re.findall(r"[\[\]{}]", text):
        depth += 1 if sign in "[{" else -1
        most = max(most, depth)
    return most


class ReadDocument(dict[str, Any]):
    """A document with the text that it was read from. `check_size` has accepted it."""

    def __init__(self, values: Mapping[str, Any], source: SourceText) -> None:
        super().__init__(values)
        self.source = source

    def __reduce__(self) -> Any:
        return ReadDocument, (dict(self), self.source)


@contextmanager
def places_in(document: Mapping[str, Any], *, but: Collection[str] = ()) -> Iterator[None]:
    """Add the places in the document's text to errors raised in the block, if the document was read
    from a text. `but`: keys whose values are not from the text."""
    try:
        yield
    except AutotuneError as error:
        if isinstance(document, ReadDocument):
            document.source.locate(error, but=but)
        raise


def _entry(node: Any, field: str) -> tuple[Any, Any] | None:
    """Return the begin and the end of a field's entry, as PyYAML marks; None if there is none."""
    import yaml

    marks, rest = None, field
    while rest:
        if isinstance(node, yaml.MappingNode):
            keys = [
                (key, value)
                for key, value in node.value
                if isinstance(key, yaml.ScalarNode) and f"{rest}.".startswith(f"{key.value}.")
            ]
            if not keys:
                break
            key, node = max(keys, key=lambda pair: len(pair[0].value))
            rest = rest[len(key.value) + 1 :]
            is_one_line = node.end_mark.line == key.start_mark.line
            marks = key.start_mark, node.end_mark if is_one_line else key.end_mark
        elif isinstance(node, yaml.SequenceNode):
            head, _, rest = rest.partition(".")
            if not (head.isascii() and head.isdigit() and int(head) < len(node.value)):
                break
            node = node.value[int(head)]
            marks = node.start_mark, node.end_mark
        else:
            break
    return marks


def _excerpt(lines: list[str], number: int, column: int, length: int) -> str:
    """Return the lines with their numbers, and carets below the last one. `number`: of the last
    line."""
    width = len(str(number))
    from_column = max(0, column - 1 - _BEFORE) if len(lines[-1]) > WIDTH else 0
    shown = []
    for i, line in enumerate(lines, start=number - len(lines) + 1):
        if line.strip() or i == number:
            clean = "".join(c if c.isprintable() else " " for c in line)[
                from_column : from_column + WIDTH
            ]
            shown.append(f"{i:>{width}} | {clean}".rstrip())
    length = max(1, min(length, MAX_CARETS, from_column + WIDTH - column + 1))
    return "\n".join([*shown, f"{'':>{width}} | {'':>{column - 1 - from_column}}{'^' * length}"])


T = TypeVar("T")


def _within(field: str, inner: str) -> str:
    """Return the dotted name of a field inside another one; unchanged if it is already the full
    name."""
    if inner.startswith(field):
        return inner
    return f"{field}.{inner}" if inner and not field.endswith(inner) else field


def located(field: str, make: Callable[[], T]) -> T:
    """Return `make()`. Its errors become `SpecError` with this field of the spec."""
    try:
        return make()
    except CatalogError as error:
        if not field.endswith(f".{error.field}"):
            raise
        raise CatalogError(error.message, remedy=error.remedy, field=field) from None
    except (SpecError, ConfigError) as error:
        raise SpecError(
            error.message, remedy=error.remedy, field=_within(field, error.field)
        ) from None
    except (TypeError, ValueError) as error:
        if isinstance(error, AutotuneError):
            raise
        raise SpecError(str(error), field=field) from None
