"""What a program's code does regardless of its options: how it starts ranks, computes, shards,
accumulates and prints.

`in_code` has the knobs that the code sets unconditionally:

    model.gradient_checkpointing_enable()            recompute=full; so does fsdp_config={"activation_checkpointing": True}
    model = torch.compile(model)                     compile=true
    fully_shard(model), FSDP(model)                  zero_stage=3; 2 if weights stay gathered between the passes
    ZeroRedundancyOptimizer(...)                     zero_stage=1
    torch.backends.cuda.matmul.allow_tf32 = True     precision=tf32: fp32 is computed as tf32

A test for a GPU does not count as a condition. Statements under any other test are ignored, and so
are functions that are called only under a test.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple, final

from autotune.onboarding.script.print_statements import (
    CountedLoop,
    Printed,
    counted_loops,
    is_known,
    patterns_of,
    print_statements,
)
from autotune.onboarding.script.syntax import (
    Text,
    called_name,
    calls_of,
    is_none,
    keywords_of,
    last_name,
    literal_or_none,
)
from autotune.onboarding.script.written_arguments import (
    loaded_as,
    loaded_model,
    loaded_without_dtype,
    loads_a_model,
    written_adapters,
)
from autotune.spec.texts.fsdp import STAGE_KEYS, fsdp_of, stage_of
from autotune.spec.texts.usual_names import WORDS, setting_of

_RANKS = re.compile(
    r"world|n_?gpus?\b|n_?gpus_|num_(gpus|devices|processes|replicas|ranks)|nproc|device_count|dp_size|data_parallel"
)
"""names for a number of ranks"""
_DISTRIBUTED = re.compile(
    r"\b(LOCAL_RANK|init_process_group|DistributedDataParallel|init_device_mesh|fully_shard)\b"
)
_SPAWN = re.compile(r"((torch\.)?(multiprocessing|mp)\.)?(spawn|start_processes)")
_OPTIMIZER = re.compile(
    r"(Paged)?(Adam|AdamW|Lion|RMSprop|SGD|LAMB|LARS|Ademamix)(8bit|32bit)?|Adafactor|FusedAdam|DeepSpeedCPUAdam|Muon|SOAP|Shampoo|Sophia\w*|"
    r"Adagrad|Adamax|NAdam|RAdam|Adan|Came|GaLoreAdamW(8bit)?|StableAdamW|\w*LowBit\w*"
)
"""classes of optimizers of torch, transformers, bitsandbytes, apex, DeepSpeed and others"""
_TRAINERS = ("Trainer", "Fabric", "Accelerator")
"""classes that take a number format as `precision` or `mixed_precision`"""
_OF_ACCELERATE = re.compile(r"(accelerator|fabric)\.autocast$", re.IGNORECASE)
_RECOMPUTES = frozenset(
    {
        "activation_checkpointing_enable",
        "gradient_checkpointing_enable",
        "enable_gradient_checkpointing",
    }
)
_PREPARES = "prepare_model_for_kbit_training"
UNDER_CONDITION = ", under a condition"
_EXECUTORS = ("AutoExecutor", "SlurmExecutor")
"""submitit's executor classes"""
_SHARDS = ("fully_shard", "FSDP", "FullyShardedDataParallel")
_ALLOWS_TF32 = re.compile(r"(torch\.)?backends\.cuda\.matmul\.allow_tf32")
_GUARDS_NOTHING = re.compile(
    r"__name__ == .*|(torch\.)?cuda\.is_available\(\)|(\w+\.)?device(_type|\.type)? == ['\"]cuda['\"]|use_cuda"
)
_FORMATS = {"torch.bfloat16": "bf16", "torch.float16": "fp16"}
_OF_FORMAT = re.compile(r"amp\b|amp_|fp16|bf16|half|float|mixed|precision|dtype|autocast|cuda|cpu")
_OF_DEVICE = re.compile(r"cuda|cpu|device|gpu", re.IGNORECASE)
_MODEL = re.compile(
    r"(self\.)?(\w+_)?(model|net|network|module|transformer|backbone|unet|dit|policy|ddp)(_\w+)?"
)


class InCode(NamedTuple):
    """The value that the code sets for a knob, regardless of options, and its line."""

    value: Any
    line: int


def _spawns(call: ast.Call) -> bool:
    """Whether the call is torch's `mp.spawn`."""
    is_given = keywords_of(call).keys() & {"nprocs", "args"}
    return bool(is_given) and _SPAWN.fullmatch(ast.unparse(call.func)) is not None


def _offloads(call: ast.Call) -> bool:
    """Whether the call makes FSDP keep weights on the host."""
    given, name = keywords_of(call), called_name(call)
    if name == "CPUOffload":
        return literal_or_none(given.get("offload_params", ast.Constant(value=False))) is not False
    sharded = fsdp_of(*(literal_or_none(given.get(key)) for key in ("fsdp", "fsdp_config")))
    return name == "CPUOffloadPolicy" or (sharded is not None and bool(sharded.weights_on_host))


def _counts_tokens(name: str) -> bool:
    """Whether the name is that of a number of tokens: `tokens_per_step`, `seq_len`, `T`."""
    is_rate = re.search("sec|per_s|tokenizer", name) is not None
    return name == "T" or setting_of(name) == "seq_len" or ("tok" in name and not is_rate)


_NOTHING = Text.of()


@final
@dataclass(frozen=True)
class Code:
    """Properties of a program's code. Without code each has its neutral value."""

    own: Text = _NOTHING
    """the script alone"""
    whole: Text = _NOTHING
    """the script with the modules next to it that it imports"""
    modules: tuple[Text, ...] = ()
    """the script and these modules separately, the nearest first"""
    imports_parser: bool = False
    """whether one of the modules declares the options, and so perhaps has the training loop"""

    @property
    def body(self) -> Text:
        """The code of the training: the script, with the modules if one of them declares the
        options."""
        return self.whole if self.imports_parser else self.own

    @cached_property
    def imports(self) -> frozenset[str]:
        """Top-level names of the imported packages."""
        found: list[str] = []
        for node in self.body.nodes:
            if isinstance(node, ast.Import):
                found += [alias.name for alias in node.names]
            elif isinstance(node, ast.ImportFrom) and not node.level:
                found.append(node.module or "")
        return frozenset(name.partition(".")[0] for name in found)

    @cached_property
    def is_distributed(self) -> bool:
        """Whether the code reads torchrun's environment variables or initializes a process
        group."""
        return _DISTRIBUTED.search(ast.unparse(self.body.tree)) is not None

    @cached_property
    def spawned(self) -> int | None:
        """Number of ranks that the code itself starts: `mp.spawn(main, nprocs=4)`, or a loop over
        `Process(target=main)` if `main` initializes a process group. 0: the number is computed;
        None: it starts none."""
        if call := next(filter(_spawns, self.whole.calls()), None):
            return self._number(keywords_of(call).get("nprocs"))
        forming = {
            each.name for each in self.whole.functions if calls_of(each, "init_process_group")
        }
        for loop in self.whole.nodes:
            if isinstance(loop, ast.For) and isinstance(loop.iter, ast.Call) and loop.iter.args:
                started = calls_of(loop, "Process")
                targets = {
                    last_name(keywords_of(call).get("target", call.func)) for call in started
                }
                if targets & forming and called_name(loop.iter) == "range":
                    return self._number(loop.iter.args[-1])
        return None

    @cached_property
    def spawns_if(self) -> frozenset[str]:
        """Names of the switches that guard `mp.spawn`."""
        return self._switches_of(_spawns)

    def _switches_of(self, matches: Callable[[ast.Call], bool]) -> frozenset[str]:
        """Names of the switches that guard a matching call: `if args.multiprocessing:`."""
        tests = (node for node in self.whole.nodes if isinstance(node, ast.If))
        guards = (
            node for node in tests if any(matches(c) for each in node.body for c in calls_of(each))
        )
        return frozenset(last_name(node.test) for node in guards) - {""}

    @cached_property
    def counts_nodes(self) -> frozenset[str]:
        """Names for a number of nodes, recognized because the code multiplies them by the ranks per
        node: `args.world_size = ngpus_per_node * args.world_size`."""
        products = (each for each in self.whole.assignments if isinstance(each.value, ast.BinOp))
        found = set()
        for node in products:
            parts = {last_name(part) for part in ast.walk(node.value) if isinstance(part, ast.expr)}
            is_product = isinstance(node.value, ast.BinOp) and isinstance(node.value.op, ast.Mult)
            target = last_name(node.targets[0])
            if is_product and target in parts and any(map(_RANKS.search, parts - {target})):
                found.add(target)
        return frozenset(found)

    @cached_property
    def submits(self) -> bool:
        """Whether the script submits its training to a scheduler with submitit, itself or in a
        function that it calls."""
        if self.own.calls(*_EXECUTORS):
            return True
        called = {called_name(call) for call in self.own.calls()}
        return any(
            each.name in called and calls_of(each, *_EXECUTORS) for each in self.whole.functions
        )

    def _number(self, node: ast.expr | None) -> int:
        """The value of an integer literal, or of a name assigned once; 0 if it is computed."""
        if isinstance(node, ast.Name):
            sets = self.whole.assignments
            values = [each.value for each in sets if node.id in map(last_name, each.targets)]
            node = values[0] if len(values) == 1 else None
        found = literal_or_none(node)
        return found if type(found) is int else 0

    @cached_property
    def divided(self) -> frozenset[str]:
        """Names that the code divides by the number of ranks, such as nanoGPT's accumulation steps:
        `x //= world_size`, `x // world_size`, `int(args.x / ngpus_per_node)`."""
        splits = (
            keywords_of(call).get("split_batches") for call in self.whole.calls("Accelerator")
        )
        found = (
            {"batch_size", "train_batch_size"} if True in map(literal_or_none, splits) else set()
        )
        target: ast.expr
        for node in self.whole.nodes:
            if isinstance(node, ast.AugAssign) and isinstance(node.op, ast.FloorDiv):
                target, divisor = node.target, node.value
            elif isinstance(node, ast.BinOp) and isinstance(node.op, ast.FloorDiv | ast.Div):
                target, divisor = node.left, node.right
            else:
                continue
            while isinstance(target, ast.BinOp) and isinstance(target.op, ast.FloorDiv | ast.Div):
                target = target.left  # `batch` in `batch // micro_batch // world_size`
            if _RANKS.search(ast.unparse(divisor).lower()):
                found.add(ast.unparse(target).rpartition(".")[2])
        return frozenset(found)

    @cached_property
    def in_tokens(self) -> frozenset[str]:
        """Names that count tokens, recognized because the code divides them by a number of tokens:
        `total_batch_size // (B * T * world_size)`, `batch % (micro_batch * seq_len)`."""
        found = set()
        for node in self.whole.nodes:
            if isinstance(node, ast.BinOp) and isinstance(
                node.op, ast.FloorDiv | ast.Div | ast.Mod
            ):
                names = re.findall(r"\w+", ast.unparse(node.right))
                if any(map(_counts_tokens, names)):
                    found.add(last_name(node.left))
        return frozenset(found)

    @cached_property
    def variables(self) -> dict[str, Any]:
        """The environment variables that the code reads, with their defaults:
        `os.environ.get("NAME", "8")`, `os.getenv("NAME", 8)` and `os.environ["NAME"]`. None: no
        literal default."""
        found: dict[str, Any] = {}
        for node in self.whole.nodes:
            given: list[ast.expr] = []
            if isinstance(node, ast.Subscript) and last_name(node.value) == "environ":
                given = [node.slice]
            elif isinstance(node, ast.Call) and re.search(
                r"\b(environ\.get|getenv)$", ast.unparse(node.func)
            ):
                given = node.args
            name, default = (literal_or_none(each) for each in (*given, None, None)[:2])
            if isinstance(name, str):
                found[name] = default
        return found

    @cached_property
    def autocast(self) -> str:
        """The number format of all calls of autocast and of trainer classes; fp16, CUDA's default,
        for autocast without one. Empty if they use none or several formats, or a variable."""
        return next(iter(self._autocasts), "") if len(self._autocasts) == 1 else ""

    @cached_property
    def _autocasts(self) -> frozenset[str]:
        """The number formats that these calls use."""
        named: set[str] = set()
        for call in self.whole.calls("autocast"):
            if _OF_ACCELERATE.search(ast.unparse(call.func)):
                continue  # the format comes from the class `Accelerator` or `Fabric`
            given = keywords_of(call)
            switch = self._switch(given["enabled"]) if "enabled" in given else True
            words = re.findall(r"\btorch\.(bfloat16|float16)\b", ast.unparse(call))
            is_open = "dtype" in given or any(
                isinstance(arg, ast.Name | ast.Attribute) for arg in call.args
            )
            if words and switch is not False:
                named |= {"bf16" if word == "bfloat16" else "fp16" for word in words}
            elif switch is not False and not is_open:
                named.add("fp16")
        for call in self.whole.calls(*_TRAINERS):
            word = str(literal_or_none(_precision_of(call)) or "no word").lower()
            named |= {value for value, words in WORDS["precision"].items() if word in words}
        return frozenset(named)

    @cached_property
    def of_policy(self) -> str:
        """The precision in FSDP's mixed-precision policy, which a flag may enable; empty if
        unclear."""
        calls = self.whole.calls("MixedPrecisionPolicy", "MixedPrecision")
        types = [keywords_of(call).get("param_dtype") for call in calls]
        named = {_FORMATS.get(ast.unparse(each), "") for each in types if each is not None}
        return named.pop() if len(named) == 1 else ""

    @cached_property
    def shared_placement(self) -> tuple[str, int]:
        """(`device_map` of the call that loads the model, its line), if it places the model
        identically on every rank: 'auto' and the like, or a literal that names one device; ("", 0)
        otherwise."""
        for call in self.whole.calls("from_pretrained"):
            given = keywords_of(call).get("device_map")
            if given is not None and self.whole.value(given) not in (None, "cpu"):
                return ast.unparse(given), call.lineno
        return "", 0

    @cached_property
    def plain_autocast(self) -> int:
        """Line of an autocast that depends on no switch and on no check of the precision; 0:
        none."""
        tests = (node for node in self.whole.nodes if isinstance(node, ast.If | ast.IfExp))
        of_format = (node for node in tests if _OF_FORMAT.search(ast.unparse(node.test).lower()))
        decided = {id(part) for node in of_format for part in ast.walk(node)}
        calls = (each for each in self.whole.calls("autocast") if id(each) not in decided)
        return next((each.lineno for each in calls if "enabled" not in keywords_of(each)), 0)

    @cached_property
    def is_switched(self) -> bool:
        """Whether a value that the code does not set (`enabled=USE_AMP`) switches autocast on or
        off. A check for a GPU does not count."""
        switches = (keywords_of(call).get("enabled") for call in self.whole.calls("autocast"))
        return any(
            self._switch(each) is None and not _OF_DEVICE.search(ast.unparse(each))
            for each in switches
            if each is not None
        )

    def _switch(self, node: ast.expr) -> bool | None:
        """The value of a switch, also if every assignment gives it the same value; None if
        unknown."""
        named, sets = last_name(node), self.whole.assignments
        values = [literal_or_none(s.value) for s in sets if named in map(last_name, s.targets)]
        is_set = bool(named and values) and all(value is values[0] for value in values)
        found = values[0] if is_set else literal_or_none(node)
        return found if isinstance(found, bool) else None

    @cached_property
    def plain_on_cpu(self) -> int:
        """Line of code that disables autocast on CPUs, regardless of options: `nullcontext() if
        device_type == "cpu" else torch.autocast(...)`, or the same as statements. 0: none."""
        for node in self.own.nodes:
            if isinstance(node, ast.IfExp | ast.If) and re.search(
                "cpu|cuda", ast.unparse(node.test)
            ):
                branches = (node.body, node.orelse)
                branch_texts = [
                    " ".join(map(ast.unparse, b if isinstance(b, list) else [b])) for b in branches
                ]
                if sum(
                    "autocast" in text for text in branch_texts
                ) == 1 and "nullcontext" in "".join(branch_texts):
                    return node.lineno
        return 0

    @cached_property
    def formats(self) -> frozenset[str]:
        """16-bit formats that the code mentions, such as `torch.bfloat16` and `model.half()`; the
        format of an autocast whose switch is unknown; and a variable that sets the precision of a
        trainer class."""
        text = self.body if self.body.calls("backward") else self.whole
        precisions = map(_precision_of, text.calls(*_TRAINERS))
        names = {node.attr for node in text.nodes if isinstance(node, ast.Attribute)}
        found = {f"precision={value.id}" for value in precisions if isinstance(value, ast.Name)}
        found |= {"bf16"} if "bfloat16" in names else set()
        found |= self._autocasts if self.is_switched or len(self._autocasts) > 1 else set()
        return frozenset(found | ({"fp16"} if names & {"float16", "half"} else set()))

    @cached_property
    def printed(self) -> tuple[Printed, ...]:
        """Print statements of the script; also those of its modules, if the script's own are not
        about steps."""
        own = tuple(print_statements(self.own))
        is_enough = patterns_of(own) or is_known(own)
        return own if is_enough else tuple(print_statements(self.whole))

    @cached_property
    def loops(self) -> tuple[CountedLoop, ...]:
        """Loops over a range inside other loops."""
        return tuple(counted_loops(self.own.tree))

    @cached_property
    def optimizers(self) -> tuple[str, ...]:
        """Classes of the optimizers that the code creates, or passes to ZeroRedundancyOptimizer."""
        found: dict[str, None] = {}
        for call in self.whole.calls():
            made = [called_name(call)] if call.args or call.keywords else []
            if made == ["ZeroRedundancyOptimizer"]:  # the class is an argument
                made = [last_name(each) for each in (*call.args, *keywords_of(call).values())]
            found |= {name: None for name in made if _OPTIMIZER.fullmatch(name)}
        return tuple(found)

    @cached_property
    def loads_as(self) -> tuple[str, int]:
        """(dtype, line) of the models that the nearest module loads, as `loaded_as` returns it.
        Other modules may load other models."""
        loading = (each for each in self.modules if any(map(loads_a_model, each.calls())))
        return loaded_as(next(loading, self.whole))

    @cached_property
    def untyped(self) -> int:
        """Line that loads a model without a dtype; 0: none."""
        return loaded_without_dtype(self.own)

    @cached_property
    def loaded(self) -> tuple[str, int] | None:
        """(name, line) of the loaded model, if the code names exactly one and trains all its
        weights; or else None."""
        return loaded_model(self.own)

    @cached_property
    def adapted(self) -> tuple[str, bool]:
        """(the call that adds adapters to the model, with its line; whether it is unconditional);
        ("", False) without adapters."""
        wraps = self.whole.calls("get_peft_model", "inject_adapter_in_model")
        given = {
            id(call): value for call in self.whole.calls() if (value := self._adapters_of(call))
        }
        found = wraps + [call for call in self.whole.calls() if id(call) in given]
        if not found:
            return "", False
        unconditional = {id(node) for node in _unconditional_nodes(self.whole)}
        certain = [
            call
            for call in found
            if id(call) in unconditional and (id(call) not in given or _is_lora(given[id(call)]))
        ]
        call = next(iter(certain or found))
        return f"{called_name(call)} in line {call.lineno}", bool(certain)

    def _adapters_of(self, call: ast.Call) -> ast.expr | None:
        """The adapters that a call passes to a trainer, which adds them to the model; None without
        adapters, or if options decide (TRL's `get_peft_config`)."""
        given = keywords_of(call).get("peft_config")
        if given is None or not called_name(call).endswith("Trainer"):
            return None
        if isinstance(given, ast.Name):
            named = [n for n in self.whole.assignments if ast.unparse(n.targets[0]) == given.id]
            given = named[0].value if len(named) == 1 else given
        by_options = isinstance(given, ast.Call) and called_name(given) == "get_peft_config"
        return None if by_options or is_none(given) else given

    @cached_property
    def adapters(self) -> Mapping[str, Any] | None:
        """The adapters in the code, as `peft` of a workload; None if they cannot be read from
        it."""
        return written_adapters(self.whole)

    @cached_property
    def _given_targets(self) -> list[ast.expr]:
        """The argument `target_modules` of each LoraConfig."""
        given = (keywords_of(call).get("target_modules") for call in self.whole.calls("LoraConfig"))
        return [each for each in given if each is not None]

    @property
    def targets(self) -> tuple[str, ...]:
        """The matrices with adapters (`LoraConfig(target_modules=[...])`); empty if there are
        several LoraConfigs, or none."""
        found = [literal_or_none(given) for given in self._given_targets]
        if len(found) != 1:
            return ()
        return (found[0],) if isinstance(found[0], str) else tuple(map(str, found[0] or ()))

    @property
    def computes_targets(self) -> bool:
        """Whether `target_modules` is computed."""
        return any(
            isinstance(each, ast.Call | ast.Name | ast.ListComp) for each in self._given_targets
        )

    @cached_property
    def pipelined(self) -> str:
        """The call that creates pipeline stages; empty: there is none."""
        for call in self.whole.calls("PipelineModule", "PipelineStage"):
            stages = keywords_of(call).get("num_stages")
            if literal_or_none(stages) != 1:
                arguments = f"num_stages={ast.unparse(stages)}" if stages is not None else "..."
                return f"{called_name(call)}({arguments})"
        return ""

    @cached_property
    def initializes_deepspeed(self) -> bool:
        """Whether the script calls `deepspeed.initialize`."""
        calls = self.own.calls("initialize")
        return any(ast.unparse(call.func) == "deepspeed.initialize" for call in calls)

    @cached_property
    def shards(self) -> bool:
        """Whether the script or a module that it imports calls torch's FSDP under any condition, or
        wraps modules in FSDP's class (`enable_wrap`)."""
        wraps = (keywords_of(call).get("wrapper_cls") for call in self.whole.calls())
        is_wrapped = any(last_name(each) in _SHARDS for each in wraps if each is not None)
        return is_wrapped or any(map(_stage, self.whole.calls(*_SHARDS)))

    @cached_property
    def offloads(self) -> str:
        """The call with which FSDP may keep weights on the host, with its line; empty: there is
        none."""
        call = next(filter(_offloads, self.whole.calls()), None)
        if call is None:
            return ""
        is_plain = any(node is call for node in _unconditional_nodes(self.whole))
        return f"{called_name(call)} in line {call.lineno}{'' if is_plain else UNDER_CONDITION}"

    @cached_property
    def offloads_if(self) -> frozenset[str]:
        """Names of the switches that guard that call."""
        return self._switches_of(_offloads)

    @cached_property
    def casts_nothing(self) -> bool:
        """Whether the code adds adapters itself but skips PEFT's `prepare_model_for_kbit_training`,
        so that nothing is cast to fp32."""
        return "get_peft_model" in self.whole.names and _PREPARES not in self.whole.names

    @cached_property
    def recomputes_4_bits(self) -> bool:
        """Whether PEFT's preparation for 4-bit weights switches recomputation on."""
        return any(map(_recomputes_4_bits, self.body.calls(_PREPARES)))

    @cached_property
    def in_code(self) -> dict[str, InCode]:
        """The knobs that the code sets unconditionally. Of several values the first one counts,
        except for the ZeRO stage, where the highest counts."""
        found: dict[str, InCode] = {}
        for node in _unconditional_nodes(self.body):
            for knob, value in _knobs_set_by(node).items():
                if knob not in found or (knob == "zero_stage" and value > found[knob].value):
                    found[knob] = InCode(value, getattr(node, "lineno", 0))
        return found


NO_CODE = Code()
"""for a program whose code is unknown"""


def _precision_of(call: ast.Call) -> ast.expr | None:
    """The argument of a trainer class that sets the number format; None without one."""
    given = keywords_of(call)
    return given.get("precision") or given.get("mixed_precision")


def _is_lora(node: ast.expr) -> bool:
    return isinstance(node, ast.Call) and called_name(node) == "LoraConfig"


def _unconditional_nodes(text: Text) -> list[ast.AST]:
    """Nodes of the statements that run unconditionally."""
    plain = list(_unconditional(text.tree.body))
    calls = {called_name(node) for node in plain if isinstance(node, ast.Call)}
    every = {called_name(call) for call in text.calls()}
    for function in text.functions:
        if function.name in calls or function.name not in every:
            plain += _unconditional(function.body)
    return plain


def _unconditional(body: list[ast.stmt]) -> Iterator[ast.AST]:
    """Nodes of the statements under no test, without nested functions."""
    for statement in body:
        is_test = isinstance(statement, ast.If)
        if isinstance(statement, ast.If) and not _GUARDS_NOTHING.fullmatch(
            ast.unparse(statement.test)
        ):
            continue
        if isinstance(statement, ast.FunctionDef | ast.AsyncFunctionDef):
            continue
        yield statement
        for name, value in ast.iter_fields(statement):
            if isinstance(value, list) and value and isinstance(value[0], ast.stmt):
                yield from _unconditional(value) if not (is_test and name == "orelse") else ()
            elif (
                isinstance(value, ast.expr) and name != "test" and not isinstance(value, ast.IfExp)
            ):
                yield from ast.walk(value)


def _knobs_set_by(node: ast.AST) -> dict[str, Any]:
    if isinstance(node, ast.Call):
        return _knobs_set_by_call(node, called_name(node), keywords_of(node))
    if not isinstance(node, ast.Assign) or len(node.targets) > 1:
        return {}
    target = ast.unparse(node.targets[0])
    if _ALLOWS_TF32.fullmatch(target) and literal_or_none(node.value) is True:
        return {"precision": "tf32"}
    compiles = isinstance(node.value, ast.Call) and ast.unparse(node.value.func) == "torch.compile"
    return {"compile": True} if compiles and _MODEL.fullmatch(target) else {}


def _knobs_set_by_call(call: ast.Call, name: str, given: Mapping[str, ast.expr]) -> dict[str, Any]:
    fsdp, fsdp_config = (literal_or_none(given.get(key)) for key in ("fsdp", "fsdp_config"))
    if sharded := fsdp_of(fsdp or isinstance(fsdp_config, dict), fsdp_config):
        recomputes = {"recompute": "full"} if sharded.recomputes else {}
        return recomputes | ({"zero_stage": sharded.zero_stage} if sharded.zero_stage != 3 else {})
    if name in _RECOMPUTES:
        return {"recompute": "full"}
    if name == "set_float32_matmul_precision":
        is_tf32 = bool(call.args) and literal_or_none(call.args[0]) in ("high", "medium")
        return {"precision": "tf32"} if is_tf32 else {}
    if name == _PREPARES:
        return {"recompute": "full"} if _recomputes_4_bits(call) else {}
    stage = _stage(call) if name in _SHARDS else int(name == "ZeroRedundancyOptimizer")
    return {"zero_stage": stage} if stage else {}


def _recomputes_4_bits(call: ast.Call) -> bool:
    """Whether a call of PEFT's preparation for 4-bit weights switches recomputation on."""
    switch = keywords_of(call).get("use_gradient_checkpointing", next(iter(call.args[1:]), None))
    return switch is None or literal_or_none(switch) is True


def _stage(call: ast.Call) -> int:
    """The ZeRO stage equivalent to a call of torch's FSDP; 0 if it does not shard."""
    given = keywords_of(call)
    texts = (ast.unparse(given[key]) for key in STAGE_KEYS if key in given)
    return next((stage for text in texts if (stage := stage_of(text)) is not None), 3)
