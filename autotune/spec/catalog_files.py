"""The YAML files in `spec/catalog/`: their names and contents.

    catalog/models/NAME.yaml    the fields of `ModelSpec`, or the model's published config.json
    catalog/gpus/NAME.yaml      the fields of `GpuSpec` (memory as GiB), with its links: intra_node, inter_node

This module returns plain mappings, so that `cluster` and `catalog` can both build their values from
it.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

from autotune.errors import CatalogError
from autotune.spec.checks import nearest

_ROOT = Path(__file__).with_name("catalog")
_KINDS = {"models": "model", "gpus": "GPU"}
"""name of an entry in messages, by kind"""
_LISTED_BY = {"models": "models", "gpus": "clusters"}
"""command that lists the entries, by kind"""


@cache
def entry_names(kind: str) -> tuple[str, ...]:
    """Return the names of all entries of a kind (`models` or `gpus`): by family, then by size."""
    return tuple(sorted((path.stem for path in (_ROOT / kind).glob("*.yaml")), key=_by_size))


@cache
def read_entry(kind: str, name: str, *, field: str) -> Mapping[str, Any]:
    """Return the contents of this entry's file. For an unknown name, `CatalogError` suggests the
    nearest entry. `field` is the spec field that contains the name."""
    names = entry_names(kind)
    if name not in names:
        raise CatalogError(
            f"there is no {_KINDS[kind]} {name!r}",
            remedy=nearest(name.rpartition("/")[2], names)
            or f"`autotune {_LISTED_BY[kind]}` lists all {len(names)}",
            field=field,
        )
    import yaml  # imported late, because it is slow, and most commands read no catalog file

    # libyaml's loader is ten times as fast, but not always installed
    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    values: dict[str, Any] = yaml.load(_text(kind, name), Loader=loader)
    return values


@cache
def texts_of(kind: str, key: str) -> Mapping[str, str]:
    """Return, for each entry that has the key, the text after the key at the start of a line. The
    files are not parsed."""
    line = re.compile(rf"^{key}: *(\S+) *$", re.MULTILINE)
    matches = {name: line.search(_text(kind, name)) for name in entry_names(kind)}
    return {name: match[1] for name, match in matches.items() if match}


def _text(kind: str, name: str) -> str:
    """Return the text of an entry's file."""
    return (_ROOT / kind / f"{name}.yaml").read_text(encoding="utf-8")


def _by_size(name: str) -> tuple[str, float, str]:
    """Return a sort key: llama-8b before llama-70b, gpt2-small before gpt2-xl."""
    words = {"small": 0.0, "medium": 1.0, "large": 2.0, "xl": 3.0}
    family, _, size = name.rpartition("-")
    number = re.fullmatch(r"([0-9.]+)b", size)
    return (family or name, float(number[1]) if number else words.get(size, 0.0), name)
