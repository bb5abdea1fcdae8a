"""Convert values to plain JSON and back, for the store and for requests.

A frozen dataclass is the only declaration of its document. Every field is written under its own
name, so that a stored study means the same after a default has changed. Every field is read back
according to its type. A key that matches no field is an error, because dropping the key would
change the request.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Callable, Mapping
from dataclasses import fields, is_dataclass
from datetime import datetime
from enum import Enum
from functools import cache, partial
from types import NoneType
from typing import Any, Self, TypeVar, get_args, get_origin, get_type_hints

from autotune.errors import SpecError
from autotune.spec.checks import nearest

Part = TypeVar("Part")
Reader = Callable[[Any], Any]


class Plain:
    """Base of frozen dataclasses whose fields form a JSON document."""

    __slots__ = ()

    def to_dict(self) -> dict[str, Any]:
        """Return plain JSON values: dicts, lists, text, numbers, true, false and null."""
        return _by_field(self)

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Self:
        """Return the object that `to_dict` turned into these values; omitted fields have their
        defaults. Raises `SpecError` for an unknown key, and any error that the fields' values
        raise."""
        return read_fields(cls, values)


def to_plain(value: Any) -> Any:
    """Convert dataclasses and mappings to dicts, tuples to lists, times and enum members to text;
    leave everything else unchanged."""
    if isinstance(value, Plain):
        return value.to_dict()
    if is_dataclass(value) and not isinstance(value, type):
        return _by_field(value)
    if isinstance(value, Mapping):
        return {str(key): to_plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [to_plain(item) for item in value]
    if isinstance(value, Enum):
        return value.value
    return value.isoformat() if isinstance(value, datetime) else value


def _by_field(value: Any) -> dict[str, Any]:
    """Return the fields of a dataclass as plain values."""
    return {f.name: to_plain(getattr(value, f.name)) for f in fields(value)}


def read_fields(kind: type[Part], values: Mapping[str, Any]) -> Part:
    """Return the dataclass that `to_plain` turned into these values; each field is read according
    to its type. Raises `SpecError` for an unknown field."""
    readers = _readers(kind)  # type: ignore[arg-type]
    for name in values:
        if name not in readers:
            raise SpecError(
                f"{kind.__name__} has no field {name!r}",
                remedy=nearest(name, readers) or "was it written by a newer release?",
                field=str(name),
            )
    converted = dict(values)
    for name, value in values.items():
        reader = readers[name]
        if reader is not None and value is not None:
            converted[name] = reader(value)
    return kind(**converted)


@cache
def _readers(kind: type) -> Mapping[str, Reader | None]:
    """Return, for each field, the function that converts a plain value to the field's value; None
    if no conversion is needed."""
    types = get_type_hints(kind)
    return {f.name: _reader(types[f.name]) for f in fields(kind)}


def _reader(kind: Any) -> Reader | None:
    """Return the function that converts plain values to this type; None if none is needed."""
    parts = get_args(kind)
    origin = get_origin(kind)
    if origin is tuple:
        item = _reader(parts[0])
        return tuple if item is None else lambda values: tuple(map(item, values))
    if origin is Mapping:
        entry = _reader(parts[1])
        return (
            None
            if entry is None
            else lambda values: {key: entry(value) for key, value in values.items()}
        )
    if isinstance(kind, type):
        return _reader_of_class(kind)
    several = [part for part in parts if part is not NoneType]
    if len(several) == 1:
        return _reader(several[0])
    return _list_or_value if any(get_origin(part) is tuple for part in several) else None


def _reader_of_class(kind: type) -> Reader | None:
    """Return the function that converts plain values to this class; None if none is needed."""
    if issubclass(kind, Plain):
        return kind.from_dict
    if is_dataclass(kind):
        return partial(read_fields, kind)
    if issubclass(kind, datetime):
        return kind.fromisoformat
    return kind if issubclass(kind, Enum) else None


def _list_or_value(value: Any) -> Any:
    """Return a list as a tuple; other values unchanged."""
    return tuple(value) if isinstance(value, list) else value


def canonical(values: Any) -> str:
    """Return plain values as canonical JSON text: sorted keys, no spaces, ASCII."""
    return json.dumps(values, sort_keys=True, separators=(",", ":"))


def fingerprint(values: Any) -> str:
    """Return a digest of 32 hexadecimal digits, equal for equal plain values."""
    return hashlib.blake2b(canonical(values).encode(), digest_size=16).hexdigest()


def identity(values: Any) -> str:
    """Return the `fingerprint` of the significant values, without null, false, zero and empty
    values and without details that the catalog adds to a GPU's datasheet. So it stays the same if a
    field with such a default is added later, or if the catalog adds details to a GPU."""
    return fingerprint(_significant(values))


def finite(values: Any) -> Any:
    """Return the values with null in place of every number that JSON cannot express (nan and
    infinities)."""
    if isinstance(values, float):
        return values if math.isfinite(values) else None
    if isinstance(values, Mapping):
        return {str(key): finite(value) for key, value in values.items()}
    if isinstance(values, list | tuple):
        return [finite(value) for value in values]
    return values


_ADDED = frozenset({"host_bytes_per_s", "measured_flops_per_s", "rated_watts", "usual_fabric"})
"""fields of `GpuSpec` that add details to a GPU and that stored studies may lack"""


def _significant(value: Any) -> Any:
    """Return the values that count for `identity`."""
    if isinstance(value, Mapping):
        return {
            key: inner
            for key, item in value.items()
            if key not in _ADDED and (inner := _significant(item))
        }
    return [_significant(item) for item in value] if isinstance(value, list | tuple) else value
