"""A knob: one tunable value of a config, declared once.

    kind      values                           column of a `ConfigTable`
    degree    1, 2, 3, ...: ranks of an axis   the number
    count     1, 2, 3, ...                     the number
    number    the listed numbers               index in `values`
    word      the listed words                 index in `values`
    flag      false, true                      0 or 1

A knob's column, its key in the space's schema, its label and the label's parser, its position in
reports, its command-line help and its entry in the documentation are all derived from this
declaration. The knobs that every study has are the fields of `ParallelConfig`; `Knob.own` declares
a knob that a single study adds (`config.extra`).
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, final

import numpy as np
from numpy.typing import NDArray

from autotune.errors import ConfigError, SpecError
from autotune.spec.checks import READ_AS_BOOLEAN, nearest

KINDS = ("degree", "count", "number", "word", "flag")
MAX_COUNT = 1 << 30
"""largest value of a degree or count"""
_NAME = re.compile(r"[a-z][a-z0-9_]{0,39}")
_FLAGS = {"true": True, "false": False, "1": True, "0": False, "yes": True, "no": False}

Value = bool | int | float | str
"""type of a knob's values"""


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Knob:
    """One tunable value of a config."""

    name: str
    """the field of the config, or the key of `config.extra`"""
    kind: str
    """degree, count, number, word or flag"""
    default: Any
    """the value if a config does not set it"""
    doc: str
    """what the knob does, in one line"""
    values: tuple[Any, ...] = ()
    """allowed values of a number, word or flag, in the order of their codes; empty for degrees and
    counts"""
    label: str = "{}"
    """how labels show a value, with {} for the value: `tp{}`, `{}-recompute`; for a flag, the word
    for true"""
    short: Mapping[str, str] = field(default_factory=dict)
    """words, and their short forms in labels"""
    unit: str = ""
    """unit of the values; empty if they have no unit"""
    always_shown: bool = False
    """whether labels also show the knob at its default"""
    shown_beside: str = ""
    """name of a degree; if this degree is above 1, labels also show the knob at its default"""
    is_own: bool = False
    """whether the knob belongs to only one study"""

    @classmethod
    def own(cls, name: str, values: Sequence[Any]) -> Knob:
        """Return a study's own knob with these values: all booleans, all numbers, or all words. The
        first value is the default.

        Raises `SpecError` for a name that is not a lower-case identifier, and for values of
        different kinds.
        """
        where = f"knobs.{name}"
        if not isinstance(name, str) or not _NAME.fullmatch(name):
            raise SpecError(
                f"a knob's name must have at most 40 characters, each a lower-case letter, a digit or _, but is {name!r}",
                field="knobs",
            )
        if not values:
            raise SpecError(f"the knob {name} must have at least one value", field=where)
        first, kind = values[0], _kind_of(values)
        if kind is None:
            raise SpecError(
                f"the values of the knob {name} must be all numbers, all words, or true and false, but are {list(values)!r:.80}",
                remedy="a word must not contain spaces, commas or =, and may have at most 100 characters",
                field=where,
            )
        if kind == "flag":
            codes: tuple[Any, ...] = (False, True)
        else:
            codes = tuple(sorted(set(values))) if kind == "number" else tuple(dict.fromkeys(values))
        return cls(
            name=name,
            kind=kind,
            default=first,
            doc="a knob of this study",
            values=codes,
            label=f"{name}={{}}",
            always_shown=True,
            is_own=True,
        )

    def check(self, value: Any) -> None:
        """Raise `ConfigError` if the knob cannot have this value."""
        if self.kind in ("degree", "count"):
            if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= MAX_COUNT:
                raise self._error("must be a whole number from 1 to 2^30", value)
        elif self.kind == "flag":
            if not isinstance(value, bool):
                raise self._error("must be true or false", value)
        elif isinstance(value, bool) or value not in self.values:
            listed = [str(v) for v in self.values]
            if self.kind == "word" or self.is_own:
                remedy = READ_AS_BOOLEAN if isinstance(value, bool) else nearest(value, listed)
                raise self._error(f"must be one of {', '.join(listed)}", value, remedy=remedy)
            raise self._error(f"must be {', '.join(listed[:-1])} or {listed[-1]}", value)

    def parse(self, text: str) -> Any:
        """Return the value that a string stands for, without checking it. Raises `ConfigError` for text that is not a
        value of this kind."""
        if self.kind == "word":
            return text
        if self.kind == "flag":
            if text.lower() not in _FLAGS:
                raise self._error("must be true or false", text)
            return _FLAGS[text.lower()]
        try:
            return int(text)
        except ValueError:
            pass
        try:
            if self.is_own:
                return float(text)
        except ValueError:
            pass
        raise self._error("must be a number" if self.is_own else "must be a whole number", text)

    def text(self, value: Any) -> str:
        """Return the formatted value: `true`, `8`, `bf16`."""
        return str(value).lower() if self.kind == "flag" else str(value)

    def label_of(self, value: Any) -> str:
        """Return the value in a label: `tp8`, `bf16`, `full-recompute`, `sp`, `num_workers=4`."""
        if self.kind == "flag" and not self.is_own:
            return self.label
        return self.label.format(
            self.short.get(value, self.text(value)) if self.kind == "word" else self.text(value)
        )

    def encode(self, value: Any) -> int:
        """Return the integer that represents the value in a column."""
        return self.values.index(value) if self.values else int(value)

    def decode(self, code: Any) -> Any:
        """Return the value represented by a column's entry."""
        return self.values[int(code)] if self.values else int(code)

    @property
    def dtype(self) -> Any:
        """The type of the knob's column: a small type if the knob has few codes."""
        if self.kind == "flag":
            return np.bool_
        return np.int8 if self.kind == "word" and not self.is_own else np.int64

    def coordinate(self, column: NDArray[Any]) -> NDArray[np.float64]:
        """Return the position of each entry on this knob's axis: log2 of counts and positive
        numbers, otherwise the code.

        One step of the knob (doubling a number, taking the next word, or switching a flag) is about
        1 on the axis.
        """
        if not self.values:
            return np.asarray(np.log2(column.astype(np.float64)))
        if self.kind == "number" and min(self.values) > 0:
            return np.asarray(
                np.log2(np.array(self.values, dtype=np.float64))[column.astype(np.int64)]
            )
        return column.astype(np.float64)

    def _error(self, rule: str, value: Any, *, remedy: str = "") -> ConfigError:
        """Return the error for an invalid value."""
        return ConfigError(f"{self.name} {rule}, but is {value!r}", remedy=remedy, field=self.name)


def knob(kind: str, default: Any, doc: str, **declared: Any) -> Any:
    """Declare a field of `ParallelConfig`: a `dataclasses.field` that carries its `Knob`."""
    if kind == "flag":
        declared["values"] = (False, True)
    return field(
        default=default,
        metadata={"knob": {"kind": kind, "default": default, "doc": doc, **declared}},
    )


def _kind_of(values: Sequence[Any]) -> str | None:
    """Return flag, number or word; None if the values are of different kinds or invalid."""
    if all(isinstance(value, bool) for value in values):
        return "flag"
    if all(
        isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
        for value in values
    ):
        return "number"
    if all(isinstance(value, str) and re.fullmatch(r"[^\s,=]{1,100}", value) for value in values):
        return "word"
    return None
