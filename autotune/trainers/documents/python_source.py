"""Python source of a configuration: calls with one keyword argument on each line.

    call("TrainingConfig", {"steps": 50, "dtype": "float32"})      TrainingConfig(
                                                                       steps=50,
                                                                       dtype='float32',
                                                                   )

Values are written as literals, so nothing in them is ever code; `Source` marks text that is code
already.
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
    """The source with all lines after the first moved to the right."""
    return source.replace("\n", "\n    ")


def literal(value: Any) -> str:
    """A value as Python source. Raises `ExportError` for one that has no literal."""
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
    """A person's text for a docstring or comment: nothing in it can end the docstring or the
    line."""
    return re.sub(r"[^A-Za-z0-9_. -]", "_", text)[:80]
