"""A training script, read without running it: its options, its imports, how it is started, and what it prints.

Only the syntax tree is looked at. What the script computes (an option's default from another variable, options added in a loop) stays unknown.

The modules beside a script that it imports, read without running them: its parser, its training loop and its print statements may be there.

    from .params import parse_args        in open_clip_train/main.py: open_clip_train/params.py
    from pkg.train import run             in pkg/train_fast.py, started in the folder above: pkg/train.py

What a module does only when it is started itself (`if __name__ == "__main__"`) is left out.
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
from autotune.onboarding.launch.launch_script import Argument, Started
from autotune.onboarding.script.library_options import BEYOND
from autotune.onboarding.script.options import ScriptOption, constants_of, options_of
from autotune.onboarding.script.print_statements import (
    CountedLoop,
    Printed,
    counted_loops,
    is_known,
    patterns_of,
    print_statements,
)
from autotune.onboarding.script.syntax import (
    called_name,
    calls_of,
    keywords_of,
    last_name,
    literal_or_none,
)
from autotune.onboarding.script.unconditional import InCode, adapts, offloads, shards, unconditional
from autotune.onboarding.script.written_arguments import (
    Written,
    loaded_as,
    loaded_model,
    loaded_without_dtype,
    unread_arguments,
    written_adapters,
    written_arguments,
)
from autotune.onboarding.script.written_constants import written_constants
from autotune.spec.texts.usual_names import WORDS

MAX_MODULES = 40
"""modules that are read of one program"""
MAX_BYTES = 1 << 19
"""larger ones hold data"""


def imported_modules(tree: ast.Module, file: Path, base: Path) -> Iterator[tuple[str, ast.Module]]:
    """(name of the file, its statements) of the modules that lie beside `file` or under `base`, the nearest first."""
    queue, seen = [(tree, file)], {file.resolve()}
    while queue and len(seen) <= MAX_MODULES:
        importer, at = queue.pop(0)
        for path in _imported(importer, at, base):
            if path.resolve() in seen or len(seen) > MAX_MODULES:
                continue
            seen.add(path.resolve())
            with suppress(OSError, ValueError, SyntaxError, RecursionError):
                if path.stat().st_size <= MAX_BYTES:
                    found = _without_main(ast.parse(path.read_text(encoding="utf-8-sig")))
                    queue.append((found, path))
                    yield path.name, found


def _imported(tree: ast.Module, file: Path, base: Path) -> Iterator[Path]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield from _files(alias.name, (file.parent, base))
        elif isinstance(node, ast.ImportFrom):
            above = file.parent
            for _ in range(node.level - 1):
                above = above.parent
            places = (above,) if node.level else (file.parent, base)
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


_RANKS = re.compile(
    r"world|n_?gpus?\b|n_?gpus_|num_(gpus|devices|processes|replicas|ranks)|nproc|device_count|dp_size|data_parallel"
)
"""what a number of ranks is called"""
_DISTRIBUTED = re.compile(
    r"\b(LOCAL_RANK|init_process_group|DistributedDataParallel|init_device_mesh|fully_shard)\b"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Script:
    """What a script's text says."""

    name: str
    """file name"""
    options: tuple[ScriptOption, ...]
    """what can be given on its command line, in the order in which it is declared"""
    parser: str
    """what reads them: argparse, dataclass, click, typer, configurator, absl, fire, LightningCLI; empty: nothing does"""
    imports: frozenset[str]
    """top-level names of the packages that it imports"""
    is_distributed: bool
    """whether it expects torchrun's environment"""
    spawned: int | None = None
    """how many processes of torch that train together its text starts (`mp.spawn`); 0: as many as is computed; None: it starts none"""
    divided: frozenset[str] = frozenset()
    """names that it divides by the number of ranks, as nanoGPT its accumulation steps"""
    variables: Mapping[str, Any] = field(default_factory=dict)
    """the environment variables that it reads, with their defaults; None: none is known"""
    constants: tuple[ScriptOption, ...] = ()
    """numbers that it sets in its own text, which no option changes"""
    autocast: str = ""
    """the number format that its calls of autocast name; empty where they name none, or several"""
    is_switched: bool = False
    """whether something other than the device switches that autocast on (`enabled=USE_AMP`)"""
    plain_on_cpu: int = 0
    """line by which it computes without autocast on CPUs, whatever it is told; 0: none"""
    formats: frozenset[str] = frozenset()
    """narrow number formats that its code names"""
    in_code: Mapping[str, InCode] = field(default_factory=dict)
    """the knobs that its code sets whatever it is told"""
    shards: bool = False
    """whether a call of torch's FSDP is anywhere in its text or in a module that it imports, under whatever condition"""
    offloads: str = ""
    """the call by which weights may wait on the host (`unconditional.offloads`); empty: there is none"""
    overridden: str = ""
    """the file of settings any of which its command overrides by `key=value`: Hydra's, or OmegaConf's"""
    optimizers: tuple[str, ...] = ()
    """the optimizers of parameters that its text makes, by the names of their classes"""
    by_deepspeed: bool = False
    """whether accelerate's launcher runs its steps by DeepSpeed"""
    started: Started | None = None
    """how a launch script starts it; None: not known"""
    is_read: bool = True
    """whether its text is known, and not only how it is started"""
    printed: tuple[Printed, ...] = ()
    """its print statements"""
    loops: tuple[CountedLoop, ...] = ()
    """its loops over a range within other loops"""
    written: Written | None = None
    """what its text gives transformers' or Lightning's Trainer beside its options"""
    beyond: str = ""
    """the class of a trainer's arguments whose step does more than train (`BEYOND`); empty: none"""
    loads_as: tuple[str, int] = ("", 0)
    """(type of the weights, line) of the models that its text loads (`loaded_as`)"""
    untyped: int = 0
    """the line that loads a model without saying the type of its weights"""
    loaded: tuple[str, int] | None = None
    """(name, line) of the model that it loads, if its text names a single one and trains all its weights"""
    adapted: tuple[str, bool] = ("", False)
    """the call by which its text gives a model adapters, and whether that is under no condition (`unconditional.adapts`); not where a trainer is told of them"""
    adapters: Mapping[str, Any] | None = None
    """these adapters as a workload has them; None where the text does not say them plainly"""
    targets: tuple[str, ...] = ()
    """the matrices that its text gives adapters (`LoraConfig(target_modules=[...])`)"""
    computes_targets: bool = False
    """whether its text computes them"""
    pipelined: str = ""
    """the call of its text that makes pipeline stages"""
    initializes_deepspeed: bool = False
    """whether its text makes an engine of DeepSpeed"""
    unread: str = ""
    """arguments of a trainer in its text that are not understood beside its options, and their line"""

    @property
    def arguments(self) -> tuple[Argument, ...]:
        """What it is started with, as far as that is known."""
        return self.started.arguments if self.started else ()

    @property
    def spawns(self) -> bool:
        """Whether it starts its ranks itself, without a launcher."""
        return self.spawned is not None and (
            self.started is None or self.started.launcher == "python"
        )

    @property
    def launcher(self) -> str:
        """What a launch script starts it by, and nothing else; where none is known, torchrun, accelerate, deepspeed or python by what it imports.
        DeepSpeed's own tells each rank its number by an option, which torchrun does not."""
        if self.started is not None:
            return self.started.launcher
        if self.spawns:
            return "python"
        if "accelerate" in self.imports:
            return "accelerate"
        if "deepspeed" in self.imports:
            return (
                "deepspeed"
                if any(option.name == "local_rank" for option in self.options)
                else "torchrun"
            )
        starts_ranks = (
            self.is_distributed
            or "lightning" in self.imports
            or "pytorch_lightning" in self.imports
        )
        return "torchrun" if starts_ranks or self.parser == "HfArgumentParser" else "python"


def starts_one(script: Script) -> bool:
    """Whether its launch is one process whatever the cluster has: without a launcher, and with accelerate's on CPUs."""
    told = (
        {option.name for option in script.started.options} if script.started is not None else set()
    )
    if script.spawns:
        return False
    return script.launcher == "python" or (script.launcher == "accelerate" and "cpu" in told)


def read_script(
    name: str, text: str, *, file: Path | None = None, base: Path | None = None
) -> Script:
    """The script of that text. Raises `SpecError` where it is no Python. `file`: where it lies, so that a parser which it imports is found; `base`: the
    folder in which it runs."""
    try:
        tree = ast.parse(text)
    except (SyntaxError, ValueError, RecursionError) as error:
        line = getattr(error, "lineno", None)
        where = f"{name}:{line}" if line else name
        raise SpecError(
            f"{where} is not Python: {getattr(error, 'msg', error)}",
            remedy="give the training script, or a trainer's configuration file",
            field="FILE",
        ) from None
    parser, options = options_of(tree)
    modules = list(imported_modules(tree, file, base or file.parent)) if file is not None else []
    overridden = _overridden(tree)
    if not options and not overridden:
        parser, options = _parser_of(modules)
    imports_parser = bool(options) and all(option.module for option in options)
    whole = ast.Module(
        body=[*tree.body, *(node for _, module in modules for node in module.body)], type_ignores=[]
    )
    body = whole if imports_parser else tree
    printed = tuple(print_statements(tree))
    is_own = not overridden and parser not in _OF_LIBRARIES
    written = written_arguments(tree) if is_own else None
    if written is None and not options and not overridden:
        written = written_constants(tree)
    if not options and written is not None and written.parser == "Lightning" and written.computed:
        written = None
    unread = unread_arguments(tree) if is_own and options and written is None else ""
    if options and written is not None and not written.adds_to(options):
        written = None
    return Script(
        name=name,
        options=options,
        parser=parser,
        imports=frozenset(_imports(body)),
        is_distributed=_DISTRIBUTED.search(ast.unparse(whole) if imports_parser else text)
        is not None,
        spawned=next(_spawned(whole), None),
        divided=frozenset(_divided(whole)),
        variables=dict(_variables(whole)),
        constants=() if parser == "configurator" else constants_of(tree),
        autocast=_autocast(whole),
        is_switched=_is_switched(whole),
        plain_on_cpu=next(_plain_on_cpu(tree), 0),
        formats=frozenset(_formats(whole if imports_parser else tree)),
        in_code=unconditional(whole if imports_parser else tree),
        shards=shards(whole),
        offloads=offloads(whole),
        overridden=overridden,
        printed=printed
        if patterns_of(printed) or is_known(printed)
        else tuple(print_statements(whole)),
        loops=tuple(counted_loops(tree)),
        written=written,
        beyond=next((name for name in BEYOND if re.search(rf"\b{name}\b", text)), ""),
        loads_as=loaded_as(whole),
        optimizers=tuple(_optimizers(whole)),
        untyped=loaded_without_dtype(tree),
        loaded=loaded_model(tree),
        adapted=("", False) if written else adapts(whole),
        adapters=written_adapters(whole),
        targets=_targets(whole),
        computes_targets=_computes_targets(whole),
        initializes_deepspeed=re.search(r"\bdeepspeed\.initialize\(", text) is not None,
        pipelined=next(_pipelined(whole), ""),
        unread=unread,
    )


def _pipelined(tree: ast.AST) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and called_name(node) in ("PipelineModule", "PipelineStage"):
            stages = keywords_of(node).get("num_stages")
            if stages is None or literal_or_none(stages) != 1:
                said = f"num_stages={ast.unparse(stages)}" if stages is not None else "..."
                yield f"{called_name(node)}({said})"


_SPAWN = re.compile(r"((torch\.)?(multiprocessing|mp)\.)?(spawn|start_processes)")


def _spawned(tree: ast.Module) -> Iterator[int]:
    """How many processes each of torch's starts of several has: `mp.spawn(main, nprocs=4)`, and a loop over `Process(target=main)` whose `main` forms their group."""
    for call in calls_of(tree):
        given = keywords_of(call)
        if given.keys() & {"nprocs", "args"} and _SPAWN.fullmatch(ast.unparse(call.func)):
            yield _number(tree, given.get("nprocs"))
    forming = {
        function.name
        for function in ast.walk(tree)
        if isinstance(function, ast.FunctionDef)
        and any(called_name(call) == "init_process_group" for call in calls_of(function))
    }
    for loop in ast.walk(tree):
        if isinstance(loop, ast.For) and isinstance(loop.iter, ast.Call) and loop.iter.args:
            started = (c for c in calls_of(loop) if called_name(c) == "Process")
            targets = {last_name(keywords_of(c).get("target", c.func)) for c in started}
            if targets & forming and called_name(loop.iter) == "range":
                yield _number(tree, loop.iter.args[-1])


def _number(tree: ast.Module, node: ast.expr | None) -> int:
    """A whole number, also that of a name that is set once; 0 where it is computed."""
    found = literal_or_none(node)
    if isinstance(node, ast.Name):
        sets = (each for each in ast.walk(tree) if isinstance(each, ast.Assign))
        values = [each.value for each in sets if node.id in map(last_name, each.targets)]
        found = literal_or_none(values[0]) if len(values) == 1 else None
    return found if type(found) is int else 0


_OPTIMIZER = re.compile(
    r"(Paged)?(Adam|AdamW|Lion|RMSprop|SGD|LAMB|LARS|Ademamix)(8bit|32bit)?|Adafactor|FusedAdam|DeepSpeedCPUAdam|Muon|SOAP|Shampoo|Sophia\w*|"
    r"Adagrad|Adamax|NAdam|RAdam|Adan|Came|GaLoreAdamW(8bit)?|StableAdamW|\w*LowBit\w*"
)
"""classes of optimizers of torch, transformers, bitsandbytes, apex, DeepSpeed and others"""


def _optimizers(tree: ast.Module) -> Iterator[str]:
    """Each class of optimizer that is made, or given to ZeroRedundancyOptimizer."""
    found: dict[str, None] = {}
    for call in calls_of(tree):
        made = [called_name(call)] if call.args or call.keywords else []
        if made == ["ZeroRedundancyOptimizer"]:  # the class is an argument
            made = [last_name(each) for each in (*call.args, *keywords_of(call).values())]
        found |= {name: None for name in made if _OPTIMIZER.fullmatch(name)}
    yield from found


def _given_targets(tree: ast.Module) -> Iterator[ast.expr]:
    """`target_modules` of each LoraConfig."""
    for call in (
        node
        for node in ast.walk(tree)
        if isinstance(node, ast.Call) and called_name(node) == "LoraConfig"
    ):
        if (given := keywords_of(call).get("target_modules")) is not None:
            yield given


def _targets(tree: ast.Module) -> tuple[str, ...]:
    found = [literal_or_none(given) for given in _given_targets(tree)]
    if len(found) != 1:
        return ()
    names = [found[0]] if isinstance(found[0], str) else found[0]
    return tuple(str(name) for name in names or ())


def _computes_targets(tree: ast.Module) -> bool:
    return any(
        isinstance(given, ast.Call | ast.Name | ast.ListComp) for given in _given_targets(tree)
    )


def _variables(tree: ast.Module) -> Iterator[tuple[str, Any]]:
    """`os.environ.get("NAME", "8")`, `os.getenv("NAME", 8)` and `os.environ["NAME"]`, with the default."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Subscript) and last_name(node.value) == "environ":
            given: list[ast.expr] = [node.slice]
        elif isinstance(node, ast.Call) and re.search(
            r"\b(environ\.get|getenv)$", ast.unparse(node.func)
        ):
            given = node.args
        else:
            continue
        name, default = (literal_or_none(each) for each in (*given, None, None)[:2])
        if isinstance(name, str):
            yield name, default


def _parser_of(modules: Sequence[tuple[str, ast.Module]]) -> tuple[str, tuple[ScriptOption, ...]]:
    """The first parser among the modules that a script imports; dataclasses may lie in others."""
    nodes = (node for _, module in modules for node in module.body)
    classes = [node for node in nodes if isinstance(node, ast.ClassDef)]
    for name, module in modules:
        own = {node.name for node in module.body if isinstance(node, ast.ClassDef)}
        more = [node for node in classes if node.name not in own]
        parser, options = options_of(ast.Module(body=[*module.body, *more], type_ignores=[]))
        if options:
            return parser, tuple(replace(option, module=name) for option in options)
    return "", ()


def _imports(tree: ast.Module) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name.partition(".")[0] for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            yield node.module.partition(".")[0]


def _overridden(tree: ast.Module) -> str:
    """The file of `@hydra.main(config_path=..., config_name=...)`, or the one that a script loads which calls `OmegaConf.from_cli()`."""
    calls = calls_of(tree)
    for call in calls:
        if ast.unparse(call.func) == "hydra.main":
            given = {name: literal_or_none(node) for name, node in keywords_of(call).items()}
            name = str(given.get("config_name") or "config").removesuffix(".yaml")
            return f"{given.get('config_path') or '.'}/{name}.yaml".removeprefix("./")
    if not any(called_name(call) == "from_cli" for call in calls):
        return ""
    loaded = (
        literal_or_none(call.args[0]) for call in calls if called_name(call) == "load" and call.args
    )
    return next(
        (path for path in loaded if isinstance(path, str) and path.endswith((".yaml", ".yml"))), ""
    )


_OF_LIBRARIES = ("HfArgumentParser", "LightningCLI")
"""parsers that read a trainer's arguments themselves"""
_TRAINERS = ("Trainer", "Fabric", "Accelerator")
"""classes that are told a number format as `precision` or `mixed_precision`"""


def _autocast(tree: ast.Module) -> str:
    """The number format that its calls of autocast, or of a trainer's class, name; of autocast without one CUDA's own, fp16. Empty where a variable decides."""
    named: set[str] = set()
    for call in calls_of(tree):
        given = keywords_of(call)
        if called_name(call) == "autocast":
            switch = given.get("enabled")
            if switch is not None and literal_or_none(switch) is False:
                continue
            words = re.findall(r"\btorch\.(bfloat16|float16)\b", ast.unparse(call))
            is_open = "dtype" in given or (
                switch is not None and literal_or_none(switch) is not True
            )
            is_open = is_open or any(isinstance(arg, ast.Name | ast.Attribute) for arg in call.args)
            named |= {"bf16" if word == "bfloat16" else "fp16" for word in words} or (
                set() if is_open else {"fp16"}
            )
        elif called_name(call) in _TRAINERS:
            word = literal_or_none(given.get("precision") or given.get("mixed_precision"))
            named |= {
                value
                for value, words in WORDS["precision"].items()
                if str(word).lower() in words and word
            }
    return named.pop() if len(named) == 1 else ""


def _is_switched(tree: ast.Module) -> bool:
    """Whether a call of autocast is on or off by a value that its text does not say; whether there is a GPU is no such value."""
    said = {
        ast.unparse(node.targets[0]): node.value
        for node in ast.walk(tree)
        if isinstance(node, ast.Assign)
    }
    for call in calls_of(tree):
        switch = keywords_of(call).get("enabled") if called_name(call) == "autocast" else None
        if switch is None:
            continue
        text = ast.unparse(switch)
        is_literal = isinstance(literal_or_none(said.get(text, switch)), bool)
        if not is_literal and not re.search(r"cuda|cpu|device|gpu", text, re.IGNORECASE):
            return True
    return False


def _plain_on_cpu(tree: ast.Module) -> Iterator[int]:
    """Lines of `nullcontext() if device_type == "cpu" else torch.autocast(...)`, and of the same as statements."""
    for node in ast.walk(tree):
        if isinstance(node, ast.IfExp | ast.If):
            test = ast.unparse(node.test)
            branches = (node.body, node.orelse)
            said = [" ".join(map(ast.unparse, b if isinstance(b, list) else [b])) for b in branches]
            if (
                re.search("cpu|cuda", test)
                and sum("autocast" in text for text in said) == 1
                and "nullcontext" in "".join(said)
            ):
                yield node.lineno


def _formats(tree: ast.Module) -> Iterator[str]:
    """Narrow formats in expressions such as `torch.bfloat16`, `model.half()`; and what a trainer's class is told by a variable."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and called_name(node) in _TRAINERS:
            value = keywords_of(node).get("precision") or keywords_of(node).get("mixed_precision")
            if isinstance(value, ast.Name):
                yield f"precision={value.id}"
        if isinstance(node, ast.Attribute) and node.attr in ("bfloat16", "float16", "half"):
            yield "bf16" if node.attr == "bfloat16" else "fp16"


def _divided(tree: ast.Module) -> Iterator[str]:
    """Names in `x //= world_size`, `x // world_size` and `int(args.x / ngpus_per_node)`."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and called_name(node) == "Accelerator":
            if literal_or_none(keywords_of(node).get("split_batches")) is True:
                yield from ("batch_size", "train_batch_size")
            continue
        target: ast.expr
        if isinstance(node, ast.AugAssign) and isinstance(node.op, ast.FloorDiv):
            target, divisor = node.target, node.value
        elif isinstance(node, ast.BinOp) and isinstance(node.op, ast.FloorDiv | ast.Div):
            target, divisor = node.left, node.right
        else:
            continue
        if _RANKS.search(ast.unparse(divisor).lower()):
            yield ast.unparse(target).rpartition(".")[2]
