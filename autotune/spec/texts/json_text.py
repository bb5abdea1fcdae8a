"""JSON that people write. A key that is given twice in one object is rejected: JSON itself allows it, and Python takes the last value without a word."""

from __future__ import annotations

import json
from typing import Any


class RepeatedKeyError(json.JSONDecodeError):
    """An object has a key twice."""

    def __init__(self, key: str) -> None:
        super().__init__(f"the key {key[:80]!r} is given twice", "", 0)

    def __str__(self) -> str:
        return self.msg  # where the object is, Python does not say


def read_json(text: str | bytes, **options: Any) -> Any:
    """What a JSON text holds. `options`: those of `json.loads`. Raises `RepeatedKeyError`, and what `json.loads` raises."""
    return json.loads(text, object_pairs_hook=_once, **options)


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    document: dict[str, Any] = {}
    for key, value in pairs:
        if key in document:
            raise RepeatedKeyError(key)
        document[key] = value
    return document
