"""Nested documents: mappings of mappings, as configuration files hold them.

A file is JSON or TOML by the ending of its name, else YAML. A path is the keys from the outside in, joined by dots: `zero_optimization.stage`.
"""

from __future__ import annotations

import json
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from fnmatch import fnmatchcase
from pathlib import PurePosixPath
from typing import Any

from autotune.errors import SpecError
from autotune.trainers.file_formats import to_json, to_toml, to_yaml

MAX_VALUES = 100_000
"""A document of more values, with those of an alias wherever it stands, is no configuration."""


def parse_document(name: str, text: str) -> dict[str, Any]:
    """The mapping that a JSON, YAML or TOML file holds, by its ending. Raises `SpecError`."""
    import yaml  # imported here because it is slow to import

    ending = PurePosixPath(name).suffix.lower()
    try:
        if ending == ".toml":
            found = tomllib.loads(text)
        else:
            found = json.loads(text) if ending == ".json" else yaml.safe_load(text)
        values = _num_values(found, {})
    except (ValueError, RecursionError, yaml.YAMLError) as error:
        kind = {".toml": "TOML", ".json": "JSON"}.get(ending, "YAML")
        raise SpecError(f"{name} is not {kind}: {_complaint(error)}", field="FILE") from None
    if not isinstance(found, dict):
        raise SpecError(f"{name} must hold keys and values, but holds {type(found).__name__}", field="FILE")
    if values > MAX_VALUES:
        raise SpecError(
            f"{name} holds itself, or more than {MAX_VALUES:,} values: it is no configuration", field="FILE"
        )
    return found


def _num_values(node: Any, known: dict[int, int]) -> int:
    """Values in a document, those of an alias wherever it stands; more than `MAX_VALUES` where a part holds itself. `known`: by the parts' identity."""
    if not isinstance(node, dict | list):
        return 1
    if id(node) not in known:
        known[id(node)] = MAX_VALUES  # as long as it is open
        inner = node.values() if isinstance(node, dict) else node
        known[id(node)] = 1 + sum(_num_values(value, known) for value in inner)
    return known[id(node)]


def _complaint(error: Exception) -> str:
    """What a parser says in its first line; of YAML's, the line of the file and the problem, which stand in its last lines."""
    problem, mark = getattr(error, "problem", None), getattr(error, "problem_mark", None)
    return f"line {mark.line + 1}: {problem}" if problem and mark else str(error).splitlines()[0]


def document_text(name: str, document: Mapping[str, Any]) -> str:
    """The text of a JSON, YAML or TOML file, by its ending."""
    ending = PurePosixPath(name).suffix.lower()
    return {".toml": to_toml, ".json": to_json}.get(ending, to_yaml)(document)


def merged(document: Mapping[str, Any], more: Mapping[str, Any]) -> dict[str, Any]:
    """`document` with the keys of `more`, also inside its mappings; `more` counts where both have a value."""
    result = dict(document)
    for key, value in more.items():
        here = result.get(key)
        inside = isinstance(here, Mapping) and isinstance(value, Mapping)
        result[key] = merged(here, value) if inside else value  # type: ignore[arg-type]
    return result


def without_equal(document: Mapping[str, Any], other: Mapping[str, Any]) -> dict[str, Any]:
    """`document` without what `other` holds with the same value, also inside mappings."""
    left: dict[str, Any] = {}
    for key, value in document.items():
        if key in other and other[key] == value:
            continue
        if isinstance(value, Mapping) and isinstance(other.get(key), Mapping):
            if inner := without_equal(value, other[key]):
                left[key] = inner
        else:
            left[key] = value
    return left


def dotted(document: Mapping[str, Any], prefix: str = "") -> Iterator[str]:
    """The paths of all values, inner keys joined by dots."""
    for key, value in document.items():
        if isinstance(value, Mapping) and value:
            yield from dotted(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}"


def split_by_path(
    document: Mapping[str, Any], patterns: Sequence[str], prefix: str = ""
) -> tuple[dict[str, Any], tuple[str, ...]]:
    """(the document without the values whose path matches a pattern such as `profiling.*`, the paths that are left out)

    Values that are off already, false or null, stay: without them a default could count, which may be on.
    """
    left: dict[str, Any] = {}
    out: list[str] = []
    for key, value in document.items():
        path = f"{prefix}{key}"
        if isinstance(value, Mapping) and value:
            inner, below = split_by_path(value, patterns, f"{path}.")
            out += below
            if inner:
                left[key] = inner
        elif value is not None and value is not False and any(fnmatchcase(path, pattern) for pattern in patterns):
            out.append(path)
        else:
            left[key] = value
    return left, tuple(sorted(out))
