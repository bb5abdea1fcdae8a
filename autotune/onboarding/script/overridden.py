"""The draft of a program whose code contains its settings: `overrides` set them for each trial, as
options would in other programs."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

from autotune.onboarding.draft import Draft, Entry, Item
from autotune.onboarding.script.written_arguments import Written
from autotune.trainers.documents.placeholders import parse

_WORD = re.compile(r"--([\w-]+)(?:=(.*))?", re.DOTALL)
_IDEA = re.compile(r'here "--(\w+)=(\{\w+\})"')


def overriding(draft: Draft, written: Written, program: str, own: frozenset[str]) -> Draft:
    """The draft with `overrides` instead of options that the program does not have. `draft`:
    written as if it had them; `program`: its word in argv; `own`: names of options that it has."""
    text, argv = _Text(written, own, draft.value("trainer.values")), draft.at("trainer.argv")
    assert argv is not None
    first = [item.value for item in argv.items].index(program) + 1
    in_code = [item for item in argv.items[first:] if text.holds(item.value)]
    kept_items = tuple(item for item in argv.items if item not in in_code)
    overrides = [each for item in in_code for each in text.overrides(item)]
    overrides += [Entry(key=place, value=value) for place, value in written.also.items()]
    ideas = tuple(
        _IDEA.sub(lambda idea: f'here "{written.places(idea[1])[0]}": "{idea[2]}"', line)
        for line in argv.below
    )
    file = Entry(key=program, parts=tuple(overrides), below=ideas)
    draft = draft.edited("trainer.argv", items=kept_items, below=())
    section = Entry(key="overrides", parts=(file,), comment=_WHY)
    draft = draft.put("trainer.overrides", section, after="argv")
    words = [item.value for item in kept_items]
    parsed = (part for word in words for part in parse(word).expressions)
    names = {name for part in parsed for name in part.names}
    for path, remaining in (("trainer.values", names), ("trainer.training", {*names, *words})):
        if (part := draft.at(path)) is not None:
            kept_values = {key: value for key, value in part.value.items() if key in remaining}
            draft = draft.put(path, replace(part, value=kept_values) if kept_values else None)
    lines = ", ".join(f"{option} (line {line})" for option, line in written.lines.items())
    note = f"{program} sets {lines} in its source, and trials and launch.sh override these values (`overrides`) without changing the file"
    notes = tuple(each for each in draft.notes if " keep their defaults" not in each)
    return replace(draft, notes=(*notes, note))


_WHY = "values set in the source, which each trial overrides"
"""comment of `overrides`"""


@dataclass(frozen=True, slots=True)
class _Text:
    """The values in a program's code, looked up by arguments of a command."""

    written: Written
    own: frozenset[str]
    """names of options that the program has"""
    values: Mapping[str, Mapping[Any, Any]]
    """words for a knob's values in the command, by knob"""

    def holds(self, word: str) -> bool:
        """Whether the code sets what the argument sets."""
        if word == "{precision}":
            return any(self._has(name) for name in self._flags())
        found = _WORD.fullmatch(word)
        return found is not None and self._has(_plain(found[1]))

    def overrides(self, item: Item) -> Iterator[Entry]:
        """Entries of `overrides` for an argument; none if the code already has its value."""
        if item.value == "{precision}":
            for name in self._flags():
                yield from self._entries(name, {"precision": dict(self._switch(name))}, "")
            return
        found = _WORD.fullmatch(item.value)
        assert found is not None
        name, value = _plain(found[1]), found[2] or "True"
        placeholder = parse(value).only
        if placeholder is not None and placeholder.name in self.values:
            values_in_code = {
                key: _literal(word) for key, word in self.values[placeholder.name].items()
            }
            yield from self._entries(name, {placeholder.name: values_in_code}, item.comment)
        elif parse(value).expressions:
            yield from self._entries(name, value, item.comment)
        elif str(self.written.values.get(name)) != value:
            yield from self._entries(name, _literal(value), item.comment.partition(";")[0])

    def _has(self, name: str) -> bool:
        """Whether the code sets the option, or the program does not declare it."""
        return name in self.written.values or name not in self.own

    def _flags(self) -> list[str]:
        """Names of the flags that set the precision."""
        found = (_WORD.fullmatch(str(word)) for word in self.values.get("precision", {}).values())
        return list(dict.fromkeys(_plain(each[1]) for each in found if each))

    def _switch(self, name: str) -> Iterator[tuple[Any, bool]]:
        """(number format, whether the flag is on)"""
        matches = {
            value: _WORD.fullmatch(str(word)) for value, word in self.values["precision"].items()
        }
        by_format = {
            value: each[2] != "False"
            for value, each in matches.items()
            if each and _plain(each[1]) == name
        }
        yield from ((value, by_format.get(value, not any(by_format.values()))) for value in matches)

    def _entries(self, name: str, value: Any, comment: str) -> Iterator[Entry]:
        """Entries for each place of an option in the code, with its line as comment."""
        at = self.written.lines.get(name)
        line = f"line {at}" if at and f"line {at}," not in comment else ""
        words = ", ".join(
            filter(None, (line, re.sub(r"^default [^,]+, (?=currently)", "", comment)))
        )
        yield from (
            Entry(key=place, value=value, comment=words) for place in self.written.places(name)
        )


def _plain(name: str) -> str:
    return name.replace("-", "_")


def _literal(word: Any) -> Any:
    """The value of a number or a switch (`True`, `8`); any other word unchanged."""
    with suppress(ValueError, SyntaxError):
        value = ast.literal_eval(str(word))
        return value if isinstance(value, int | float) else word
    return word
