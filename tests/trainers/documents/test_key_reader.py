"""A document's reader knows what was read, what is left over, and what it did not understand."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autotune.trainers.present_configuration import KeyReader, dotted, merged, without_equal

KEYS = st.text(alphabet="abc", min_size=1, max_size=2)
DOCUMENTS = st.recursive(
    st.dictionaries(
        KEYS, st.integers() | st.booleans() | st.text(max_size=3), min_size=1, max_size=3
    ),
    lambda inner: st.dictionaries(KEYS, inner, min_size=1, max_size=3),
    max_leaves=6,
)


def test_what_is_not_read_is_left_over() -> None:
    keys = KeyReader({"zero": {"stage": 2, "overlap": True}, "batch": 8, "other": [1]}, "f.json")
    assert (keys.count("zero.stage"), keys.count("batch"), keys.count("missing.key")) == (
        2,
        8,
        None,
    )
    assert keys.left == {"zero": {"overlap": True}, "other": [1]}
    assert not keys.remarks


@pytest.mark.parametrize(
    ("value", "remark"),
    [
        ("auto", " is filled in by the program"),
        ("many", " is left out, because it is not a whole number"),
        ("$TP", ": only the shell can compute this number"),
        ("${TP}", ": only the shell can compute this number"),
    ],
)
def test_a_value_that_is_not_understood_is_named(value: str, remark: str) -> None:
    keys = KeyReader({"batch": value}, "f.json")
    assert keys.count("batch") is None
    assert keys.remarks == [f"f.json: batch='{value}'{remark}"]
    assert keys.left == {}


def test_numbers_and_flags_may_be_text() -> None:
    keys = KeyReader({"lr": "1e-4", "on": "True", "off": False, "count": "3"}, "f.yaml")
    assert (keys.number("lr"), keys.flag("on"), keys.flag("off"), keys.count("count")) == (
        1e-4,
        True,
        False,
        3,
    )


def test_a_flag_is_no_count() -> None:
    keys = KeyReader({"stage": True}, "f.json")
    assert keys.count("stage") is None
    assert keys.remarks


@given(document=DOCUMENTS)
def test_every_value_is_left_over_until_it_is_dropped(document: dict[str, Any]) -> None:
    keys = KeyReader(document, "f")
    assert keys.left == document
    for path in dotted(document):
        keys.drop(path)
    assert keys.left == {}


@given(document=DOCUMENTS, more=DOCUMENTS)
def test_a_merged_document_without_what_was_there_is_what_was_added(
    document: dict[str, Any], more: dict[str, Any]
) -> None:
    both = merged(document, more)
    assert without_equal(both, both) == {}
    assert without_equal(more, both) == {}
    assert set(dotted(more)) <= set(dotted(both))
