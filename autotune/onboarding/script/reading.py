"""A training script, read without running it: its options, its imports, how it is started, and what
it prints.

Only the syntax tree is looked at. What the script computes (an option's default from another
variable, options added in a loop) stays unknown.

The modules beside a script that it imports, read without running them: its parser, its training
loop and its print statements may be there.

    from .params import parse_args        in open_clip_train/main.py: open_clip_train/params.py
    from pkg.train import run             in pkg/train_fast.py, started in the folder above: pkg/train.py

What a module does only when it is started itself (`if __name__ == "__main__"`) is left out.

Defaults of options that a condition decides on the machine where the script runs.

    dtype = "bfloat16" if torch.cuda.is_available() and torch.cuda.is_bf16_supported() else "float16"

On CPU ranks there is no CUDA; a GPU of the catalog is there and has the formats that it is listed
with. Any other condition, and each where no cluster is named, is not known: then the values between
which it decides are all that is said.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from autotune.errors import SpecError
from autotune.onboarding.draft import Place, named_cluster
from autotune.onboarding.launch.launch_script import Argument, Started
from autotune.onboarding.script.code import NO_CODE, Code, InCode
from autotune.onboarding.script.library_options import BEYOND
from autotune.onboarding.script.options import ScriptOption, constants_of, options_of
from autotune.onboarding.script.syntax import Text, called_name, keywords_of, literal_or_none
from autotune.onboarding.script.written_arguments import (
    Written,
    unread_arguments,
    written_arguments,
    written_constants,
)
from autotune.spec.texts.usual_names import target_of

MAX_MODULES = 40
"""modules that are read of one program"""
MAX_BYTES = 1 << 19
"""larger ones hold data"""


def imported_modules(tree: ast.Module, file: Path, base: Path) -> Iterator[tuple[str, ast.Module]]:
    """(name of the file, its statements) of the modules that lie beside `file` or under `base` or
    its `src`, the nearest first."""
    queue, seen = [(tree, file)], {file.resolve()}
    bases = (base, base / "src")
    while queue and len(seen) <= MAX_MODULES:
        importer, at = queue.pop(0)
        for path in _imported(importer, at, bases):
            if path.resolve() in seen or len(seen) > MAX_MODULES:
                continue
            seen.add(path.resolve())
            with suppress(OSError, ValueError, SyntaxError, RecursionError):
                if path.stat().st_size <= MAX_BYTES:
                    found = _without_main(ast.parse(path.read_text(encoding="utf-8-sig")))
                    queue.append((found, path))
                    yield path.name, found


def _imported(tree: ast.Module, file: Path, bases: tuple[Path, ...]) -> Iterator[Path]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield from _files(alias.name, (file.parent, *bases))
        elif isinstance(node, ast.ImportFrom):
            above = file.parent
            for _ in range(node.level - 1):
                above = above.parent
            places = (above,) if node.level else (file.parent, *bases)
            if node.module:
                yield from _files(node.module, places)
            for alias in node.names:
                yield from _files(".".join(filter(None, (node.module, alias.name))), places)


def _files(module: str, places: tuple[Path, ...]) -> Iterator[Path]:
    for place in places:
        for path in (
            place / f"{module.replace('.', '/')}.py",
            place / module.replace(".", "/") / "__init__.py",
        ):
            if path.is_file():
                yield path
                return


def _without_main(tree: ast.Module) -> ast.Module:
    kept = [
        node
        for node in tree.body
        if not (isinstance(node, ast.If) and ast.unparse(node.test).startswith("__name__ =="))
    ]
    return ast.Module(body=kept, type_ignores=[])


_DEEPSPEED = frozenset({"deepspeed", "use_deepspeed", "enable_deepspeed"})
"""names of switches for DeepSpeed"""
_HOLDS_OPTIONS = re.compile(
    r"\$\{?(\w*_)?(args?|arguments|opts?|options?|params?|parameters|flags?)(_\w*)?(\[[@*]\])?\}?",
    re.IGNORECASE,
)
"""a variable of a shell that may hold any number of options"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Script:
    """What a script's text says."""

    name: str
    """file name"""
    options: tuple[ScriptOption, ...]
    """what can be given on its command line, in the order in which it is declared"""
    parser: str
    """what reads them: argparse, dataclass, click, typer, configurator, absl, fire, LightningCLI;
    empty: nothing does"""
    code: Code = NO_CODE
    """what its text does"""
    in_code: Mapping[str, InCode] = field(default_factory=dict)
    """the knobs that its code sets whatever it is told"""
    constants: tuple[ScriptOption, ...] = ()
    """numbers that it sets in its own text, which no option changes"""
    overridden: str = ""
    """the file of settings any of which its command overrides by `key=value`: Hydra's, or
    OmegaConf's"""
    by_deepspeed: bool = False
    """whether accelerate's launcher runs its steps by DeepSpeed"""
    started: Started | None = None
    """how a launch script starts it; None: not known"""
    is_read: bool = True
    """whether its text is known, and not only how it is started"""
    written: Written | None = None
    """what its text gives transformers' or Lightning's Trainer beside its options"""
    beyond: str = ""
    """the class of a trainer's arguments whose step does more than train (`BEYOND`); empty: none"""
    adapted: tuple[str, bool] = ("", False)
    """the call by which its text gives a model adapters, and whether that is under no condition;
    not where a trainer is told of them"""
    told_in: str | None = None
    """the part of a file of settings in which alone its options are told, empty for the whole file;
    None: its command may tell them"""
    unread: str = ""
    """arguments of a trainer in its text that are not understood beside its options, and their
    line"""

    @property
    def arguments(self) -> tuple[Argument, ...]:
        """What it is started with, as far as that is known."""
        return self.started.arguments if self.started else ()

    @property
    def given(self) -> dict[str, str]:
        """The options of the command by name, each as it is written."""
        named = (argument for argument in self.arguments if argument.name)
        return {each.name: each.words[0].lstrip("-").partition("=")[0] for each in named}

    @property
    def said(self) -> dict[str, Any]:
        """The values of the declared options, and of those that are given, by the last part of
        their names."""
        values = {option.name.rpartition(".")[2]: option.present for option in self.options}
        for argument in self.arguments:
            if argument.name and argument.name not in values:
                value: Any = argument.values[0] if argument.values else True
                values[argument.name] = int(value) if str(value).isdecimal() else value
        return values

    @property
    def held_elsewhere(self) -> str:
        """Variables of the launch, set by nobody here, that may hold further options."""
        words = (word for argument in self.arguments for word in argument.words)
        return ", ".join(dict.fromkeys(word for word in words if _HOLDS_OPTIONS.fullmatch(word)))

    @property
    def spawns(self) -> bool:
        """Whether it starts its ranks itself, without a launcher."""
        is_alone = self.started is None or self.started.launcher == "python"
        spawns = self.code.spawned is not None and not self.is_off(self.code.spawns_if)
        return is_alone and (spawns or self._has_devices)

    @property
    def is_without_deepspeed(self) -> bool:
        """Whether the script has a switch for DeepSpeed that is off."""
        return self.is_off(_DEEPSPEED)

    def is_off(self, switches: frozenset[str]) -> bool:
        """Whether one of these switches is a flag that is not set."""
        return any(o.name in switches and o.kind == "flag" and not o.present for o in self.options)

    @property
    def _has_devices(self) -> bool:
        """Whether the script uses Lightning, which starts one rank per device, with several devices."""
        counts = [o.present for o in self.options if target_of(o.last) == "nproc_per_node"]
        several = (each for each in counts if type(each) is int and each not in (0, 1))
        return self.started is not None and self.is_of_lightning and any(several)

    @property
    def is_of_lightning(self) -> bool:
        """Whether it imports Lightning, whose Trainer starts ranks and trains."""
        return not self.code.imports.isdisjoint(("lightning", "pytorch_lightning"))

    @property
    def launcher(self) -> str:
        """What a launch script starts it by, and nothing else; where none is known, torchrun,
        accelerate, deepspeed or python by what it imports. DeepSpeed's own tells each rank its
        number by an option, which torchrun does not."""
        if self.started is not None:
            return self.started.launcher
        if self.spawns:
            return "python"
        if "accelerate" in self.code.imports:
            return "accelerate"
        if "deepspeed" in self.code.imports:
            has_rank = any(option.name == "local_rank" for option in self.options)
            return "deepspeed" if has_rank else "torchrun"
        by_torchrun = self.is_of_lightning or self.parser == "HfArgumentParser"
        return "torchrun" if by_torchrun or self.code.is_distributed else "python"


def starts_one(script: Script) -> bool:
    """Whether its launch is one process whatever the cluster has: without a launcher, and with
    accelerate's on CPUs."""
    options = script.started.options if script.started else ()
    on_cpu = script.launcher == "accelerate" and any(option.name == "cpu" for option in options)
    by_ray = "ray" in script.code.imports  # whose workers are the ranks
    return not script.spawns and (on_cpu or (script.launcher == "python" and not by_ray))


def read_script(
    name: str, text: str, *, file: Path | None = None, base: Path | None = None
) -> Script:
    """The script of that text. Raises `SpecError` where it is no Python. `file`: where it lies, so
    that a parser which it imports is found; `base`: the folder in which it runs."""
    try:
        tree = ast.parse(text)
    except (SyntaxError, ValueError, RecursionError) as error:
        line = getattr(error, "lineno", None)
        where = f"{name}:{line}" if line else name
        raise SpecError(
            f"{where} is not Python: {getattr(error, 'msg', error)}",
            remedy="pass the training script, or a trainer's configuration file",
            field="FILE",
        ) from None
    own = Text(tree)
    modules = list(imported_modules(tree, file, base or file.parent)) if file is not None else []
    classes = ((name, node) for name, module in modules for node in module.body)
    parser, options = options_of(
        own, {n.name: (name, n) for name, n in classes if isinstance(n, ast.ClassDef)}
    )
    overridden = _overridden(own)
    if not options and not overridden:
        parser, options = _parser_of(modules)
    texts = (own, *(Text(module) for _, module in modules))
    whole = Text.of(*(node for each in texts for node in each.tree.body))
    imports_parser = bool(options) and all(option.module for option in options)
    code = Code(own, whole, texts, imports_parser)
    is_own = not overridden and parser not in _OF_LIBRARIES
    written = written_arguments(own) if is_own else None
    # defaults of OmegaConf's settings hold only where no file sets them
    if not options and not overridden and not own.calls("from_cli"):
        written = written or written_constants(own)
        if written is not None and written.parser == "Lightning" and written.computed:
            written = None
    unread = unread_arguments(own) if is_own and options and written is None else ""
    if options and written is not None and not written.adds_to(options):
        written = None
    if options and written is None and is_own and not unread:
        written = written_constants(own, parser, options)
    return Script(
        name=name,
        options=options,
        parser=parser,
        code=code,
        in_code=code.in_code,
        constants=() if parser == "configurator" else constants_of(own),
        overridden=overridden,
        written=written,
        beyond=next((name for name in BEYOND if re.search(rf"\b{name}\b", text)), ""),
        adapted=("", False) if written else code.adapted,
        told_in=_told_in(code.body) if parser == "HfArgumentParser" else None,
        unread=unread,
    )


def _told_in(text: Text) -> str | None:
    """Where a text has HfArgumentParser read a file and never the command: `parse_yaml_file(file)`,
    `parse_dict(settings["training"])`."""
    plain = (call for call in text.calls("parse") if not (call.args or call.keywords))
    if text.calls("parse_args_into_dataclasses", "parse_args_and_config") or any(plain):
        return None
    for call in text.calls("parse_yaml_file", "parse_json_file", "parse_dict"):
        given = call.args[0] if call.args else None
        part = given.slice if isinstance(given, ast.Subscript) else None
        return str(literal_or_none(part) or "") if called_name(call) == "parse_dict" else ""
    return None


def _parser_of(modules: Sequence[tuple[str, ast.Module]]) -> tuple[str, tuple[ScriptOption, ...]]:
    """The first parser among the modules that a script imports; dataclasses may lie in others."""
    nodes = (node for _, module in modules for node in module.body)
    classes = [node for node in nodes if isinstance(node, ast.ClassDef)]
    for name, module in modules:
        own = {node.name for node in module.body if isinstance(node, ast.ClassDef)}
        more = [node for node in classes if node.name not in own]
        parser, options = options_of(Text.of(*module.body, *more))
        if options:
            return parser, tuple(replace(option, module=name) for option in options)
    return "", ()


def _overridden(text: Text) -> str:
    """The file of `@hydra.main(config_path=..., config_name=...)`, or the one that a script loads
    which calls `OmegaConf.from_cli()`."""
    for call in text.calls("main"):
        if ast.unparse(call.func) == "hydra.main":
            given = {name: literal_or_none(node) for name, node in keywords_of(call).items()}
            name = str(given.get("config_name") or "config").removesuffix(".yaml")
            return f"{given.get('config_path') or '.'}/{name}.yaml".removeprefix("./")
    loads = text.calls("load") if text.calls("from_cli") else []
    paths = (str(literal_or_none(call.args[0])) for call in loads if call.args)
    return next((path for path in paths if path.endswith((".yaml", ".yml"))), "")


_OF_LIBRARIES = ("HfArgumentParser", "LightningCLI")
"""parsers that read a trainer's arguments themselves"""


def settled(script: Script, place: Place) -> Script:
    """The script with the defaults that it has at that place."""
    cluster = named_cluster(place.name)
    facts: dict[str, bool] = {}
    if cluster is not None:
        has_bf16 = not cluster.gpu.is_cpu and "bf16" in cluster.gpu.peak_flops_per_s
        facts = {"is_available": not cluster.gpu.is_cpu, "is_bf16_supported": has_bf16}
    options = tuple(
        replace(option, default=_value(ast.parse(option.computed, mode="eval").body, facts))
        if option.computed
        else option
        for option in script.options
    )
    in_code = {
        knob: made
        for knob, made in script.in_code.items()
        if made.value != "tf32" or not place.is_cpu
    }
    return replace(script, options=options, in_code=in_code)


def _value(node: ast.expr, facts: dict[str, bool]) -> Any:
    """The value; None where it is not known."""
    if not isinstance(node, ast.IfExp):
        found = _holds(node, facts)
        return literal_or_none(node) if found is None else found
    holds = _holds(node.test, facts)
    if holds is None:
        return None
    return _value(node.body if holds else node.orelse, facts)


def _holds(node: ast.expr, facts: dict[str, bool]) -> bool | None:
    """Whether a condition holds; None where that is not known."""
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
        inner = _holds(node.operand, facts)
        return None if inner is None else not inner
    if isinstance(node, ast.BoolOp):
        parts = [_holds(value, facts) for value in node.values]
        decides = isinstance(node.op, ast.Or)
        if decides in parts:
            return decides
        return None if None in parts else not decides
    if isinstance(node, ast.Call) and ast.unparse(node.func).startswith(("torch.cuda.", "cuda.")):
        return facts.get(called_name(node))
    return None
