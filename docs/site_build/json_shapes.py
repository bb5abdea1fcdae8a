"""JSON schemas as Markdown tables: a row for each key, with type, default and meaning."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

_BOUNDS = {
    "minimum": "≥ {}",
    "exclusiveMinimum": "> {}",
    "maximum": "≤ {}",
    "exclusiveMaximum": "< {}",
}


def shape_table(shape: Mapping[str, Any], docs: Mapping[str, str]) -> str:
    """The keys of an object's schema; `docs` has the meaning of keys that the schema does not
    describe."""
    required = shape.get("required", [])
    rows = []
    for key, value in shape.get("properties", {}).items():
        default = "required" if key in required else _default(value)
        rows.append(
            [f"`{key}`", kind_of(value), default, value.get("description") or docs.get(key, "")]
        )
    if not rows:
        return (
            "One of: " + kind_of(shape) + "."
            if not shape.get("additionalProperties")
            else "Keys are free."
        )
    return table(["key", "type", "default", "meaning"], rows)


def kind_of(value: Mapping[str, Any]) -> str:
    """The type that a schema asks for, in words."""
    if "$ref" in value:
        return _name(value["$ref"])
    for key in ("anyOf", "oneOf"):
        if key in value:
            kinds = [kind_of(one) for one in value[key] if one.get("type") != "null"]
            return " or ".join(dict.fromkeys(kinds))
    if "enum" in value or "const" in value:
        return ", ".join(f"`{word}`" for word in value.get("enum", [value.get("const")]))
    kind = value.get("type", "any")
    if kind == "array":
        return f"list of {kind_of(value.get('items', {}))}"
    if kind == "object" and isinstance(value.get("additionalProperties"), Mapping):
        return f"mapping of {kind_of(value['additionalProperties'])}"
    words = {
        "string": "text",
        "integer": "whole number",
        "number": "number",
        "boolean": "true or false",
        "object": "mapping",
    }
    bounds = [
        text.format(_number(value[key]))
        for key, text in _BOUNDS.items()
        if key in value and abs(value[key]) < 1e9
    ]
    return " ".join([words.get(kind, str(kind)), *bounds])


def table(heads: Sequence[str], rows: Iterable[Sequence[Any]]) -> str:
    """A Markdown table."""
    lines = ["| " + " | ".join(heads) + " |", "|" + "---|" * len(heads)]
    return "\n".join(
        [*lines, *("| " + " | ".join(cell(value) for value in row) + " |" for row in rows)]
    )


def cell(value: Any) -> str:
    """A value as the text of a table's cell."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, int) and value >= 10_000:
        return f"{value:,}"
    return "" if value is None else str(value).replace("|", "\\|").replace("\n", " ")


def _default(value: Mapping[str, Any]) -> str:
    if "default" not in value or value["default"] is None:
        return ""
    default = value["default"]
    if isinstance(default, Mapping | list):
        return ""
    return (
        f"`{str(default).lower() if isinstance(default, bool) else default}`"
        if default != ""
        else ""
    )


def _name(reference: str) -> str:
    name = reference.rpartition("/")[2]
    return (
        f"[{name}](#{name.lower()})"
        if not name.endswith("Document") or name.startswith("Error")
        else "mapping, see below"
    )


def _number(value: float) -> str:
    return f"{value:g}"
