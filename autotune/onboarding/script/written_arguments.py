"""What a program's own text gives transformers' Trainer or one of trl's, where no option does.

    args = SFTConfig(per_device_train_batch_size=2, bf16=True, fsdp="full_shard")
    model = AutoModelForCausalLM.from_pretrained("Qwen/Qwen3-8B")

They are read as the options of the same names that a launch gives to a program with a parser. A value that the text computes is not known, and nothing is
read where the text trains adapters or quantized weights, which these arguments do not say.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

from autotune.onboarding.launch.launch_script import Argument
from autotune.onboarding.script.library_options import TRAINER_ARGUMENTS
from autotune.onboarding.script.options import ScriptOption, option_of
from autotune.onboarding.script.syntax import called_name, condition_of, keywords_of, literal_or_none

MODEL = "model_name_or_path"
CLASSES = ("TrainingArguments", "SFTConfig")
"""how the names of those classes end whose step is that of plain training"""
_OTHER_TRAININGS = frozenset({
    "peft", "get_peft_model", "LoraConfig", "PeftModel", "peft_config", "BitsAndBytesConfig", "quantization_config", "load_in_4bit", "load_in_8bit", "FastLanguageModel",
})  # fmt: skip
_SAID = frozenset({
    "per_device_train_batch_size", "gradient_accumulation_steps", "bf16", "fp16", "gradient_checkpointing", "torch_compile", "fsdp", "deepspeed", "max_length",
})  # fmt: skip


@dataclass(frozen=True, slots=True)
class Written:
    """The arguments of the one call of a class of arguments."""

    options: tuple[ScriptOption, ...]
    """those that the class has; one whose value is computed has no default"""
    arguments: tuple[Argument, ...]
    """what the text gives them, as a launch would"""
    lines: dict[str, int]
    """the line of each that concerns a knob"""
    is_pure_bf16: bool = False
    """whether it loads the weights themselves in bf16"""


def written_arguments(tree: ast.Module) -> Written | None:
    """Those of a program; None where it calls no such class, or several times."""
    if not _OTHER_TRAININGS.isdisjoint(_names(tree)):
        return None
    calls = [node for node in ast.walk(tree) if isinstance(node, ast.Call)]
    found = [(call, known) for call in calls if (known := _known(call)) is not None]
    if len(found) != 1:
        return None
    call, known = found[0]
    given = keywords_of(call)
    if len(given) < len(call.keywords):
        return None  # `**arguments`
    constants = dict(_constants(tree))
    values = {name: _value(node, constants) for name, node in given.items()}
    values = {name: value for name, value in values.items() if isinstance(value, bool | int | float | str)}
    computed = {name for name, node in given.items() if name not in values and not _is_none(node)}
    options = [option_of(*each) for each in known]
    options = [_computed(o, given[o.name]) if o.name in computed else o for o in options]
    if (model := _model(calls, constants)) is not None:
        values[MODEL] = model
    return Written(
        options=tuple(options),
        arguments=tuple(Argument(name, (str(value),), (f"--{name}={value}",)) for name, value in values.items()),
        lines={name: node.lineno for name, node in given.items() if name in _SAID},
        is_pure_bf16=any(_is_bf16(call) for call in calls if _loads_a_model(call)),
    )


def _names(tree: ast.Module) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Name):
            yield node.id
        elif isinstance(node, ast.Attribute):
            yield node.attr
        elif isinstance(node, ast.keyword) and node.arg and not _is_none(node.value):
            yield node.arg
        elif isinstance(node, ast.Import | ast.ImportFrom):
            yield from (alias.name.partition(".")[0] for alias in node.names)
            yield (getattr(node, "module", None) or "").partition(".")[0]


def _computed(option: ScriptOption, node: ast.expr) -> ScriptOption:
    """The option with a value that is not known; a condition, and any flag's, may be settled by where it runs."""
    text = ast.unparse(node) if option.kind == "flag" else condition_of(node)
    return replace(option, default=None, computed=text, line=node.lineno)


def _known(call: ast.Call) -> tuple[tuple[str, str, Any], ...] | None:
    name = called_name(call)
    known = (options for ending, options in TRAINER_ARGUMENTS if ending in CLASSES and name.endswith(ending))
    return next(known, None)


def _constants(tree: ast.Module) -> Iterator[tuple[str, Any]]:
    """Names that the text sets once, to a literal."""
    names = [node.id for node in ast.walk(tree) if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)]
    for node in ast.walk(tree):
        if isinstance(node, ast.Assign) and len(node.targets) == 1 and isinstance(node.targets[0], ast.Name):
            name, value = node.targets[0].id, literal_or_none(node.value)
            if value is not None and names.count(name) == 1:
                yield name, value


def _value(node: ast.expr, constants: dict[str, Any]) -> Any:
    return constants.get(node.id) if isinstance(node, ast.Name) else literal_or_none(node)


def _is_none(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and node.value is None


def _model(calls: list[ast.Call], constants: dict[str, Any]) -> str | None:
    """The model that it loads, or gives to a trainer by its name; None where it loads several."""
    named: set[Any] = set()
    for call in calls:
        given = keywords_of(call)
        if called_name(call).endswith("Trainer") and "model" in given:
            named.add(_value(given["model"], constants))
        elif _loads_a_model(call):
            first = call.args[0] if call.args else given.get("pretrained_model_name_or_path")
            named.add(None if first is None else _value(first, constants))
    texts = {each for each in named if isinstance(each, str)}
    return texts.pop() if len(texts) == 1 else None


def _loads_a_model(call: ast.Call) -> bool:
    """Whether it is `AutoModelForCausalLM.from_pretrained(...)`, or the same of another decoder's class."""
    if called_name(call) != "from_pretrained" or not isinstance(call.func, ast.Attribute):
        return False
    return ast.unparse(call.func.value).endswith(("ForCausalLM", "LMHeadModel"))


def _is_bf16(call: ast.Call) -> bool:
    given = keywords_of(call)
    said = given.get("dtype") or given.get("torch_dtype")
    return said is not None and ast.unparse(said).strip("'\"").rpartition(".")[2] == "bfloat16"
