"""Checks of values. Each raises `SpecError` with the rule, the value and the remedy. Suggestions
for unknown names."""

from __future__ import annotations

import difflib
import math
from collections.abc import Iterable, Iterator
from contextlib import suppress
from enum import StrEnum
from itertools import islice
from pathlib import Path
from typing import TypeVar

from autotune.errors import SpecError
from autotune.spec.texts.usual_names import meanings_of

Member = TypeVar("Member", bound=StrEnum)

MAX_COUNT = 1 << 40
"""upper bound on counts, to catch typos"""
MAX_PORT = 65_535
"""largest TCP port"""
READ_AS_BOOLEAN = "put quotes around a word: YAML reads yes, on, no and off as true and false"
"""remedy for a boolean in place of a word"""
MAX_LENGTH = 60
"""maximum length of a word that is compared with known names"""
MAX_FILES = 1000
"""maximum number of files in a folder that are compared with a name"""
NEAR, NEAR_SHORT = 0.7, 0.6
"""minimum similarity between a word and a suggested name: one of three letters may be wrong"""
_LEAST_FIGURE, _LARGEST_FIGURE = 1.0, 1e30


def key_values(pairs: Iterable[str], *, field: str, example: str) -> Iterator[tuple[str, str]]:
    """Yield key and value of each KEY=VALUE. Raises `SpecError` for text in any other form."""
    for pair in pairs:
        key, sign, value = pair.partition("=")
        if not sign or not key:
            raise SpecError(
                f"options must be KEY=VALUE, but one of them is {pair[:80]!r}",
                remedy=f"e.g. {example}",
                field=field,
            )
        yield key, value


def options_of(pairs: Iterable[str], *, field: str, example: str) -> dict[str, str]:
    """Return the values of KEY=VALUE words by key. Raises `SpecError` for text in any other form,
    and for a repeated key."""
    options: dict[str, str] = {}
    for key, value in key_values(pairs, field=field, example=example):
        if key in options:
            raise SpecError(
                f"the option {key[:80]} is given twice",
                remedy="pass the option once",
                field=field,
            )
        options[key] = value
    return options


def positive_int(name: str, value: object, *, at_most: int = MAX_COUNT, least: int = 1) -> int:
    """Return `value`, which must be an int from `least` to `at_most`."""
    if isinstance(value, bool) or not isinstance(value, int):
        raise SpecError(f"{name} must be a whole number, but is {value!r}", field=name)
    if not least <= value <= at_most:
        raise SpecError(f"{name} must be {least} to {at_most}, but is {value}", field=name)
    return value


def positive(name: str, value: object, *, zero: bool = False) -> float:
    """Return `value` as a float. It must be finite and above zero, or also zero if `zero` is
    set."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise SpecError(f"{name} must be a finite number, but is {value!r}", field=name)
    if value < 0 or (value == 0 and not zero):
        raise SpecError(
            f"{name} must be {'at least' if zero else 'above'} zero, but is {value}", field=name
        )
    return float(value)


def figure(name: str, value: object) -> float:
    """Return `value` as a float. It must be a hardware figure in SI units, within bounds that keep
    computed times finite."""
    number = positive(name, value)
    if not _LEAST_FIGURE <= number <= _LARGEST_FIGURE:
        raise SpecError(
            f"{name} must be {_LEAST_FIGURE:g} to {_LARGEST_FIGURE:g}, but is {number:g}",
            field=name,
        )
    return number


def check_names(name: str, value: object) -> None:
    """Raise `SpecError` if `value` is not a list of names."""
    if (
        isinstance(value, str)
        or not isinstance(value, Iterable)
        or not all(isinstance(word, str) for word in value)
    ):
        raise SpecError(f"{name} must be a list of names, but is {value!r:.80}", field=name)


def one_of(name: str, value: object, allowed: Iterable[str]) -> str:
    """Return `value`, which must be one of the `allowed` words."""
    words = tuple(allowed)
    if not isinstance(value, str) or value not in words:
        raise SpecError(
            f"{name} must be one of {', '.join(words)}, but is {value!r}",
            remedy=nearest(value, words),
            field=name,
        )
    return value


def member_of(name: str, value: str, kind: type[Member]) -> Member:
    """Return the member of `kind` with the name `value`, in upper or lower case."""
    return kind(one_of(name, value.lower(), [each.lower() for each in kind]).upper())


def nearest_file(path: Path, built_in: Iterable[str] = ()) -> str:
    """Return "did you mean X?" for a file with a similar name in the same folder, or a built-in
    name; empty if there is none."""
    siblings: list[str] = []
    with suppress(OSError):
        siblings = [each.name for each in islice(path.parent.iterdir(), MAX_FILES)]
    return nearest(path.name, [*built_in, *siblings])


def nearest(word: object, known: Iterable[str], *, ending: str = "") -> str:
    """Return "did you mean X?"; empty if no known name is similar.

    These are tried in order: the word's plural; up to four names that begin with the word (h100:
    h100-sxm); the known name for which trainers use the word; similar names; the only name that
    contains the word (batch: global_batch_size). `ending`: text to append to a name.
    """
    known = list(known)
    plural = f"{word}s"[:MAX_LENGTH]
    plurals = (
        [plural] if plural in known else [name for name in known if name in meanings_of(plural)]
    )
    if len(plurals) == 1:
        return f"did you mean {plurals[0]}{ending}?"
    prefixed = [name for name in known if name.startswith((f"{word}-", f"{word}_"))]
    if 1 <= len(prefixed) <= 4:
        names = [f"{name}{ending}" for name in prefixed]
        listed = " or ".join(filter(None, [", ".join(names[:-1]), names[-1]]))
        return f"did you mean {listed}?"
    renamed = [name for name in known if name in meanings_of(str(word)[:MAX_LENGTH])]
    if len(renamed) == 1:
        return f"did you mean {renamed[0]}{ending}?"
    close = difflib.get_close_matches(
        str(word), known, n=1, cutoff=NEAR if len(str(word)) > 3 else NEAR_SHORT
    )
    if not close:
        close = [name for name in known if str(word) in name.split("_")]
    return f"did you mean {close[0]}{ending}?" if len(close) == 1 else ""
