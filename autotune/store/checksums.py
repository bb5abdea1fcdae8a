"""The checksum of an event, a trial or an attempt: written with the row in one transaction, so that a byte that changes later on the disk is found and named.

    checksum   17 bytes: how it came about (1: written with the row, 0: filled in when the store was upgraded), then 4 bytes for each kind of field
    kinds      four groups of columns of a row, e.g. its place (which study, which number), its times, its document
    4 bytes    of blake2b over the columns of the group, each as its type, its length and its bytes (RFC 7693); they miss a changed byte once in 4e9 times

Every column but the database's own `key` is covered. Checksums find damage and careless changes. They are no signatures: whoever rewrites a row can compute
them. The database refuses rows that change without their checksum, as releases before version 0007 write them.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from sqlalchemy import Float, LargeBinary, Table, Text

from autotune.store.tables import attempts, events, trials

WRITTEN, FILLED = b"\x01", b"\x00"
"""How a checksum came about: with its row, or when the store was upgraded."""

KINDS: Mapping[str, Mapping[str, tuple[str, ...]]] = {
    "events": {
        "place in the history": ("study", "sequence"),
        "time": ("at_us",),
        "kind": ("kind",),
        "data": ("data",),
    },
    "trials": {
        "place and config": ("study", "number", "workload", "config_key", "config", "seed", "purpose"),
        "status and figures": ("status", "attempts", "failure", "throughput", "reward"),
        "times": ("created_us", "started_us", "ended_us"),
        "document (config, estimate, measurement, reward, failure, reason)": ("document",),
    },
    "attempts": {
        "place and fence": ("study", "number", "attempt", "fence"),
        "times": ("started_us", "ended_us"),
        "failure": ("failure",),
        "step metrics": ("steps",),
    },
}
"""By table the kinds of fields, in the order of their bytes, with the columns of each. It never changes for rows that are kept."""

SEALED: tuple[Table, ...] = (events, trials, attempts)
"""The tables whose rows have a checksum."""

SINCE = "0007"
"""The version of the store that has them."""

BYTES_OF_A_KIND = 4

Columns = Mapping[Any, Any]
"""values by name of column"""


def seal(table: Table, row: Columns, *, origin: bytes = WRITTEN) -> bytes:
    """The checksum of a row; columns that it does not name are null."""
    return origin + b"".join(_digest(pack, row) for pack in _PACKERS[table.name])


def sealed(table: Table, row: Columns) -> dict[str, Any]:
    """The row with its checksum."""
    return {**row, "checksum": seal(table, row)}


def resealed(table: Table, row: Columns, changes: Columns) -> dict[str, Any]:
    """What changes of a row that is kept, with the checksum that it has then."""
    return {**changes, "checksum": seal(table, {**row, **changes})}


def changed_kinds(table: Table, row: Columns) -> list[str]:
    """The kinds of fields of a row that are not what was written; empty for a sound row."""
    kept = row["checksum"]
    names = list(KINDS[table.name])
    if kept is None:
        return ["checksum, which it lacks"]
    if len(kept) != 1 + BYTES_OF_A_KIND * len(names) or kept[:1] not in (WRITTEN, FILLED):
        return ["checksum itself"]
    parts = [kept[at : at + BYTES_OF_A_KIND] for at in range(1, len(kept), BYTES_OF_A_KIND)]
    return [
        name for name, part, pack in zip(names, parts, _PACKERS[table.name], strict=True) if not _is(part, pack, row)
    ]


def is_filled(row: Columns) -> bool:
    """Whether the checksum of a sound row was filled in at an upgrade: it tells of changes since then alone."""
    return bytes(row["checksum"][:1]) == FILLED


_Pack = Callable[[Any], bytes]


def _digest(columns: Iterable[tuple[str, _Pack]], row: Columns) -> bytes:
    packed = b"".join([b"n" if (value := row.get(name)) is None else pack(value) for name, pack in columns])
    return hashlib.blake2b(packed, digest_size=BYTES_OF_A_KIND).digest()


def _is(part: bytes, columns: Iterable[tuple[str, _Pack]], row: Columns) -> bool:
    try:
        return _digest(columns, row) == part
    except (ValueError, TypeError, AttributeError):  # damage has changed the type of a value
        return False


def _pack_bytes(value: Any) -> bytes:
    return b"b%d:%b" % (len(value), bytes(value))


def _pack_text(value: Any) -> bytes:
    text = value.encode("utf-8", "surrogateescape")  # as damaged text is read
    return b"t%d:%b" % (len(text), text)


def _pack_float(value: Any) -> bytes:
    return b"f" + struct.pack("<d", value)


def _pack_int(value: Any) -> bytes:
    return b"i%d;" % value


def _packers(table: Table) -> list[list[tuple[str, _Pack]]]:
    def packer(name: str) -> _Pack:
        kind = table.c[name].type
        if isinstance(kind, LargeBinary):
            return _pack_bytes
        if isinstance(kind, Text):
            return _pack_text
        return _pack_float if isinstance(kind, Float) else _pack_int

    return [[(name, packer(name)) for name in names] for names in KINDS[table.name].values()]


_PACKERS = {table.name: _packers(table) for table in SEALED}
