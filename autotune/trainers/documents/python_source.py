"""Writes a configuration as Python source: calls with one keyword argument per line.

    call("TrainingConfig", {"steps": 50, "dtype": "float32"})      TrainingConfig(
                                                                       steps=50,
                                                                       dtype='float32',
                                                                   )

Values are written as literals, so they are never run as code; `Source` marks text that is already
code.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, final

from autotune.errors import ExportError


@final
class Source(str):
    """Text that is Python code."""

    __slots__ = ()


def call(name: str, arguments: Mapping[str, Any]) -> Source:
    """The call of `name` with these keyword arguments."""
    if not arguments:
        return Source(f"{name}()")
    lines = "".join(f"\n    {key}={indented(literal(value))}," for key, value in arguments.items())
    return Source(f"{name}({lines}\n)")


def indented(source: str) -> str:
    """The source with all lines after the first indented."""
    return source.replace("\n", "\n    ")


def literal(value: Any) -> str:
    """A value as Python source. Raises `ExportError` for a type without a literal."""
    if isinstance(value, Source):
        return str(value)
    if value is None or isinstance(value, bool | int | float | str):
        return repr(value)
    if isinstance(value, list | tuple):
        inner = ", ".join(literal(item) for item in value)
        comma = "," if len(value) == 1 else ""
        return f"[{inner}]" if isinstance(value, list) else f"({inner}{comma})"
    if isinstance(value, Mapping):
        return (
            "{" + ", ".join(f"{literal(key)}: {literal(item)}" for key, item in value.items()) + "}"
        )
    raise ExportError(f"a {type(value).__name__} cannot be written as Python source")


def words(text: str) -> str:
    """The user's text for a docstring or comment, without characters that could end it."""
    return re.sub(r"[^A-Za-z0-9_. -]", "_", text)[:80]
