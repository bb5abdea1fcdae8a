"""Messages about invalid values, instead of those of pydantic or the command line's parser."""

from __future__ import annotations

import re
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

_MESSAGES = {
    "missing": "is required, but is missing",
    **dict.fromkeys(
        ("dict_type", "model_type", "model_attributes_type"), "must be a mapping of keys to values"
    ),
    "too_short": "must have {min_length} or more entries",
    "too_long": "must have at most {max_length} entries",
}
"""messages by pydantic's type of error"""
_REPLACEMENTS = (
    (r"\b(Input|String) should\b", "must"),
    (r"^Value error, ", ""),
    (r"\ba valid integer(, (unable|got) [a-z ]+)?", "a whole number"),
    (r"^Unable to parse input string as an integer, exceeded maximum size", "must be a smaller whole number"),
    (r"\ba valid number(, unable [a-z ]+)?", "a number"),
    (r"\ba valid boolean(, unable [a-z ]+)?", "true or false"),
    (r"\ba valid string, unable [a-z ]+", "Unicode text"),
    (r"\ba valid (list|string)\b", r"a \1"),
)  # fmt: skip
"""patterns in pydantic's messages, and their replacements"""


def violated_rule(
    problem: Mapping[str, Any], messages: Mapping[str, str] = MappingProxyType({})
) -> str:
    """Return the rule that a value violates. `problem`: {type, msg, ctx} of pydantic; only `msg` is
    required. `messages`: the caller's messages by type of error."""
    message = {**_MESSAGES, **messages}.get(problem.get("type", ""), "")
    if message:
        return message.format(**problem.get("ctx", {}))
    message = str(problem["msg"])
    for pattern, replacement in _REPLACEMENTS:
        message = re.sub(pattern, replacement, message)
    return message
