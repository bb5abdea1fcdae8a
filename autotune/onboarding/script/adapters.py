"""Adapters, frozen weights, the optimizer and what else of the workload the options of a program set, where its text does not.

    use_peft, use_lora, q_lora          whether there are adapters (trl: use_peft, FastChat: q_lora)
    lora_r, lora_rank, lora_dim, r      their rank (trl: lora_r, DeepSpeed-Chat: lora_dim)
    lora_target_modules                 which matrices have them
    load_in_4bit, q_lora                whether the other weights have 4 bits
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

from autotune.onboarding.script.reading import Script
from autotune.spec.texts.usual_names import optimizer_named

NOT_COUNTED = "not modelled: "
"""how notes begin that say what a plan takes otherwise than it is"""
ALL_TRAINED = "planned as if every weight were trained"
"""how notes end of what trains a part of the weights"""
_SWITCHES = ("use_peft", "use_lora", "lora")
_METHODS = ("tuner_type", "train_type", "sft_type")
"""by which ms-swift 4, 3 and 2 say what is trained"""
_RANKS = ("lora_r", "lora_rank", "lora_dim")
_TARGETS = ("lora_target_modules", "lora_target", "lora_modules", "lora_module_name", "target_modules")
_QLORA = ("q_lora", "qlora", "use_qlora")
_QUANTIZED = (*_QLORA, "load_in_4bit", "use_4bit")
_PEFT_RANK = {"use_peft": 16}
"""the default of trl's `ModelConfig`; that of PEFT is 8"""
_FROZEN = re.compile(r"freeze_\w+|\w+_freeze")
_SECOND_MODELS = ("vision_model_type", "language_model_type", "vision_tower", "vision_model_name_or_path")
_OFF = (None, False, 0, "", "false", "False", "no", "none", "None", "0")


def peft_of(script: Script) -> Mapping[str, Any]:
    """LoRA as a workload has it; empty where the options ask for none."""
    said = _said(script)
    method = _method(said)
    is_on = method == "lora" or any(said.get(name) not in _OFF for name in (*_SWITCHES, *_QLORA))
    is_off = not is_on and (method != "" or any(name in said for name in _SWITCHES))
    given = _given(script)
    ranks = [name for name in _RANKS if name in given or ("peft" in script.imports and name in said)]
    rank = next((said[name] for name in ranks if isinstance(said[name], int) and said[name] > 0), None)
    if is_off or not (is_on or rank):
        return {}
    usual = next((default for name, default in _PEFT_RANK.items() if name in said), 8)
    is_quantized = said.get("quant_bits") == 4 or any(said.get(name) not in _OFF for name in _QUANTIZED)
    return {
        "method": "qlora" if is_quantized else "lora",
        "rank": rank or usual,
        "targets": "all" if _is_everywhere(script) else "attention",
        "library": "" if "lora_dim" in ranks else "peft",
    }


def loaded_in(script: Script) -> str:
    """The type in which a program of transformers loads its weights, as its option says it ('bfloat16', 'auto'); empty where none does."""
    said = _said(script)
    return next((str(said[name]) for name in ("torch_dtype", "dtype") if said.get(name) is not None), "")


def optimizer_of(script: Script) -> str:
    """The optimizer that transformers' Trainer is told to use, as the option calls it; empty where it is not told."""
    return str(_said(script).get("optim") or "")


def of_unknown_optimizer(name: str) -> str:
    """What is said of an optimizer that no plan has."""
    return f"{NOT_COUNTED}the optimizer {name}, planned as AdamW; its own memory and time are unknown"


def is_unfused(script: Script) -> bool:
    """Whether the attention scores are stored."""
    said = _said(script)
    return any(said.get(name) == "eager" for name in ("attn_implementation", "attn_impl"))


def frozen(script: Script) -> Iterator[str]:
    """Notes on options that keep weights from training, add a second model, or name an optimizer, which no plan has."""
    said, given = _said(script), _given(script)
    if (optimizer := optimizer_of(script)) and optimizer_named(optimizer) is None:
        yield of_unknown_optimizer(optimizer)
    off = [name for name in given if _FROZEN.fullmatch(name.lower()) and said[name] not in _OFF]
    if off:
        yield f"{NOT_COUNTED}{_named(given, off)}, {ALL_TRAINED}"
    if (method := _method(said)) not in ("", "lora", "full"):
        yield f"{NOT_COUNTED}{method} ({', '.join(name for name in _METHODS if name in said)}), {ALL_TRAINED}"
    if more := second_models(script):
        yield f"{NOT_COUNTED}a model of several parts ({_named(given, more)}), planned as one decoder"


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
    arguments = script.started.arguments if script.started else ()
    return {each.name: each.words[0].lstrip("-").partition("=")[0] for each in arguments if each.name}


def _said(script: Script) -> dict[str, Any]:
    """The values of the declared options, and of those that are given, by the last part of their names."""
    values = {option.name.rpartition(".")[2]: option.present for option in script.options}
    for argument in script.started.arguments if script.started else ():
        if argument.name and argument.name not in values:
            value = argument.values[0] if argument.values else True
            values[argument.name] = int(value) if str(value).isdecimal() else value
    return values


def _is_everywhere(script: Script) -> bool:
    """Whether adapters are in the feed-forward layers, too; PEFT's default is attention alone."""
    arguments = script.started.arguments if script.started else ()
    words = [word for each in arguments if each.name in _TARGETS for word in each.values]
    words = words or [str(option.present) for option in script.options if option.name in _TARGETS]
    return bool(re.search(r"all|gate|up_proj|down|fc|mlp|layers", " ".join(words)))
