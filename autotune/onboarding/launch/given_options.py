"""What the options of a script are given by a launch, whichever of its names an option is written by.

-b 256, -b256, -b=256       parser.add_argument("-b", "--batch-size")
--batch 256                 the same, where no other option begins so
-vb256                      two options, of which the first is a flag
--amp images                a flag, and what stands for itself
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from autotune.onboarding.launch.launch_script import Argument
from autotune.onboarding.script.option_names import is_log_interval, is_of_knob
from autotune.onboarding.script.options import ScriptOption
from autotune.onboarding.settings.file import typed
from autotune.spec.texts.usual_names import FINDS_BATCH, TRACKERS


def named(arguments: Sequence[Argument], options: Sequence[ScriptOption]) -> Iterator[Argument]:
    """The arguments by the names of the script's options; `no_` before it where a flag is switched off."""
    spelled: dict[str, tuple[str, ScriptOption]] = {}
    for option in options:
        is_off = option.kind == "flag" and option.on is None and not option.prefix
        for name in option.names:
            spelled.setdefault(name, (f"no_{option.name}" if is_off else option.name, option))
        if isinstance(option.off, str) and option.off.startswith("-"):
            spelled.setdefault(option.off, (f"no_{option.name}", option))
    places = [option for option in options if option.is_positional]
    parted = [part for argument in arguments for part in _parted(argument, spelled)]
    words = sum(len(part.values) for part in parted if not part.name)
    for part in parted:
        if part.name or not part.values:
            yield part
            continue
        for value in part.values:
            needed = sum(option.is_required for option in places[1:])
            while places and not places[0].is_required and words <= needed:
                places.pop(0)
            name = places[0].name if places else ""
            if places and (places[0].takes == 1 or words - 1 <= needed):
                places.pop(0)
            words -= 1
            yield Argument(name, (value,), (value,))


def _parted(
    argument: Argument, spelled: Mapping[str, tuple[str, ScriptOption]]
) -> Iterator[Argument]:
    """An argument by its option's name, and what stands behind the values of that option."""
    if not argument.name:
        yield argument
        return
    word, more = argument.words[0], argument.words[1:]
    flag, sign, value = word.partition("=")
    flags: list[Argument] = []
    while flag not in spelled and flag[:2] in spelled and not flag.startswith("--"):
        name, option = spelled[flag[:2]]
        if option.takes != 0:
            value = word[2:].removeprefix("=")
            flag, sign = flag[:2], "="
            break
        flags.append(Argument(name, (), (flag[:2],)))
        word = f"-{word[2:]}"
        flag, sign, value = word.partition("=")
    if (found := spelled.get(flag) or _abbreviated(flag, spelled)) is None:
        yield argument
        return
    name, option = found
    yield from flags
    inside = len(more) if option.takes is None else max(0, option.takes - bool(sign))
    values = ((value,) if sign else ()) + more[:inside]
    yield Argument(name, values, (word, *more[:inside]))
    if more[inside:]:
        yield Argument("", more[inside:], more[inside:])


def _abbreviated(
    flag: str, spelled: Mapping[str, tuple[str, ScriptOption]]
) -> tuple[str, ScriptOption] | None:
    """The one option that begins so; else None."""
    if not flag.startswith("--"):
        return None
    same = (
        found for name, found in spelled.items() if name.replace("_", "-") == flag.replace("_", "-")
    )
    if exact := next(same, None):
        return exact
    begun = {
        found[0]: found
        for name, found in spelled.items()
        if name.startswith(flag) and found[1].is_abbreviated
    }
    return next(iter(begun.values())) if len(begun) == 1 else None


def _undeclared(name: str, flag: str, argument: Argument) -> ScriptOption:
    """An option of no known declaration, by what it is given."""
    if not argument.values:
        return ScriptOption(name=name, kind="flag", on=flag, given=True)
    value = _value(argument, "")
    if isinstance(value, bool):
        return ScriptOption(
            name=name, kind="flag", prefix=f"{flag}=", on="True", off="False", given=value
        )
    return ScriptOption(
        name=name, kind="int" if type(value) is int else "text", prefix=f"{flag}=", given=value
    )


def with_given(
    options: Sequence[ScriptOption], arguments: Sequence[Argument]
) -> Iterator[ScriptOption]:
    """The script's options with the values that they are given; and options of no known declaration that stand for a knob."""
    given: Mapping[str, Argument] = {argument.name: argument for argument in arguments}
    for option in options:
        found = given.get(option.name) or given.get(option.name.rpartition(".")[2])
        negated = given.get(f"no_{option.name}")
        if found is not None:
            yield replace(option, given=_value(found, option.kind))
        elif negated is not None and option.kind == "flag":
            yield replace(option, given=False)
        else:
            yield option
    declared = {option.name for option in options}
    declared |= {f"no_{option.name}" for option in options if option.kind == "flag"}
    for name, argument in given.items():
        if not name or name in declared:
            continue
        flag = argument.words[0].partition("=")[0]
        option = _undeclared(name, flag, argument)
        if flag.startswith("--") and (
            is_of_knob(option) or is_log_interval(option) or _is_switched_off(option)
        ):
            yield option


def _is_switched_off(option: ScriptOption) -> bool:
    name = option.name.rpartition(".")[2]
    return FINDS_BATCH.fullmatch(name) is not None or TRACKERS.fullmatch(name) is not None


def _value(argument: Argument, kind: str) -> Any:
    if not argument.values:
        return True
    value = typed(argument.values[0])
    return argument.values[0] if kind == "text" else value
