"""Selection of measurements by software versions: `torch=2.12` matches 2.12 and all of its
releases, `commit=1a2b` all commits that begin with 1a2b. Comparison of the conditions of
measurements: versions, program files and environment variables."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from autotune.errors import SpecError
from autotune.spec.runs.measurement import Measurement

_MIN_COMMIT = 4
"""minimum length of a commit's prefix"""


def parse_versions(words: Iterable[str]) -> dict[str, str]:
    """Return the versions by name in words of the form NAME=VERSION. Raises `SpecError` for
    malformed text, and for a repeated name."""
    versions: dict[str, str] = {}
    for word in words:
        name, sign, version = (part.strip() for part in word.partition("="))
        if not name or not sign or not version or name in versions:
            raise SpecError(
                f"versions must be NAME=VERSION with each name once, but one of them is {word!r}",
                remedy="use e.g. torch=2.12; a trial's page lists the names",
                field="version",
            )
        versions[name] = version
    return versions


def has_versions(known: Mapping[str, str], requested: Mapping[str, str]) -> bool:
    """Return whether a measurement was made with all of the requested versions; unknown versions do
    not match."""
    return all(_matches(known.get(name, ""), version, name) for name, version in requested.items())


def conditions(measurements: Sequence[Measurement]) -> list[dict[str, str]]:
    """Return the conditions that may affect the speed of each measurement: versions, hashes of
    files and environment variables. A variable that only other measurements have is `unset`."""
    names = sorted({name for m in measurements for name in m.environment or ()})
    return [
        {
            **m.versions,
            **m.files,
            **dict.fromkeys(names if m.environment is not None else (), "unset"),
            **(m.environment or {}),
        }
        for m in measurements
    ]


def differences(then: Mapping[str, str], now: Mapping[str, str]) -> list[tuple[str, str, str]]:
    """Return (name, value then, value now) for the differences between two sets of versions or
    conditions. Names in only one set are ignored."""
    return [
        (name, then[name], now[name])
        for name in sorted(then.keys() & now.keys())
        if then[name] != now[name]
    ]


def _matches(known: str, requested: str, name: str) -> bool:
    """Return whether the known version is the requested one or a release of it."""
    if not known.startswith(requested):
        return False
    rest = known[len(requested) :]
    return not rest or not rest[0].isalnum() or (name == "commit" and len(requested) >= _MIN_COMMIT)
