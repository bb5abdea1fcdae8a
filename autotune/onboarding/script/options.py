"""The options of a script's command line, by the parser that reads them.

argparse            parser.add_argument("--batch-size", type=int, default=8)
HfArgumentParser    the fields of its dataclasses, and those of TrainingArguments
tyro, simple_parsing, jsonargparse   the fields of a dataclass
click, typer, fire  decorators, or the parameters of a function
absl                flags.DEFINE_integer("batch_size", 8, ...)
configurator        nanoGPT's: constants of the module, overridden as --name=value
LightningCLI        trainer.*, and the parameters of the module's own classes
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from autotune.onboarding.script.library_options import (
    ACCUMULATION,
    LIGHTNING_TRAINER,
    TRAINER_ARGUMENTS,
)
from autotune.onboarding.script.syntax import (
    called_name,
    calls_of,
    condition_of,
    keywords_of,
    last_name,
    literal_or_none,
)
from autotune.spec.texts.usual_names import target_of

CONFIGURATOR = "configurator.py"
SAID = "said by the program's parser"
KINDS = {"int": "int", "float": "float", "str": "text", "bool": "flag"}
"""kinds of options by the names of types"""


@dataclass(frozen=True, slots=True, kw_only=True)
class ScriptOption:
    """One option, or a constant of the script."""

    name: str
    """its name without dashes, words joined by underscores"""
    prefix: str = ""
    """what stands before its value on the command line: `--batch-size=`; empty for a flag without a value, and in a file"""
    on: str | bool | None = None
    """what makes a flag true: its value, or the whole word where it has none; None: leaving it out does"""
    off: str | bool | None = None
    """the argument that makes a flag false, likewise"""
    kind: str = "text"
    """int, float, text or flag"""
    default: Any = None
    """its value when it is left out, where the text says it"""
    given: Any = None
    """the value that the script is started with today, where that is known"""
    choices: tuple[Any, ...] = ()
    """the values that it may have; empty for any"""
    is_required: bool = False
    """whether the script refuses to start without it"""
    line: int = 0
    """line of the script that declares it"""
    file: str = ""
    """the file of settings that holds it instead"""
    variable: str = ""
    """the environment variable that holds it instead"""
    module: str = ""
    """the file that declares it, where that is not the script itself"""
    names: tuple[str, ...] = ()
    """each way in which it may be written: `-b`, `--batch-size`; a positional's has no dashes; empty: by its name alone"""
    takes: int | None = None
    """values that it takes; None: any number, or nobody knows"""
    computed: str = ""
    """the text of its default, where a condition decides it on the machine where it runs"""
    is_abbreviated: bool = False
    """whether the beginning of a name is enough, where no other option begins so"""
    is_said: bool = False
    """whether the program's parser said its default as it ran, and no text that was read"""

    @property
    def is_positional(self) -> bool:
        """Whether it is told by its place alone."""
        return bool(self.names) and not self.names[0].startswith("-")

    @property
    def present(self) -> Any:
        """Its value today, as far as it is known."""
        return self.default if self.given is None else self.given

    @property
    def between(self) -> tuple[Any, ...]:
        """The values between which a condition decides its default."""
        tree = ast.walk(ast.parse(self.computed, mode="eval")) if self.computed else ()
        conditions = (node for node in tree if isinstance(node, ast.IfExp))
        branches = (branch for node in conditions for branch in (node.body, node.orelse))
        return tuple(value for branch in branches if (value := literal_or_none(branch)) is not None)

    @property
    def shown(self) -> str:
        """The option as people write it."""
        words = (
            word for word in (self.prefix, self.on, self.off) if isinstance(word, str) and word
        )
        return next(words, self.name).rstrip("=")

    @property
    def place(self) -> str:
        """Where it is declared: `line 7`, `params.py line 7`; else who said it; empty where nobody knows."""
        if self.is_said and not self.line:
            return SAID
        return " ".join(filter(None, (self.module, f"line {self.line}"))) if self.line else ""

    @property
    def is_in_file(self) -> bool:
        """Whether it is told by the file or the variable alone, and by no argument."""
        return bool(self.file or self.variable) and not self.prefix


def options_of(tree: ast.Module) -> tuple[str, tuple[ScriptOption, ...]]:
    """(the parser, its options); an empty name where nothing reads options."""
    calls = calls_of(tree)
    readers = (
        ("configurator", _configurator),
        ("HfArgumentParser", _hugging_face),
        ("LightningCLI", _lightning),
        ("argparse", _argparse),
        ("dataclass", _dataclasses),
        ("absl", _absl),
        ("click", _click),
        ("typer", _typer),
        ("fire", _fire),
    )
    for parser, read in readers:
        if found := tuple(sorted(read(tree, calls), key=lambda option: option.line)):
            return parser, found
    return "", ()


def constants_of(tree: ast.Module) -> tuple[ScriptOption, ...]:
    """Numbers that the text assigns to names and attributes, and gives accelerate's `Accelerator`; not what it sets again and again in a loop, as for
    its samples."""
    found: dict[str, ScriptOption] = {}
    loops = (
        node for node in ast.walk(tree) if isinstance(node, ast.For | ast.While | ast.AsyncFor)
    )
    repeated = {id(node) for loop in loops for node in ast.walk(loop)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Assign) and len(node.targets) == 1 and id(node) not in repeated:
            name, value = last_name(node.targets[0]), literal_or_none(node.value)
            if name and isinstance(value, int | float) and not isinstance(value, bool):
                found.setdefault(
                    name,
                    ScriptOption(name=name, default=value, kind=kind_of(value), line=node.lineno),
                )
        elif isinstance(node, ast.Call) and called_name(node) == "Accelerator":
            value = literal_or_none(keywords_of(node).get(ACCUMULATION))
            if isinstance(value, int):
                found[ACCUMULATION] = ScriptOption(
                    name=ACCUMULATION, default=value, kind="int", line=node.lineno
                )
    return tuple(found.values())


def _argparse(tree: ast.Module, calls: list[ast.Call]) -> Iterator[ScriptOption]:
    parsers = [keywords_of(call) for call in calls if called_name(call).endswith("ArgumentParser")]
    is_whole = not any(
        called_name(call) in ("add_config_arguments", "add_argparse_args") for call in calls
    )
    is_whole = is_whole and not any(
        "parents" in given or "allow_abbrev" in given for given in parsers
    )
    for call in calls:
        if called_name(call) != "add_argument":
            continue
        names = [value for node in call.args if isinstance(value := literal_or_none(node), str)]
        if not names:
            continue
        given = keywords_of(call)
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
                is_abbreviated=is_whole,
            ),
        )


def argparse_option(
    names: Sequence[str], *, dest: Any, action: str, kind: str, nargs: Any, known: ScriptOption
) -> ScriptOption:
    """An option of argparse. `kind`: by its `type`; empty where that does not say it; `known`: what is known of it besides."""
    long = _best_name(names)
    if nargs == "?" and not long.startswith("-"):
        takes: int | None = 1
    else:
        takes = nargs if isinstance(nargs, int) else None
    is_short = isinstance(dest, str) and (
        not long.startswith("--") or target_of(_plain(long)) is None
    )
    base = replace(
        known,
        name=_plain(
            str(dest) if is_short and (len(long) < 3 or target_of(_plain(str(dest)))) else long
        ),
        is_required=known.is_required
        or (not long.startswith("-") and (isinstance(nargs, int) or nargs == "+")),
        names=tuple(names),
        takes=takes,
    )
    if action == "store_true":
        return replace(base, kind="flag", on=long, default=base.default or False, takes=0)
    if action == "store_false":
        own = _plain(str(dest or long))
        return replace(base, name=own, kind="flag", off=long, default=True, takes=0)
    if action == "BooleanOptionalAction":
        return replace(base, kind="flag", on=long, off=f"--no-{long[2:]}", takes=0)
    if action in ("store_const", "append_const", "count", "version", "help"):
        return replace(base, name=_plain(long), kind="flag", on=long, default=False, takes=0)
    if kind == "flag":
        return _text_flag(base, long)
    prefix = _prefix(long) if long.startswith("-") else ""
    return replace(base, kind=kind or kind_of(base.default), prefix=prefix)


def _best_name(names: Sequence[str]) -> str:
    """Of an option's names the one that means something to autotune; else the first long one."""
    long = [name for name in names if name.startswith("--")] or list(names)
    return next((name for name in long if target_of(_plain(name)) is not None), long[0])


def _prefix(name: str) -> str:
    """What stands before the value: `-b8`, `--batch-size=8`, `-batch_size=8`."""
    return name if len(name) == 2 else f"{name}="


def _hugging_face(tree: ast.Module, calls: list[ast.Call]) -> Iterator[ScriptOption]:
    parser = next(
        (call for call in calls if called_name(call) in ("HfArgumentParser", "TrlParser")), None
    )
    if parser is None:
        return
    classes = {node.name: node for node in ast.walk(tree) if isinstance(node, ast.ClassDef)}
    for name in _named_types(parser, tree):
        declared = classes.get(name)
        bases = list(_bases(declared, classes)) if declared else [name]
        library = next(
            (
                options
                for ending, options in TRAINER_ARGUMENTS
                if any(b.endswith(ending) for b in bases)
            ),
            (),
        )
        line = declared.lineno if declared else parser.lineno
        own = list(_fields(declared, classes, style="hf")) if declared else []
        yield from own
        # with defaults of its own, in place of the library's
        told = {option.name for option in own}
        yield from (replace(option_of(*each), line=line) for each in library if each[0] not in told)


def _named_types(parser: ast.Call, tree: ast.Module) -> Iterator[str]:
    """Names of the dataclasses that the parser is given, also by a variable: `types = (A, B); HfArgumentParser(types)`."""
    assigned = {
        last_name(node.targets[0]): node.value
        for node in ast.walk(tree)
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Tuple | ast.List)
    }
    for argument in parser.args:
        if isinstance(argument, ast.Name):
            argument = assigned.get(argument.id, argument)
        yield from (node.id for node in ast.walk(argument) if isinstance(node, ast.Name))


def _dataclasses(tree: ast.Module, calls: list[ast.Call]) -> Iterator[ScriptOption]:
    classes = {node.name: node for node in ast.walk(tree) if isinstance(node, ast.ClassDef)}
    for call in calls:
        text = ast.unparse(call.func)
        is_reader = text in ("tyro.cli", "jsonargparse.CLI", "CLI", "simple_parsing.parse", "parse")
        # the last one is simple_parsing's
        if call.args and (is_reader or called_name(call) == "add_arguments"):
            root = classes.get(last_name(call.args[0]))
            if root is not None:
                yield from _fields(root, classes, style="tyro" if text == "tyro.cli" else "plain")


def _bases(declared: ast.ClassDef, classes: dict[str, ast.ClassDef]) -> Iterator[str]:
    """Names of the classes that it derives from, the nearest first."""
    for base in map(last_name, declared.bases):
        yield base
        if base in classes and classes[base] is not declared:
            yield from _bases(
                classes[base], {name: node for name, node in classes.items() if name != base}
            )


def _annotated_fields(
    declared: ast.ClassDef, classes: dict[str, ast.ClassDef]
) -> Iterator[ast.AnnAssign]:
    """The fields of a dataclass: its own, and those of its bases that it does not declare anew."""
    seen: set[str] = set()
    for node in (
        declared,
        *(classes[base] for base in _bases(declared, classes) if base in classes),
    ):
        for field in node.body:
            if (
                isinstance(field, ast.AnnAssign)
                and isinstance(field.target, ast.Name)
                and field.target.id not in seen
            ):
                seen.add(field.target.id)
                yield field


def _fields(
    declared: ast.ClassDef, classes: dict[str, ast.ClassDef], *, style: str, prefix: str = ""
) -> Iterator[ScriptOption]:
    for node in _annotated_fields(declared, classes):
        assert isinstance(node.target, ast.Name)
        inner = classes.get(last_name(node.annotation))
        if inner is not None:
            yield from _fields(inner, classes, style=style, prefix=f"{prefix}{node.target.id}.")
            continue
        value, has_default = node.value, node.value is not None
        offered: tuple[Any, ...] = ()
        if isinstance(value, ast.Call) and called_name(value) == "field":
            given = keywords_of(value)
            has_default = "default" in given or "default_factory" in given
            metadata = literal_or_none(given.get("metadata"))
            if isinstance(metadata, dict):
                offered = tuple(metadata.get("choices") or ())
            value = given.get("default", _made_by(given.get("default_factory")))
        default = literal_or_none(value)
        kind = next(
            (k for word, k in KINDS.items() if word in ast.unparse(node.annotation)),
            kind_of(default),
        )
        option = option_of(f"{prefix}{node.target.id}", kind, default, style=style)
        aliases = tuple(_aliases(node))
        yield replace(
            option,
            is_required=not has_default,
            line=node.lineno,
            choices=_choices(node.annotation) or offered,
            computed=condition_of(value),
            names=(f"--{prefix}{node.target.id}", *aliases) if aliases else (),
        )


def _made_by(factory: ast.expr | None) -> ast.expr | None:
    """What `lambda: [...]` gives."""
    return factory.body if isinstance(factory, ast.Lambda) else None


def _aliases(node: ast.AST) -> Iterator[str]:
    """Other names of a field: `aliases=["-b"]`, `metadata={"aliases": ["-b"]}`, `alias="-b"`."""
    for part in ast.walk(node):
        pairs: list[tuple[Any, ast.expr]] = []
        if isinstance(part, ast.Call):
            pairs = list(keywords_of(part).items())
        elif isinstance(part, ast.Dict):
            pairs = [
                (literal_or_none(key), value)
                for key, value in zip(part.keys, part.values, strict=True)
            ]
        for key, value in pairs:
            if key in ("alias", "aliases"):
                said = literal_or_none(value)
                for word in [said] if isinstance(said, str) else said or ():
                    dashes = "-" if len(word) == 1 else "--"
                    yield word if word.startswith("-") else f"{dashes}{word}"


def _kind_of_type(node: ast.expr) -> str:
    """The kind of an option by the `type` of its `add_argument`."""
    return KINDS.get(last_name(node), "flag" if "bool" in ast.unparse(node) else "text")


def _choices(annotation: ast.expr) -> tuple[Any, ...]:
    """The values of `Literal["a", "b"]`."""
    if isinstance(annotation, ast.Subscript) and last_name(annotation.value) == "Literal":
        found = literal_or_none(annotation.slice)
        if found is not None:
            return found if isinstance(found, tuple) else (found,)
    return ()


def option_of(name: str, kind: str, default: Any, *, style: str = "hf") -> ScriptOption:
    """An option that is a field: `--name=value`, a flag by true and false, or by `--name` and `--no-name` for tyro."""
    base = ScriptOption(name=_plain(name), kind=kind, default=default)
    flag = f"--{name}"
    if kind != "flag":
        return replace(base, prefix=f"{flag}=")
    if style == "tyro":
        head, dot, last = name.rpartition(".")
        return replace(base, on=flag, off=f"--{head}{dot}no-{last}")
    return _text_flag(base, flag)


_LIGHTNING_PARTS = {"DataModule": "data", "LightningModule": "model"}


def _lightning(tree: ast.Module, calls: list[ast.Call]) -> Iterator[ScriptOption]:
    cli = next((call for call in calls if called_name(call) == "LightningCLI"), None)
    if cli is None:
        return
    for name, kind, default in LIGHTNING_TRAINER:
        yield replace(option_of(f"trainer.{name}", kind, default), line=cli.lineno)
    for node in ast.walk(tree):
        if not isinstance(node, ast.ClassDef):
            continue
        bases = " ".join(ast.unparse(base) for base in node.bases)
        part = next((part for base, part in _LIGHTNING_PARTS.items() if base in bases), "")
        init = next(
            (
                item
                for item in node.body
                if isinstance(item, ast.FunctionDef) and item.name == "__init__"
            ),
            None,
        )
        if part and init:
            yield from _parameters(init, prefix=f"{part}.")


def _absl(tree: ast.Module, calls: list[ast.Call]) -> Iterator[ScriptOption]:
    kinds = {
        "DEFINE_integer": "int",
        "DEFINE_float": "float",
        "DEFINE_string": "text",
        "DEFINE_bool": "flag",
        "DEFINE_boolean": "flag",
        "DEFINE_enum": "text",
    }
    for call in calls:
        kind, name = (
            kinds.get(called_name(call)),
            literal_or_none(call.args[0]) if call.args else None,
        )
        if kind is None or not isinstance(name, str):
            continue
        default = literal_or_none(call.args[1]) if len(call.args) > 1 else None
        short = literal_or_none(keywords_of(call).get("short_name"))
        names = (f"--{name}", f"-{name}", *((f"-{short}", f"--{short}") if short else ()))
        choices = (
            literal_or_none(call.args[2])
            if called_name(call) == "DEFINE_enum" and len(call.args) > 2
            else ()
        )
        option = ScriptOption(
            name=name,
            kind=kind,
            default=default,
            line=call.lineno,
            choices=tuple(choices or ()),
            names=names,
            takes=1,
        )
        if kind == "flag":
            yield replace(option, on=f"--{name}", off=f"--no{name}", takes=0)
        else:
            yield replace(option, prefix=f"--{name}=")


def _click_argument(call: ast.Call) -> Iterator[ScriptOption]:
    """An argument of click's, which is told by its place."""
    given = keywords_of(call)
    name = literal_or_none(call.args[0]) if call.args else None
    if not isinstance(name, str):
        return
    default, several = literal_or_none(given.get("default")), literal_or_none(given.get("nargs"))
    is_required = literal_or_none(given.get("required", ast.Constant("default" not in given)))
    kind = KINDS.get(last_name(given["type"]), "") if "type" in given else ""
    alone = 1 if is_required else "?"
    nargs = several if isinstance(several, int) and several > 0 else alone
    yield argparse_option(
        [name],
        dest=name,
        action="",
        kind=kind,
        nargs="*" if several == -1 else nargs,
        known=ScriptOption(
            name="", default=default, is_required=bool(is_required), line=call.lineno
        ),
    )


def _click(tree: ast.Module, calls: list[ast.Call]) -> Iterator[ScriptOption]:
    for call in calls:
        if ast.unparse(call.func) in ("click.argument", "argument"):
            yield from _click_argument(call)
        if ast.unparse(call.func) not in ("click.option", "option"):
            continue
        names = [value for node in call.args if isinstance(value := literal_or_none(node), str)]
        if not any(name.startswith("-") for name in names):
            continue
        long = _best_name([name for name in names if name.startswith("-")])
        given = keywords_of(call)
        on, slash, off = long.partition("/")
        dest = next((name for name in names if not name.startswith("-")), on)
        default = literal_or_none(given.get("default"))
        choice = given.get("type")
        choices = (
            literal_or_none(choice.args[0]) if isinstance(choice, ast.Call) and choice.args else ()
        )
        option = ScriptOption(
            name=_plain(on if target_of(_plain(on)) else dest),
            names=tuple(name.partition("/")[0] for name in names if name.startswith("-")),
            takes=1,
            default=default,
            choices=tuple(choices or ()),
            is_required=bool(literal_or_none(given.get("required"))),
            line=call.lineno,
        )
        if slash or literal_or_none(given.get("is_flag")):
            yield replace(
                option, kind="flag", on=on, off=off.strip() or None, default=bool(default), takes=0
            )
        else:
            kind = KINDS.get(last_name(choice), "") if isinstance(choice, ast.expr) else ""
            nargs = literal_or_none(given.get("nargs")) or 1
            yield replace(option, kind=kind or kind_of(default), prefix=_prefix(on), takes=nargs)


def _typer(tree: ast.Module, calls: list[ast.Call]) -> Iterator[ScriptOption]:
    run = {
        last_name(call.args[0])
        for call in calls
        if ast.unparse(call.func) == "typer.run" and call.args
    }
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef):
            decorated = any(
                isinstance(d, ast.Call) and called_name(d) == "command" for d in node.decorator_list
            )
            if decorated or node.name in run:
                yield from _parameters(node, dashes=True)


def _fire(tree: ast.Module, calls: list[ast.Call]) -> Iterator[ScriptOption]:
    main = next(
        (
            call.args[0]
            for call in calls
            if ast.unparse(call.func) in ("fire.Fire", "Fire") and call.args
        ),
        None,
    )
    if main is None:
        return
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef) and node.name == last_name(main):
            yield from _parameters(node)


def _parameters(
    function: ast.FunctionDef, *, prefix: str = "", dashes: bool = False
) -> Iterator[ScriptOption]:
    """The parameters with their defaults; `dashes`: typer's names and flags."""
    parameters = [
        parameter for parameter in function.args.args if parameter.arg not in ("self", "cls")
    ]
    count = len(parameters) - len(function.args.defaults)
    defaults = [None] * count + list(function.args.defaults)
    for parameter, node in zip(parameters, defaults, strict=True):
        said = [
            each for each in (node, *_annotated(parameter.annotation)) if isinstance(each, ast.Call)
        ]
        values = [literal_or_none(arg) for each in said for arg in each.args]
        words = [value for value in values if isinstance(value, str)]
        names = (
            tuple(word.partition("/")[0] for word in words if re.match(r"--?[A-Za-z]", word))
            if dashes
            else ()
        )
        if isinstance(node, ast.Call) and node.args:  # typer.Option(8, "--batch-size")
            node = node.args[0]
        default = literal_or_none(node)
        annotation = "" if parameter.annotation is None else ast.unparse(parameter.annotation)
        kind = next((k for word, k in KINDS.items() if word in annotation), kind_of(default))
        name = f"{prefix}{parameter.arg}"
        written = name.replace("_", "-") if dashes else name
        option = option_of(written, kind, default, style="tyro" if dashes else "hf")
        if names:
            long = _best_name(names)
            option = (
                replace(option, prefix=_prefix(long)) if option.prefix else replace(option, on=long)
            )
        elif not prefix and [each.arg[0] for each in parameters].count(name[0]) == 1:
            names = (
                (f"--{written}",) if dashes else (f"--{written}", f"-{name[0]}")
            )  # of fire: a first letter is enough
        required = node is None and not prefix
        takes = _words_taken(option, has_names=bool(names))
        yield replace(option, is_required=required, line=parameter.lineno, names=names, takes=takes)


def _words_taken(option: ScriptOption, *, has_names: bool) -> int | None:
    """How many words follow the option; None where that is not known."""
    if option.kind == "flag":
        return None if option.prefix else 0
    return 1 if has_names else None


def _annotated(annotation: ast.expr | None) -> Iterator[ast.expr]:
    """What `Annotated[int, typer.Option("--batch-size", "-b")]` says beside the type."""
    if isinstance(annotation, ast.Subscript) and last_name(annotation.value) == "Annotated":
        yield from annotation.slice.elts[1:] if isinstance(annotation.slice, ast.Tuple) else ()


def _configurator(tree: ast.Module, calls: list[ast.Call]) -> Iterator[ScriptOption]:
    """nanoGPT's constants, which `exec(open('configurator.py').read())` overrides. Their types must stay."""
    at = next(
        (
            call.lineno
            for call in calls
            if called_name(call) == "exec" and CONFIGURATOR in ast.unparse(call)
        ),
        0,
    )
    for node in tree.body:
        if (
            node.lineno >= at
            or not isinstance(node, ast.Assign)
            or not isinstance(node.targets[0], ast.Name)
        ):
            continue
        name, value, computed = (
            node.targets[0].id,
            literal_or_none(node.value),
            condition_of(node.value),
        )
        if computed:
            option = ScriptOption(
                name=name, prefix=f"--{name}=", computed=computed, line=node.lineno
            )
            is_flag = not isinstance(node.value, ast.IfExp) or isinstance(
                literal_or_none(node.value.body), bool
            )
            yield _text_flag(option, f"--{name}") if is_flag else option
        elif isinstance(value, bool):
            yield replace(
                _text_flag(ScriptOption(name=name, default=value), f"--{name}"), line=node.lineno
            )
        elif isinstance(value, int | float | str):
            yield ScriptOption(
                name=name, prefix=f"--{name}=", kind=kind_of(value), default=value, line=node.lineno
            )


def overridden_by_file(
    options: Iterable[ScriptOption], name: str, text: str | None
) -> Iterator[ScriptOption]:
    """The options of nanoGPT's configurator with what the Python file `name` sets, which it is started with; a value that the file computes, and each where
    its text is not known, has no default."""
    if text is None:
        yield from (replace(option, default=None, line=0) for option in options)
        return
    assignments = (node for node in ast.parse(text).body if isinstance(node, ast.Assign))
    targets = ((target, node) for node in assignments for target in node.targets)
    lines = {
        target.id: (literal_or_none(node.value), node.lineno)
        for target, node in targets
        if isinstance(target, ast.Name)
    }
    for option in options:
        value, line = lines.get(option.name, (option.default, option.line))
        yield (
            replace(option, default=value, line=line, module=name, computed="")
            if option.name in lines
            else option
        )


def _text_flag(option: ScriptOption, flag: str) -> ScriptOption:
    return replace(option, kind="flag", prefix=f"{flag}=", on="True", off="False")


def _plain(name: str) -> str:
    return name.lstrip("-").replace("-", "_")


def kind_of(value: Any) -> str:
    """int, float, text or flag, by a value."""
    kinds = {bool: "flag", int: "int", float: "float"}  # in this order, because a bool is an int
    return next((kind for of, kind in kinds.items() if isinstance(value, of)), "text")
