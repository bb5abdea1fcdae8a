"""What a launch changes of another one, in words: arguments, environment, and the values in its
files."""

from __future__ import annotations

from collections.abc import Iterator
from difflib import SequenceMatcher
from typing import Any

from autotune.errors import SpecError
from autotune.trainers import Launch
from autotune.trainers.command.overrides import values_in
from autotune.trainers.present_configuration import DOCUMENTS, flat, parse_document

MOST_VALUES = 12
"""changed values of a file that are named"""


def change_notes(present: Launch, launch: Launch) -> tuple[str, ...]:
    """What the launch changes of the one of the study's baseline, word by word."""
    changes = [*_arguments(present, launch), *_variables(present, launch)]
    for name, text in launch.files.items():
        if text != present.files.get(name):
            values = list(_values(name, present.files.get(name, ""), text))
            more = f", and {len(values) - MOST_VALUES} more" if len(values) > MOST_VALUES else ""
            changes.append(f"{name}: {', '.join(values[:MOST_VALUES])}{more}" if values else name)
    if not changes:
        return ("the launch is identical to the baseline's launch",)
    return (f"changed from the baseline's launch: {'; '.join(changes)}",)


def _arguments(present: Launch, launch: Launch) -> Iterator[str]:
    before, after = list(present.argv), list(launch.argv)
    for kind, a, b, c, d in SequenceMatcher(a=before, b=after, autojunk=False).get_opcodes():
        if kind != "equal":
            yield f"{' '.join(before[a:b]) or 'nothing'} -> {' '.join(after[c:d]) or 'nothing'}"


def _variables(present: Launch, launch: Launch) -> Iterator[str]:
    for name in sorted({*present.env, *launch.env}):
        if present.env.get(name) != launch.env.get(name):
            yield f"{name}={present.env.get(name, '')} -> {launch.env.get(name, '')}"


def _values(name: str, before: str, after: str) -> Iterator[str]:
    """The values of a file that differ; nothing where it is no document and sets none."""
    old, new = _told(name, before), _told(name, after)
    for key in dict.fromkeys([*old, *new]):
        if old.get(key) != new.get(key):
            yield f"{key}={old.get(key, '(not set)')} -> {new.get(key, '(not set)')}"


def _told(name: str, text: str) -> dict[str, Any]:
    """The values of a file by their path."""
    if name.endswith(".py"):
        return values_in(text)
    if not name.endswith(DOCUMENTS):
        return {}
    try:
        return dict(flat(parse_document(name, text)))
    except SpecError:
        return {}
