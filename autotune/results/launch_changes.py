"""The differences between two launches as text: arguments, environment variables, and values in
files."""

from __future__ import annotations

from collections.abc import Iterator
from difflib import SequenceMatcher
from typing import Any

from autotune.errors import SpecError
from autotune.trainers import Launch
from autotune.trainers.command.overrides import values_in
from autotune.trainers.present_configuration import DOCUMENTS, flat, parse_document

MAX_VALUES = 12
"""maximum number of changed values that are listed per file"""


def change_notes(baseline: Launch, launch: Launch) -> tuple[str, ...]:
    """Return a note that lists the changes from the baseline's launch."""
    changes = [*_arguments(baseline, launch), *_variables(baseline, launch)]
    for name, text in launch.files.items():
        if text != baseline.files.get(name):
            values = list(_changed_values(name, baseline.files.get(name, ""), text))
            more = f", and {len(values) - MAX_VALUES} more" if len(values) > MAX_VALUES else ""
            changes.append(f"{name}: {', '.join(values[:MAX_VALUES])}{more}" if values else name)
    if not changes:
        return ("the launch is identical to the baseline's launch",)
    return (f"changed from the baseline's launch: {'; '.join(changes)}",)


def _arguments(baseline: Launch, launch: Launch) -> Iterator[str]:
    """Yield each changed part of the command line as `OLD -> NEW`."""
    before, after = list(baseline.argv), list(launch.argv)
    for kind, a, b, c, d in SequenceMatcher(a=before, b=after, autojunk=False).get_opcodes():
        if kind != "equal":
            yield f"{' '.join(before[a:b]) or 'nothing'} -> {' '.join(after[c:d]) or 'nothing'}"


def _variables(baseline: Launch, launch: Launch) -> Iterator[str]:
    """Yield each changed environment variable as `NAME=OLD -> NEW`."""
    for name in sorted({*baseline.env, *launch.env}):
        if baseline.env.get(name) != launch.env.get(name):
            yield f"{name}={baseline.env.get(name, '')} -> {launch.env.get(name, '')}"


def _changed_values(name: str, before: str, after: str) -> Iterator[str]:
    """Yield each changed value of a file as `KEY=OLD -> NEW`."""
    old, new = _values_in(name, before), _values_in(name, after)
    for key in dict.fromkeys([*old, *new]):
        if old.get(key) != new.get(key):
            yield f"{key}={old.get(key, '(not set)')} -> {new.get(key, '(not set)')}"


def _values_in(name: str, text: str) -> dict[str, Any]:
    """Return the values in a file by key path; empty if it is not a Python file or a document."""
    if name.endswith(".py"):
        return values_in(text)
    if not name.endswith(DOCUMENTS):
        return {}
    try:
        return dict(flat(parse_document(name, text)))
    except SpecError:
        return {}
