"""Workload fields that a program's options set and its code does not: adapters, frozen weights,
the optimizer, and the dtype of weights.

    use_peft, use_lora, q_lora          switches for adapters (trl: use_peft, FastChat: q_lora, LLaVA: lora_enable)
    lora_r, lora_rank, lora_dim, r      rank (trl: lora_r, DeepSpeed-Chat: lora_dim, InternVL: use_llm_lora)
    lora_target_modules                 matrices with adapters
    load_in_4bit, q_lora, bits 4        whether the frozen weights have 4 bits
    modules_to_save                     matrices that are trained in addition
    tuner_type, target_modules, ...     the same in ms-swift
    torch_dtype, dtype                  dtype in which a program using transformers loads the weights
    optim                               transformers' optimizer
    attn_implementation, attn_impl      `eager` stores the attention scores

There are adapters if a rank is passed and no switch is off. A declared default of the rank counts
only in a program that imports PEFT.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from autotune.onboarding.script.library_options import FOUR_BIT_SWITCHES, GROUPED, LORA_RANKS
from autotune.onboarding.script.reading import Script
from autotune.spec.texts.usual_names import optimizer_named
from autotune.trainers.post_training.adapters import targets_of

NOT_COUNTED = "not modeled: "
"""beginning of notes on what a plan models differently from the launch"""
NOT_PREDICTED = "a step is predicted without "
"""beginning of notes on work that the plan of a plain training does not include"""
ALL_TRAINED = "planned as if every weight were trained"
"""end of notes on launches that train only part of the weights"""
ASSUMED_TARGETS = "adapters are planned on attention alone"
"""beginning of the note on adapters whose matrices no option names"""
NEEDS_LESS = "the launch needs less memory than predicted"
"""end of notes on what makes a launch smaller than planned"""
ON_HOST = "weights on the host"
"""what a note calls weights in host memory"""
NEEDS_MORE = "the launch needs more memory than predicted"
"""end of notes on what makes a launch larger than planned"""
EIGHT_BITS = f"8-bit weights, which plans count as 16-bit, so {NEEDS_LESS}; plans support 4-bit weights, as in qlora"
"""part of the note on 8-bit weights"""
_SWITCHES = (
    "use_peft",
    "use_lora",
    "lora",
    "lora_enable",
    "enable_lora",
    "peft_enable",
    "enable_peft",
)
"""options that switch adapters on or off"""
_METHODS = ("tuner_type", "train_type", "sft_type")
"""options of ms-swift 4, 3 and 2 for what is trained"""
_MODES = ("train_mode", "training_mode", "finetuning_type", "tuning_type", "finetune_mode")
"""the same in other programs, with the values full, lora or qlora"""
_TARGETS = (
    "lora_target_modules",
    "lora_target",
    "lora_modules",
    "lora_module_name",
    "target_modules",
    "trainable",
)
"""options for the matrices with adapters"""
_QLORA = ("q_lora", "qlora", "use_qlora")
"""options that switch 4-bit adapters on"""
_BITS = ("bits", "quant_bits", "quantization_bit", "load_in_kbits")
"""options for the number of bits of frozen weights"""
_IGNORED = {
    "use_dora": "planned as plain LoRA",
    "lisa_activated_layers": f"{ALL_TRAINED}, so {NEEDS_LESS}",
}
"""options that plans do not model, with how they are planned"""
_OTHER_LOSS = ("seq_cls", "embedding", "reranker", "generative_reranker")
"""values of ms-swift's `task_type` whose models have no output projection, or another loss"""
_FROZEN = re.compile(r"freeze_\w+|\w+_freeze")
_SECOND_MODELS = (
    "vision_model_type",
    "language_model_type",
    "vision_tower",
    "vision_model_name_or_path",
)
"""options that name a second model"""
_OFF = (None, False, 0, "", "false", "False", "no", "none", "None", "0")
"""values that switch an option off"""


def peft_of(script: Script) -> Mapping[str, Any]:
    """`peft` of the workload; empty if options and code use no LoRA adapters."""
    values, passed = script.said, script.given
    method = _method(values)
    is_on = method in ("lora", "qlora") or _are_on(values, *_SWITCHES, *_QLORA)
    is_off = not is_on and (method != "" or any(name in values for name in _SWITCHES))
    usable = passed.keys() | (values.keys() if "peft" in script.code.imports else set())
    ranks = [name for name in LORA_RANKS if name in usable]
    numbers = (values[name] for name in ranks if isinstance(values[name], int))
    rank = next((number for number in numbers if number > 0), None)
    in_code = script.code.adapters or {}
    if is_off or not (is_on or rank):
        return in_code if script.adapted[1] and "rank" in in_code and not is_off else {}
    modules = _modules(script)
    default_targets = "all" if modules or script.code.computes_targets else "attention"
    return {
        "method": by_bits(script, in_code.get("method", "lora")),
        "rank": rank or in_code.get("rank") or (16 if _is_of_trl(script) else 8),
        "targets": targets_of(modules) or default_targets,
        "library": "" if "lora_dim" in ranks else "peft",
    }


def by_bits(script: Script, in_text: str) -> str:
    """ "lora" or "qlora", by the options for quantization, or else by the code. `in_text`: the
    method in the code."""
    values = script.said
    if values.keys().isdisjoint((*FOUR_BIT_SWITCHES, *_BITS)):
        return _method(values) if _method(values) in ("lora", "qlora") else in_text
    return "qlora" if 4 in _bits(values) or _are_on(values, *FOUR_BIT_SWITCHES) else "lora"


def _is_of_trl(script: Script) -> bool:
    """Whether trl's `ModelConfig` sets the adapters. Its default rank is 16, and PEFT's is 8."""
    return "use_peft" in script.said and (script.parser == "HfArgumentParser" or not script.is_read)


def _are_on(values: Mapping[str, Any], *names: str) -> bool:
    """Whether one of these options has a value that does not switch it off."""
    return any(values.get(name) not in _OFF for name in names)


def loaded_in(script: Script) -> str:
    """The dtype in which a program using transformers loads its weights, by an option, or else by
    the code ('bfloat16', 'auto'); empty if neither gives one."""
    values, in_code = script.said, script.code.loads_as[0]
    # in a program with autocast, `dtype` is the format of the computation
    names = ("torch_dtype",) if script.code.whole.calls("autocast") else ("torch_dtype", "dtype")
    for name in names:
        if values.get(name) is not None:
            return str(values[name])
    if in_code == "bf16":
        return "bfloat16" if _are_on(values, "bf16") else ""
    return "" if in_code == "?" else in_code


def optimizer_of(script: Script) -> str:
    """The optimizer that transformers' Trainer is set to, as the option names it; empty if it is
    not set."""
    return str(script.said.get("optim") or "")


def made_optimizer(script: Script) -> str:
    """Class name of the only optimizer that the code creates; empty if it creates none, or
    several."""
    return script.code.optimizers[0] if len(script.code.optimizers) == 1 else ""


def of_unknown_optimizer(name: str) -> str:
    """The note on an optimizer that plans do not model."""
    return f"{NOT_COUNTED}the optimizer {name}; planned as AdamW, because the memory and time of {name} are unknown"


def is_unfused(script: Script) -> bool:
    """Whether the attention scores are stored."""
    return "eager" in (script.said.get("attn_implementation"), script.said.get("attn_impl"))


def frozen(script: Script) -> Iterator[str]:
    """Notes on options for frozen weights, a second model, or an optimizer that plans do not
    model."""
    values, passed, created = script.said, script.given, script.code.optimizers
    optimizer = optimizer_of(script) or made_optimizer(script)
    if optimizer and optimizer_named(optimizer) is None:
        yield of_unknown_optimizer(optimizer)
    if not optimizer and len(created) > 1:
        yield f"{NOT_COUNTED}the optimizer, because it is unclear which of {', '.join(created)} the source creates; planned as AdamW"
    yield from _adapter_notes(script)
    freezing = [
        name for name in passed if _FROZEN.fullmatch(name.lower()) and _are_on(values, name)
    ]
    if freezing and not peft_of(script):
        yield f"{NOT_COUNTED}{_named(passed, freezing)}; {ALL_TRAINED}"
    if (method := _method(values)) not in ("", "lora", "qlora", "full"):
        yield f"{NOT_COUNTED}{method} ({', '.join(name for name in _METHODS if name in values)}); {ALL_TRAINED}"
    if part_options := second_models(script):
        yield f"{NOT_COUNTED}a model with several parts ({_named(passed, part_options)}); planned as one decoder"


def _adapter_notes(script: Script) -> Iterator[str]:
    """Notes on options of adapters, quantization and the task that plans model differently."""
    values, peft, modules = script.said, peft_of(script), _modules(script)
    if not peft:
        if script.adapted[0] and not _method(values) and values.keys().isdisjoint(_SWITCHES):
            call, is_certain = script.adapted
            consequence = ", so" if is_certain else f"; if {script.name} trains adapters,"
            yield f"{NOT_COUNTED}adapters ({call}); {ALL_TRAINED}{consequence} {NEEDS_LESS}"
    elif modules and not targets_of(modules):
        unknown = [name for name in modules if not targets_of([name])]
        yield f"{NOT_COUNTED}adapters on {', '.join(unknown)}; planned on all matrices in the layers"
    elif script.code.computes_targets and not modules:
        yield f"{NOT_COUNTED}the matrices that {script.name} chooses for its adapters; planned on all matrices in the layers"
    elif not modules and peft["library"] and not _is_of_trl(script):
        yield f"{ASSUMED_TARGETS}, which is PEFT's default, because no option names the matrices"
    if (
        peft
        and not _is_of_trl(script)
        and values.keys().isdisjoint(LORA_RANKS)
        and not script.code.adapters
    ):
        yield f"adapters are planned with rank {peft['rank']}, because no option sets their rank"
    if peft and (saved_modules := _words_of(script, ("modules_to_save",))):
        yield f"{NOT_COUNTED}{', '.join(saved_modules)} (modules_to_save); planned as frozen although the launch trains them, so {NEEDS_MORE}"
    if 8 in _bits(values) or _are_on(values, "load_in_8bit"):
        yield f"{NOT_COUNTED}{EIGHT_BITS}"
    for name, details in _IGNORED.items():
        if _are_on(values, name):
            yield f"{NOT_COUNTED}{name}; {details}"
    if (task := values.get("task_type")) in _OTHER_LOSS:
        yield f"{NOT_COUNTED}task_type={task}; planned with a loss over the vocabulary, so {NEEDS_LESS}"
    groups = [name for name in GROUPED if isinstance(values.get(name), int) and values[name] > 0]
    if groups or task in _OTHER_LOSS[1:]:
        details = ", ".join(f"{name}={values[name]}" for name in groups) or f"task_type={task}"
        yield f"{NOT_PREDICTED}the other sequences of each sample ({details})"


def _bits(values: Mapping[str, Any]) -> set[Any]:
    """Numbers of bits that options set for the weights."""
    return {values[name] for name in _BITS if name in values}


def second_models(script: Script) -> list[str]:
    """Passed options that name a second model besides the decoder."""
    return [name for name in _SECOND_MODELS if name in script.given]


def _method(values: Mapping[str, Any]) -> str:
    """What is trained: 'full', 'lora' or another method of ms-swift; empty if no option says it."""
    modes = (values[name] for name in _MODES if values.get(name) in ("full", "lora", "qlora"))
    return next(
        (str(values[name]) for name in reversed(_METHODS) if name in values), next(modes, "")
    )


def _named(given: Mapping[str, str], names: list[str]) -> str:
    """Options as the launch spells them, for a message."""
    return ", ".join(f"--{given[name]}" for name in names)


def _modules(script: Script) -> list[str]:
    """Names of the matrices with adapters, by the options or the code; empty if neither names
    them."""
    return _words_of(script, _TARGETS) or list(script.code.targets)


def _words_of(script: Script, names: tuple[str, ...]) -> list[str]:
    """The names in the value of the first of these options that is set, as passed or else as
    declared."""
    given = (each for each in script.arguments if each.name in names)
    values = [word for each in given for word in each.values]
    declared = (option.present for option in script.options if option.name in names)
    text = " ".join(values or [str(value) for value in declared if value])
    paths = re.findall(r"[A-Za-z][\w.]*", text.replace("-", "_"))
    return [path.rstrip(".").rpartition(".")[2] for path in paths]
