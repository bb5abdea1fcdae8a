"""The names that releases of training libraries know: `data/PACKAGE-VERSION.json`, taken from the
released sources, for packages that cannot be imported here.

Each file says package, version and, by class, section or file, its names. They are facts of that
release: do not edit them by hand.
"""

from __future__ import annotations

import ast
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any


def released_names(release: str) -> dict[str, frozenset[str]]:
    """The names of a release such as `torchtitan-0.3.0`, by class, section or file."""
    document = json.loads(
        (Path(__file__).parent / "data" / f"{release}.json").read_text(encoding="utf-8")
    )
    return {part: frozenset(names) for part, names in document["names"].items()}


def calls_of(source: str) -> Iterator[tuple[str, frozenset[str]]]:
    """Each call in Python source that has keyword arguments: the called name, and the keywords."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Call) and node.keywords:
            yield ast.unparse(node.func), frozenset(word.arg for word in node.keywords if word.arg)


def paths_of(document: Mapping[str, Any], before: str = "") -> Iterator[str]:
    """The dotted path of each value of a nested document."""
    for key, value in document.items():
        if isinstance(value, Mapping) and value:
            yield from paths_of(value, f"{before}{key}.")
        else:
            yield f"{before}{key}"
