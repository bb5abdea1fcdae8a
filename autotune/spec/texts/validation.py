"""The rule that a value violates, in this program's words, instead of those of pydantic or the
command line's parser."""

from __future__ import annotations

import re
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

_OF_KIND = {
    "missing": "is required, but is missing",
    **dict.fromkeys(
        ("dict_type", "model_type", "model_attributes_type"), "must be a mapping of keys to values"
    ),
    "too_short": "must have {min_length} or more entries",
    "too_long": "must have at most {max_length} entries",
}
_WORDS = (
    (r"\b(Input|String) should\b", "must"),
    (r"^Value error, ", ""),
    (r"\ba valid integer(, (unable|got) [a-z ]+)?", "a whole number"),
    (r"^Unable to parse input string as an integer, exceeded maximum size", "must be a smaller whole number"),
    (r"\ba valid number(, unable [a-z ]+)?", "a number"),
    (r"\ba valid boolean(, unable [a-z ]+)?", "true or false"),
    (r"\ba valid string, unable [a-z ]+", "Unicode text"),
    (r"\ba valid (list|string)\b", r"a \1"),
)  # fmt: skip


def broken_rule(
    problem: Mapping[str, Any], of_kind: Mapping[str, str] = MappingProxyType({})
) -> str:
    """The rule in words. `problem`: {type, msg, ctx} of pydantic; only `msg` is required.
    `of_kind`: the caller's own words for some error types."""
    words = {**_OF_KIND, **of_kind}.get(problem.get("type", ""), "")
    if words:
        return words.format(**problem.get("ctx", {}))
    told = str(problem["msg"])
    for pattern, plain in _WORDS:
        told = re.sub(pattern, plain, told)
    return told
