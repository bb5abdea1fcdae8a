"""The options of a script as its own parser said them when it ran (`autotune init --run`), beside those that were read of its source.

settings said     Hydra's or OmegaConf's, as they were composed: these alone, because the command sets any of them
read and said     what was read, with the parser's default
said alone        added: all where nothing was read, else those for which nothing that was read stands
read alone        stays
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from autotune.onboarding.script.library_options import MICRO_BATCH
from autotune.onboarding.script.option_names import is_of_knob, meaning_of
from autotune.onboarding.script.options import KINDS, ScriptOption, argparse_option, kind_of
from autotune.onboarding.script.reading import Script

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
