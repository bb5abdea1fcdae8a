"""Decides which knob or workload field an option of a training script sets, by its name, type,
choices and default.

    --batch-size           sequences per rank and micro-batch, unless the code divides it by the ranks; with --micro-batch-size it is the global batch
    --global-batch-size    sequences per optimizer step
                           a batch counts tokens if its name says so, if its value is far above any number of sequences, or if
                           the code divides it by a number of tokens
    --dtype bfloat16       the knob precision, in the script's own words
    --bf16                 a flag for one value of a knob

Help texts are ignored. The names, with their sources, are in `autotune.spec.texts.usual_names`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from itertools import product
from typing import Any

from autotune.onboarding.script.options import ScriptOption
from autotune.spec.texts.usual_names import (
    FAIRSEQ_OPTIONS,
    FAIRSEQ_TOKENS,
    IN_TOKENS,
    MICRO_BATCH_NAMES,
    NAMES,
    OTHER_DEGREES,
    OTHER_PARTS,
    PRECISION_FLAGS,
    WORDS,
    setting_of,
)

SHAPE = ("num_layers", "hidden_size", "num_attention_heads", "vocab_size")
"""fields that are required for a model's shape"""
MORE_OF_SHAPE = (
    "ffn_hidden_size",
    "num_kv_heads",
    "attention_head_dim",
    "num_experts",
    "experts_per_token",
)
"""optional fields of a shape"""
FLAGS_OF_SHAPE = {
    "gated_mlp": r"(use_)?(swi|ge|re)?glu|gated_(mlp|ffn|linear_units?)|(use_)?gated_mlp",
    "tied_embeddings": r"(use_)?tied?_(word_|input_output_)?embeddings?(_weights)?|tied?_weights|weight_tying|share_(input_output_)?embeddings?",
}
"""flags of a shape, with patterns of their options' names"""
OTHER_MODELS = re.compile(
    r"(num_|n_)?enc(oder)?_(num_)?(hidden_)?(layers?|depth)|(patch|im(age|g))_?size|(num_|n_)?mels?|in_chan(nel)?s"
)
"""options of encoder-decoder models, and of models for images and sound"""
_ACTIVATION = re.compile(r"(hidden_)?act(ivation)?(_fn|_func(tion)?|_type)?|(mlp|ffn)_type")
OF_MODEL = frozenset({*SHAPE, *MORE_OF_SHAPE, *FLAGS_OF_SHAPE, "ffn_ratio", "model"})
"""fields that define the model; options for them are read, but trials do not set them"""
_FAMILIES = (
    {"fp32": "float32", "bf16": "bfloat16", "fp16": "float16"},
    {"fp32": "32-true", "bf16": "bf16-mixed", "fp16": "16-mixed"},
    {"fp32": "fp32", "bf16": "bf16", "fp16": "fp16"},
    {"fp32": "no", "bf16": "bf16", "fp16": "fp16"},
)
"""consistent sets of words for number formats; the one that contains an option's default is assumed
if the option has no choices"""
_ABSENT = ("no", "none", "off", "null", "no_shard", "ddp")
"""choices that mean the same as leaving the option out"""
TOKENS = 1 << 14
"""a batch of at least this value counts tokens"""
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
    r"(?:^|_)(?:eval\w*|val|valid\w*|test\w*|zeroshot|preproc\w*|tokeniz\w*|infer\w*|sampl\w*|generat\w*|ckpt|checkpoint\w*|save|log\w*|relative)(?:_|$)"
)
"""parts of names of options that do not concern training steps"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Meaning:
    """The knob or workload field that an option sets, and how."""

    option: ScriptOption
    target: str
    """a knob, or a field of the workload or model"""
    expression: str = ""
    """expression of the placeholder, if it is not only the target's name"""
    words: Mapping[str, Any] = field(default_factory=dict)
    """the script's words by the target's values, where they differ; for a flag the whole argument,
    or None to leave it out"""
    values: tuple[Any, ...] = ()
    """values of the knob that the option can set, the current one first"""
    default: Any = None
    """current value of the knob: as launched, or else the option's default"""

    @property
    def placeholder(self) -> str:
        """The placeholder in a trial's command or file."""
        return f"{{{self.expression or self.target}}}"

    @property
    def in_tokens(self) -> bool:
        """Whether the option counts tokens, and autotune sequences."""
        return self.expression.endswith("* seq_len")

    @property
    def over_ranks(self) -> bool:
        """Whether the script divides the option's value by its ranks."""
        return self.expression.endswith("* dp")

    @property
    def shards_all(self) -> bool:
        """Whether it is FSDP's switch between ZeRO stage 3 and no sharding."""
        return self.target == "zero_stage" and {*self.words} == {"3", "0"}

    def keeping_weights(self) -> Meaning:
        """The meaning of FSDP's switch in a program that keeps weights gathered after the forward
        pass: ZeRO stage 2 instead of 3."""
        words = {"2" if stage == "3" else stage: word for stage, word in self.words.items()}
        values = tuple(2 if stage == 3 else stage for stage in self.values)
        return replace(self, words=words, values=values, default=2 if self.default == 3 else 0)


_STAGES = frozenset(range(4))
"""ZeRO stages; DeepSpeed's own examples call the option `--stage`"""
_BATCHES = ("micro_batch_size", "accumulation_steps", "global_batch_size")
_SWITCHES = (
    ("compile", NAMES["compile"], "true", "false"),
    ("sequence_parallel", NAMES["sequence_parallel"], "true", "false"),
    ("recompute", "recompute_activations", "selective", "none"),
    ("recompute", NAMES["recompute"], "full", "none"),
    ("zero_stage", "reshard_after_forward", "3", "2"),
    ("zero_stage", "(use_|enable_)?fsdp", "3", "0"),
    ("zero_stage", "use_distributed_optimizer", "1", "0"),
)
"""(knob, pattern of names, value if on, value if off) of flags. recompute_activations and
use_distributed_optimizer are Megatron-LM's"""


def meaning_of(
    option: ScriptOption,
    divided: frozenset[str] = frozenset(),
    autocast: str = "",
    *,
    has_micro: bool = False,
    by_tokens: bool = False,
    of_fairseq: bool = False,
) -> Meaning | None:
    """The meaning of an option; None if it sets no knob or workload field. `divided`: names that
    the script divides by its ranks; `autocast`: number format of the code's autocast, if it is
    known; `has_micro`: whether another option is certainly the micro-batch; `by_tokens`: whether
    the code or another option says that it counts tokens; `of_fairseq`: whether the options are
    fairseq's, whose `--max-tokens` is a batch."""
    name = option.last
    if is_of_another_part(option):
        return None
    if option.kind == "flag":
        return _flag(option, autocast)
    if _ACTIVATION.fullmatch(name):
        is_gated = re.fullmatch(r"(swi|ge|re)?glu", str(option.present).lower()) is not None
        return Meaning(option=option, target="gated_mlp", default=True) if is_gated else None
    target = (
        "zero_stage" if name == "stage" and set(option.choices) == _STAGES else setting_of(name)
    )
    if of_fairseq and name == FAIRSEQ_TOKENS:
        target = "micro_batch_size"
    if target is None or target in ("compile", "sequence_parallel"):
        return None
    if target in WORDS:
        return _worded(option, target)
    if target == "micro_batch_size" and has_micro and not is_explicit_micro(option):
        target = "global_batch_size"
    expression = _expression(option, target, divided, by_tokens) if target in _BATCHES else ""
    return Meaning(option=option, target=target, expression=expression, default=option.present)


def is_of_another_part(option: ScriptOption) -> bool:
    """Whether the option does not concern training steps: `eval.steps`."""
    return OTHER_PARTS.search(option.name.lower()) is not None


def is_of_knob(option: ScriptOption) -> bool:
    """Whether the option's name is that of a knob or workload field, even if its value is not
    understood."""
    is_named = setting_of(option.last) or OTHER_DEGREES.fullmatch(option.last)
    return meaning_of(option) is not None or bool(is_named and not is_of_another_part(option))


def is_explicit_micro(option: ScriptOption) -> bool:
    """Whether the option is certainly a micro-batch: `micro_batch_size`,
    `per_device_train_batch_size`."""
    return (
        option.kind != "flag"
        and setting_of(option.last) == "micro_batch_size"
        and MICRO_BATCH_NAMES.search(option.last) is not None
        and not is_of_another_part(option)
    )


def is_log_interval(option: ScriptOption) -> bool:
    """Whether the option is the number of steps between log lines."""
    takes_number = option.kind == "int" and bool(option.prefix or option.file)
    return takes_number and _LOG_INTERVAL.fullmatch(option.last) is not None


def is_performance_choice(option: ScriptOption) -> bool:
    """Whether the option probably affects the speed and not the result."""
    name = option.last
    is_of_else = _OF_ELSE.search(name) or is_of_another_part(option)
    if is_of_else or option.kind == "float" or not _PERFORMANCE.search(name):
        return False
    return "worker" not in name or all(map(_OF_WORKERS.fullmatch, re.split(r"[_.]", name)))


def counts_tokens(options: Iterable[ScriptOption]) -> bool:
    """Whether an option says that batches count tokens (OpenNMT, JoeyNMT: `batch_type: tokens`)."""
    return any(o.last == "batch_type" and str(o.present).startswith("token") for o in options)


def are_of_fairseq(options: Iterable[ScriptOption]) -> bool:
    """Whether the options are fairseq's."""
    return not FAIRSEQ_OPTIONS.isdisjoint(option.last for option in options)


def may_be_batch(option: ScriptOption) -> bool:
    """Whether the option may be a batch in tokens, but is ambiguous."""
    return option.last == FAIRSEQ_TOKENS and type(option.present) is int


def _expression(option: ScriptOption, target: str, divided: frozenset[str], by_tokens: bool) -> str:
    """The placeholder's expression for a batch that counts tokens or all ranks; empty for the plain
    name."""
    is_large = isinstance(option.present, int) and option.present >= TOKENS
    is_in_tokens = by_tokens or is_large or IN_TOKENS.search(option.last)
    if target != "accumulation_steps" and is_in_tokens:
        return f"{target} * seq_len"
    return f"{target} * dp" if target != "global_batch_size" and option.name in divided else ""


def _worded(option: ScriptOption, target: str) -> Meaning | None:
    """The meaning of an option whose value is a word, from its choices, or else from the family of
    its default. None if neither is known."""
    known = WORDS[target]
    possible_words = [
        str(value) for value in (option.present, *option.between) if value is not None
    ]
    words: dict[str, Any] = {}
    if option.choices:
        is_autocast = any(str(value).startswith("amp") for value in (option.default, option.given))
        choices = [*map(str, option.choices)]
        words = dict(_offered(known, choices, is_autocast=is_autocast))
    elif target == "precision" and possible_words:
        known_words = {
            value: word for word in possible_words if (value := _value_of(known, word)) is not None
        }
        # of words in no family only those seen are certain, because the program chooses the others
        # itself
        # "no" switches accelerate's `mixed_precision` off
        families = reversed(_FAMILIES) if "mixed" in option.last else _FAMILIES
        words = next(
            (dict(f) for f in families if set(possible_words) <= set(f.values())), known_words
        )
    elif target == "zero_stage" and option.kind == "int":
        words = {str(stage): str(stage) for stage in range(4)}
    if option.present is not None:
        default = _value_of(known, str(option.present))
    else:
        absent = (value for value, word in words.items() if str(word).lower() in _ABSENT)
        default = None if option.computed else next(absent, None)
    if default is None and (len(words) < 2 or not option.choices) and not option.between:
        return None
    if default is not None and option.present is not None:
        # the word of the launch, even if others mean the same
        words[default] = str(option.present)
    values = sorted(words, key=lambda value: value != default)
    other_words = {value: word for value, word in words.items() if word != value}
    typed = _typed(target, values)
    return Meaning(option=option, target=target, words=other_words, values=typed, default=default)


def _value_of(known: Mapping[str, tuple[str, ...]], word: str) -> str | None:
    """The value that a word means; None if it is unknown."""
    alike = (value for value, words in known.items() if word.lower() in map(str.lower, words))
    return next(alike, None)


def _offered(
    known: Mapping[str, tuple[str, ...]], choices: list[str], *, is_autocast: bool
) -> Iterator[tuple[str, str]]:
    """(value, the choice that means it). Of several, the first one for autocast if the option's
    current word is one."""
    for value, words in known.items():
        of_amp = [word for word in words if word.startswith("amp")] if is_autocast else []
        pairs = product((*of_amp, *words), choices)
        found = (choice for word, choice in pairs if choice.lower() == word.lower())
        if (choice := next(found, None)) is not None:
            yield value, choice


def _flag(option: ScriptOption, autocast: str) -> Meaning | None:
    """The meaning of a flag; None if it is no knob's."""
    name = option.last
    for precision, pattern in PRECISION_FLAGS.items():
        if re.fullmatch(pattern, name):
            if re.search("amp|mixed", name):
                precision = autocast or precision
            if option.is_in_file:
                return _switch(option, "precision", precision, "fp32")
            return Meaning(
                option=option,
                target="precision",
                words={precision: option.on},
                values=(precision,),
                default=precision if option.present else None,
            )
    for target, pattern in FLAGS_OF_SHAPE.items():
        if re.fullmatch(pattern, name):
            return Meaning(option=option, target=target, default=bool(option.present))
    for target, pattern, on, off in _SWITCHES:
        if re.fullmatch(pattern, name):
            found = _switch(option, target, on, off)
            # stays on, because Megatron-LM's --overlap-param-gather requires it
            return replace(found, values=(1,)) if on == "1" and option.present else found
    return None


def _switch(option: ScriptOption, target: str, on: str, off: str) -> Meaning:
    """The meaning of a flag that switches a knob between two values."""
    default, other = (on, off) if option.default else (off, on)
    words = {on: option.on, off: option.off}
    reachable = [default] if words[other] is None else [default, other]
    reachable.sort(key=lambda value: value != (on if option.present else off))
    typed = _typed(target, reachable)
    return Meaning(option=option, target=target, words=words, values=typed, default=typed[0])


def _typed(target: str, values: list[str]) -> tuple[Any, ...]:
    """The values in the knob's type."""
    if target == "zero_stage":
        return tuple(map(int, values))
    is_switch = target in ("compile", "sequence_parallel")
    return tuple(value == "true" if is_switch else value for value in values)
