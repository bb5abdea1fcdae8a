"""Which knob, or which figure of the workload, an option of a training script stands for, by its name, type, choices and default.

    --batch-size           sequences per rank and micro-batch, unless the code divides it by the ranks; beside --micro-batch-size it is the batch of a step
    --global-batch-size    sequences per optimizer step
                           a batch is in tokens where its name says so, or where its value is far above any number of sequences
    --dtype bfloat16       the knob precision, written in the script's own words
    --bf16                 a flag for one value of a knob

Help texts are for people and say nothing here. The names themselves, with their sources, are in `autotune.spec.texts.usual_names`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import product
from typing import Any

from autotune.onboarding.script.options import ScriptOption
from autotune.spec.texts.usual_names import (
    BESIDE_IT,
    EXPLICIT_MICRO,
    IN_TOKENS,
    MAYBE_TOKENS,
    NAMES,
    OTHER_DEGREES,
    OTHER_PARTS,
    PRECISION_FLAGS,
    WORDS,
    target_of,
)

SHAPE = ("num_layers", "hidden_size", "num_attention_heads", "vocab_size")
"""figures that make a model's shape"""
MORE_OF_SHAPE = (
    "ffn_hidden_size",
    "num_kv_heads",
    "attention_head_dim",
    "num_experts",
    "experts_per_token",
)
"""further figures of it, which have usual values"""
FLAGS_OF_SHAPE = {
    "gated_mlp": r"(use_)?(swi|ge|re)?glu|gated_(mlp|ffn|linear_units?)|(use_)?gated_mlp",
    "tied_embeddings": r"(use_)?tied?_(word_|input_output_)?embeddings?(_weights)?|tied?_weights|weight_tying|share_(input_output_)?embeddings?",
}
"""flags of it, by the names of their options"""
OTHER_MODELS = re.compile(
    r"(num_|n_)?enc(oder)?_(num_)?(hidden_)?(layers?|depth)|(patch|im(age|g))_?size|(num_|n_)?mels?|in_chan(nel)?s"
)
"""options of encoders with decoders, and of models of images and sound"""
_ACTIVATION = re.compile(r"(hidden_)?act(ivation)?(_fn|_func(tion)?|_type)?|(mlp|ffn)_type")
OF_MODEL = frozenset({*SHAPE, *MORE_OF_SHAPE, *FLAGS_OF_SHAPE, "ffn_ratio", "model"})
"""what says which model is trained: read, and told to no trial"""
_FAMILIES = (
    {"fp32": "float32", "bf16": "bfloat16", "fp16": "float16"},
    {"fp32": "32-true", "bf16": "bf16-mixed", "fp16": "16-mixed"},
    {"fp32": "no", "bf16": "bf16", "fp16": "fp16"},
    {"fp32": "fp32", "bf16": "bf16", "fp16": "fp16"},
)
"""words that go together, where an option without choices has one of them as its default"""
_ABSENT = ("no", "none", "off", "null", "no_shard", "ddp")
"""choices that are the same as to leave the option out"""
TOKENS = 1 << 14
"""a batch from here on is in tokens"""
_LOG_INTERVAL = re.compile(
    r"(log|logging|print|report|display)_?(interval|freq(uency)?|every(_n_steps|_steps)?|steps|iters?|per_steps?)"
)
_PERFORMANCE = re.compile(
    r"worker|bucket|flash|sdpa|attn_impl|prefetch|pin_memory|offload|overlap|fused|channels_last|persistent|non_blocking|static_graph|"
    r"cudnn|foreach|packing|find_unused"
)


_OF_WORKERS = re.compile(
    r"workers?|num|n|data|dataloader|dataset|loader|train|training|per|gpu|rank|device|max|persistent|threads"
)
_OF_ELSE = re.compile(
    r"(?:^|_)(?:eval\w*|val|valid\w*|test\w*|zeroshot|preproc\w*|tokeniz\w*|infer\w*|sampl\w*|generat\w*|ckpt|checkpoint\w*|save|log\w*)(?:_|$)"
)
"""words of names that are about something else than steps"""


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
    """the knob's values that the script can be told, that of today first"""
    default: Any = None
    """the knob's value today: as the script is started, else when the option is left out"""

    @property
    def in_tokens(self) -> bool:
        """Whether it counts tokens where autotune counts sequences."""
        return self.expression.endswith("* seq_len")

    @property
    def over_ranks(self) -> bool:
        """Whether the script divides it by its ranks."""
        return self.expression.endswith("* dp")


_STAGES = frozenset(range(4))
"""of ZeRO: DeepSpeed's own examples call the option `--stage`"""


def meaning_of(
    option: ScriptOption,
    divided: frozenset[str] = frozenset(),
    autocast: str = "",
    *,
    has_micro: bool = False,
    by_tokens: bool = False,
    of_fairseq: bool = False,
) -> Meaning | None:
    """What the option stands for; None for options that autotune has no word for. `divided`: names that the script divides by its ranks;
    `autocast`: the number format of its autocast, where its text says it; `has_micro`: whether another option can only be the micro-batch;
    `by_tokens`: whether another says that batches are counted in tokens; `of_fairseq`: whether the options are those of fairseq, whose `--max-tokens` is a batch."""
    if OTHER_PARTS.search(option.name.lower()):
        return None
    name = _last(option.name)
    if option.kind == "flag":
        return _flag(option, name, autocast)
    if _ACTIVATION.fullmatch(name):
        is_gated = re.fullmatch(r"(swi|ge|re)?glu", str(option.present).lower()) is not None
        return Meaning(target="gated_mlp", default=True) if is_gated else None
    target = "zero_stage" if name == "stage" and set(option.choices) == _STAGES else target_of(name)
    if of_fairseq and name == MAYBE_TOKENS:
        target = "micro_batch_size"
    if target is not None and target in WORDS:
        return _worded(option, target)
    if target == "micro_batch_size" and has_micro and not is_explicit_micro(option):
        target = "global_batch_size"
    if target is not None and target in (
        "micro_batch_size",
        "accumulation_steps",
        "global_batch_size",
    ):
        return _batch(option, target, divided, by_tokens)
    return (
        None
        if target is None or target in ("compile", "sequence_parallel")
        else Meaning(target=target, default=option.present)
    )


def is_of_knob(option: ScriptOption) -> bool:
    """Whether its name is that of a knob or figure, whether or not its value is understood."""
    name = _last(option.name)
    is_named = target_of(name) is not None or OTHER_DEGREES.fullmatch(name) is not None
    return meaning_of(option) is not None or (
        is_named and not OTHER_PARTS.search(option.name.lower())
    )


def is_explicit_micro(option: ScriptOption) -> bool:
    """Whether the option can be nothing but a micro-batch: `micro_batch_size`, `per_device_train_batch_size`."""
    name = _last(option.name)
    return (
        option.kind != "flag"
        and target_of(name) == "micro_batch_size"
        and EXPLICIT_MICRO.search(name) is not None
        and not OTHER_PARTS.search(option.name.lower())
    )


def is_log_interval(option: ScriptOption) -> bool:
    """Whether the option says after how many steps the script prints a line."""
    return (
        option.kind == "int"
        and bool(option.prefix or option.file)
        and _LOG_INTERVAL.fullmatch(_last(option.name)) is not None
    )


def is_performance_choice(option: ScriptOption) -> bool:
    """Whether the option looks like something that changes the speed and not the result."""
    name = _last(option.name)
    is_of_else = _OF_ELSE.search(name) or OTHER_PARTS.search(option.name.lower())
    is_other_worker = "worker" in name and not all(
        map(_OF_WORKERS.fullmatch, re.split(r"[_.]", name))
    )
    is_named = option.kind in ("int", "flag", "text") and _PERFORMANCE.search(name) is not None
    return is_named and not is_of_else and not is_other_worker


def _last(name: str) -> str:
    return name.rpartition(".")[2].lower()


def counts_tokens(options: Iterable[ScriptOption]) -> bool:
    """Whether an option says that batches are counted in tokens (OpenNMT, JoeyNMT: `batch_type: tokens`)."""
    return any(
        _last(o.name) == "batch_type" and str(o.present).startswith("token") for o in options
    )


def are_of_fairseq(options: Iterable[ScriptOption]) -> bool:
    """Whether the options are those of fairseq."""
    return not BESIDE_IT.isdisjoint(_last(option.name) for option in options)


def may_be_batch(option: ScriptOption) -> bool:
    """Whether it may be a batch in tokens, and may be something else."""
    return _last(option.name) == MAYBE_TOKENS and type(option.present) is int


def _batch(option: ScriptOption, target: str, divided: frozenset[str], by_tokens: bool) -> Meaning:
    expression, default = "", option.present
    if target == "micro_batch_size" and option.name in divided:
        expression = "micro_batch_size * dp"
    if target == "accumulation_steps" and option.name in divided:
        expression = "accumulation_steps * dp"
    is_large = isinstance(default, int) and default >= TOKENS
    if target != "accumulation_steps" and (
        by_tokens or is_large or IN_TOKENS.search(_last(option.name))
    ):
        expression = f"{target} * seq_len"
    return Meaning(target=target, expression=expression, default=default)


def _worded(option: ScriptOption, target: str) -> Meaning | None:
    """An option with words for a knob's values: by its choices, else by the family of its default. Without a default and choices nobody knows its words."""
    known = WORDS[target]
    said = [value for value in (option.present, *option.between) if value is not None]
    if option.choices:
        is_autocast = any(str(value).startswith("amp") for value in (option.default, option.given))
        words: dict[str, Any] = dict(
            _offered(known, [*map(str, option.choices)], is_autocast=is_autocast)
        )
    elif target == "precision" and said:
        present = [str(value) for value in said]
        pairs = product(present, known.items())
        today = {value: word for word, (value, words) in pairs if word.lower() in words}
        # of other words only those that are there are sure: what their neighbours are called is the program's own choice
        words = next((dict(f) for f in _FAMILIES if set(present) <= set(f.values())), today)
    elif target == "zero_stage" and option.kind == "int":
        words = {str(stage): str(stage) for stage in range(4)}
    else:
        words = {}
    default: str | None = None
    if option.present is not None:
        word = str(option.present).lower()
        default = next(
            (value for value, spellings in known.items() if word in map(str.lower, spellings)), None
        )
    if default is None and option.present is None and not option.computed:
        default = next(
            (value for value, word in words.items() if str(word).lower() in _ABSENT), None
        )
    if default is None and (len(words) < 2 or not option.choices) and not option.between:
        return None
    if default is not None and option.present is not None:
        # as launched, whatever other words mean nearly the same
        words[default] = str(option.present)
    values = sorted(words, key=lambda value: value != default)
    differing = {value: word for value, word in words.items() if word != value}
    return Meaning(target=target, words=differing, values=_typed(target, values), default=default)


def _offered(
    known: Mapping[str, tuple[str, ...]], choices: list[str], *, is_autocast: bool
) -> Iterator[tuple[str, str]]:
    """(value, the choice that is it); of several the first that is of autocast, where the option's present word is."""
    for value, words in known.items():
        of_amp = [word for word in words if word.startswith("amp")] if is_autocast else []
        pairs = product((*of_amp, *words), choices)
        found = (choice for word, choice in pairs if choice.lower() == word.lower())
        if (choice := next(found, None)) is not None:
            yield value, choice


def _flag(option: ScriptOption, name: str, autocast: str) -> Meaning | None:
    for precision, pattern in PRECISION_FLAGS.items():
        if re.fullmatch(pattern, name):
            if re.search("amp|mixed", name):
                precision = autocast or precision
            default = precision if option.present else None
            if option.is_in_file:
                return _switch(option, "precision", precision, "fp32")
            return Meaning(
                target="precision",
                words={precision: option.on},
                values=(precision,),
                default=default,
            )
    for target, pattern in FLAGS_OF_SHAPE.items():
        if re.fullmatch(pattern, name):
            return Meaning(target=target, default=bool(option.present))
    on_off = {
        "compile": ("true", "false"),
        "sequence_parallel": ("true", "false"),
        "recompute": ("full", "none"),
    }
    for target, (on, off) in on_off.items():
        if re.fullmatch(NAMES[target], name):
            return _switch(option, target, on, off)
    if re.fullmatch(r"(use_|enable_)?fsdp", name):
        return _switch(option, "zero_stage", "3", "0")
    if name == "reshard_after_forward":
        return _switch(option, "zero_stage", "3", "2")
    return None


def _switch(option: ScriptOption, target: str, on: str, off: str) -> Meaning:
    default, other = (on, off) if option.default else (off, on)
    other_word = option.on if other == on else option.off
    reachable = [default] if other_word is None else [default, other]
    reachable.sort(key=lambda value: value != (on if option.present else off))
    typed = _typed(target, reachable)
    return Meaning(
        target=target, words={on: option.on, off: option.off}, values=typed, default=typed[0]
    )


def _typed(target: str, values: list[str]) -> tuple[Any, ...]:
    if target == "zero_stage":
        return tuple(map(int, values))
    return (
        tuple(value == "true" for value in values)
        if target in ("compile", "sequence_parallel")
        else tuple(values)
    )
