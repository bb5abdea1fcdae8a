"""Adapters, frozen weights, the optimizer and what else of the workload the options of a program
set, where its text does not.

    use_peft, use_lora, q_lora          whether there are adapters (trl: use_peft, FastChat: q_lora, LLaVA: lora_enable)
    lora_r, lora_rank, lora_dim, r      their rank (trl: lora_r, DeepSpeed-Chat: lora_dim, InternVL: use_llm_lora)
    lora_target_modules                 which matrices have them
    load_in_4bit, q_lora, bits 4        whether the other weights have 4 bits
    modules_to_save                     which matrices are trained beside them
    tuner_type, target_modules, ...     the same in ms-swift
    torch_dtype, dtype                  in which type a program of transformers loads the weights
    optim                               transformers' optimizer
    attn_implementation, attn_impl      `eager` stores the attention scores

A rank that is given, and no switch that is off, means adapters; so does a declared default in a
program that imports PEFT.
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
EIGHT_BITS = f"8-bit weights, which plans count as 16-bit, so {NEEDS_LESS}; plans support 4-bit weights, as in qlora"
_SWITCHES = (
    "use_peft",
    "use_lora",
    "lora",
    "lora_enable",
    "enable_lora",
    "peft_enable",
    "enable_peft",
)
_METHODS = ("tuner_type", "train_type", "sft_type")
"""by which ms-swift 4, 3 and 2 say what is trained"""
_MODES = ("train_mode", "training_mode", "finetuning_type", "tuning_type", "finetune_mode")
"""by which programs of others do, with one of these values: full, lora or qlora"""
_TARGETS = (
    "lora_target_modules",
    "lora_target",
    "lora_modules",
    "lora_module_name",
    "target_modules",
    "trainable",
)
_QLORA = ("q_lora", "qlora", "use_qlora")
_BITS = ("bits", "quant_bits", "quantization_bit", "load_in_kbits")
_IGNORED = {
    "use_dora": "planned as plain LoRA",
    "lisa_activated_layers": f"{ALL_TRAINED}, so {NEEDS_LESS}",
}
"""how options are planned that no plan has"""
_OTHER_LOSS = ("seq_cls", "embedding", "reranker", "generative_reranker")
"""values of ms-swift's `task_type` whose models have no output projection, or a loss of their
own"""
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
    said, given = script.said, script.given
    method = _method(said)
    is_on = method in ("lora", "qlora") or _are_on(said, *_SWITCHES, *_QLORA)
    is_off = not is_on and (method != "" or any(name in said for name in _SWITCHES))
    known = given.keys() | (said.keys() if "peft" in script.code.imports else set())
    ranks = [name for name in LORA_RANKS if name in known]
    numbers = (said[name] for name in ranks if isinstance(said[name], int))
    rank = next((number for number in numbers if number > 0), None)
    in_text = script.code.adapters or {}
    if is_off or not (is_on or rank):
        return in_text if script.adapted[1] and "rank" in in_text and not is_off else {}
    modules = _modules(script)
    some = "all" if modules or script.code.computes_targets else "attention"
    return {
        "method": by_bits(script, in_text.get("method", "lora")),
        "rank": rank or in_text.get("rank") or (16 if _is_of_trl(script) else 8),
        "targets": targets_of(modules) or some,
        "library": "" if "lora_dim" in ranks else "peft",
    }


def by_bits(script: Script, in_text: str) -> str:
    """lora or qlora: by the options for it, where there are any, and else by the text."""
    said = script.said
    if said.keys().isdisjoint((*FOUR_BIT_SWITCHES, *_BITS)):
        return _method(said) if _method(said) in ("lora", "qlora") else in_text
    return "qlora" if 4 in _bits(said) or _are_on(said, *FOUR_BIT_SWITCHES) else "lora"


def _is_of_trl(script: Script) -> bool:
    """Whether trl's `ModelConfig` sets the adapters. Its default rank is 16, and PEFT's is 8."""
    return "use_peft" in script.said and (script.parser == "HfArgumentParser" or not script.is_read)


def _are_on(said: Mapping[str, Any], *names: str) -> bool:
    """Whether one of these options is given a value that does not switch it off."""
    return any(said.get(name) not in _OFF for name in names)


def loaded_in(script: Script) -> str:
    """The type in which a program of transformers loads its weights, as its option or else its text
    says it ('bfloat16', 'auto'); empty where neither does."""
    said, by_text = script.said, script.code.loads_as[0]
    # `dtype` beside autocast is that of the products
    names = ("torch_dtype",) if script.code.whole.calls("autocast") else ("torch_dtype", "dtype")
    for name in names:
        if said.get(name) is not None:
            return str(said[name])
    if by_text == "bf16":
        return "bfloat16" if _are_on(said, "bf16") else ""
    return "" if by_text == "?" else by_text


def optimizer_of(script: Script) -> str:
    """The optimizer that transformers' Trainer is told to use, as the option calls it; empty where
    it is not told."""
    return str(script.said.get("optim") or "")


def made_optimizer(script: Script) -> str:
    """The optimizer that the text of a program makes, by its class; empty where it makes none, or
    several."""
    return script.code.optimizers[0] if len(script.code.optimizers) == 1 else ""


def of_unknown_optimizer(name: str) -> str:
    """What is said of an optimizer that no plan has."""
    return f"{NOT_COUNTED}the optimizer {name}, planned as AdamW, because the memory and time of {name} are unknown"


def is_unfused(script: Script) -> bool:
    """Whether the attention scores are stored."""
    return "eager" in (script.said.get("attn_implementation"), script.said.get("attn_impl"))


def frozen(script: Script) -> Iterator[str]:
    """Notes on options that keep weights from training, add a second model, or name an optimizer,
    which no plan has."""
    said, given, made = script.said, script.given, script.code.optimizers
    optimizer = optimizer_of(script) or made_optimizer(script)
    if optimizer and optimizer_named(optimizer) is None:
        yield of_unknown_optimizer(optimizer)
    if not optimizer and len(made) > 1:
        yield f"{NOT_COUNTED}which of {', '.join(made)} the source creates, planned as AdamW"
    yield from _of_adapters(script)
    off = [name for name in given if _FROZEN.fullmatch(name.lower()) and _are_on(said, name)]
    if off and not peft_of(script):
        yield f"{NOT_COUNTED}{_named(given, off)}, {ALL_TRAINED}"
    if (method := _method(said)) not in ("", "lora", "qlora", "full"):
        yield f"{NOT_COUNTED}{method} ({', '.join(name for name in _METHODS if name in said)}), {ALL_TRAINED}"
    if more := second_models(script):
        yield f"{NOT_COUNTED}a model with several parts ({_named(given, more)}), planned as one decoder"


def _of_adapters(script: Script) -> Iterator[str]:
    """What is planned otherwise than the options of adapters, of quantization and of the task
    say."""
    said, peft, modules = script.said, peft_of(script), _modules(script)
    if not peft:
        if script.adapted[0] and not _method(said) and said.keys().isdisjoint(_SWITCHES):
            call, is_certain = script.adapted
            so = ", so" if is_certain else f"; if {script.name} trains adapters,"
            yield f"{NOT_COUNTED}adapters ({call}), {ALL_TRAINED}{so} {NEEDS_LESS}"
    elif modules and not targets_of(modules):
        unknown = [name for name in modules if not targets_of([name])]
        yield f"{NOT_COUNTED}adapters on {', '.join(unknown)}, planned on all matrices of the layers"
    elif script.code.computes_targets and not modules:
        yield f"{NOT_COUNTED}which matrices {script.name} chooses for its adapters, planned on all matrices of the layers"
    elif not modules and peft["library"] and not _is_of_trl(script):
        yield f"{ASSUMED_TARGETS}, which is PEFT's default, because no option names the matrices"
    if (
        peft
        and not _is_of_trl(script)
        and said.keys().isdisjoint(LORA_RANKS)
        and not script.code.adapters
    ):
        yield f"adapters are planned with rank {peft['rank']}, because no option sets their rank"
    if peft and (saved := _words_of(script, ("modules_to_save",))):
        yield f"{NOT_COUNTED}{', '.join(saved)} (modules_to_save), planned as frozen although the launch trains them, so {NEEDS_MORE}"
    if 8 in _bits(said) or _are_on(said, "load_in_8bit"):
        yield f"{NOT_COUNTED}{EIGHT_BITS}"
    for name, how in _IGNORED.items():
        if _are_on(said, name):
            yield f"{NOT_COUNTED}{name}, {how}"
    if (task := said.get("task_type")) in _OTHER_LOSS:
        yield f"{NOT_COUNTED}task_type={task}, planned with a loss over the vocabulary, so {NEEDS_LESS}"
    groups = [name for name in GROUPED if isinstance(said.get(name), int) and said[name] > 0]
    if groups or task in _OTHER_LOSS[1:]:
        how = ", ".join(f"{name}={said[name]}" for name in groups) or f"task_type={task}"
        yield f"{NOT_PREDICTED}the other sequences of each sample ({how})"


def _bits(said: Mapping[str, Any]) -> set[Any]:
    """The numbers of bits in which options load the weights."""
    return {said[name] for name in _BITS if name in said}


def second_models(script: Script) -> list[str]:
    """The given options that name a model beside the decoder whose sizes are given."""
    return [name for name in _SECOND_MODELS if name in script.given]


def _method(said: Mapping[str, Any]) -> str:
    """What is trained: 'full', 'lora' or another method of ms-swift; empty where no option says it.
    The names of ms-swift's earlier versions are only there where they are given."""
    modes = (said[name] for name in _MODES if said.get(name) in ("full", "lora", "qlora"))
    return next((str(said[name]) for name in reversed(_METHODS) if name in said), next(modes, ""))


def _named(given: Mapping[str, str], names: list[str]) -> str:
    return ", ".join(f"--{given[name]}" for name in names)


def _modules(script: Script) -> list[str]:
    """Names of the matrices that have adapters, by the options or the text; none where neither says
    them."""
    return _words_of(script, _TARGETS) or list(script.code.targets)


def _words_of(script: Script, names: tuple[str, ...]) -> list[str]:
    """The names in the values of the first of these options that has any, as the command or else
    its declaration has it."""
    given = (each for each in script.arguments if each.name in names)
    values = [word for each in given for word in each.values]
    declared = (option.present for option in script.options if option.name in names)
    text = " ".join(values or [str(value) for value in declared if value])
    paths = re.findall(r"[A-Za-z][\w.]*", text.replace("-", "_"))
    return [path.rstrip(".").rpartition(".")[2] for path in paths]
