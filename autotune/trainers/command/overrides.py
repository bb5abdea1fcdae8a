"""The option `overrides` of a program: values that its own text sets, and that each trial sets
otherwise.

    argv: [torchrun, "--nproc-per-node={nproc_per_node}", train.py]
    overrides:
      train.py:
        TrainingArguments.per_device_train_batch_size: "{micro_batch_size}"
        TrainingArguments.bf16: {precision: {bf16: true, fp32: false}}
        TrainingArguments.max_steps: "{steps}"

Keys are places in the text (see `overriding.py`). A value is text with placeholders, of which one
alone keeps its type, a value of any other kind, or the value for each value of one knob. The file
is not changed: a trial, and the exported launch, start it by a file of the same name that sets the
values. A training has only those that name a knob: steps, seed, `{trial_dir}` and what has no
placeholder are a trial's alone.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping, Sequence
from importlib import resources
from itertools import pairwise
from pathlib import Path, PurePosixPath
from typing import Any

from autotune.errors import SpecError
from autotune.spec.texts.as_text import value_word
from autotune.trainers.command.overriding import UnclearPlaceError, find
from autotune.trainers.command.training import NUMBERS
from autotune.trainers.documents.placeholders import Expression, Values, check_names, parse
from autotune.trainers.launch_files import FOLDER, check_file_name

OF_TRIALS = frozenset({*NUMBERS, "trial_dir"})
"""placeholders that are a trial's alone"""

_MODULE = ("-m", "--module")
"""before the name of a module"""


def expressions(overrides: Mapping[str, Any]) -> Iterator[Expression]:
    """The placeholders of all values; a value for each value of a knob is one of that knob."""
    for places in overrides.values():
        for value in places.values() if isinstance(places, Mapping) else ():
            yield from _expressions(value)


def check_overrides(
    overrides: Mapping[str, Any], argv: Sequence[str], known: frozenset[str]
) -> None:
    """Raises `SpecError` for a file that the command does not start by its path, an unknown
    placeholder, and a value that is no literal."""
    for name, places in overrides.items():
        where = f"trainer.overrides.{name}"
        if name not in argv:
            programs = ", ".join(word for word in argv if word.endswith(".py"))
            raise SpecError(
                f"overrides need a program in argv, but no argument is {name!r}",
                remedy=f"write the program's name as it is in argv ({programs})"
                if programs
                else "write the file or module exactly as in argv",
                field=where,
            )
        if not name.endswith(".py") and not any(
            pair == (flag, name) for pair in pairwise(argv) for flag in _MODULE
        ):
            raise SpecError(
                f"overrides need a Python program, but {name!r} is neither a .py file nor a module after -m",
                remedy="set the file or module that trains, exactly as in argv",
                field=where,
            )
        check_file_name(_file(name))
        if [_file(other) for other in overrides if isinstance(other, str)].count(_file(name)) > 1:
            raise SpecError(
                f"two programs with overrides are both named {_file(name)}; rename one of the files",
                field=where,
            )
        if not isinstance(places, Mapping):
            raise SpecError(
                f"overrides must map settings in {name} to values, but got {places!r:.80}",
                remedy="use `NAME: VALUE` or `CALL.KEYWORD: VALUE`, as in `TrainingArguments.bf16: true`",
                field=where,
            )
        for place, value in places.items():
            try:
                for expression in _expressions(value):
                    check_names(expression, known)
                _check_literals(value)
            except SpecError as error:
                raise SpecError(
                    error.message, remedy=error.remedy, field=f"{where}.{place}"
                ) from None


def check_places(overrides: Mapping[str, Any], folder: Path) -> None:
    """Raises `SpecError` for a place that its file does not have, or has several times. A file that
    is not below `folder` is looked at when it starts."""
    for name, places in overrides.items():
        if not isinstance(name, str):
            continue  # refused with the other options
        file = folder / (name if name.endswith(".py") else f"{name.replace('.', '/')}.py")
        if not isinstance(places, Mapping) or not file.is_file():
            continue
        try:
            tree = ast.parse(file.read_text(encoding="utf-8-sig"))
            for place in places:
                find(tree, str(place))
        except UnclearPlaceError as error:
            remedy = f"specify a setting in {name} as NAME, CALL.KEYWORD or CALL:LINE.KEYWORD"
            raise SpecError(
                f"{name}: {error}", remedy=remedy, field=f"trainer.overrides.{name}"
            ) from None
        except (OSError, ValueError, SyntaxError, RecursionError) as error:
            raise SpecError(
                f"{name} cannot be read as Python: {error}", field=f"trainer.overrides.{name}"
            ) from None


def unsaid(overrides: Mapping[str, Any], config: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """(knob, place) of the values for each value of a knob that lack that of the config."""
    for places in overrides.values():
        for place, value in places.items() if isinstance(places, Mapping) else ():
            if isinstance(value, Mapping):
                ((knob, written),) = value.items()
                if knob in config and value_word(config[knob]) not in map(value_word, written):
                    yield knob, place


def started_with(overrides: Mapping[str, Any], values: Values) -> dict[str, str]:
    """The file that starts each program with the values, by name."""
    text = resources.files(__package__).joinpath("overriding.py").read_text(encoding="utf-8")
    found = {}
    for name, places in overrides.items():
        told = {str(place): _value(value, values) for place, value in places.items()}
        own = text.replace('PROGRAM = ""', f"PROGRAM = {name!r}", 1)
        found[_file(name)] = own.replace("] = {}", f"] = {told!r}", 1)
    return found


def values_in(text: str) -> dict[str, Any]:
    """The values, by place, in the text of such a file; empty for any other Python file."""
    line = next(
        (line for line in text.splitlines() if line.startswith("VALUES: dict[str, object] = ")), ""
    )
    return dict(ast.literal_eval(line.partition(" = ")[2])) if line else {}


def in_argv(argv: Sequence[str], overrides: Mapping[str, Any]) -> list[str]:
    """The command with these files in the place of the programs; they start a module, too."""
    words: list[str] = []
    for word in argv:
        if word in overrides and words and words[-1] in _MODULE:
            del words[-1]
        words.append(f"{FOLDER}/{_file(word)}" if word in overrides else word)
    return words


def _file(program: str) -> str:
    """The name of the file that starts it."""
    return (
        PurePosixPath(program).name
        if program.endswith(".py")
        else f"{program.rpartition('.')[2]}.py"
    )


def of_training(overrides: Mapping[str, Any]) -> dict[str, Any]:
    """Those of a training: of what names a knob."""
    kept = {}
    for name, places in overrides.items():
        named = {
            place: {n for part in _expressions(value) for n in part.names}
            for place, value in places.items()
        }
        if own := {
            place: places[place]
            for place, names in named.items()
            if names and not names & OF_TRIALS
        }:
            kept[name] = own
    return kept


def _expressions(value: Any) -> Iterator[Expression]:
    if isinstance(value, str):
        yield from parse(value).expressions
    elif isinstance(value, Mapping):
        if len(value) != 1 or not isinstance(next(iter(value.values())), Mapping):
            raise SpecError(
                f"a mapping must name one knob and give the text to write for each of its settings, but is {value!r:.80}",
                remedy="use a mapping like {precision: {bf16: true, fp32: false}}",
            )
        yield from parse(f"{{{next(iter(value))}}}").expressions


def _check_literals(value: Any) -> None:
    try:
        ast.literal_eval(repr(value))
    except (ValueError, SyntaxError, RecursionError, MemoryError):
        message = f"a value must be a number, text, true, false, null, or a list of these, but this is {value!r:.80}"
        raise SpecError(message, remedy="write the value in quotes") from None


def _value(value: Any, values: Values) -> Any:
    if isinstance(value, Mapping):
        ((knob, written),) = value.items()
        return {value_word(key): each for key, each in written.items()}[
            value_word(values.known[knob])
        ]
    return values.typed(value) if isinstance(value, str) else value
