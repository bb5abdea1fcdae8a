"""Which knob, or which figure of the workload, an option of a training script stands for, by its name, type, choices and default.

    --batch-size           sequences per rank and micro-batch, unless its description says that it is for all ranks
    --global-batch-size    sequences per optimizer step; in tokens where its default is far above any number of sequences
    --dtype bfloat16       the knob precision, written in the script's own words
    --bf16                 a flag for one value of a knob

Names are compared in small letters, words joined by underscores, without what stands before the last dot.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from autotune.onboarding.script_options import ScriptOption

_NAMES: Mapping[str, str] = {
    "micro_batch_size": "batch_size|bs|batch|(per_)?(device|gpu)(_train)?_(micro_)?batch_size|per_(device|gpu)_train_batch_size|per_device_bs|"
    "train_batch_size|micro_batch(_size)?|mbs|local_batch_size|batch_size_(per|train)(_gpu|_device|_rank)?|train_micro_batch_size(_per_gpu)?|"
    "micro_bs|mini_batch_size",
    "accumulation_steps": "(gradient|grad)_?acc(um|umulation|umulate)?(_steps|_iters?)?|acc(um|umulation)?(_steps|_iters?|_freq|_grad)?|"
    "accumulate_grad(ient)?(_batches|s)?|iters_to_accumulate|update_freq|gas",
    "global_batch_size": "(global|total|effective)_(train_)?(batch(_size)?|bs)|gbs",
    "precision": "(d|data|torch_d|compute_d|amp_d|train_d|param_d)type|(mixed_)?precision|mixed|amp_dtype|compute_type",
    "recompute": "(use_)?(gradient|grad|activation|act)_?(checkpoint|ckpt|recompute)(ing|s)?|checkpoint_activations|use_checkpoint(ing)?|"
    "recompute(_activations|_granularity)?|ac(_mode)?|activation_checkpoint_mode|remat|use_gc",
    "compile": "(torch_|use_|use_torch_|enable_)?compile(_model)?",
    "zero_stage": "zero(_stage)?|(deepspeed_)?stage|ds_stage|sharding_strategy|fsdp_sharding_strategy",
    "tp": "tp(_size|_degree|_dim)?|tensor(_model)?_parallel(_size|_degree|ism)?|model_parallel_size",
    "pp": "pp(_size|_degree)?|pipeline(_model)?_parallel(_size|_degree|ism)?|num_stages",
    "cp": "cp(_size|_degree)?|context_parallel(_size|_degree|ism)?",
    "ep": "ep(_size|_degree)?|expert(_model)?_parallel(_size|_degree|ism)?",
    "dp": "dp(_size|_degree)?|data_parallel(_size|_degree)?",
    "sequence_parallel": "(use_)?sequence_parallel|sp",
    "seq_len": "(max_)?seq(uence)?_?len(gth)?|block_size|context_(length|len|size|window)|ctx(_len|_size|_length)?|max_length|"
    "(max_)?seqlen|n_ctx|t?bptt(_len)?",
    "steps": "(max_|num_|total_|n_|train_|num_train_|max_train_|training_|num_training_)(steps|iters|iterations)|iterations|iters|steps|"
    "num_batches|max_iter",
    "seed": "(random_|manual_)?seed",
    "nnodes": "nnodes|num_nodes|nodes",
    "nproc_per_node": "devices|(num_|n)?gpus(_per_node)?|nproc(_per_node)?|ngpus",
    "world_size": "world_size|num_processes|num_gpus_total",
    "num_layers": "n_?layers?|num_(hidden_)?layers|depth",
    "hidden_size": "n_?embd?|hidden_(size|dim)|d_model|dim|emb(ed(ding)?)?_?(dim|size)|emsize|n_embed",
    "num_attention_heads": "n_?heads?|num_(attention_)?heads",
    "vocab_size": "vocab(_size)?|padded_vocab_size",
    "model": "model(_name|_id|_path)?(_or_path)?|config_name|pretrained_model_name_or_path|base_model",
}
SHAPE = ("num_layers", "hidden_size", "num_attention_heads", "vocab_size")
"""figures that make a model's shape"""
_PRECISION_FLAGS = {
    "bf16": "(use_|enable_)?(bf16|bfloat16)(_training)?",
    "fp16": "(use_|enable_)?(fp16|half|float16|amp|mixed_precision)(_training)?",
    "tf32": "(use_|enable_|allow_)?tf32",
}
"""flags that switch one number format on"""
WORDS: Mapping[str, Mapping[str, tuple[str, ...]]] = {
    "precision": {
        "fp32": ("float32", "fp32", "32-true", "32", "no", "full", "float", "single", "none"),
        "tf32": ("tf32",),
        "bf16": ("bfloat16", "bf16", "bf16-mixed", "bf16-true", "bf16_mixed", "amp_bf16"),
        "fp16": ("float16", "fp16", "16-mixed", "16-true", "16", "half", "amp", "amp_fp16"),
        "fp8": ("fp8", "float8", "transformer-engine"),
    },
    "recompute": {
        "none": ("none", "off", "no"),
        "selective": ("selective",),
        "full": ("full", "all", "on", "block", "uniform"),
    },
    "zero_stage": {
        "0": ("NO_SHARD", "ddp", "0"),
        "1": ("1",),
        "2": ("SHARD_GRAD_OP", "2", "zero2"),
        "3": ("FULL_SHARD", "3", "fsdp", "zero3"),
    },
}
"""how scripts write the values of a knob, the most usual first"""
_FAMILIES = (
    {"fp32": "float32", "bf16": "bfloat16", "fp16": "float16"},
    {"fp32": "32-true", "bf16": "bf16-mixed", "fp16": "16-mixed"},
    {"fp32": "no", "bf16": "bf16", "fp16": "fp16"},
    {"fp32": "fp32", "bf16": "bf16", "fp16": "fp16"},
)
"""words that go together, where an option without choices has one of them as its default"""
TOKENS = 1 << 14
"""a default global batch from here on is in tokens"""
_LOG_INTERVAL = re.compile(
    r"(log|logging|print|report|display)_?(interval|freq(uency)?|every(_n_steps|_steps)?|steps|iters?|per_steps?)"
)
_PERFORMANCE = re.compile(
    r"worker|bucket|flash|sdpa|attn_impl|prefetch|pin_memory|offload|overlap|fused|channels_last|persistent|non_blocking|static_graph|"
    r"cudnn|foreach|packing|find_unused"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Meaning:
    """What an option stands for."""

    target: str
    """a knob, or a figure of the workload or model"""
    expression: str = ""
    """what stands between the braces, where it is more than the target's name"""
    words: Mapping[str, Any] = field(default_factory=dict)
    """the script's words by the target's values, where they differ; whole arguments for a flag, None: left out"""
    values: tuple[Any, ...] = ()
    """the knob's values that the script can be told, its default first"""
    default: Any = None
    """the knob's value when the option is left out"""


def meaning_of(option: ScriptOption, divided: frozenset[str] = frozenset()) -> Meaning | None:
    """What the option stands for; None for options that autotune has no word for. `divided`: names that the script divides by its ranks."""
    name = _last(option.name)
    if option.kind == "flag":
        return _flag(option, name)
    target: str | None = next((target for target, pattern in _NAMES.items() if re.fullmatch(pattern, name)), None)
    if target is not None and target in WORDS:
        return _worded(option, target)
    if target is not None and target in ("micro_batch_size", "accumulation_steps", "global_batch_size"):
        return _batch(option, target, divided)
    return (
        None
        if target is None or target in ("compile", "sequence_parallel")
        else Meaning(target=target, default=option.default)
    )


def is_log_interval(option: ScriptOption) -> bool:
    """Whether the option says after how many steps the script prints a line."""
    return option.kind == "int" and bool(option.prefix) and _LOG_INTERVAL.fullmatch(_last(option.name)) is not None


def is_performance_choice(option: ScriptOption) -> bool:
    """Whether the option looks like something that changes the speed and not the result."""
    return option.kind in ("int", "flag", "text") and _PERFORMANCE.search(_last(option.name)) is not None


def _last(name: str) -> str:
    return name.rpartition(".")[2].lower()


def _batch(option: ScriptOption, target: str, divided: frozenset[str]) -> Meaning:
    expression, default = "", option.default
    over_all = re.search(r"\b(total|all (gpus|ranks|devices|nodes)|global|effective)\b", option.help.lower())
    if target == "micro_batch_size" and over_all:
        expression = "micro_batch_size * dp"
    if target == "accumulation_steps" and option.name in divided:
        expression = "accumulation_steps * dp"
    if target == "global_batch_size" and isinstance(default, int) and default >= TOKENS:
        expression = "global_batch_size * seq_len"
    return Meaning(target=target, expression=expression, default=default)


def _worded(option: ScriptOption, target: str) -> Meaning | None:
    """An option with words for a knob's values: by its choices, else by the family of its default."""
    known = WORDS[target]
    offered = [str(choice) for choice in option.choices]
    if offered:
        said = {value: next((w for w in words if w in offered), None) for value, words in known.items()}
        words: dict[str, Any] = {value: word for value, word in said.items() if word is not None}
    elif target == "precision" and option.default is not None:
        words = next((dict(f) for f in _FAMILIES if str(option.default) in f.values()), {})
    elif target == "zero_stage" and option.kind == "int":
        words = {str(stage): str(stage) for stage in range(4)}
    else:
        words = {}
    default = next((value for value, spellings in known.items() if str(option.default) in spellings), None)
    if len(words) < 2 and default is None:
        return None
    values = sorted(words, key=lambda value: value != default)
    differing = {value: word for value, word in words.items() if word != value}
    return Meaning(target=target, words=differing, values=_typed(target, values), default=default)


def _flag(option: ScriptOption, name: str) -> Meaning | None:
    for precision, pattern in _PRECISION_FLAGS.items():
        if re.fullmatch(pattern, name):
            default = precision if option.default else None
            return Meaning(target="precision", words={precision: option.on}, values=(precision,), default=default)
    on_off = {"compile": ("true", "false"), "sequence_parallel": ("true", "false"), "recompute": ("full", "none")}
    for target, (on, off) in on_off.items():
        if re.fullmatch(_NAMES[target], name):
            return _switch(option, target, on, off)
    if re.fullmatch(r"(use_|enable_)?fsdp", name):
        return _switch(option, "zero_stage", "3", "0")
    return None


def _switch(option: ScriptOption, target: str, on: str, off: str) -> Meaning:
    default, other = (on, off) if option.default else (off, on)
    reachable = [default] if (option.on if other == on else option.off) is None else [default, other]
    typed = _typed(target, reachable)
    return Meaning(target=target, words={on: option.on, off: option.off}, values=typed, default=typed[0])


def _typed(target: str, values: list[str]) -> tuple[Any, ...]:
    if target == "zero_stage":
        return tuple(map(int, values))
    return tuple(value == "true" for value in values) if target in ("compile", "sequence_parallel") else tuple(values)
