"""Adapters, frozen weights, the optimizer and what else of the workload the options of a program set, where its text does not.

    use_peft, use_lora, q_lora          whether there are adapters (trl: use_peft, FastChat: q_lora, LLaVA: lora_enable)
    lora_r, lora_rank, lora_dim, r      their rank (trl: lora_r, DeepSpeed-Chat: lora_dim, InternVL: use_llm_lora)
    lora_target_modules                 which matrices have them
    load_in_4bit, q_lora, bits 4        whether the other weights have 4 bits
    modules_to_save                     which matrices are trained beside them
    tuner_type, target_modules, ...     the same in ms-swift
    torch_dtype, dtype                  in which type a program of transformers loads the weights
    optim                               transformers' optimizer
    attn_implementation, attn_impl      `eager` stores the attention scores

A rank that is given, and no switch that is off, means adapters; so does a declared default in a program that imports PEFT.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from autotune.onboarding.script.library_options import GROUPED
from autotune.onboarding.script.reading import Script
from autotune.spec.texts.usual_names import optimizer_named
from autotune.trainers.post_training.adapters import targets_of

NOT_COUNTED = "not modelled: "
"""how notes begin that say what a plan takes otherwise than it is"""
NOT_PREDICTED = "a step is predicted without "
"""how notes begin that say what a plan of a plain training does not have"""
ALL_TRAINED = "planned as if every weight were trained"
"""how notes end of what trains a part of the weights"""
ASSUMED_TARGETS = "adapters are planned on attention alone"
NEEDS_LESS = "the launch needs less memory than predicted"
"""how notes end of what makes a launch smaller than its plan"""
ON_HOST = "weights on the host"
NEEDS_MORE = "the launch needs more memory than predicted"
"""the same of what makes it larger"""
EIGHT_BITS = f"8-bit weights, planned as 16-bit: {NEEDS_LESS}; plans support 4 bits, as in qlora"
_SWITCHES = ("use_peft", "use_lora", "lora", "lora_enable")
_METHODS = ("tuner_type", "train_type", "sft_type")
"""by which ms-swift 4, 3 and 2 say what is trained"""
_RANKS = ("lora_r", "lora_rank", "lora_dim", "use_llm_lora")
_TARGETS = (
    "lora_target_modules",
    "lora_target",
    "lora_modules",
    "lora_module_name",
    "target_modules",
    "trainable",
)
_QLORA = ("q_lora", "qlora", "use_qlora")
_QUANTIZED = (*_QLORA, "load_in_4bit", "use_4bit")
_BITS = ("bits", "quant_bits", "quantization_bit", "load_in_kbits")
_IGNORED = {
    "use_dora": "planned as plain LoRA",
    "lisa_activated_layers": f"{ALL_TRAINED}: {NEEDS_LESS}",
}
"""how options are planned that no plan has"""
_OTHER_LOSS = ("seq_cls", "embedding", "reranker", "generative_reranker")
"""values of ms-swift's `task_type` whose models have no output projection, or a loss of their own"""
_PEFT_RANK = {"use_peft": 16}
"""the default of trl's `ModelConfig`; that of PEFT is 8"""
_FROZEN = re.compile(r"freeze_\w+|\w+_freeze")
_SECOND_MODELS = (
    "vision_model_type",
    "language_model_type",
    "vision_tower",
    "vision_model_name_or_path",
)
_OFF = (None, False, 0, "", "false", "False", "no", "none", "None", "0")


def peft_of(script: Script) -> Mapping[str, Any]:
    """LoRA as a workload has it; empty where the options ask for none."""
    said = _said(script)
    method = _method(said)
    is_on = method == "lora" or any(said.get(name) not in _OFF for name in (*_SWITCHES, *_QLORA))
    is_off = not is_on and (method != "" or any(name in said for name in _SWITCHES))
    given = _given(script)
    ranks = [
        name for name in _RANKS if name in given or ("peft" in script.code.imports and name in said)
    ]
    rank = next(
        (said[name] for name in ranks if isinstance(said[name], int) and said[name] > 0), None
    )
    if is_off or not (is_on or rank):
        return {} if is_off or not script.adapted[1] else script.code.adapters or {}
    usual = (script.code.adapters or {}).get("rank") or next(
        (default for name, default in _PEFT_RANK.items() if name in said), 8
    )
    modules = _modules(script)
    is_quantized = 4 in _bits(said) or any(said.get(name) not in _OFF for name in _QUANTIZED)
    return {
        "method": "qlora" if is_quantized else "lora",
        "rank": rank or usual,
        "targets": targets_of(modules)
        or ("all" if modules or script.code.computes_targets else "attention"),
        "library": "" if "lora_dim" in ranks else "peft",
    }


def loaded_in(script: Script) -> str:
    """The type in which a program of transformers loads its weights, as its option or else its text says it ('bfloat16', 'auto'); empty where neither does."""
    said = _said(script)
    if (
        told := next(
            (said[name] for name in ("torch_dtype", "dtype") if said.get(name) is not None), None
        )
    ) is not None:
        return str(told)
    by_text = script.code.loads_as[0]
    if by_text == "bf16":
        return "bfloat16" if said.get("bf16") not in _OFF else ""
    return "" if by_text == "?" else by_text


def optimizer_of(script: Script) -> str:
    """The optimizer that transformers' Trainer is told to use, as the option calls it; empty where it is not told."""
    return str(_said(script).get("optim") or "")


def made_optimizer(script: Script) -> str:
    """The optimizer that the text of a program makes, by its class; empty where it makes none, or several."""
    return script.code.optimizers[0] if len(script.code.optimizers) == 1 else ""


def of_unknown_optimizer(name: str) -> str:
    """What is said of an optimizer that no plan has."""
    return (
        f"{NOT_COUNTED}the optimizer {name}, planned as AdamW; its own memory and time are unknown"
    )


def is_unfused(script: Script) -> bool:
    """Whether the attention scores are stored."""
    said = _said(script)
    return any(said.get(name) == "eager" for name in ("attn_implementation", "attn_impl"))


def frozen(script: Script) -> Iterator[str]:
    """Notes on options that keep weights from training, add a second model, or name an optimizer, which no plan has."""
    said, given = _said(script), _given(script)
    if (optimizer := optimizer_of(script) or made_optimizer(script)) and optimizer_named(
        optimizer
    ) is None:
        yield of_unknown_optimizer(optimizer)
    if not optimizer_of(script) and len(script.code.optimizers) > 1:
        yield f"{NOT_COUNTED}which of {', '.join(script.code.optimizers)} its source creates, planned as AdamW"
    yield from _of_adapters(script)
    off = [name for name in given if _FROZEN.fullmatch(name.lower()) and said[name] not in _OFF]
    if off and not peft_of(script):
        yield f"{NOT_COUNTED}{_named(given, off)}, {ALL_TRAINED}"
    if (method := _method(said)) not in ("", "lora", "full"):
        yield f"{NOT_COUNTED}{method} ({', '.join(name for name in _METHODS if name in said)}), {ALL_TRAINED}"
    if more := second_models(script):
        yield f"{NOT_COUNTED}a model of several parts ({_named(given, more)}), planned as one decoder"


def _of_adapters(script: Script) -> Iterator[str]:
    """What is planned otherwise than the options of adapters, of quantization and of the task say."""
    said, peft = _said(script), peft_of(script)
    if script.adapted[0] and not (peft or any(name in said for name in (*_SWITCHES, *_METHODS))):
        yield f"{NOT_COUNTED}adapters ({script.adapted[0]}), {ALL_TRAINED}: {NEEDS_LESS}"
    modules = _modules(script)
    if peft and modules and not targets_of(modules):
        unknown = [name for name in modules if not targets_of([name])]
        yield f"{NOT_COUNTED}adapters on {', '.join(unknown)}, planned on all matrices of the layers"
    elif peft and script.code.computes_targets and not modules:
        yield f"{NOT_COUNTED}which matrices {script.name} chooses for its adapters; the plan assumes all matrices of the layers"
    elif peft and not modules and peft["library"] and "use_peft" not in said:
        yield f"{ASSUMED_TARGETS}: no option names the matrices, and this is PEFT's default"
    if peft and (saved := _words_of(script, ("modules_to_save",))):
        yield f"{NOT_COUNTED}{', '.join(saved)} (modules_to_save), planned as frozen, but trained: {NEEDS_MORE}"
    if 8 in _bits(said) or said.get("load_in_8bit") not in _OFF:
        yield f"{NOT_COUNTED}{EIGHT_BITS}"
    for name, how in _IGNORED.items():
        if said.get(name) not in _OFF:
            yield f"{NOT_COUNTED}{name}, {how}"
    if (task := said.get("task_type")) in _OTHER_LOSS:
        yield f"{NOT_COUNTED}task_type={task}, planned with a loss over the vocabulary: {NEEDS_LESS}"
    groups = [name for name in GROUPED if isinstance(said.get(name), int) and said[name] > 0]
    if groups or task in ("embedding", "reranker", "generative_reranker"):
        how = ", ".join(f"{name}={said[name]}" for name in groups) or f"task_type={task}"
        yield f"{NOT_PREDICTED}the other sequences of each sample ({how})"


def _bits(said: Mapping[str, Any]) -> set[Any]:
    """The numbers of bits in which options load the weights."""
    return {said[name] for name in _BITS if name in said}


def second_models(script: Script) -> list[str]:
    """The given options that name a model beside the decoder whose sizes are given."""
    given = _given(script)
    return [name for name in _SECOND_MODELS if name in given]


def _method(said: Mapping[str, Any]) -> str:
    """What ms-swift trains: 'full', 'lora' or another method; empty for other programs. The names of its earlier versions are only there where they are given."""
    return next((str(said[name]) for name in reversed(_METHODS) if name in said), "")


def _named(given: Mapping[str, str], names: list[str]) -> str:
    return ", ".join(f"--{given[name]}" for name in names)


def _given(script: Script) -> dict[str, str]:
    """The options of the command by name, each as it is written."""
    return {
        each.name: each.words[0].lstrip("-").partition("=")[0]
        for each in script.arguments
        if each.name
    }


def _said(script: Script) -> dict[str, Any]:
    """The values of the declared options, and of those that are given, by the last part of their names."""
    values = {option.name.rpartition(".")[2]: option.present for option in script.options}
    for argument in script.arguments:
        if argument.name and argument.name not in values:
            value = argument.values[0] if argument.values else True
            values[argument.name] = int(value) if str(value).isdecimal() else value
    return values


def _modules(script: Script) -> list[str]:
    """Names of the matrices that have adapters, by the options or the text; none where neither says them."""
    return _words_of(script, _TARGETS) or list(script.code.targets)


def _words_of(script: Script, names: tuple[str, ...]) -> list[str]:
    """The names in the values of the first of these options that has any, as the command or else its declaration has it."""
    given = [each for each in script.arguments if each.name in names]
    values = [word for each in given for word in each.values]
    values = values or [
        str(option.present) for option in script.options if option.name in names and option.present
    ]
    paths = re.findall(r"[A-Za-z][\w.]*", " ".join(values).replace("-", "_"))
    return [path.rstrip(".").rpartition(".")[2] for path in paths]
