"""What pydantic and the command line's parser say is wrong, in this program's words."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from autotune.spec.texts.validation import violated_rule


class Lax(BaseModel):
    count: int = Field(default=1, ge=1)
    share: float = 0.5
    flag: bool = False
    word: str = Field(default="a", max_length=3)
    words: list[str] = Field(default=["a"], min_length=1, max_length=2)
    values: dict[str, int] = {}


class Strict(Lax):
    model_config = ConfigDict(strict=True)


@pytest.mark.parametrize("kind", [Lax, Strict])
@pytest.mark.parametrize(
    ("name", "value", "rule"),
    [
        ("count", "x", "must be a whole number"),
        ("count", 1.5, "must be a whole number"),
        ("count", "9" * 5000, "must be a smaller whole number"),
        ("count", 0, "must be greater than or equal to 1"),
        ("share", "x", "must be a number"),
        ("flag", "x", "must be true or false"),
        ("word", 7, "must be a string"),
        ("word", "long", "must have at most 3 characters"),
        ("words", 7, "must be a list"),
        ("words", [], "must have 1 or more entries"),
        ("words", ["a"] * 3, "must have at most 2 entries"),
        ("values", 7, "must be a mapping of keys to values"),
    ],
)
def test_pydantics_messages_are_replaced(kind: type[Lax], name: str, value: Any, rule: str) -> None:
    with pytest.raises(ValidationError) as raised:
        kind.model_validate({name: value})
    (problem,) = raised.value.errors()
    if kind is Strict and value == "9" * 5000:
        rule = "must be a whole number"
    assert violated_rule(problem) == rule
    assert violated_rule({**problem, "type": ""}, {"": "my words"}) == "my words"


def test_messages_of_the_command_line_are_replaced() -> None:
    told = "Invalid value for '--top': Input should be a valid integer, unable to parse string as an integer."
    assert violated_rule({"msg": told}) == "Invalid value for '--top': must be a whole number."
