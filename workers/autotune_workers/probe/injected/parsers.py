"""Command-line parsers: for each library the function that reads the command, and how to list its
options.

    PARSERS    module: (name of the parsing function, function for the words that it parses, function for its options)
               name: `Class.method`, or a function of the module; words: None for the program's own command
    option     names, dest, action (argparse's word, or `override` for `name=value` on a settings file), type, nargs, help, required, off (the word that makes a flag false),
               default, const, choices, value (the parsed value)

transformers' HfArgumentParser, configargparse and simple_parsing parse with argparse. typer has a
copy of click, and tyro before 1.0 one of argparse.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:  # `typing` takes milliseconds that a program may not spend
    from collections.abc import Callable, Iterable, Iterator
    from typing import Any

    Words = Callable[..., Any]
    Options = Callable[[Any, tuple[Any, ...], Any], Iterable[dict[str, Any]]]
    """lists the options, given the library's module, the arguments of the parsing call, and its
    result"""

OVERRIDE = "override"
_IGNORED_ACTIONS = ("_HelpAction", "_VersionAction")
_TYPES = {"integer": "int", "text": "str", "boolean": "bool"}
"""Python types by click's names"""
_TYRO_ACTIONS = {
    "store_true": "_StoreTrueAction",
    "store_false": "_StoreFalseAction",
    "boolean_optional_action": "BooleanOptionalAction",
}


def _option(names: Iterable[Any], dest: Any, **values: Any) -> dict[str, Any]:
    defaults = {"action": "_StoreAction", "type": "", "nargs": None, "help": "", "required": False}
    return {"names": list(map(str, names)), "dest": str(dest), **defaults, **values}


def _of_argparse(module: Any, given: tuple[Any, ...], found: Any) -> Iterator[dict[str, Any]]:
    parser, namespace = given[0], found[0]
    # its own options precede the subparser's name
    if not any(isinstance(each, module._SubParsersAction) for each in parser._actions):
        yield from _of_actions(module, parser, lambda dest: getattr(namespace, dest, None))


def _of_actions(
    module: Any, parser: Any, value_of: Callable[[str], Any]
) -> Iterator[dict[str, Any]]:
    for action in parser._actions:
        kinds = type(action).__mro__
        argparse_class = next(each.__name__ for each in kinds if each.__module__ == module.__name__)
        if argparse_class not in _IGNORED_ACTIONS:
            yield _option(
                action.option_strings,
                action.dest,
                action=argparse_class,
                type=getattr(action.type, "__name__", ""),
                nargs=action.nargs,
                help=action.help,
                required=action.required,
                default=action.default,
                const=action.const,
                choices=action.choices,
                value=value_of(str(action.dest)),
            )


def _of_jsonargparse(module: Any, given: tuple[Any, ...], found: Any) -> Iterator[dict[str, Any]]:
    import argparse

    parser = given[0]
    while (chosen := getattr(parser, "_subcommands_action", None)) is not None:
        name = found.get(chosen.dest)
        if name is None:
            return
        parser, found = chosen._name_parser_map[name], found.get(name)
    yield from _of_actions(argparse, parser, found.get)


def _of_draccus(module: Any, given: tuple[Any, ...], found: Any) -> Iterator[dict[str, Any]]:
    """The options from its actions, with types and values of the dataclass, because parsing clears
    the actions' types and defaults."""
    import argparse

    for option in _of_actions(argparse, given[0].parser, lambda dest: _at(found[0], dest)):
        value = option["value"]
        # `--model`, next to `--model.size`, takes a file of settings
        if not hasattr(value, "__dataclass_fields__") and option["dest"] != "config_path":
            del option["default"]
            yield {**option, "type": type(value).__name__}


def _at(value: Any, path: str) -> Any:
    for name in path.split("."):
        value = getattr(value, name, None)
    return value


def _of_tyro(module: Any, given: tuple[Any, ...], found: Any) -> Iterator[dict[str, Any]]:
    spec, values = given[1], found[0]
    # at the end of a command only options of the last subcommand are valid
    while below := list(spec.subparsers_from_intern_prefix.items()):
        prefix, subparsers = below[-1]
        name = values.get(module._strings.make_subparser_dest(prefix))
        if name not in subparsers.parser_from_name:
            return
        spec = subparsers.parser_from_name[name].evaluate()
    for each in spec.get_args_including_children():
        yield from _of_tyro_argument(each.arg, values)


def _of_old_tyro(module: Any, given: tuple[Any, ...], found: Any) -> Iterator[dict[str, Any]]:
    """The options of tyro before 1.0, which parses with a copy of argparse. Types and defaults are
    in the fields only."""
    parsers = [given[0]._parser_specification]
    if parsers[0].subparsers is not None:
        return
    for spec in parsers:
        parsers += spec.child_from_prefix.values()
        for each in spec.args:
            yield from _of_tyro_argument(each, vars(found[0]))


def _of_tyro_argument(argument: Any, values: dict[str, Any]) -> Iterator[dict[str, Any]]:
    lowered = argument.lowered
    is_positional = getattr(argument, "is_positional", None) or argument.field.is_positional
    if lowered.instance_from_str is None or is_positional() or argument.is_suppressed():
        return
    names, default = list(lowered.name_or_flags), argument.field.default
    off = [name for name in names if name.rpartition(".")[2].lstrip("-").startswith("no-")]
    action = _TYRO_ACTIONS.get(lowered.action, "_StoreAction")
    if getattr(lowered.action, "__name__", "") == "BooleanOptionalAction":
        action = "BooleanOptionalAction"
    if action == "BooleanOptionalAction" and not off:
        head, dot, last = names[-1].rpartition(".")
        off = [f"{head}{dot}no-{last}" if dot else f"--no-{last[2:]}"]
    value = values.get(lowered.dest, default)
    yield _option(
        [name for name in names if name not in off] or names,
        lowered.dest,
        action=action,
        type=getattr(argument.field.type_stripped, "__name__", ""),
        nargs=0 if lowered.action else lowered.nargs,
        required=bool(lowered.required),
        off=off[0] if off else None,
        default=default,
        choices=lowered.choices,
        value=default if type(value).__module__ == "tyro._singleton" else value,
    )


def _of_click(module: Any, given: tuple[Any, ...], found: Any) -> Iterator[dict[str, Any]]:
    command, context = given[:2]
    if hasattr(
        command, "list_commands"
    ):  # a group, whose own options precede the name of a command
        return
    for each in command.params:
        # typer's copy has a descriptor of the annotation instead of a type
        kind = getattr(each, "type", None) or each.type_descriptor
        name = str(getattr(kind, "name", "") or getattr(kind.annotation, "__name__", ""))
        off = each.secondary_opts[:1]
        is_option, is_flag = each.param_type_name == "option", getattr(each, "is_flag", False)
        flag = "BooleanOptionalAction" if off else "_StoreTrueAction"
        yield _option(
            each.opts if is_option else (),
            each.name,
            action=flag if is_flag else "_StoreAction",
            type=_TYPES.get(name.partition(" ")[0], name),
            nargs=0 if is_flag else _nargs(each, is_option),
            help=getattr(each, "help", ""),
            required=each.required,
            off=off[0] if off else None,
            default=each.get_default(context, call=False),
            choices=getattr(kind, "choices", None),
            value=context.params.get(each.name),
        )


def _nargs(each: Any, is_option: bool) -> Any:
    """Number of arguments in argparse's notation."""
    if each.nargs < 0:
        return "*"
    return each.nargs if is_option or each.required or each.nargs > 1 else "?"


def _of_absl(module: Any, given: tuple[Any, ...], found: Any) -> Iterator[dict[str, Any]]:
    flags = given[0]
    for name in flags:
        flag = flags[name]
        is_own = str(flags.find_module_defining_flag(name)).partition(".")[0] != "absl"
        if not is_own or name != flag.name:  # a short name has its own entry
            continue
        if hasattr(flag.value, "to_dict"):  # settings of ml_collections, each of which is an option
            for path, value in _leaves(flag.value.to_dict()):
                key, kind = f"{name}.{path}", type(value).__name__
                yield _option([f"--{key}"], key, type=kind, value=value)
        short = [flag.short_name] if flag.short_name else []
        spelled = [f"{dashes}{each}" for each in (name, *short) for dashes in ("--", "-")]
        is_switch = bool(flag.boolean)
        yield _option(
            spelled,
            name,
            action="BooleanOptionalAction" if is_switch else "_StoreAction",
            type=flag.flag_type(),
            nargs=0 if is_switch else None,
            help=flag.help,
            off=f"--no{name}" if is_switch else None,
            default=flag.default,
            choices=getattr(flag.parser, "enum_values", None),
            value=flag.value,
        )


def _of_fire(module: Any, given: tuple[Any, ...], found: Any) -> Iterator[dict[str, Any]]:
    """The parameters of the function or class that fire is about to call."""
    spec = module.inspectutils.GetFullArgSpec(given[0])
    last = range(-len(spec.defaults), 0)
    defaults = {spec.args[index]: spec.defaults[index] for index in last}
    defaults.update(spec.kwonlydefaults)
    names = [*spec.args, *spec.kwonlyargs]
    for name in names:
        is_only = [each[0] for each in names].count(name[0]) == 1
        kind = spec.annotations.get(name, type(defaults.get(name)))
        known_default = {"default": defaults[name]} if name in defaults else {}
        yield _option(
            [f"--{name}", *([f"-{name[0]}"] if is_only else [])],
            name,
            type=getattr(kind, "__name__", ""),
            required=name not in defaults,
            **known_default,
        )


_PARSED_FROM_COMMAND: list[Any] = []
"""settings that OmegaConf parsed from the program's command"""


def _of_words(module: Any, given: tuple[Any, ...], found: Any) -> Iterator[dict[str, Any]]:
    _PARSED_FROM_COMMAND.append(found)
    yield from ()


def _if_of_command(*given: Any, **named: Any) -> Any:
    """None (the program's command) if parsed settings of the command are merged, else no words."""
    return None if any(each is parsed for each in given for parsed in _PARSED_FROM_COMMAND) else ()


def _of_settings(module: Any, given: tuple[Any, ...], found: Any) -> Iterator[dict[str, Any]]:
    settings = module.OmegaConf.to_container(found, resolve=False)
    settings.pop("hydra", None)
    for path, value in _leaves(settings):
        yield _option([path], path, action=OVERRIDE, type=type(value).__name__, value=value)


def _leaves(settings: Any) -> Iterator[tuple[str, Any]]:
    """Yields (dotted path, value) of each value that is not a mapping."""
    todo = list(settings.items())
    for path, value in todo:
        if isinstance(value, dict):
            todo += [(f"{path}.{name}", each) for name, each in value.items()]
        else:
            yield path, value


def _args(position: int) -> Words:
    """Returns a function that gets a parsing call's words: its argument `args`, or the one at this
    position."""

    def words(*given: Any, **named: Any) -> Any:
        return named.get("args", given[position] if len(given) > position else None)

    return words


def _of_context(command: Any, context: Any, words: Any) -> Any:
    """The words of a click command: None for a subcommand, whose words the group left over."""
    return None if context.parent is not None else words


def _behind_program(flags: Any, words: Any, *given: Any, **named: Any) -> Any:
    return list(words)[1:]


def _always_command(*given: Any, **named: Any) -> None:
    """None: the function is only called for the program's own command."""


_CLICK = ("Command.parse_args", _of_context, _of_click)
PARSERS: dict[str, list[tuple[str, Words, Options]]] = {
    "argparse": [("ArgumentParser.parse_known_args", _args(1), _of_argparse)],
    "tyro._argparse": [("ArgumentParser.parse_known_args", _args(1), _of_old_tyro)],
    "tyro._backends._tyro_backend": [("TyroBackend.parse_args", _args(2), _of_tyro)],
    "jsonargparse._core": [("ArgumentParser.parse_args", _args(1), _of_jsonargparse)],
    "draccus.argparsing": [("ArgumentParser.parse_known_args", _args(1), _of_draccus)],
    "click.core": [_CLICK],
    "typer._click.core": [_CLICK],
    "absl.flags._flagvalues": [("FlagValues.__call__", _behind_program, _of_absl)],
    "fire.core": [("_MakeParseFn", _always_command, _of_fire)],
    "hydra._internal.config_loader_impl": [
        ("ConfigLoaderImpl.load_configuration", _always_command, _of_settings)
    ],
    "omegaconf.omegaconf": [
        ("OmegaConf.from_cli", _always_command, _of_words),
        ("OmegaConf.merge", _if_of_command, _of_settings),
    ],
}
