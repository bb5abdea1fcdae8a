"""The command-line options of a Python script, by the parser that declares them.

argparse            parser.add_argument("--batch-size", type=int, default=8)
HfArgumentParser    the fields of its dataclasses, and those of TrainingArguments
tyro, simple_parsing, jsonargparse   the fields of a dataclass
click, typer, fire  decorators, or the parameters of a function
absl                flags.DEFINE_integer("batch_size", 8, ...)
configurator        nanoGPT's: constants of the module, overridden as --name=value
LightningCLI        trainer.*, and the parameters of the script's own modules
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from types import MappingProxyType
from typing import Any, TypeGuard

from autotune.onboarding.script.library_options import (
    ACCUMULATION,
    LIGHTNING_TRAINER,
    TRAINER_ARGUMENTS,
)
from autotune.onboarding.script.syntax import (
    LOOPS,
    Text,
    called_name,
    condition_of,
    keywords_of,
    last_name,
    literal_or_none,
)
from autotune.spec.texts.usual_names import setting_of

CONFIGURATOR = "configurator.py"
SAID = "according to the program's parser"
KINDS = {"int": "int", "float": "float", "str": "text", "bool": "flag"}
"""kinds of options by names of types"""


@dataclass(frozen=True, slots=True, kw_only=True)
class ScriptOption:
    """An option of a script, or a constant in its code."""

    name: str
    """name without leading dashes, words joined by underscores"""
    prefix: str = ""
    """text before the value on the command line: `--batch-size=`; empty for a flag without a value,
    and for a key of a file"""
    on: str | bool | None = None
    """what makes a flag true: its value, or the whole argument if it takes none; None: leaving the
    flag out"""
    off: str | bool | None = None
    """what makes a flag false, likewise"""
    kind: str = "text"
    """int, float, text or flag"""
    default: Any = None
    """value if the option is left out; None if the code does not say"""
    given: Any = None
    """value that the current launch passes; None if it passes none or the launch is unknown"""
    choices: tuple[Any, ...] = ()
    """allowed values; empty for any"""
    is_required: bool = False
    """whether the script fails without the option"""
    line: int = 0
    """line of the declaration; 0: unknown"""
    file: str = ""
    """the settings file that has the value; empty for the command line"""
    variable: str = ""
    """the environment variable that has the value; empty for the command line"""
    module: str = ""
    """the file with the declaration, if it is not the script itself"""
    names: tuple[str, ...] = ()
    """all spellings: `-b`, `--batch-size`; without dashes for a positional argument; empty: only
    `name`"""
    takes: int | None = None
    """number of values; None: any number, or unknown"""
    computed: str = ""
    """source text of the default, if it depends on a condition that is evaluated at run time"""
    is_abbreviated: bool = False
    """whether the parser accepts unambiguous beginnings of the name"""
    is_said: bool = False
    """whether the default was observed as the program's parser ran, instead of read from the
    code"""

    @property
    def last(self) -> str:
        """The last part of a dotted name, in lower case."""
        return self.name.rpartition(".")[2].lower()

    @property
    def is_positional(self) -> bool:
        """Whether it is a positional argument."""
        return bool(self.names) and not self.names[0].startswith("-")

    @property
    def present(self) -> Any:
        """The current value: the one passed, or else the default; None if unknown."""
        return self.default if self.given is None else self.given

    @property
    def between(self) -> tuple[Any, ...]:
        """The values that a conditional default can take."""
        tree = ast.walk(ast.parse(self.computed, mode="eval")) if self.computed else ()
        conditions = (node for node in tree if isinstance(node, ast.IfExp))
        branches = (branch for node in conditions for branch in (node.body, node.orelse))
        return tuple(value for branch in branches if (value := literal_or_none(branch)) is not None)

    @property
    def shown(self) -> str:
        """The option as a user writes it: `--batch-size`."""
        words = (
            word for word in (self.prefix, self.on, self.off) if isinstance(word, str) and word
        )
        return next(words, self.name).rstrip("=")

    @property
    def place(self) -> str:
        """Where it is declared: `line 7`, `params.py line 7`, or the program's parser; empty if
        unknown."""
        if self.is_said and not self.line:
            return SAID
        return " ".join(filter(None, (self.module, f"line {self.line}"))) if self.line else ""

    @property
    def is_in_file(self) -> bool:
        """Whether its value comes from a file or an environment variable, and not from an
        argument."""
        return bool(self.file or self.variable) and not self.prefix


def options_of(
    text: Text, beside: Mapping[str, tuple[str, ast.ClassDef]] = MappingProxyType({})
) -> tuple[str, tuple[ScriptOption, ...]]:
    """(name of the parser, its options); an empty name if the script parses no options. `beside`:
    the classes of imported modules, with their files."""
    readers = (
        ("configurator", _configurator),
        ("HfArgumentParser", partial(_hugging_face, imported_classes=beside)),
        ("LightningCLI", _lightning),
        ("argparse", _argparse),
        ("dataclass", _dataclasses),
        ("absl", _absl),
        ("click", _click),
        ("typer", _typer),
        ("fire", _fire),
        ("jsonargparse", _jsonargparse),
    )
    for parser, read in readers:
        if found := tuple(sorted(read(text), key=lambda option: option.line)):
            has_own_loop = parser == "HfArgumentParser" and all(
                o.name != _OF_TRAINER for o in found
            )
            return "dataclass" if has_own_loop else parser, found
    return "", ()


def constants_of(text: Text) -> tuple[ScriptOption, ...]:
    """Numbers that the code passes to accelerate's `Accelerator`, or assigns to names and
    attributes. Not names assigned in a loop, such as sample counters, nor names that are computed
    elsewhere."""
    loops = (node for node in text.nodes if isinstance(node, LOOPS))
    repeated = {id(node) for loop in loops for node in ast.walk(loop)}
    accumulations = (keywords_of(call).get(ACCUMULATION) for call in text.calls("Accelerator"))
    assigned = [(ACCUMULATION, node) for node in accumulations if node is not None]
    for node in text.assignments:
        if len(node.targets) == 1 and id(node) not in repeated:
            assigned.append((last_name(node.targets[0]), node.value))
    found: dict[str, ScriptOption] = {}
    computed = {name for name, expression in assigned if isinstance(expression, ast.Call)}
    for name, expression in assigned:
        value = None if name in computed else literal_or_none(expression)
        if name and type(value) in (int, float):
            option = ScriptOption(
                name=name, default=value, kind=kind_of(value), line=expression.lineno
            )
            found.setdefault(name, option)
    return tuple(found.values())


def _argparse(text: Text) -> Iterator[ScriptOption]:
    parsers = [
        keywords_of(call) for call in text.calls() if called_name(call).endswith("ArgumentParser")
    ]
    is_open = any("parents" in given or "allow_abbrev" in given for given in parsers)
    is_open = is_open or bool(text.calls("add_config_arguments", "add_argparse_args"))
    for call in text.calls("add_argument"):
        names, given = _texts(call), keywords_of(call)
        if not names:
            continue
        action = given.get("action")
        yield argparse_option(
            names,
            dest=literal_or_none(given.get("dest")),
            action="" if action is None else str(literal_or_none(action) or last_name(action)),
            kind=_kind_of_type(given["type"]) if "type" in given else "",
            nargs=literal_or_none(given.get("nargs")) if "nargs" in given else 1,
            known=ScriptOption(
                name="",
                default=literal_or_none(given.get("default")),
                computed=condition_of(given.get("default")),
                choices=tuple(literal_or_none(given.get("choices")) or ()),
                is_required=bool(literal_or_none(given.get("required"))),
                line=call.lineno,
                is_abbreviated=not is_open,
            ),
        )


def _texts(call: ast.Call) -> list[str]:
    """The string literals among a call's positional arguments."""
    return [value for node in call.args if isinstance(value := literal_or_none(node), str)]


def argparse_option(
    names: Sequence[str], *, dest: Any, action: str, kind: str, nargs: Any, known: ScriptOption
) -> ScriptOption:
    """An option of argparse. `kind`: from its `type`, or empty if that does not tell; `known`: all
    other fields that are known."""
    long = _best_name(names)
    plain_name, is_positional = _plain(long), not long.startswith("-")
    name = plain_name
    if isinstance(dest, str) and (not long.startswith("--") or setting_of(plain_name) is None):
        name = _plain(dest) if len(long) < 3 or setting_of(_plain(dest)) else plain_name
    takes = 1 if is_positional and nargs == "?" else nargs
    needs_value = is_positional and (isinstance(nargs, int) or nargs == "+")
    base = replace(
        known,
        name=name,
        is_required=known.is_required or needs_value,
        names=tuple(names),
        takes=takes if isinstance(takes, int) else None,
    )
    flag = replace(base, kind="flag", takes=0)
    if action == "store_true":
        return replace(flag, on=long, default=base.default or False)
    if action == "store_false":
        return replace(flag, name=_plain(str(dest or long)), off=long, default=True)
    if action == "BooleanOptionalAction":
        return replace(flag, on=long, off=f"--no-{long[2:]}")
    if action in ("store_const", "append_const", "count", "version", "help"):
        return replace(flag, name=plain_name, on=long, default=False)
    if kind == "flag":
        return _text_flag(base, long)
    prefix = "" if is_positional else _prefix(long)
    return replace(base, kind=kind or kind_of(base.default), prefix=prefix)


def _best_name(names: Sequence[str]) -> str:
    """The name that autotune recognizes as a knob or workload field, or else the first long
    name."""
    long = [name for name in names if name.startswith("--")] or list(names)
    return next((name for name in long if setting_of(_plain(name)) is not None), long[0])


def _prefix(name: str) -> str:
    """The text before the value: `-b` for `-b8`, `--batch-size=`, `-batch_size=`."""
    return name if len(name) == 2 else f"{name}="


_OF_TRAINER = "torch_compile"
"""an option of transformers' `TrainingArguments`; a script without it has its own training loop"""
_OF_TRL = frozenset(name for name, _ in TRAINER_ARGUMENTS) - {"TrainingArguments"}
_PARSERS = frozenset({"HfArgumentParser", "TrlParser"})


def _hugging_face(
    text: Text, imported_classes: Mapping[str, tuple[str, ast.ClassDef]]
) -> Iterator[ScriptOption]:
    classes = {**{name: node for name, (_, node) in imported_classes.items()}, **text.classes}
    derived = {name for name, each in classes.items() if _PARSERS & {*map(last_name, each.bases)}}
    parsers = text.calls(*_PARSERS, *derived)
    for name in _named_types(parsers[0], text) if parsers else ():
        declared = classes.get(name)
        module = (
            imported_classes[name][0]
            if name in imported_classes and name not in text.classes
            else ""
        )
        line = declared.lineno if declared else parsers[0].lineno
        bases = list(_library_bases(declared, classes)) if declared else [name]
        if module and bases and name in _OF_TRL:  # the class computes its defaults in `__init__`
            declared, module, bases = None, "", [name]
        fields = _fields(declared, classes, style="hf") if declared else ()
        own = [replace(option, module=module) for option in fields]
        yield from own
        # a class derived from the library's may redeclare fields with other defaults
        redeclared = {option.name for option in own}
        library = (
            each for ending, each in TRAINER_ARGUMENTS if any(b.endswith(ending) for b in bases)
        )
        for each in next(library, ()):
            if each[0] not in redeclared:
                yield replace(option_of(*each), line=line, module=module)


def _named_types(parser: ast.Call, text: Text) -> Iterator[str]:
    """Names of the dataclasses that are passed to the parser, also through a variable: `types = (A,
    B); HfArgumentParser(types)`."""
    assigned = {
        last_name(node.targets[0]): node.value
        for node in text.assignments
        if isinstance(node.value, ast.Tuple | ast.List)
    }
    for argument in parser.args:
        if isinstance(argument, ast.Name):
            argument = assigned.get(argument.id, argument)
        named = (node for node in ast.walk(argument) if isinstance(node, ast.Name | ast.Attribute))
        yield from map(last_name, named)


_OF_DATACLASSES = ("tyro.cli", "jsonargparse.CLI", "CLI", "simple_parsing.parse", "parse")
"""functions that parse the options of a dataclass; the last one is simple_parsing's"""


def _dataclasses(text: Text) -> Iterator[ScriptOption]:
    for call in text.calls():
        reader = ast.unparse(call.func)
        is_known = called_name(call) == "add_arguments" or reader in _OF_DATACLASSES
        root = text.classes.get(last_name(call.args[0])) if call.args and is_known else None
        if root is not None:
            style = "tyro" if reader == "tyro.cli" else "plain"
            yield from _fields(root, text.classes, style=style)


def _bases(declared: ast.ClassDef, classes: dict[str, ast.ClassDef]) -> Iterator[str]:
    """Names of the base classes, the nearest first."""
    for base in map(last_name, declared.bases):
        yield base
        if base in classes and classes[base] is not declared:
            yield from _bases(
                classes[base], {name: node for name, node in classes.items() if name != base}
            )


def _library_bases(declared: ast.ClassDef, classes: dict[str, ast.ClassDef]) -> Iterator[str]:
    """Names of the base classes that the program does not define itself."""
    for base in map(last_name, declared.bases):
        own = classes.get(base)
        if own is None or own is declared:
            yield base
        else:
            others = {name: node for name, node in classes.items() if name != base}
            yield from _library_bases(own, others)


def _annotated_fields(
    declared: ast.ClassDef, classes: dict[str, ast.ClassDef]
) -> Iterator[ast.AnnAssign]:
    """The fields of a dataclass: its own, and those of its bases that it does not redeclare."""
    bases = (classes[base] for base in _bases(declared, classes) if base in classes)
    seen: set[str] = set()
    for field in (each for node in (declared, *bases) for each in node.body):
        if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name):
            if field.target.id not in seen:
                yield field
            seen.add(field.target.id)


def _fields(
    declared: ast.ClassDef, classes: dict[str, ast.ClassDef], *, style: str, prefix: str = ""
) -> Iterator[ScriptOption]:
    for node in _annotated_fields(declared, classes):
        name = f"{prefix}{last_name(node.target)}"
        if (nested := classes.get(last_name(node.annotation))) is not None:
            yield from _fields(nested, classes, style=style, prefix=f"{name}.")
            continue
        value, has_default, metadata_choices = node.value, node.value is not None, ()
        if isinstance(value, ast.Call) and called_name(value) == "field":
            given = keywords_of(value)
            has_default = "default" in given or "default_factory" in given
            metadata = literal_or_none(given.get("metadata"))
            if isinstance(metadata, dict):
                metadata_choices = metadata.get("choices") or ()
            factory = given.get("default_factory")
            factory_value = factory.body if isinstance(factory, ast.Lambda) else None
            value = given.get("default", factory_value)
        default = literal_or_none(value)
        aliases = tuple(_aliases(node))
        yield replace(
            option_of(name, _kind_by(node.annotation, default), default, style=style),
            is_required=not has_default,
            line=node.lineno,
            choices=_choices(node.annotation) or tuple(metadata_choices),
            computed=condition_of(value),
            names=(f"--{name}", *aliases) if aliases else (),
        )


def _kind_by(annotation: ast.expr | None, default: Any) -> str:
    """The option's kind from the annotation, or else from the default."""
    text = "" if annotation is None else ast.unparse(annotation)
    return next((kind for word, kind in KINDS.items() if word in text), kind_of(default))


def _aliases(node: ast.AST) -> Iterator[str]:
    """Other names of a field: `aliases=["-b"]`, `metadata={"aliases": ["-b"]}`, `alias="-b"`."""
    pairs: list[tuple[Any, ast.expr]] = []
    for part in ast.walk(node):
        if isinstance(part, ast.Call):
            pairs += keywords_of(part).items()
        elif isinstance(part, ast.Dict):
            pairs += zip(map(literal_or_none, part.keys), part.values, strict=True)
    for key, value in pairs:
        aliases = literal_or_none(value) if key in ("alias", "aliases") else None
        for word in [aliases] if isinstance(aliases, str) else aliases or ():
            dashes = "-" if len(word) == 1 else "--"
            yield word if word.startswith("-") else f"{dashes}{word}"


def _kind_of_type(node: ast.expr) -> str:
    """The option's kind from the `type` of its `add_argument`."""
    return KINDS.get(last_name(node), "flag" if "bool" in ast.unparse(node) else "text")


def _choices(annotation: ast.expr) -> tuple[Any, ...]:
    """The values of an annotation `Literal["a", "b"]`; empty for others."""
    found = literal_or_none(annotation.slice) if _is_subscript(annotation, "Literal") else None
    return found if isinstance(found, tuple) else tuple(filter(None, [found]))


def option_of(name: str, kind: str, default: Any, *, style: str = "hf") -> ScriptOption:
    """An option for a dataclass field: `--name=value`. A flag takes True or False; for tyro it is
    `--name` and `--no-name`."""
    base = ScriptOption(name=_plain(name), kind=kind, default=default)
    flag = f"--{name}"
    if kind != "flag":
        return replace(base, prefix=f"{flag}=")
    if style == "tyro":
        head, dot, last = name.rpartition(".")
        return replace(base, on=flag, off=f"--{head}{dot}no-{last}")
    return _text_flag(base, flag)


_LIGHTNING_PARTS = {"DataModule": "data", "LightningModule": "model"}


def _lightning(text: Text) -> Iterator[ScriptOption]:
    commands = text.calls("LightningCLI")
    if not commands:
        return
    for name, kind, default in LIGHTNING_TRAINER:
        yield replace(option_of(f"trainer.{name}", kind, default), line=commands[0].lineno)
    for node in text.classes.values():
        bases = " ".join(ast.unparse(base) for base in node.bases)
        parts = [part for base, part in _LIGHTNING_PARTS.items() if base in bases]
        for item in node.body if parts else ():
            if isinstance(item, ast.FunctionDef) and item.name == "__init__":
                yield from _parameters(item, prefix=f"{parts[0]}.")


_ABSL = {
    "DEFINE_integer": "int",
    "DEFINE_float": "float",
    "DEFINE_string": "text",
    "DEFINE_bool": "flag",
    "DEFINE_boolean": "flag",
    "DEFINE_enum": "text",
}


def _absl(text: Text) -> Iterator[ScriptOption]:
    for call in text.calls(*_ABSL):
        kind = _ABSL[called_name(call)]
        name, default, choices = (
            literal_or_none(each) for each in (*call.args, None, None, None)[:3]
        )
        if not isinstance(name, str):
            continue
        short = literal_or_none(keywords_of(call).get("short_name"))
        option = ScriptOption(
            name=name,
            kind=kind,
            default=default,
            line=call.lineno,
            choices=tuple(choices or ()) if called_name(call) == "DEFINE_enum" else (),
            names=(f"--{name}", f"-{name}", *((f"-{short}", f"--{short}") if short else ())),
            takes=1,
        )
        if kind == "flag":
            yield replace(option, on=f"--{name}", off=f"--no{name}", takes=0)
        else:
            yield replace(option, prefix=f"--{name}=")


def _click_argument(call: ast.Call) -> Iterator[ScriptOption]:
    """A positional argument of click."""
    given = keywords_of(call)
    default, several = literal_or_none(given.get("default")), literal_or_none(given.get("nargs"))
    is_required = literal_or_none(given.get("required", ast.Constant("default" not in given)))
    nargs: Any = 1 if is_required else "?"
    if isinstance(several, int) and several:
        nargs = several if several > 0 else "*"
    for name in _texts(call)[:1]:
        yield argparse_option(
            [name],
            dest=name,
            action="",
            kind=KINDS.get(last_name(given["type"]), "") if "type" in given else "",
            nargs=nargs,
            known=ScriptOption(
                name="", default=default, is_required=bool(is_required), line=call.lineno
            ),
        )


def _click(text: Text) -> Iterator[ScriptOption]:
    for call in text.calls("argument", "option"):
        if not re.fullmatch(r"(click\.)?\w+", ast.unparse(call.func)):
            continue
        if called_name(call) == "argument":
            yield from _click_argument(call)
            continue
        names, given = _texts(call), keywords_of(call)
        flags = [name for name in names if name.startswith("-")]
        if not flags:
            continue
        on, slash, off = _best_name(flags).partition("/")
        dest = next((name for name in names if not name.startswith("-")), on)
        default, choice = literal_or_none(given.get("default")), given.get("type")
        of_choice = choice.args[:1] if isinstance(choice, ast.Call) else []
        option = ScriptOption(
            name=_plain(on if setting_of(_plain(on)) else dest),
            names=tuple(name.partition("/")[0] for name in flags),
            default=default,
            choices=tuple(choice for node in of_choice for choice in literal_or_none(node) or ()),
            is_required=bool(literal_or_none(given.get("required"))),
            line=call.lineno,
        )
        if slash or literal_or_none(given.get("is_flag")):
            own = off.strip() or None
            yield replace(option, kind="flag", on=on, off=own, default=bool(default), takes=0)
        else:
            kind = KINDS.get(last_name(choice), "") if choice is not None else ""
            nargs = literal_or_none(given.get("nargs")) or 1
            yield replace(option, kind=kind or kind_of(default), prefix=_prefix(on), takes=nargs)


def _given_to(text: Text, *names: str) -> list[str]:
    """Names passed as first argument to calls of these functions."""
    calls = (call for call in text.calls() if call.args and ast.unparse(call.func) in names)
    return [last_name(call.args[0]) for call in calls]


def _typer(text: Text) -> Iterator[ScriptOption]:
    run = _given_to(text, "typer.run")
    for node in text.functions:
        calls = (each for each in node.decorator_list if isinstance(each, ast.Call))
        if node.name in run or "command" in map(called_name, calls):
            yield from _parameters(node, dashes=True)


def _fire(text: Text) -> Iterator[ScriptOption]:
    run = _given_to(text, "fire.Fire", "Fire")[:1]
    for node in text.functions:
        if node.name in run:
            yield from _parameters(node)


def _jsonargparse(text: Text) -> Iterator[ScriptOption]:
    """The parameters of the function passed to `CLI(setup)`; flags take true or false."""
    run = _given_to(text, "jsonargparse.CLI", "CLI", "auto_cli")[:1]
    for node in text.functions if "jsonargparse" in text.names else ():
        for option in _parameters(node) if node.name in run else ():
            is_flag = option.kind == "flag"
            spelled = f"--{option.name}="
            yield replace(option, on=f"{spelled}true", off=f"{spelled}false") if is_flag else option


def _parameters(
    function: ast.FunctionDef, *, prefix: str = "", dashes: bool = False
) -> Iterator[ScriptOption]:
    """Options for a function's parameters, with their defaults. `dashes`: names and flags as typer
    spells them."""
    parameters = [each for each in function.args.args if each.arg not in ("self", "cls")]
    letters = [each.arg[0] for each in parameters]
    given = function.args.defaults
    defaults = [None] * (len(parameters) - len(given)) + given
    for parameter, node in zip(parameters, defaults, strict=True):
        annotations = (
            each for each in (node, *_annotated(parameter.annotation)) if isinstance(each, ast.Call)
        )
        words = [word for call in annotations for word in _texts(call)]
        names = [word.partition("/")[0] for word in words if re.match(r"--?[A-Za-z]", word)]
        names = names if dashes else []
        required = node is None and not prefix
        if isinstance(node, ast.Call) and node.args:  # typer.Option(8, "--batch-size")
            node = node.args[0]
        default = literal_or_none(node)
        name = f"{prefix}{parameter.arg}"
        spelled = name.replace("_", "-") if dashes else name
        kind = _kind_by(parameter.annotation, default)
        option = option_of(spelled, kind, default, style="tyro" if dashes else "hf")
        if names:
            long = _best_name(names)
            is_flag = not option.prefix
            option = replace(option, on=long) if is_flag else replace(option, prefix=_prefix(long))
        elif not prefix and letters.count(name[0]) == 1:
            names = [f"--{spelled}"] if dashes else [f"--{spelled}", f"-{name[0]}"]
            # fire accepts the first letter as a short name
        takes = 1 if names else None
        if kind == "flag":
            takes = None if option.prefix else 0
        yield replace(
            option, is_required=required, line=parameter.lineno, names=tuple(names), takes=takes
        )


def _is_subscript(node: ast.expr | None, name: str) -> TypeGuard[ast.Subscript]:
    return isinstance(node, ast.Subscript) and last_name(node.value) == name


def _annotated(annotation: ast.expr | None) -> Sequence[ast.expr]:
    """The metadata of an annotation `Annotated[int, typer.Option("--batch-size", "-b")]`; empty for
    others."""
    if _is_subscript(annotation, "Annotated") and isinstance(annotation.slice, ast.Tuple):
        return annotation.slice.elts[1:]
    return ()


def _configurator(text: Text) -> Iterator[ScriptOption]:
    """nanoGPT's constants, which `exec(open('configurator.py').read())` overrides, or the same loop
    written in the script. The overriding value must have the constant's type."""
    loops = (node for node in text.tree.body if isinstance(node, ast.For) and _configures(node))
    override_lines = [
        call.lineno for call in text.calls("exec") if CONFIGURATOR in ast.unparse(call)
    ]
    override_lines += [node.lineno for node in loops]
    for node in text.tree.body if override_lines else ():
        target = node.targets[0] if isinstance(node, ast.Assign) else None
        if (
            not (isinstance(node, ast.Assign) and isinstance(target, ast.Name))
            or node.lineno >= override_lines[0]
        ):
            continue
        name, value, computed = target.id, literal_or_none(node.value), condition_of(node.value)
        option = ScriptOption(name=name, default=value, computed=computed, line=node.lineno)
        branch = literal_or_none(node.value.body) if isinstance(node.value, ast.IfExp) else True
        if isinstance(branch if computed else value, bool):
            yield _text_flag(option, f"--{name}")
        elif computed or isinstance(value, int | float | str):
            kind = "text" if computed else kind_of(value)
            yield replace(option, prefix=f"--{name}=", kind=kind)


def _configures(loop: ast.For) -> bool:
    """Whether a loop is that of nanoGPT's configurator over the command's arguments."""
    parts = ("sys.argv", "exec(open(", "globals()[")
    return all(part in ast.unparse(loop) for part in parts)


def overridden_by_file(
    options: Iterable[ScriptOption], name: str, text: str | None
) -> Iterator[ScriptOption]:
    """The options of nanoGPT's configurator with the values that the Python file `name` of the
    launch sets. A value that the file computes has no default; without the file's text (None) no
    option has one."""
    assignments = (node for node in ast.parse(text or "").body if isinstance(node, ast.Assign))
    values = {last_name(target): node.value for node in assignments for target in node.targets}
    for option in options:
        if text is None:
            yield replace(option, default=None, line=0)
        elif (expression := values.get(option.name)) is not None:
            default = literal_or_none(expression)
            yield replace(option, default=default, line=expression.lineno, module=name, computed="")
        else:
            yield option


def _text_flag(option: ScriptOption, flag: str) -> ScriptOption:
    return replace(option, kind="flag", prefix=f"{flag}=", on="True", off="False")


def _plain(name: str) -> str:
    return name.lstrip("-").replace("-", "_")


def kind_of(value: Any) -> str:
    """The option's kind from a value: int, float, text or flag."""
    kinds = {bool: "flag", int: "int", float: "float"}  # in this order, because a bool is an int
    return next((kind for of, kind in kinds.items() if isinstance(value, of)), "text")
