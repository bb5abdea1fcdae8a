"""Matches the options of a training script to knobs and workload fields, and classifies the rest.
Also computes the ranks, replicas and batch of the current launch.

ranks       as the launch says, or else those of the cluster that the user named, or else those of a usual node, and a comment says so
replicas    ranks that read different data: ranks / (tp x pp x cp), with the degrees of the current launch
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any, final

from autotune.onboarding.configuration_files import decided_for
from autotune.onboarding.draft import Place, around
from autotune.onboarding.launch.launch_script import value_of
from autotune.onboarding.script.adapters import by_bits, loaded_in
from autotune.onboarding.script.option_names import (
    OF_MODEL,
    OTHER_MODELS,
    Meaning,
    are_of_fairseq,
    counts_tokens,
    is_explicit_micro,
    is_log_interval,
    is_of_another_part,
    is_performance_choice,
    may_be_batch,
    meaning_of,
)
from autotune.onboarding.script.options import ScriptOption
from autotune.onboarding.script.reading import Script, starts_one
from autotune.onboarding.settings.file import (
    OPTIONS as DEEPSPEED_FILES,
)
from autotune.onboarding.settings.file import (
    SettingsFile,
    Template,
    deepspeed_template,
    overridden,
    settings_file,
    told_by_file,
    typed,
)
from autotune.spec.texts.as_text import number_of
from autotune.spec.texts.usual_names import (
    AMP_FORMATS,
    DISABLED_OPTIONS,
    FINDS_BATCH,
    OTHER_DEGREES,
    TRACKERS,
    WORDS,
    setting_of,
)
from autotune.trainers.present_configuration import flat, merged, nested

DEGREES = ("tp", "pp", "cp", "ep")
_PARTS = re.compile("(fsdp|deepspeed|ds|zero|xla|tpu|dali|horovod|rl)_")
"""prefixes of options that take effect only if the launch uses that library or feature"""
_AMP = re.compile("(use_|enable_)?(amp|autocast|mixed_precision)")
"""names of flags that switch autocast on"""
BATCH = 8
"""sequences per micro-batch, assumed if nothing sets it"""
UNSAID_STEPS = "the number of accumulated micro-batches was not found"
_SUPPLIED = ("local_rank", "rank", "node_rank", "master_addr", "master_port")
"""options that the launcher sets through the environment"""


@dataclass(slots=True)
class OptionMatches:
    """The options of one script by their meaning."""

    script: Script
    """the script that has these options"""
    fixed: Mapping[str, Any] = field(default_factory=dict)
    """knobs that settings files, the launcher or the code set and no option does, with their
    values"""
    template: Template | None = None
    """the DeepSpeed file of the launch"""
    settings: SettingsFile | None = None
    """the settings file; each trial gets a copy with its own values"""
    used: dict[str, Meaning] = field(default_factory=dict)
    """by knob or workload field: the option that sets it; the first one if several do"""
    constants: Mapping[str, Meaning] = field(default_factory=dict)
    """by knob or workload field: the constant in the script that sets it"""
    precision_flags: list[Meaning] = field(default_factory=list)
    """flags that each switch on one number format"""
    ideas: list[ScriptOption] = field(default_factory=list)
    """options that may affect performance, suggested as custom knobs"""
    log_interval: ScriptOption | None = None
    """the option for the number of steps between log lines; None if every step is logged"""
    required: list[ScriptOption] = field(default_factory=list)
    """required options for which autotune has no value"""
    unclear: list[str] = field(default_factory=list)
    """parts of the launch that concern a knob and were not understood, as they are written"""
    undecided: list[ScriptOption] = field(default_factory=list)
    """options whose default depends on a condition that is evaluated only at run time"""
    trackers: list[ScriptOption] = field(default_factory=list)
    """flags of the launch that switch on experiment tracking"""
    finds_batch: list[ScriptOption] = field(default_factory=list)
    """options with which the program changes its batch by itself"""
    of_other_models: list[ScriptOption] = field(default_factory=list)
    """options that only models other than decoders have"""
    repeated: list[tuple[str, ScriptOption]] = field(default_factory=list)
    """(knob or workload field, option) of values that the settings file repeats under another
    path"""

    def default(self, target: str) -> Any:
        """The script's current value of a knob or workload field, from an option or a constant;
        None if neither sets it."""
        return self.used[target].default if target in self.used else self.constant(target)

    def constant(self, target: str) -> Any:
        """The value of the constant that sets a knob or workload field; None if no constant
        does."""
        return self.constants[target].option.default if target in self.constants else None

    def count(self, target: str) -> int | None:
        """The script's current value if it is a positive integer, or else None. A batch in tokens
        is converted to sequences, or None if the sequence length is unknown."""
        meaning, value = self._said(target), self.default(target)
        if meaning is None or type(value) is not int or value <= 0:
            return None
        if not meaning.in_tokens:
            return value
        seq_len = self.count("seq_len")
        return max(1, value // seq_len) if seq_len else None

    def where(self, target: str) -> str:
        """Where the value is set: "as launched", a line, or a file; empty if nothing sets it."""
        if (meaning := self._said(target)) is None:
            return ""
        option = meaning.option
        return option.file or ("as launched" if option.given is not None else option.place)

    def values(self, target: str) -> tuple[Any, ...]:
        """The knob's values that its option accepts, the current one first; empty if no option sets
        the knob."""
        return self.used[target].values if target in self.used else ()

    def choices(self, target: str) -> list[int]:
        """The positive integers that the option may have, sorted; empty if it may have any."""
        choices = self.used[target].option.choices if target in self.used else ()
        return sorted(choice for choice in choices if isinstance(choice, int) and choice > 0)

    @property
    def accumulates(self) -> bool:
        """Whether the script can accumulate gradients: an option or a constant sets the
        accumulation steps or the global batch."""
        says = ("accumulation_steps", "global_batch_size")
        return any(target in self.used or self.constant(target) for target in says)

    @property
    def divides_batch(self) -> bool:
        """Whether the script computes the micro-batch from the global batch, the ranks and the
        accumulation steps: options set the batch and the accumulation, and nothing sets the
        micro-batch."""
        both = [self.used.get(target) for target in ("global_batch_size", "accumulation_steps")]
        sets_micro_batch = "micro_batch_size" in self.used or self.constant("micro_batch_size")
        return not sets_micro_batch and all(
            each is not None and not each.expression for each in both
        )

    @property
    def plain_format(self) -> str:
        """The number format of computation if no flag switches another one on."""
        if loaded_in(self.script) == "bfloat16" and not any(
            flag.default for flag in self.precision_flags
        ):
            return "bf16"  # the type of its weights
        has_switch = any("tf32" in flag.values for flag in self.precision_flags)
        return "tf32" if "precision" in self.script.in_code and not has_switch else "fp32"

    def without_autocast(self) -> None:
        """Fixes precision to fp32, because the script ignores its precision options. They keep
        their values."""
        self.used.pop("precision", None)
        self.precision_flags.clear()
        self.undecided = [each for each in self.undecided if setting_of(each.last) != "precision"]
        self.fixed = {**self.fixed, "precision": "fp32"}

    def without_sharding(self) -> None:
        """Removes the ZeRO stage, because one rank has nothing to shard."""
        self.fixed = {knob: value for knob, value in self.fixed.items() if knob != "zero_stage"}
        self.used.pop("zero_stage", None)
        if self.template is not None:
            # the file keeps its stage, because offloading parameters requires it
            stage = nested({"zero_optimization.stage": self.template.stages[0] or None})
            document = merged(self.template.document, stage)
            self.template = replace(self.template, stages=(0,), document=document)

    @property
    def files(self) -> dict[str, Mapping[str, Any]]:
        """The files of each trial by name: document with placeholders."""
        found = {self.template.name: self.template.document} if self.template else {}
        placeholders: dict[str, Any] = {
            meaning.option.name: meaning.placeholder
            for target, meaning in self.used.items()
            if meaning.option.file and meaning.option.is_in_file and target not in OF_MODEL
        }
        for target, option in self.repeated:
            if target in self.used and (first := self.used[target].option.name) in placeholders:
                placeholders[option.name] = placeholders[first]
        if self.settings and placeholders:
            placeholders |= {path: in_trials for path, (in_trials, _) in self.of_run.items()}
            if self.log_interval and self.log_interval.is_in_file:
                placeholders[self.log_interval.name] = 1
            found[self.settings.name] = self.settings.told(placeholders)
        return found

    @property
    def of_run(self) -> dict[str, tuple[Any, Any]]:
        """By path in a settings file that holds all arguments of transformers' Trainer: (a trial's
        value, the user's value) of options for tracking, saving and evaluation."""
        if self.script.told_in is None or self.settings is None:
            return {}
        values = dict(flat(self.settings.document))
        part = f"{self.script.told_in}." if self.script.told_in else ""
        saves = values.get(f"{part}save_strategy", "steps")
        found: dict[str, tuple[Any, Any]] = {f"{part}save_strategy": ("no", saves)}
        if f"{part}logging_steps" not in values:
            found[f"{part}logging_steps"] = (
                1,
                500,
            )  # by default Trainer prints a loss every 500 steps
        for name, off in DISABLED_OPTIONS.items():
            users_value = values.get(f"{part}{name}")
            if users_value is not None and str(users_value) != off:
                found[f"{part}{name}"] = (False if off == "False" else off, users_value)
        return found

    @property
    def of_deepspeed(self) -> tuple[ScriptOption, ...]:
        """The values of DeepSpeed's file as options."""
        return tuple(self.template.options) if self.template else ()

    @property
    def variables(self) -> dict[str, str]:
        """The environment variables that set knobs of a trial, with their placeholders."""
        return {
            meaning.option.variable: meaning.placeholder
            for meaning in self.used.values()
            if meaning.option.variable
        }

    def _said(self, target: str) -> Meaning | None:
        """The option that sets a knob or workload field, or else the constant; None if neither
        does."""
        return self.used.get(target) or self.constants.get(target)


def match_options(script: Script, cwd: Path) -> OptionMatches:
    """Matches a script's options to knobs and workload fields. `cwd`: where the script runs."""
    constants = [meaning for each in script.constants if (meaning := meaning_of(each)) is not None]
    found = OptionMatches(
        script=script, constants={each.target: each for each in reversed(constants)}
    )
    decided: dict[str, Any] = {}
    if script.started:
        decided = decided_for(script.started, cwd)
        found.template = deepspeed_template(script.started, cwd)
    found.settings = settings_file(script, cwd)
    found.unclear += [script.unread] if script.unread else []
    found.unclear += found.settings.unclear if found.settings else ()
    options = tuple(_options(found, cwd))
    stage_in_code = script.in_code.get("zero_stage")
    keeps_weights = 2 in (decided.get("zero_stage"), stage_in_code.value if stage_in_code else None)
    for option, meaning in _meanings(found, options):
        keeps_gathered = keeps_weights and meaning is not None and meaning.shards_all
        _sort(found, option, meaning.keeping_weights() if keeps_gathered and meaning else meaning)
    if found.used.keys().isdisjoint(("micro_batch_size", "global_batch_size")):
        found.unclear += [
            f"{each.shown}={each.present} (a batch in tokens is `{each.prefix}{{micro_batch_size * seq_len}}`)"
            for each in filter(may_be_batch, options)
        ]
    found.unclear += [*_contradicting(found), *_said_by_code(found)]
    _tell_precision_once(found, decided)
    if found.precision_flags and not any(each.default for each in found.precision_flags):
        line, flag = script.code.plain_autocast, found.precision_flags[0].option.shown
        found.unclear += (
            [f"the autocast in line {line}, which does not depend on {flag}"] if line else []
        )
    if found.settings and found.settings.name not in found.files:
        found.settings = None
    found.fixed = _fixed(found, decided)
    return found


def _options(found: OptionMatches, cwd: Path) -> Iterator[ScriptOption]:
    """All options of the program. Those that the launch passes come first, because of several
    options for one knob the first one is used."""
    script = found.script
    yield from (option for option in script.options if option.given is not None)
    yield from overridden(script, cwd)
    if found.settings and script.told_in is None:
        yield from told_by_file(found.settings)
    yield from (option for option in script.options if option.given is None)
    yield from _told_by_variables(script)
    yield from found.of_deepspeed


def _meanings(
    found: OptionMatches, options: Sequence[ScriptOption]
) -> Iterator[tuple[ScriptOption, Meaning | None]]:
    """(option, its meaning or None) for each option. A meaning depends on which other options the
    script has. Skips options that only select the format of an autocast flag."""
    script = found.script
    meaning_in_context = partial(
        meaning_of,
        divided=script.code.divided,
        has_micro=any(
            is_explicit_micro(each) for each in options if each not in found.of_deepspeed
        ),
        of_fairseq=are_of_fairseq(options),
    )
    all_by_tokens = counts_tokens(options)
    flags = (option for option in options if option.kind == "flag")
    amp_flag = next((option for option in flags if _AMP.fullmatch(option.last)), None)
    format_option = next((o for o in options if amp_flag and AMP_FORMATS.fullmatch(o.last)), None)
    ignored = {*_SUPPLIED, *script.code.counts_nodes}
    for option in options:
        if option is not format_option and option.last not in ignored:
            autocast = (
                _format_of(format_option)
                if option is amp_flag and format_option
                else script.code.autocast or script.code.of_policy
            )
            by_tokens = all_by_tokens or option.last in script.code.in_tokens
            yield option, meaning_in_context(option, autocast=autocast, by_tokens=by_tokens)


def _sort(found: OptionMatches, option: ScriptOption, meaning: Meaning | None) -> None:
    """Stores an option in the list of `found` that its meaning calls for. Of several options for
    one knob, the first is used."""
    name, is_flag = option.last, option.kind == "flag"
    is_argument = option.prefix.startswith("--") or not (option.prefix or option.is_in_file)
    # transformers' Trainer has values that switch trackers off
    is_argument &= found.script.parser != "HfArgumentParser" or name not in DISABLED_OPTIONS
    if is_flag and option.given is True and is_argument and TRACKERS.fullmatch(name):
        found.trackers.append(option)
    if OTHER_MODELS.fullmatch(name) and option.present is not None:
        found.of_other_models.append(option)
    if FINDS_BATCH.fullmatch(name) and option.present not in (None, False):
        found.finds_batch.append(option)
    if (why := _unclear(option, meaning)) is not None:
        found.unclear.append(why)
    needs_value = option.is_required and option.given is None
    if meaning is None:
        if is_log_interval(option):
            found.log_interval = option if option.present != 1 else None
        elif is_performance_choice(option):
            found.ideas += [option] if _is_of_a_used_part(option, found.script) else []
        elif needs_value:
            found.required.append(option)
        return
    is_of_model = meaning.target in OF_MODEL
    if option.computed and option.present is None and not is_of_model:
        found.undecided.append(option)
    if meaning.target == "precision" and is_flag and not option.is_in_file:
        found.precision_flags.append(meaning)
    elif is_of_model or not _does_nothing(option, meaning.target, found.script):
        found.required += [option] if is_of_model and needs_value else []
        first = found.used.setdefault(meaning.target, meaning).option
        if option is not first and not is_of_model:
            _sort_repeated(found, meaning.target, option, first)


def _sort_repeated(
    found: OptionMatches, target: str, option: ScriptOption, first: ScriptOption
) -> None:
    """Handles a key that another section of the same file repeats, as with YAML anchors: `repeated`
    if both have the same value, or else `unclear`."""
    if option.last != first.last or not option.is_in_file or option.file != first.file:
        return
    if option.present == first.present:
        found.repeated.append((target, option))
    elif target in ("micro_batch_size", "accumulation_steps"):
        found.unclear.append(f"{first.name}={first.present} beside {option.name}={option.present}")


def _is_of_a_used_part(option: ScriptOption, script: Script) -> bool:
    """Whether an option can take effect: its name has no prefix of a library (`_PARTS`), or the
    launch passes another option with that prefix."""
    part = _PARTS.match(option.last)
    given = (other.name for other in script.options if other.given is not None)
    return part is None or any(name.startswith(part[0].rstrip("_")) for name in given)


def _tell_precision_once(found: OptionMatches, decided: Mapping[str, Any]) -> None:
    """Keeps either the option for the precision or the flags that switch formats on, whichever the
    program uses."""
    flags = found.precision_flags
    if "precision" in found.used:
        by_name = found.used["precision"]
        has_given_flag = any(each.default or each.option.given is not None for each in flags)
        if flags and (has_given_flag or by_name.option.given is None or by_name.default is None):
            # next to autocast flags, this option is the type of the weights
            del found.used["precision"]
        else:
            flags.clear()
    if any(each.default in ("bf16", "fp16") for each in flags):
        # with bf16 or fp16, tf32 only affects what is left in fp32, so it stays as launched
        flags[:] = [each for each in flags if each.values != ("tf32",)]
    started, has_default_flag = found.script.started, any(each.default for each in flags)
    if (
        started
        and started.launcher == "accelerate"
        and decided.get("precision")
        and not has_default_flag
    ):
        flags.clear()  # without such a flag, transformers uses the launcher's number format


def _fixed(found: OptionMatches, decided: dict[str, Any]) -> dict[str, Any]:
    """Knobs with one value for all trials: set by files, the launcher or the code, and by no
    option."""
    script = found.script
    if found.template and found.template.precision:
        found.used.pop("precision", None)
        found.precision_flags.clear()
        decided = {**decided, "precision": found.template.precision}
    sets_by_option = {*found.used, *(["precision"] if found.precision_flags else [])}
    sets_by_option |= {"zero_stage"} if found.template else set()
    format_in_code = ("" if script.code.is_switched else script.code.autocast) or (
        "bf16" if script.code.loads_as[0] == "bfloat16" else ""
    )
    if "precision" not in sets_by_option and "precision" not in decided and format_in_code:
        decided = {**decided, "precision": format_in_code}
    steps = found.constant("accumulation_steps")
    if "accumulation_steps" not in sets_by_option and isinstance(steps, int) and steps > 0:
        decided = {"accumulation_steps": steps, **decided}
    in_code = {knob: made.value for knob, made in script.in_code.items()}
    if script.code.recomputes_4_bits and by_bits(script, "") == "qlora":
        in_code = {**in_code, "recompute": "full"}
    if (stage := _stage_of_strategy(script)) and "zero_stage" not in sets_by_option:
        decided = {"zero_stage": stage, **decided}
    if "zero_stage" in in_code and "zero_stage" not in sets_by_option:
        decided = {"zero_stage": in_code["zero_stage"], **decided}
    for knob in ("recompute", "compile"):
        value = in_code.get(knob, decided.get(knob))
        if knob in in_code or (knob, value) == ("recompute", "full"):
            found.used.pop(knob, None)
            sets_by_option -= {knob}
            decided = {**decided, knob: value}
    if "precision" in in_code:
        decided = _with_tf32(found, decided)
    without_option = {knob: value for knob, value in decided.items() if knob not in sets_by_option}
    return {knob: value for knob, value in without_option.items() if value not in (False, "none")}


def _stage_of_strategy(script: Script) -> int:
    """The ZeRO stage of Lightning's strategy, such as `deepspeed_stage_2` or `fsdp`; 0 without
    sharding."""
    strategy = str(script.said.get("strategy") or "") if script.is_of_lightning else ""
    match = re.match(r"deepspeed(?:_stage_([123]))?|fsdp", strategy)
    if match is None:
        return 0
    return int(match[1] or 2) if strategy.startswith("deepspeed") else 3


def _contradicting(found: OptionMatches) -> Iterator[str]:
    """Batch options whose value differs from the one in DeepSpeed's file."""
    for of_file in found.of_deepspeed:
        meaning = found.used[of_file.name]
        option = meaning.option
        if not meaning.expression and option.present not in (None, of_file.given):
            yield f"{option.shown}={option.present}, where {of_file.file} has {of_file.given}"


def _said_by_code(found: OptionMatches) -> Iterator[str]:
    """What the code alone configures: DeepSpeed without a file, ColossalAI's plugins, pipeline
    stages."""
    script = found.script
    has_config_option = script.started is None or value_of(script.arguments, *DEEPSPEED_FILES)
    if script.code.initializes_deepspeed and not has_config_option:
        yield "deepspeed.initialize without an argument for DeepSpeed's file"
    if "colossalai" in script.code.imports:
        yield "ColossalAI's plugin, which may shard or split the model"
    if script.code.pipelined and "pp" not in found.used:
        yield f"{script.code.pipelined} without an option for the stages"


_BY_VARIABLE = frozenset(
    {"micro_batch_size", "accumulation_steps", "global_batch_size", "seq_len", "steps"}
)
"""what an environment variable may set; names of other knobs are too short to be recognized
safely"""


def _told_by_variables(script: Script) -> Iterator[ScriptOption]:
    """The environment variables that the program reads as options, with the exported values, or
    else the defaults in the code."""
    exported = script.started.env if script.started else {}
    for name, default in script.code.variables.items():
        value = typed(str(exported.get(name, default)))
        if type(value) is int and setting_of(name.lower()) in _BY_VARIABLE:
            given = value if name in exported else None
            yield ScriptOption(
                name=name.lower(), kind="int", default=value, given=given, variable=name
            )


def _with_tf32(found: OptionMatches, decided: dict[str, Any]) -> dict[str, Any]:
    """`decided` for a program that computes fp32 as tf32. If an option sets the precision, its word
    for fp32 becomes the word for tf32."""
    if "precision" in found.used:
        meaning = found.used["precision"]
        words_with_tf32 = {
            "tf32" if value == "fp32" else value: word for value, word in meaning.words.items()
        }
        values = tuple("tf32" if value == "fp32" else value for value in meaning.values)
        words = {"tf32": "fp32", **words_with_tf32} if "fp32" in meaning.values else words_with_tf32
        default = "tf32" if meaning.default == "fp32" else meaning.default
        found.used["precision"] = replace(meaning, words=words, values=values, default=default)
    elif not (found.precision_flags or found.script.code.formats):
        is_plain = decided.get("precision", "fp32") == "fp32"
        return {**decided, "precision": "tf32"} if is_plain else decided
    return decided


def _format_of(option: ScriptOption) -> str:
    """The number format that an option selects for an autocast flag; empty if its value is not a
    known format."""
    word = str(option.present).lower()
    return next((value for value, words in WORDS["precision"].items() if word in words), "")


def _unclear(option: ScriptOption, meaning: Meaning | None) -> str | None:
    """An option for precision, recomputation, sharding or a parallel degree whose value was not
    understood, as it is written; None if it was, or if the option sets nothing."""
    target, value = setting_of(option.last), option.present
    if is_of_another_part(option) or value in (None, False, "", 0, 1):
        return None
    if target == "precision" and value == "auto":
        return None  # weights are loaded in the checkpoint's type
    is_unknown = OTHER_DEGREES.fullmatch(option.last) is not None and type(value) is int
    if option.kind == "text" and (option.given is not None or option.file):
        has_words = target in ("precision", "recompute", "zero_stage")
        is_unknown |= has_words and (meaning is None or meaning.default is None)
        is_unknown |= target in DEGREES and not isinstance(value, int)
    assignment = "" if value is True else f"={value}"
    return f"{option.shown}{assignment}" if is_unknown else None


def _does_nothing(option: ScriptOption, target: str, script: Script) -> bool:
    """Whether an option has no effect on trials: the stage of a DeepSpeed that is off, or a number
    of ranks, which the launcher sets, unless the script starts its own ranks."""
    if target == "zero_stage" and "fsdp" not in option.last:
        return script.is_without_deepspeed
    # Lightning compares these options with torchrun's ranks
    reads_rank_count = script.spawns or script.is_of_lightning
    return target in ("nnodes", "nproc_per_node", "world_size") and not reads_rank_count


@final
@dataclass(frozen=True)
class LaunchToday:
    """Ranks, parallel degrees and batch of the current launch, and of a trial with the same
    config."""

    found: OptionMatches
    place: Place

    @cached_property
    def is_alone(self) -> bool:
        """Whether the launch is one process, whatever the cluster has."""
        return starts_one(self.found.script)

    @cached_property
    def _asked(self) -> int | None:
        """Ranks that the launch, or the program that starts its own ranks, asks for; None if it
        does not say."""
        script, asked = self.found.script, None
        if script.spawns:
            by_option = self.found.count("world_size") or self.found.count("nproc_per_node")
            asked = by_option or script.code.spawned
        return asked or (self.place.asked if script.started else None)

    @cached_property
    def degrees(self) -> dict[str, int]:
        """Parallel degrees above 1 of the current launch, by name."""
        current = {degree: self.found.count(degree) or 1 for degree in DEGREES}
        return {degree: value for degree, value in current.items() if value > 1}

    @property
    def ranks(self) -> int:
        """Ranks of the current launch."""
        return 1 if self.is_alone else self._asked or self.place.ranks

    @property
    def ranks_of_trials(self) -> int:
        """Ranks of a trial: at most those of the cluster."""
        return min(self.ranks, self.place.ranks)

    @property
    def is_assumed(self) -> bool:
        """Whether the number of ranks is assumed, because neither the launch nor a cluster gives
        it."""
        is_given = self.is_alone or self._asked is not None or self.place.name is not None
        return bool(self.found.script.started) and not is_given

    @property
    def _model(self) -> int:
        """Ranks that hold one replica of the model: tp x pp x cp."""
        return math.prod(self.degrees.get(degree, 1) for degree in ("tp", "pp", "cp"))

    @property
    def replicas(self) -> int:
        """Data-parallel replicas of the current launch: ranks that read different data."""
        return max(1, self.ranks // self._model)

    @property
    def replicas_of_trials(self) -> int:
        """Data-parallel replicas of a trial."""
        return max(1, self.ranks_of_trials // self._model)

    @property
    def is_part(self) -> bool:
        """Whether the launch may use only part of the cluster. True as well if no cluster was
        named, because the size of this machine is then unknown."""
        is_less = self.place.name is None or self.ranks_of_trials < self.place.ranks
        return self._asked is not None and not self.is_alone and is_less

    @property
    def is_elsewhere(self) -> bool:
        """Whether the launch has more ranks than the cluster."""
        return self.ranks > self.ranks_of_trials

    @property
    def problem(self) -> str:
        """Why the launch's degrees are not a valid config; empty if they are."""
        if self.ranks_of_trials % self._model or self.ranks % self._model:
            shown = " x ".join(f"{name}={value}" for name, value in self.degrees.items())
            return f"{shown} does not divide {number_of(self.ranks_of_trials, 'rank')}"
        return ""

    @cached_property
    def micro_batch_size(self) -> int | None:
        """Sequences per rank and micro-batch; None if unknown."""
        found = self.found
        micro = found.count("micro_batch_size")
        if micro is None and found.divides_batch:
            batch, steps = found.count("global_batch_size"), found.count("accumulation_steps")
            micro_batches = self.replicas * (steps or 1)
            return (
                batch // micro_batches if batch and steps and batch % micro_batches == 0 else None
            )
        meaning = found.used.get("micro_batch_size")
        return max(1, micro // self.replicas) if micro and meaning and meaning.over_ranks else micro

    @property
    def is_accumulation_unsaid(self) -> bool:
        """Whether an option sets the accumulation steps, but its value is unknown."""
        steps = "accumulation_steps"
        return steps in self.found.used and self.found.count(steps) is None

    @property
    def _batch_of_program(self) -> str | None:
        """The option that leaves the batch to the program (`--total-batch-size=-1`), or None."""
        whole = self.found.used.get("global_batch_size")
        value = whole.default if whole and "accumulation_steps" not in self.found.used else None
        return f"{whole.option.shown}={value}" if whole and value in (-1, 0) else None

    @cached_property
    def batch(self) -> tuple[Any, str, bool]:
        """(sequences per step or a list of choices, where that comes from, whether it is only a
        placeholder)"""
        found, script = self.found, self.found.script
        if stated := found.count("global_batch_size"):
            return stated, found.where("global_batch_size"), False
        micro, steps = self.micro_batch_size or BATCH, found.count("accumulation_steps") or 1
        accumulation, micro_option = (
            found.used.get(name) for name in ("accumulation_steps", "micro_batch_size")
        )
        counts_all_ranks = accumulation is not None and bool(accumulation.expression)
        whole = micro * steps * (1 if counts_all_ranks else self.replicas)
        unit = "sequences per optimizer step"
        is_given = micro_option is not None and micro_option.option.given is not None
        if self.micro_batch_size is None or (script.held_elsewhere and not is_given):
            return whole, f"{unit} (not found in the script)", True
        if self.is_accumulation_unsaid:
            return whole, f"{unit} ({UNSAID_STEPS})", True
        if (chosen := self._batch_of_program) is not None:
            return whole, f"{unit} ({chosen} lets the program choose the batch)", True
        parts = f"{'as launched' if script.started else 'its defaults'}, {micro} x {steps}"
        if not counts_all_ranks and self.replicas > 1:
            parts += f" on {number_of(self.ranks, 'rank')}"
            parts += (
                f", {self.replicas} of them with their own data"
                if self.replicas < self.ranks
                else ""
            )
        if self.is_assumed:
            why = "the launch does not give the number of ranks"
            return whole, f"{unit}, {parts} ({why})", True
        if found.accumulates:
            return whole, f"{parts} ({unit})", False
        if script.started and not (script.is_read and script.parser):
            return whole, f"{unit}, {parts} if it does not accumulate", True
        if micro_option is None or self.is_elsewhere:
            return whole, unit, False
        why = "no accumulation option was found, so each micro-batch counts as a batch"
        return [scale * self.replicas for scale in around(micro)], why, False
