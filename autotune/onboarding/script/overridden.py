"""The draft of a program whose text holds its settings: what options would say, `overrides` set in
the text for each trial."""

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
    """The draft with `overrides` in the place of options that the program does not have. `draft`:
    as if it had them; `program`: its word in argv; `own`: names of what its command is given."""
    text, argv = _Text(written, own, draft.value("trainer.values")), draft.at("trainer.argv")
    assert argv is not None
    begin = [item.value for item in argv.items].index(program) + 1
    moved = [item for item in argv.items[begin:] if text.holds(item.value)]
    kept = tuple(item for item in argv.items if item not in moved)
    overrides = [each for item in moved for each in text.overrides(item)]
    overrides += [Entry(key=place, value=value) for place, value in written.also.items()]
    ideas = tuple(
        _IDEA.sub(lambda idea: f'here "{written.places(idea[1])[0]}": "{idea[2]}"', line)
        for line in argv.below
    )
    file = Entry(key=program, parts=tuple(overrides), below=ideas)
    draft = draft.edited("trainer.argv", items=kept, below=())
    whole = Entry(key="overrides", parts=(file,), comment=_WHY)
    draft = draft.put("trainer.overrides", whole, after="argv")
    words = [item.value for item in kept]
    parsed = (part for word in words for part in parse(word).expressions)
    names = {name for part in parsed for name in part.names}
    for path, still in (("trainer.values", names), ("trainer.training", {*names, *words})):
        if (part := draft.at(path)) is not None:
            left = {key: value for key, value in part.value.items() if key in still}
            draft = draft.put(path, replace(part, value=left) if left else None)
    lines = ", ".join(f"{option} (line {line})" for option, line in written.lines.items())
    note = f"{program} sets {lines} in its source, and trials and launch.sh override these values (`overrides`) without changing the file"
    notes = tuple(each for each in draft.notes if " options with " not in each)
    return replace(draft, notes=(*notes, note))


_WHY = "values set in the source, which each trial overrides"


@dataclass(frozen=True, slots=True)
class _Text:
    """What the program's text holds, of the words of a command."""

    written: Written
    own: frozenset[str]
    values: Mapping[str, Mapping[Any, Any]]
    """what a knob's values are written as in the command"""

    def holds(self, word: str) -> bool:
        """Whether the text says what the word says."""
        if word == "{precision}":
            return any(self._has(name) for name in self._flags())
        found = _WORD.fullmatch(word)
        return found is not None and self._has(_plain(found[1]))

    def overrides(self, item: Item) -> Iterator[Entry]:
        """What a trial sets in the text in the place of the word; nothing where the word is what
        the text says."""
        if item.value == "{precision}":
            for name in self._flags():
                yield from self._entries(name, {"precision": dict(self._switch(name))}, "")
            return
        found = _WORD.fullmatch(item.value)
        assert found is not None
        name, value = _plain(found[1]), found[2] or "True"
        only = parse(value).only
        if only is not None and only.name in self.values:
            said = {key: _literal(word) for key, word in self.values[only.name].items()}
            yield from self._entries(name, {only.name: said}, item.comment)
        elif parse(value).expressions:
            yield from self._entries(name, value, item.comment)
        elif str(self.written.values.get(name)) != value:
            yield from self._entries(name, _literal(value), item.comment.partition(";")[0])

    def _has(self, name: str) -> bool:
        return name in self.written.values or name not in self.own

    def _flags(self) -> list[str]:
        found = (_WORD.fullmatch(str(word)) for word in self.values.get("precision", {}).values())
        return list(dict.fromkeys(_plain(each[1]) for each in found if each))

    def _switch(self, name: str) -> Iterator[tuple[Any, bool]]:
        """(number format, whether the flag is on)"""
        found = {
            value: _WORD.fullmatch(str(word)) for value, word in self.values["precision"].items()
        }
        said = {
            value: each[2] != "False"
            for value, each in found.items()
            if each and _plain(each[1]) == name
        }
        yield from ((value, said.get(value, not any(said.values()))) for value in found)

    def _entries(self, name: str, value: Any, comment: str) -> Iterator[Entry]:
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
    """A number or a switch as such: `True`, `8`; all else as text."""
    with suppress(ValueError, SyntaxError):
        value = ast.literal_eval(str(word))
        return value if isinstance(value, int | float) else word
    return word
