"""Parses a training script without running it: its options, its imports, how it is started, and
what it prints.

Only the syntax tree is used. What the script computes (an option's default from another variable,
options added in a loop) stays unknown.

The modules that a script imports from its own folder are parsed, too, because parser, training loop
and print statements may be there:

    from .params import parse_args        in open_clip_train/main.py: open_clip_train/params.py
    from pkg.train import run             in pkg/train_fast.py, started in the folder above: pkg/train.py

Their code under `if __name__ == "__main__"` is left out.

Defaults of options may depend on a condition of the machine where the script runs:

    dtype = "bfloat16" if torch.cuda.is_available() and torch.cuda.is_bf16_supported() else "float16"

CPU ranks have no CUDA. A GPU of the catalog has CUDA and the number formats that the catalog lists.
Any other condition is unknown, and so is each of them if no cluster is named. Then only the
possible values are known.
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
from autotune.spec.texts.usual_names import setting_of

MAX_MODULES = 40
"""limit on the modules that are parsed for one program"""
MAX_BYTES = 1 << 19
"""size limit of a module in bytes; larger ones hold data"""


def imported_modules(tree: ast.Module, file: Path, base: Path) -> Iterator[tuple[str, ast.Module]]:
    """(file name, statements) of the imported modules that are next to `file`, or under `base` or
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
    """Files of the modules that these statements import, as far as they are found."""
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
    """The file of a module in the first of these folders that has it."""
    for place in places:
        for path in (
            place / f"{module.replace('.', '/')}.py",
            place / module.replace(".", "/") / "__init__.py",
        ):
            if path.is_file():
                yield path
                return


def _without_main(tree: ast.Module) -> ast.Module:
    """The module without its code under `if __name__ == "__main__"`."""
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
"""a shell variable that may contain any number of options"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Script:
    """A parsed training script."""

    name: str
    """file name"""
    options: tuple[ScriptOption, ...]
    """command-line options in the order of their declaration"""
    parser: str
    """the parser of the options: argparse, dataclass, click, typer, configurator, absl, fire,
    LightningCLI; empty: no options are parsed"""
    code: Code = NO_CODE
    """properties of its code"""
    in_code: Mapping[str, InCode] = field(default_factory=dict)
    """knobs that the code sets regardless of options"""
    constants: tuple[ScriptOption, ...] = ()
    """numbers in the code that no option changes"""
    overridden: str = ""
    """the settings file whose keys the command overrides with `key=value` (Hydra, OmegaConf);
    empty: none"""
    by_deepspeed: bool = False
    """whether accelerate's launcher trains with DeepSpeed"""
    started: Started | None = None
    """how a launch script starts it; None: unknown"""
    is_read: bool = True
    """False if the code was not found, so that only the launch is known"""
    written: Written | None = None
    """arguments that the code itself passes to transformers' or Lightning's Trainer"""
    beyond: str = ""
    """class of trainer arguments whose step does more than train (`BEYOND`); empty: none"""
    adapted: tuple[str, bool] = ("", False)
    """(the call that adds adapters to the model, whether it is unconditional); empty if the
    adapters are passed to a trainer"""
    told_in: str | None = None
    """section of a settings file that is the only source of its options, empty for the whole file;
    None: the command can set options"""
    unread: str = ""
    """a call with trainer arguments that were not understood, with its line; empty: none"""

    @property
    def arguments(self) -> tuple[Argument, ...]:
        """The arguments that the launch passes; empty if the launch is unknown."""
        return self.started.arguments if self.started else ()

    @property
    def given(self) -> dict[str, str]:
        """The spelling of each option that the launch passes, by name."""
        named = (argument for argument in self.arguments if argument.name)
        return {each.name: each.words[0].lstrip("-").partition("=")[0] for each in named}

    @property
    def said(self) -> dict[str, Any]:
        """Current values of the options, declared or passed, by the last part of their names."""
        values = {option.name.rpartition(".")[2]: option.present for option in self.options}
        for argument in self.arguments:
            if argument.name and argument.name not in values:
                value: Any = argument.values[0] if argument.values else True
                values[argument.name] = int(value) if str(value).isdecimal() else value
        return values

    @property
    def held_elsewhere(self) -> str:
        """Unset shell variables in the launch that may contain further options."""
        words = (word for argument in self.arguments for word in argument.words)
        return ", ".join(dict.fromkeys(word for word in words if _HOLDS_OPTIONS.fullmatch(word)))

    @property
    def spawns(self) -> bool:
        """Whether the program starts its own ranks, without a launcher."""
        is_alone = self.started is None or self.started.launcher == "python"
        spawns = self.code.spawned is not None and not self.is_off(self.code.spawns_if)
        return is_alone and (spawns or self._has_devices)

    @property
    def is_without_deepspeed(self) -> bool:
        """Whether the script has a switch for DeepSpeed that is off."""
        return self.is_off(_DEEPSPEED)

    def is_off(self, switches: frozenset[str]) -> bool:
        """Whether one of these options is a flag that is not set."""
        return any(o.name in switches and o.kind == "flag" and not o.present for o in self.options)

    @property
    def _has_devices(self) -> bool:
        """Whether the script uses Lightning, which starts one rank per device, with several devices."""
        counts = [o.present for o in self.options if setting_of(o.last) == "nproc_per_node"]
        several = (each for each in counts if type(each) is int and each not in (0, 1))
        return self.started is not None and self.is_of_lightning and any(several)

    @property
    def is_of_lightning(self) -> bool:
        """Whether it imports Lightning, whose Trainer starts ranks and trains."""
        return not self.code.imports.isdisjoint(("lightning", "pytorch_lightning"))

    @property
    def launcher(self) -> str:
        """The launcher of the launch script. Without one: torchrun, accelerate, deepspeed or
        python, by the imports. DeepSpeed's launcher passes --local_rank to each rank; torchrun does
        not."""
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
    """Whether the launch is one process, however large the cluster is: without a launcher, or with
    accelerate's on CPUs."""
    options = script.started.options if script.started else ()
    on_cpu = script.launcher == "accelerate" and any(option.name == "cpu" for option in options)
    by_ray = "ray" in script.code.imports  # whose workers are the ranks
    return not script.spawns and (on_cpu or (script.launcher == "python" and not by_ray))


def read_script(
    name: str, text: str, *, file: Path | None = None, base: Path | None = None
) -> Script:
    """The parsed script. `file`: its path, to find modules that it imports; `base`: the folder in
    which it runs. Raises `SpecError` if the text is not Python."""
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
    has_plain_options = not overridden and parser not in _OF_LIBRARIES
    written = written_arguments(own) if has_plain_options else None
    # defaults of OmegaConf's settings apply only if no file sets them
    if not options and not overridden and not own.calls("from_cli"):
        written = written or written_constants(own)
        if written is not None and written.parser == "Lightning" and written.computed:
            written = None
    unread = unread_arguments(own) if has_plain_options and options and written is None else ""
    if options and written is not None and not written.adds_to(options):
        written = None
    if options and written is None and has_plain_options and not unread:
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
        told_in=_config_section(code.body) if parser == "HfArgumentParser" else None,
        unread=unread,
    )


def _config_section(text: Text) -> str | None:
    """The section of a file that HfArgumentParser reads instead of the command:
    `parse_yaml_file(file)`, `parse_dict(settings["training"])`. Empty for the whole file; None if
    it reads the command."""
    parse_calls = (call for call in text.calls("parse") if not (call.args or call.keywords))
    if text.calls("parse_args_into_dataclasses", "parse_args_and_config") or any(parse_calls):
        return None
    for call in text.calls("parse_yaml_file", "parse_json_file", "parse_dict"):
        source = call.args[0] if call.args else None
        subscript = source.slice if isinstance(source, ast.Subscript) else None
        return str(literal_or_none(subscript) or "") if called_name(call) == "parse_dict" else ""
    return None


def _parser_of(modules: Sequence[tuple[str, ast.Module]]) -> tuple[str, tuple[ScriptOption, ...]]:
    """(parser, options) of the first imported module that parses options; its dataclasses may be in
    other modules."""
    nodes = (node for _, module in modules for node in module.body)
    classes = [node for node in nodes if isinstance(node, ast.ClassDef)]
    for name, module in modules:
        own = {node.name for node in module.body if isinstance(node, ast.ClassDef)}
        others = [node for node in classes if node.name not in own]
        parser, options = options_of(Text.of(*module.body, *others))
        if options:
            return parser, tuple(replace(option, module=name) for option in options)
    return "", ()


def _overridden(text: Text) -> str:
    """The settings file of `@hydra.main(config_path=..., config_name=...)`, or the one that a
    script with `OmegaConf.from_cli()` loads; empty if there is none."""
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
    """The script with the defaults that apply on the cluster of `place`."""
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
        knob: setting
        for knob, setting in script.in_code.items()
        if setting.value != "tf32" or not place.is_cpu
    }
    return replace(script, options=options, in_code=in_code)


def _value(node: ast.expr, facts: dict[str, bool]) -> Any:
    """The value of a conditional expression under these facts; None if unknown."""
    if not isinstance(node, ast.IfExp):
        found = _holds(node, facts)
        return literal_or_none(node) if found is None else found
    holds = _holds(node.test, facts)
    if holds is None:
        return None
    return _value(node.body if holds else node.orelse, facts)


def _holds(node: ast.expr, facts: dict[str, bool]) -> bool | None:
    """Whether a condition is true under these facts; None if unknown."""
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
