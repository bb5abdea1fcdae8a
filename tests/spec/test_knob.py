"""The declaration of a knob: every form of it is made from that."""

from __future__ import annotations

import numpy as np
import pytest

from autotune.errors import ConfigError, SpecError
from autotune.spec import KNOBS, Knob
from autotune.spec.knob import KINDS


def test_every_knob_is_declared_completely() -> None:
    for name, knob in KNOBS.items():
        assert knob.name == name
        assert knob.kind in KINDS
        assert knob.doc
        knob.check(knob.default)
        assert bool(knob.values) == (knob.kind in ("number", "word", "flag"))
        assert knob.kind == "flag" or "{}" in knob.label


def test_no_two_knobs_share_a_word_in_labels() -> None:
    words = [
        knob.label_of(value)
        for knob in KNOBS.values()
        for value in knob.values or (2,)
        if knob.kind != "flag"
    ]
    words += [knob.label for knob in KNOBS.values() if knob.kind == "flag"]
    words.remove("none-recompute")
    assert len(set(words)) == len(words)


@pytest.mark.parametrize(
    ("values", "kind", "default", "codes"),
    [
        ([4, 0, 2], "number", 4, (0, 2, 4)),
        ([True], "flag", True, (False, True)),
        (["b", "a", "b"], "word", "b", ("b", "a")),
        ([0.5, 1], "number", 0.5, (0.5, 1)),
    ],
)
def test_an_own_knob_is_declared_by_its_values(
    values: list, kind: str, default: object, codes: tuple
) -> None:
    knob = Knob.own("mine", values)
    assert (knob.kind, knob.default, knob.values, knob.is_own) == (kind, default, codes, True)
    assert [knob.decode(knob.encode(value)) for value in codes] == list(codes)
    assert [knob.parse(knob.text(value)) for value in codes] == list(codes)


@pytest.mark.parametrize(
    ("name", "values", "message"),
    [
        ("Mine", [1], "must have at most 40 characters"),
        ("mine", [], "at least one value"),
        ("mine", [1, "a"], "all numbers, all words, or true and false"),
        ("mine", [1, True], "all numbers, all words, or true and false"),
        ("mine", [float("nan")], "all numbers, all words, or true and false"),
        ("mine", ["two words"], "all numbers, all words, or true and false"),
    ],
)
def test_invalid_own_knobs_are_rejected(name: str, values: list, message: str) -> None:
    with pytest.raises(SpecError, match=message):
        Knob.own(name, values)


def test_the_error_for_an_invalid_value_lists_the_values() -> None:
    with pytest.raises(ConfigError, match=r"mine must be one of 1, 2, but is 3"):
        Knob.own("mine", [1, 2]).check(3)
    with pytest.raises(ConfigError, match="mine must be a number, but is 'many'"):
        Knob.own("mine", [1, 2]).parse("many")
    with pytest.raises(ConfigError, match="must be 0, 1, 2 or 3, but is 4"):
        KNOBS["zero_stage"].check(4)


def test_a_step_of_a_knob_is_about_one_on_its_axis() -> None:
    assert KNOBS["tp"].coordinate(np.array([1, 2, 8])).tolist() == [0.0, 1.0, 3.0]
    assert KNOBS["precision"].coordinate(np.array([0, 2])).tolist() == [0.0, 2.0]
    assert Knob.own("bucket_mb", [1, 4, 16]).coordinate(np.array([0, 1, 2])).tolist() == [
        0.0,
        2.0,
        4.0,
    ]
    assert Knob.own("num_workers", [0, 2, 4]).coordinate(np.array([0, 1, 2])).tolist() == [
        0.0,
        1.0,
        2.0,
    ]
