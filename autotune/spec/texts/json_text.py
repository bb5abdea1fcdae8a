"""JSON written by users. A key that occurs twice in one object is rejected, because Python would
silently use the last value."""

from __future__ import annotations

import json
from typing import Any


class RepeatedKeyError(json.JSONDecodeError):
    """A JSON object has a key twice."""

    def __init__(self, key: str) -> None:
        super().__init__(f"the key {key[:80]!r} is given twice", "", 0)

    def __str__(self) -> str:
        return self.msg  # without a position, because Python's hook does not get one


def read_json(text: str | bytes, **options: Any) -> Any:
    """Return the value of a JSON text. `options`: options of `json.loads`. Raises
    `RepeatedKeyError`, and the errors of `json.loads`."""
    return json.loads(text, object_pairs_hook=_once, **options)


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Return the pairs of a JSON object as a dict. Raises `RepeatedKeyError`."""
    document: dict[str, Any] = {}
    for key, value in pairs:
        if key in document:
            raise RepeatedKeyError(key)
        document[key] = value
    return document
