"""Assigns a launch's arguments to the options of its script, under any of an option's names.

-b 256, -b256, -b=256       parser.add_argument("-b", "--batch-size")
--batch 256                 the same, if no other option begins like this
-vb256                      two options; the first one is a flag
--amp images                a flag, and a positional argument

Also merges options that were read from the code with those that the script's own parser reported
when it ran (`autotune init --run`):

settings reported   by Hydra or OmegaConf: only these count, because the command can set any of them
read and reported   as read, with the reported default
only reported       added if nothing was read, or if no other option sets the same knob
only read           kept
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
    """The arguments under the names of the script's options; with `no_` before the name if a flag
    is switched off. Positional arguments are assigned in the parser's order."""
    spelled: dict[str, tuple[str, ScriptOption]] = {}
    for option in options:
        is_off = option.kind == "flag" and option.on is None and not option.prefix
        for name in option.names:
            spelled.setdefault(name, (f"no_{option.name}" if is_off else option.name, option))
        if isinstance(option.off, str) and option.off.startswith("-"):
            spelled.setdefault(option.off, (f"no_{option.name}", option))
    positionals = [option for option in options if option.is_positional]
    split = [part for argument in arguments for part in _split(argument, spelled)]
    remaining = sum(len(part.values) for part in split if not part.name)
    for part in split:
        if part.name or not part.values:
            yield part
            continue
        for value in part.values:
            required = sum(option.is_required for option in positionals[1:])
            while positionals and not positionals[0].is_required and remaining <= required:
                positionals.pop(0)
            name = positionals[0].name if positionals else ""
            if positionals and (positionals[0].takes == 1 or remaining - 1 <= required):
                positionals.pop(0)
            remaining -= 1
            yield Argument(name, (value,), (value,))


def _split(
    argument: Argument, spelled: Mapping[str, tuple[str, ScriptOption]]
) -> Iterator[Argument]:
    """Splits one argument into its options by name, and the positional arguments after their
    values."""
    if not argument.name:
        yield argument
        return
    word, rest = argument.words[0], argument.words[1:]
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
    taken = len(rest) if option.takes is None else max(0, option.takes - bool(sign))
    values = ((value,) if sign else ()) + rest[:taken]
    yield Argument(name, values, (word, *rest[:taken]))
    if rest[taken:]:
        yield Argument("", rest[taken:], rest[taken:])


def _abbreviated(
    flag: str, spelled: Mapping[str, tuple[str, ScriptOption]]
) -> tuple[str, ScriptOption] | None:
    """(name, option) of the only option that begins with the flag; or else None."""
    if not flag.startswith("--"):
        return None
    equal_names = (
        found for name, found in spelled.items() if name.replace("_", "-") == flag.replace("_", "-")
    )
    if exact := next(equal_names, None):
        return exact
    candidates = {
        found[0]: found
        for name, found in spelled.items()
        if name.startswith(flag) and found[1].is_abbreviated
    }
    return next(iter(candidates.values())) if len(candidates) == 1 else None


def _undeclared(name: str, flag: str, argument: Argument) -> ScriptOption:
    """An option that is not declared, with its kind taken from the value that the launch passes."""
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
    """The script's options with the values that the launch passes, and passed options that are not
    declared but set a knob."""
    given: Mapping[str, Argument] = {argument.name: argument for argument in arguments}
    for option in options:
        argument_passed = given.get(option.name) or given.get(option.name.rpartition(".")[2])
        negated = given.get(f"no_{option.name}")
        if argument_passed is not None:
            yield replace(option, given=_value(argument_passed, option.kind))
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
    """Whether trials switch the option off: automatic batch sizes and trackers."""
    name = option.name.rpartition(".")[2]
    return FINDS_BATCH.fullmatch(name) is not None or TRACKERS.fullmatch(name) is not None


def _value(argument: Argument, kind: str) -> Any:
    """The value that the launch passes; True for a flag."""
    if not argument.values:
        return True
    value = typed(argument.values[0])
    return argument.values[0] if kind == "text" else value


Said = Sequence[Mapping[str, Any]]
"""options that a program's parser reported, as the probe returns them (`parsed_options`)"""
_ACTIONS = {"_StoreTrueAction": "store_true", "_StoreFalseAction": "store_false"}
_OF_TRAINER = {MICRO_BATCH, "logging_steps", "save_strategy"}
"""options of a program that passes them to transformers' Trainer"""


def with_said(script: Script, said: Said) -> Script:
    """The script with the options that its parser reported when it ran."""
    parser = next((report["parser"] for report in reversed(said)), "")
    if settings_reported := [report for report in said if report["action"] == _OVERRIDE]:
        options = tuple(said_options(settings_reported))
        return replace(script, options=options, overridden="", parser=parser, written=None)
    if not said or script.overridden or script.parser == "configurator":
        return script
    by_name: dict[str, ScriptOption] = {}
    for option in said_options(said):
        by_name.setdefault(option.name, option)
    read = tuple(
        _with_reported_default(option, by_name.get(option.name)) for option in script.options
    )
    options = _positionals_last((*read, *_new_options(read, by_name)), list(by_name))
    written = script.written
    if written is not None and not written.adds_to(options):
        written = None
    if by_name.keys() >= _OF_TRAINER:
        parser = "HfArgumentParser"
    return replace(script, options=options, written=written, parser=script.parser or parser)


def said_options(said: Said) -> Iterator[ScriptOption]:
    """The reported options as options of a script."""
    return (
        _setting(report) if report["action"] == _OVERRIDE else _option(report) for report in said
    )


def _with_reported_default(option: ScriptOption, reported: ScriptOption | None) -> ScriptOption:
    """The option with the reported default, if that differs."""
    if reported is None or not reported.is_said or reported.default == option.default:
        return option
    if reported.default is None and option.name.startswith("trainer."):
        return option  # None means Lightning's own default
    if option.kind == "flag" and not reported.default and not option.default:
        return option  # None means the same as False
    return replace(option, default=reported.default, computed="", is_said=True)


def _positionals_last(
    options: Sequence[ScriptOption], order: list[str]
) -> tuple[ScriptOption, ...]:
    """The options, with positional ones last and in the parser's order."""
    positionals = [option for option in options if option.is_positional]
    positionals.sort(key=lambda option: order.index(option.name) if option.name in order else -1)
    return (*(option for option in options if not option.is_positional), *positionals)


def _new_options(
    read: Sequence[ScriptOption], reported: Mapping[str, ScriptOption]
) -> Iterator[ScriptOption]:
    """Reported options that were not read and set a knob that no other option sets, or are
    positional; all of them if nothing was read."""
    names = {option.name for option in read}
    known = {meaning.target for option in read if (meaning := meaning_of(option)) is not None}
    for option in reported.values():
        meaning = meaning_of(option)
        is_new = is_of_knob(option) and (meaning is None or meaning.target not in known)
        if option.name not in names and (is_new or option.is_positional or not read):
            yield option


def _setting(report: Mapping[str, Any]) -> ScriptOption:
    """A setting of a file that the command may override: `optim.lr=0.1`."""
    name, value = report["dest"], report.get("value")
    kind = KINDS.get(report["type"], "text")
    option = ScriptOption(name=name, prefix=f"{name}=", kind=kind, is_said=True)
    with_value = replace(option, given=value) if report["given"] else replace(option, default=value)
    return replace(with_value, on="true", off="false") if kind == "flag" else with_value


def _option(report: Mapping[str, Any]) -> ScriptOption:
    """A reported option of argparse as an option of a script."""
    names, dest, nargs = list(report["names"]) or [report["dest"]], report["dest"], report["nargs"]
    action = _ACTIONS.get(report["action"], "store_const" if nargs == 0 else "")
    if report["action"] == "BooleanOptionalAction":
        names = [name for name in names if not name.startswith("--no-")] or names
        action = report["action"]
    # the value if the command does not pass one: a file may have set it
    default = report.get("default" if report["given"] else "value", report.get("default"))
    type_name = str(report["type"])
    known = ScriptOption(
        name="",
        default=default if default != _SUPPRESSED else None,
        choices=tuple(report.get("choices") or ()),
        is_required=report["required"],
        is_said=not report.keys().isdisjoint(("default", "value")),
    )
    option = argparse_option(
        names,
        dest=dest,
        action=action,
        kind=KINDS.get(
            type_name, "flag" if "bool" in type_name.lower() else kind_of(report.get("value"))
        ),
        nargs=1 if nargs is None else nargs,
        known=known,
    )
    return replace(option, off=report["off"]) if "off" in report else option


_OVERRIDE = "override"
"""reported in place of an argparse action for settings that `name=value` overrides"""
_SUPPRESSED = "==SUPPRESS=="
"""argparse's value for no default"""
