"""Selecting measurements by software versions: `torch=2.12` means 2.12 and all of its releases,
`commit=1a2b` all commits that begin with 1a2b; and comparing the conditions of measurements, which
include the program's own files and environment variables."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from autotune.errors import SpecError
from autotune.spec.runs.measurement import Measurement

_SHORTEST_COMMIT = 4


def asked_versions(words: Iterable[str]) -> dict[str, str]:
    """Versions by name, from words of the form NAME=VERSION. Raises `SpecError` for malformed text,
    and for a repeated name."""
    asked: dict[str, str] = {}
    for word in words:
        name, sign, version = (part.strip() for part in word.partition("="))
        if not name or not sign or not version or name in asked:
            raise SpecError(
                f"versions must be NAME=VERSION with each name once, but one of them is {word!r}",
                remedy="use e.g. torch=2.12; a trial's page lists the names",
                field="version",
            )
        asked[name] = version
    return asked


def has_versions(known: Mapping[str, str], asked: Mapping[str, str]) -> bool:
    """Whether a measurement was made with all of these versions; unknown versions do not match."""
    return all(_is_of(known.get(name, ""), version, name) for name, version in asked.items())


def conditions(measurements: Sequence[Measurement]) -> list[dict[str, str]]:
    """The conditions that may affect the speed of each measurement: versions, hashes of files and
    environment variables. A variable that only other measurements have is `unset`."""
    names = sorted({name for seen in measurements for name in seen.environment or ()})
    return [
        {
            **seen.versions,
            **seen.files,
            **dict.fromkeys(names if seen.environment is not None else (), "unset"),
            **(seen.environment or {}),
        }
        for seen in measurements
    ]


def differences(then: Mapping[str, str], now: Mapping[str, str]) -> list[tuple[str, str, str]]:
    """The differences between two sets of versions or conditions. What only one of them knows does
    not count."""
    return [
        (name, then[name], now[name])
        for name in sorted(then.keys() & now.keys())
        if then[name] != now[name]
    ]


def _is_of(known: str, asked: str, name: str) -> bool:
    if not known.startswith(asked):
        return False
    rest = known[len(asked) :]
    return (
        not rest or not rest[0].isalnum() or (name == "commit" and len(asked) >= _SHORTEST_COMMIT)
    )
