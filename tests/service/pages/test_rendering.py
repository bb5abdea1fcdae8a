"""The filters of the templates."""

from __future__ import annotations

import pytest

from autotune.service.pages.rendering import environment


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("zero_stage must be 0, 1, 2 or 3", "zero_stage must be 0, 1, 2 or 3."),
        ("tp=3 must divide 32", "tp=3 must divide 32."),
        ("space.tp: no value is valid", "space.tp: no value is valid."),
        ("max_steps must be at least min_steps", "max_steps must be at least min_steps."),
        ("no config fits", "No config fits."),
        ("did you mean tp?", "Did you mean tp?"),
    ],
)
def test_a_sentence_begins_with_a_capital_but_a_knob_or_key_keeps_its_case(
    text: str, sentence: str
) -> None:
    assert str(environment().filters["sentence"](text)) == sentence
