"""Reads keys of a nested document, and knows which of them were read and which are left over.

A path is the keys from the outside in, joined by dots: `zero_optimization.stage`. What nobody reads is left over, so that nothing of somebody's
configuration is dropped without a word. A value that was asked for but is not understood is no longer left over; a remark names it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeVar, final

AUTO = "auto"
"""what Hugging Face's integrations write for a value that the program fills in"""
_MISSING = object()
T = TypeVar("T")


@final
class KeyReader:
    """Reads a document key by key and keeps account."""

    def __init__(self, document: Mapping[str, Any], name: str) -> None:
        """`name`: of the file, for remarks."""
        self._document, self.name = document, name
        self._taken: set[str] = set()
        self.remarks: list[str] = []
        """values that were not understood, in words; a reader may add to them"""

    def count(self, path: str) -> int | None:
        """A whole number of at least 0; None where there is none."""
        value = self.find(path)
        if isinstance(value, str) and value.isdecimal():
            value = int(value)
        fits = isinstance(value, int) and not isinstance(value, bool) and value >= 0
        if fits:
            return self._take(path, int(value))
        self._not_understood(path, value, "a whole number")
        return None

    def number(self, path: str) -> float | None:
        """A number. YAML reads `1e-4` as text, which counts as a number here."""
        value = self.find(path)
        try:
            found = float(value) if isinstance(value, str | int | float) and not isinstance(value, bool) else None
        except ValueError:
            found = None
        if found is None:
            self._not_understood(path, value, "a number")
        else:
            self._take(path, found)
        return found

    def flag(self, path: str) -> bool | None:
        """True or false, also as text."""
        value = self.find(path)
        if isinstance(value, str) and value.lower() in ("true", "false"):
            value = value.lower() == "true"
        if isinstance(value, bool):
            return self._take(path, value)
        self._not_understood(path, value, "true or false")
        return None

    def text(self, path: str) -> str | None:
        """A text that is not empty."""
        value = self.find(path)
        return self._take(path, value) if isinstance(value, str) and value else None

    def word(self, path: str, meanings: Mapping[Any, Any]) -> Any:
        """What the value means, by `meanings`; None where there is none or it is none of these."""
        value = self.find(path)
        if isinstance(value, str | bool | int) and value in meanings:
            return self._take(path, meanings[value])
        self._not_understood(path, value, "one of " + ", ".join(map(str, meanings)))
        return None

    def find(self, path: str) -> Any:
        """The value, which stays left over; None where there is none."""
        node: Any = self._document
        for key in path.split("."):
            node = node.get(key, _MISSING) if isinstance(node, Mapping) else _MISSING
        return None if node is _MISSING else node

    def drop(self, *paths: str) -> None:
        """Counts the keys as read, whatever they hold: others that were read imply them."""
        self._taken.update(paths)

    @property
    def left(self) -> dict[str, Any]:
        """The document without what was read."""
        return self._without(self._document, "")

    def _take(self, path: str, value: T) -> T:
        self._taken.add(path)
        return value

    def _not_understood(self, path: str, value: Any, expected: str) -> None:
        if value is None:
            return
        why = "the program fills it in" if value == AUTO else f"left out, because it is not {expected}"
        self._taken.add(path)
        self.remarks.append(f"{self.name}: {path}={value!r:.60}: {why}")

    def _without(self, node: Mapping[str, Any], prefix: str) -> dict[str, Any]:
        left: dict[str, Any] = {}
        for key, value in node.items():
            path = f"{prefix}{key}"
            if path in self._taken:
                continue
            if isinstance(value, Mapping) and value:
                if inner := self._without(value, f"{path}."):
                    left[str(key)] = inner
            else:
                left[str(key)] = value
        return left
