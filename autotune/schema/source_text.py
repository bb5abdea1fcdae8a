"""The text that a spec was read from: where in it a field stands, and the mistakes of a spec with their places.

    field        keys and positions in lists, joined by dots: `budget.max_trials`, `space.tp.0`
    entry        a key with its value, or one item of a list: what an error points at

A text is parsed for places only once a mistake is known, so a correct spec costs nothing.

Errors of values, told with the field of the spec that they come from.
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
"""open brackets of YAML, quoted ones included: its parser takes seconds over a kilobyte of them before it gives up"""
LARGEST_CHARACTERS = 1 << 16
"""in longer texts no places are looked up: YAML's parser takes seconds for them"""
WIDTH = 100
"""most characters of a line that an excerpt shows"""
MOST_CARETS = 40
"""carets under a long value: they show where it begins"""
_BEFORE = 40
"""characters shown before the place, where its line is longer than `WIDTH`"""


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceText:
    """The text of one document."""

    text: str
    """YAML or JSON"""
    file: str = ""
    """as the caller named it; empty when it has no name"""
    included: dict[str, SourceText] = field(default_factory=dict)
    """texts of the files whose contents stand in the document, by the key that named the file"""

    def place(self, line: int, column: int, length: int = 1) -> SourcePlace:
        """The place of `length` characters from that line and column, both counted from 1."""
        lines = self.text.splitlines() or [""]
        at = min(line, len(lines))
        return SourcePlace(
            file=self.file,
            line=line,
            column=column,
            excerpt=_excerpt(lines[:at][-2:], at, column, length),
        )

    def place_of(self, field: str) -> SourcePlace | None:
        """The place of a field, or of the innermost mapping or list around it that the text has; None when the text has neither."""
        key, _, rest = field.partition(".")
        if key in self.included and rest and (inner := self.included[key].place_of(rest)):
            return inner
        found = _entry(_root(self.text), field)
        if found is None:
            return None
        start, end = found
        length = end.column - start.column if end.line == start.line else 1
        return self.place(start.line + 1, start.column + 1, max(1, length))

    def locate(self, error: AutotuneError, *, but: Collection[str] = ()) -> None:
        """Adds places to an error and to the others that it carries. `but`: keys whose values were replaced, so that the text does not hold them."""
        for mistake in (error, *error.others):
            if any(f"{mistake.field}.".startswith(f"{key}.") for key in but):
                continue
            if mistake.field and (place := self.place_of(mistake.field)):
                mistake.place = place
                error.add_note(place.excerpt)  # for the traceback of a Python program


@lru_cache(maxsize=1)
def _root(text: str) -> Any:
    """The text as the parser's nodes, which have places; None where it has none. Kept for the other mistakes of the same text."""
    import yaml

    if len(text) > LARGEST_CHARACTERS or open_brackets(text) > MAX_BRACKETS:
        return None
    try:
        # JSON may be indented with tabs
        return yaml.compose(text.replace("\t", " "), Loader=yaml.SafeLoader)
    except (yaml.YAMLError, ValueError, RecursionError):
        return None


def open_brackets(text: str) -> int:
    """The most brackets that are open at once."""
    most = depth = 0
    for sign in re.findall(r"[\[\]{}]", text):
        depth += 1 if sign in "[{" else -1
        most = max(most, depth)
    return most


class ReadDocument(dict[str, Any]):
    """A document that remembers the text that it was read from. It is no larger than `check_size` allows."""

    def __init__(self, values: Mapping[str, Any], source: SourceText) -> None:
        super().__init__(values)
        self.source = source

    def __reduce__(self) -> Any:
        return ReadDocument, (dict(self), self.source)


@contextmanager
def places_in(document: Mapping[str, Any], *, but: Collection[str] = ()) -> Iterator[None]:
    """Errors that are raised within get their places in the text of the document, when it was read from one."""
    try:
        yield
    except AutotuneError as error:
        if isinstance(document, ReadDocument):
            document.source.locate(error, but=but)
        raise


def _entry(node: Any, field: str) -> tuple[Any, Any] | None:
    """Where the entry of a field begins and ends, as marks of the parser."""
    import yaml

    found, rest = None, field
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
            is_beside = node.end_mark.line == key.start_mark.line
            found = key.start_mark, node.end_mark if is_beside else key.end_mark
        elif isinstance(node, yaml.SequenceNode):
            head, _, rest = rest.partition(".")
            if not (head.isascii() and head.isdigit() and int(head) < len(node.value)):
                break
            node = node.value[int(head)]
            found = node.start_mark, node.end_mark
        else:
            break
    return found


def _excerpt(lines: list[str], number: int, column: int, length: int) -> str:
    """The last of `lines` with its number and carets, after the one before it."""
    width = len(str(number))
    from_column = max(0, column - 1 - _BEFORE) if len(lines[-1]) > WIDTH else 0
    shown = []
    for i, line in enumerate(lines, start=number - len(lines) + 1):
        if line.strip() or i == number:
            clean = "".join(c if c.isprintable() else " " for c in line)[
                from_column : from_column + WIDTH
            ]
            shown.append(f"{i:>{width}} | {clean}".rstrip())
    length = max(1, min(length, MOST_CARETS, from_column + WIDTH - column + 1))
    return "\n".join([*shown, f"{'':>{width}} | {'':>{column - 1 - from_column}}{'^' * length}"])


T = TypeVar("T")


def _within(field: str, inner: str) -> str:
    """The name of a field inside another one, where it is not its whole name already."""
    if inner.startswith(field):
        return inner
    return f"{field}.{inner}" if inner and not field.endswith(inner) else field


def located(field: str, make: Callable[[], T]) -> T:
    """What `make` returns; its errors name the field of the spec."""
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
