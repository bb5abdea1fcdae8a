"""The package's `dataclass` behaves as that of the standard library."""

from __future__ import annotations

import copy
import dataclasses
import inspect
import pickle
from collections.abc import Callable
from dataclasses import field
from typing import Any

import pytest

from autotune.values import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Ours:
    """A value."""

    first: int
    second: str = "x"
    third: list[int] = field(default_factory=list)
    hidden: float = field(default=1.0, repr=False, compare=False)

    def __post_init__(self) -> None:
        if self.first < 0:
            raise ValueError("negative")


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Theirs:
    """A value."""

    first: int
    second: str = "x"
    third: list[int] = field(default_factory=list)
    hidden: float = field(default=1.0, repr=False, compare=False)

    def __post_init__(self) -> None:
        if self.first < 0:
            raise ValueError("negative")


@dataclass(frozen=True, slots=True)
class Pair:
    """Positional."""

    left: int
    right: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Single:
    """Of one field."""

    only: float


BOTH = pytest.mark.parametrize("kind", [Ours, Theirs])


@BOTH
def test_fields_defaults_and_checks(kind: Callable[..., Any]) -> None:
    made = kind(first=1)
    assert (made.second, made.third, made.hidden) == ("x", [], 1.0)
    assert made.third is not kind(first=1).third
    assert [each.name for each in dataclasses.fields(made)] == ["first", "second", "third", "hidden"]
    assert dataclasses.asdict(made) == {"first": 1, "second": "x", "third": [], "hidden": 1.0}
    with pytest.raises(ValueError, match="negative"):
        kind(first=-1)
    with pytest.raises(TypeError, match="positional argument"):
        kind(1)
    with pytest.raises(TypeError, match="'first'"):
        kind()
    assert list(inspect.signature(kind).parameters) == ["first", "second", "third", "hidden"]
    assert not hasattr(made, "__dict__")


@BOTH
def test_values_are_frozen_and_replaced(kind: Callable[..., Any]) -> None:
    made = kind(first=1)
    for change in (
        lambda: setattr(made, "first", 2),
        lambda: setattr(made, "other", 2),
        lambda: delattr(made, "first"),
    ):
        with pytest.raises((AttributeError, TypeError)):  # Python 3.11 says the latter of a name that is no field
            change()
    with pytest.raises(dataclasses.FrozenInstanceError, match="cannot assign to field 'first'"):
        made.first = 2
    assert dataclasses.replace(made, first=2).first == 2
    with pytest.raises(ValueError, match="negative"):
        dataclasses.replace(made, first=-2)


@BOTH
def test_equality_text_and_copies(kind: Callable[..., Any]) -> None:
    made = kind(first=1, third=[2], hidden=3.0)
    assert made == kind(first=1, third=[2], hidden=4.0)
    assert made != kind(first=2, third=[2])
    assert made != (1, "x", [2])
    assert repr(made) == f"{type(made).__qualname__}(first=1, second='x', third=[2])"
    for copied in (copy.copy(made), copy.deepcopy(made), pickle.loads(pickle.dumps(made))):
        assert copied == made
        assert copied.hidden == 3.0
    with pytest.raises(TypeError, match="unhashable"):
        hash(made)


def test_hashes_are_those_of_the_standard_library() -> None:
    assert (
        hash(Pair(1, (2, 3)))
        == hash((1, (2, 3)))
        == hash(dataclasses.make_dataclass("P", ["a", "b"], frozen=True)(1, (2, 3)))
    )
    assert hash(Single(2.5)) == hash((2.5,))
    assert Single(2.5) == Single(2.5)
    assert Pair(1) in {Pair(1, ())}


def test_what_a_class_defines_itself_stays_and_heirs_are_the_standard_librarys() -> None:
    @dataclass(frozen=True, slots=True, kw_only=True)
    class Own:
        """With its own text and equality."""

        a: int

        def __repr__(self) -> str:
            return "own"

        def __eq__(self, other: object) -> bool:
            return True

        __hash__ = object.__hash__

    @dataclass(frozen=True, kw_only=True)
    class Heir(Pair):
        more: int = 0

    assert repr(Own(a=1)) == "own"
    assert Own(a=1) == Own(a=2)
    assert hash(Own(a=1)) != hash((1,))
    heir = Heir(1, more=2)
    assert (heir.left, heir.right, heir.more) == (1, (), 2)
    with pytest.raises(dataclasses.FrozenInstanceError):
        heir.left = 3  # type: ignore[misc]


def test_others_are_made_by_the_standard_library() -> None:
    @dataclass(slots=True)
    class Open:
        a: int = 1

    made = Open()
    made.a = 2
    assert made == Open(2)
