"""What the options of a script are given by a launch, whichever of its names an option is written
by.

-b 256, -b256, -b=256       parser.add_argument("-b", "--batch-size")
--batch 256                 the same, where no other option begins so
-vb256                      two options, of which the first is a flag
--amp images                a flag, and what stands for itself

The options of a script as its own parser said them when it ran (`autotune init --run`), beside
those that were read of its source.

settings said     Hydra's or OmegaConf's, as they were composed: these alone, because the command sets any of them
read and said     what was read, with the parser's default
said alone        added: all where nothing was read, else those for which nothing that was read stands
read alone        stays
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from autotune.onboarding.launch.launch_script import Argument
from autotune.onboarding.script.library_options import MICRO_BATCH
from autotune.onboarding.script.option_names import is_log_interval, is_of_knob, meaning_of
from autotune.onboarding.script.options import KINDS, ScriptOption, argparse_option, kind_of
from autotune.onboarding.script.reading import Script
from autotune.onboarding.settings.file import typed
from autotune.spec.texts.usual_names import FINDS_BATCH, TRACKERS


def named(arguments: Sequence[Argument], options: Sequence[ScriptOption]) -> Iterator[Argument]:
    """The arguments by the names of the script's options; `no_` before it where a flag is switched
    off."""
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
    """The script's options with the values that they are given; and options of no known declaration
    that stand for a knob."""
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


Said = Sequence[Mapping[str, Any]]
"""the options of a parser, as the probe reports them (`parsed_options`)"""
_ACTIONS = {"_StoreTrueAction": "store_true", "_StoreFalseAction": "store_false"}
_OF_TRAINER = {MICRO_BATCH, "logging_steps", "save_strategy"}
"""options of a program that hands them to transformers' Trainer"""


def with_said(script: Script, said: Said) -> Script:
    """The script with what its parser said."""
    parser = next((told["parser"] for told in reversed(said)), "")
    if composed := [told for told in said if told["action"] == _OVERRIDE]:
        options = tuple(said_options(composed))
        return replace(script, options=options, overridden="", parser=parser, written=None)
    if not said or script.overridden or script.parser == "configurator":
        return script
    by_name: dict[str, ScriptOption] = {}
    for option in said_options(said):
        by_name.setdefault(option.name, option)
    read = tuple(_overruled(option, by_name.get(option.name)) for option in script.options)
    options = _in_places((*read, *_added(read, by_name)), list(by_name))
    written = script.written
    if written is not None and not written.adds_to(options):
        written = None
    if by_name.keys() >= _OF_TRAINER:
        parser = "HfArgumentParser"
    return replace(script, options=options, written=written, parser=script.parser or parser)


def said_options(said: Said) -> Iterator[ScriptOption]:
    """The options as those of a script."""
    return (_setting(told) if told["action"] == _OVERRIDE else _option(told) for told in said)


def _overruled(option: ScriptOption, said: ScriptOption | None) -> ScriptOption:
    if said is None or not said.is_said or said.default == option.default:
        return option
    if said.default is None and option.name.startswith("trainer."):
        return option  # Lightning's own default, which it takes for None
    if option.kind == "flag" and not said.default and not option.default:
        return option  # None is as good as False
    return replace(option, default=said.default, computed="", is_said=True)


def _in_places(options: Sequence[ScriptOption], order: list[str]) -> tuple[ScriptOption, ...]:
    """The options, those that are told by their place in the parser's order."""
    places = [option for option in options if option.is_positional]
    places.sort(key=lambda option: order.index(option.name) if option.name in order else -1)
    return (*(option for option in options if not option.is_positional), *places)


def _added(
    read: Sequence[ScriptOption], said: Mapping[str, ScriptOption]
) -> Iterator[ScriptOption]:
    names = {option.name for option in read}
    known = {meaning.target for option in read if (meaning := meaning_of(option)) is not None}
    for option in said.values():
        meaning = meaning_of(option)
        is_new = is_of_knob(option) and (meaning is None or meaning.target not in known)
        if option.name not in names and (is_new or option.is_positional or not read):
            yield option


def _setting(told: Mapping[str, Any]) -> ScriptOption:
    """A setting that the command may override: `optim.lr=0.1`."""
    name, value = told["dest"], told.get("value")
    kind = KINDS.get(told["type"], "text")
    option = ScriptOption(name=name, prefix=f"{name}=", kind=kind, is_said=True)
    own = replace(option, given=value) if told["given"] else replace(option, default=value)
    return replace(own, on="true", off="false") if kind == "flag" else own


def _option(told: Mapping[str, Any]) -> ScriptOption:
    names, dest, nargs = list(told["names"]) or [told["dest"]], told["dest"], told["nargs"]
    action = _ACTIONS.get(told["action"], "store_const" if nargs == 0 else "")
    if told["action"] == "BooleanOptionalAction":
        names = [name for name in names if not name.startswith("--no-")] or names
        action = told["action"]
    # what it has without a word of the command: a file may have set it
    default = told.get("default" if told["given"] else "value", told.get("default"))
    of = str(told["type"])
    known = ScriptOption(
        name="",
        default=default if default != _SUPPRESSED else None,
        choices=tuple(told.get("choices") or ()),
        is_required=told["required"],
        is_said=not told.keys().isdisjoint(("default", "value")),
    )
    option = argparse_option(
        names,
        dest=dest,
        action=action,
        kind=KINDS.get(of, "flag" if "bool" in of.lower() else kind_of(told.get("value"))),
        nargs=1 if nargs is None else nargs,
        known=known,
    )
    return replace(option, off=told["off"]) if "off" in told else option


_OVERRIDE = "override"
"""what sets `name=value` on settings of a file or of code, in the place of an action of argparse"""
_SUPPRESSED = "==SUPPRESS=="
"""argparse's word for no default"""
