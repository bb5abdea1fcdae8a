"""The options of a training script, matched to knobs and figures of the workload; and what is left
of them.

How many ranks a program is started on today, how many a trial has, and how many of them have data
of their own.

ranks       as the launch says; else those of the cluster that was named; else a usual node, which is said to be assumed
replicas    ranks / (tp x pp x cp), by the degrees that the program is started with
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
    FINDS_BATCH,
    OF_A_RUN,
    OTHER_DEGREES,
    TRACKERS,
    WORDS,
    target_of,
)
from autotune.trainers.present_configuration import flat, merged, nested

DEGREES = ("tp", "pp", "cp", "ep")
_PARTS = re.compile("(fsdp|deepspeed|ds|zero|xla|tpu|dali|horovod|rl)_")
"""beginnings of names of options that do something only in a launch that has that part"""
_AMP = re.compile("(use_|enable_)?(amp|autocast|mixed_precision)")
"""names of flags that switch autocast on"""
BATCH = 8
"""sequences per micro-batch where nothing tells them"""
UNSAID_STEPS = "the number of accumulated micro-batches was not found"
_SUPPLIED = ("local_rank", "rank", "node_rank", "master_addr", "master_port")
"""options that the launcher fills in by the environment"""


@dataclass(slots=True)
class OptionMatches:
    """The options of one script by what they stand for."""

    script: Script
    """the script whose options they are"""
    fixed: Mapping[str, Any] = field(default_factory=dict)
    """knobs that files of settings decide, and no option"""
    template: Template | None = None
    """the file of DeepSpeed that it is started with"""
    settings: SettingsFile | None = None
    """the file of settings of which each trial has its own"""
    used: dict[str, Meaning] = field(default_factory=dict)
    """by knob or figure: the option that stands for it; the first one where several do"""
    constants: Mapping[str, Meaning] = field(default_factory=dict)
    """the same of the constants of the script's text"""
    precision_flags: list[Meaning] = field(default_factory=list)
    """flags that each switch on one number format"""
    ideas: list[ScriptOption] = field(default_factory=list)
    """options that look like performance choices, proposed as knobs of the study's own"""
    log_interval: ScriptOption | None = None
    """after how many steps the script prints a line, where it does not print one for every step"""
    required: list[ScriptOption] = field(default_factory=list)
    """options that the script insists on and that autotune has no value for"""
    unclear: list[str] = field(default_factory=list)
    """what it is started with that concerns a knob and is not understood, as it is written"""
    undecided: list[ScriptOption] = field(default_factory=list)
    """options whose default a condition decides that nobody here knows"""
    trackers: list[ScriptOption] = field(default_factory=list)
    """flags by which the run is watched, and that it is started with"""
    finds_batch: list[ScriptOption] = field(default_factory=list)
    """options by which it changes its batch by itself"""
    of_other_models: list[ScriptOption] = field(default_factory=list)
    """options that models have which are no decoders"""
    repeated: list[tuple[str, ScriptOption]] = field(default_factory=list)
    """(knob or figure, value) of the file of settings that says again what another of its values
    says"""

    def default(self, target: str) -> Any:
        """The script's own value of a knob or figure, by option or constant; None where it does not
        say."""
        return self.used[target].default if target in self.used else self.constant(target)

    def constant(self, target: str) -> Any:
        """A constant of the script's text."""
        return self.constants[target].option.default if target in self.constants else None

    def count(self, target: str) -> int | None:
        """The script's own value, where it is a whole number above 0; of a batch in tokens its
        sequences, where their length is known."""
        meaning, value = self._said(target), self.default(target)
        if meaning is None or type(value) is not int or value <= 0:
            return None
        if not meaning.in_tokens:
            return value
        seq_len = self.count("seq_len")
        return max(1, value // seq_len) if seq_len else None

    def where(self, target: str) -> str:
        """The line that says the value; empty where none does."""
        if (meaning := self._said(target)) is None:
            return ""
        option = meaning.option
        return option.file or ("as launched" if option.given is not None else option.place)

    def values(self, target: str) -> tuple[Any, ...]:
        """The knob's values that an option can tell, that of today first; none where no option
        does."""
        return self.used[target].values if target in self.used else ()

    def choices(self, target: str) -> list[int]:
        """The numbers that an option may have; empty where it may have any."""
        choices = self.used[target].option.choices if target in self.used else ()
        return sorted(choice for choice in choices if isinstance(choice, int) and choice > 0)

    @property
    def accumulates(self) -> bool:
        """Whether it does, by an option, or as its own text says."""
        says = ("accumulation_steps", "global_batch_size")
        return any(target in self.used or self.constant(target) for target in says)

    @property
    def divides_batch(self) -> bool:
        """Whether the micro-batch is what is left of the batch of all ranks, divided by the ranks
        and the accumulation: options say those two and not the micro-batch."""
        both = [self.used.get(target) for target in ("global_batch_size", "accumulation_steps")]
        is_told = "micro_batch_size" in self.used or self.constant("micro_batch_size")
        return not is_told and all(each is not None and not each.expression for each in both)

    @property
    def plain_format(self) -> str:
        """What it computes in where no flag switches another format on."""
        if loaded_in(self.script) == "bfloat16" and not any(
            flag.default for flag in self.precision_flags
        ):
            return "bf16"  # as its weights are
        has_switch = any("tf32" in flag.values for flag in self.precision_flags)
        return "tf32" if "precision" in self.script.in_code and not has_switch else "fp32"

    def without_autocast(self) -> None:
        """It computes in fp32, whatever it is told: its words of precision stay as they are."""
        self.used.pop("precision", None)
        self.precision_flags.clear()
        self.undecided = [each for each in self.undecided if target_of(each.last) != "precision"]
        self.fixed = {**self.fixed, "precision": "fp32"}

    def without_sharding(self) -> None:
        """On one rank nothing is sharded, whatever stage it is started with."""
        self.fixed = {knob: value for knob, value in self.fixed.items() if knob != "zero_stage"}
        self.used.pop("zero_stage", None)
        if self.template is not None:
            # the file keeps its stage, which parameters on the host need
            told = nested({"zero_optimization.stage": self.template.stages[0] or None})
            document = merged(self.template.document, told)
            self.template = replace(self.template, stages=(0,), document=document)

    @property
    def files(self) -> dict[str, Mapping[str, Any]]:
        """What each trial has its own files of, by name."""
        found = {self.template.name: self.template.document} if self.template else {}
        told: dict[str, Any] = {
            meaning.option.name: meaning.placeholder
            for target, meaning in self.used.items()
            if meaning.option.file and meaning.option.is_in_file and target not in OF_MODEL
        }
        for target, option in self.repeated:
            if target in self.used and (first := self.used[target].option.name) in told:
                told[option.name] = told[first]
        if self.settings and told:
            told |= {path: in_trials for path, (in_trials, _) in self.of_run.items()}
            if self.log_interval and self.log_interval.is_in_file:
                told[self.log_interval.name] = 1
            found[self.settings.name] = self.settings.told(told)
        return found

    @property
    def of_run(self) -> dict[str, tuple[Any, Any]]:
        """(value of a trial, value of the user's run) of tracking, saving and evaluation, by their
        paths in a file that alone has the arguments of transformers' Trainer."""
        if self.script.told_in is None or self.settings is None:
            return {}
        held = dict(flat(self.settings.document))
        part = f"{self.script.told_in}." if self.script.told_in else ""
        saves = held.get(f"{part}save_strategy", "steps")
        found: dict[str, tuple[Any, Any]] = {f"{part}save_strategy": ("no", saves)}
        if f"{part}logging_steps" not in held:
            found[f"{part}logging_steps"] = (1, 500)  # by itself it prints a loss every 500 steps
        for name, off in OF_A_RUN.items():
            now = held.get(f"{part}{name}")
            if now is not None and str(now) != off:
                found[f"{part}{name}"] = (False if off == "False" else off, now)
        return found

    @property
    def of_deepspeed(self) -> tuple[ScriptOption, ...]:
        """What the file of DeepSpeed says, as options."""
        return tuple(self.template.options) if self.template else ()

    @property
    def variables(self) -> dict[str, str]:
        """The environment variables that tell a trial its config, with their placeholders."""
        return {
            meaning.option.variable: meaning.placeholder
            for meaning in self.used.values()
            if meaning.option.variable
        }

    def _said(self, target: str) -> Meaning | None:
        """The option or constant that says it."""
        return self.used.get(target) or self.constants.get(target)


def match_options(script: Script, cwd: Path) -> OptionMatches:
    """Matches a script's options; `cwd`: where it runs."""
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
    made = script.in_code.get("zero_stage")
    keeps_weights = 2 in (decided.get("zero_stage"), made.value if made else None)
    for option, meaning in _meanings(found, options):
        is_switch = keeps_weights and meaning is not None and meaning.shards_all
        _sort(found, option, meaning.keeping_weights() if is_switch and meaning else meaning)
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
    """Everything that tells the program a value, what the launch gives first."""
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
    """Each option with what it means beside the others, without those that only say which format a
    flag switches on."""
    script = found.script
    known = partial(
        meaning_of,
        divided=script.code.divided,
        has_micro=any(
            is_explicit_micro(each) for each in options if each not in found.of_deepspeed
        ),
        of_fairseq=are_of_fairseq(options),
    )
    all_by_tokens = counts_tokens(options)
    flags = (option for option in options if option.kind == "flag")
    switch = next((option for option in flags if _AMP.fullmatch(option.last)), None)
    formats = next((o for o in options if switch and AMP_FORMATS.fullmatch(o.last)), None)
    ignored = {*_SUPPLIED, *script.code.counts_nodes}
    for option in options:
        if option is not formats and option.last not in ignored:
            says = (
                _format_of(formats)
                if option is switch and formats
                else script.code.autocast or script.code.of_policy
            )
            by_tokens = all_by_tokens or option.last in script.code.in_tokens
            yield option, known(option, autocast=says, by_tokens=by_tokens)


def _sort(found: OptionMatches, option: ScriptOption, meaning: Meaning | None) -> None:
    """Puts an option where it belongs; the first that means something is the one that is used."""
    name, is_flag = option.last, option.kind == "flag"
    is_argument = option.prefix.startswith("--") or not (option.prefix or option.is_in_file)
    # those of transformers' Trainer have a word that switches them off
    is_argument &= found.script.parser != "HfArgumentParser" or name not in OF_A_RUN
    if is_flag and option.given is True and is_argument and TRACKERS.fullmatch(name):
        found.trackers.append(option)
    if OTHER_MODELS.fullmatch(name) and option.present is not None:
        found.of_other_models.append(option)
    if FINDS_BATCH.fullmatch(name) and option.present not in (None, False):
        found.finds_batch.append(option)
    if (why := _unclear(option, meaning)) is not None:
        found.unclear.append(why)
    is_asked = option.is_required and option.given is None
    if meaning is None:
        if is_log_interval(option):
            found.log_interval = option if option.present != 1 else None
        elif is_performance_choice(option):
            found.ideas += [option] if _is_of_a_used_part(option, found.script) else []
        elif is_asked:
            found.required.append(option)
        return
    is_of_model = meaning.target in OF_MODEL
    if option.computed and option.present is None and not is_of_model:
        found.undecided.append(option)
    if meaning.target == "precision" and is_flag and not option.is_in_file:
        found.precision_flags.append(meaning)
    elif is_of_model or not _does_nothing(option, meaning.target, found.script):
        found.required += [option] if is_of_model and is_asked else []
        first = found.used.setdefault(meaning.target, meaning).option
        if option is not first and not is_of_model:
            _sort_repeated(found, meaning.target, option, first)


def _sort_repeated(
    found: OptionMatches, target: str, option: ScriptOption, first: ScriptOption
) -> None:
    """The same key in another section of one file, as YAML's anchors repeat it, says the same or is
    unclear."""
    if option.last != first.last or not option.is_in_file or option.file != first.file:
        return
    if option.present == first.present:
        found.repeated.append((target, option))
    elif target in ("micro_batch_size", "accumulation_steps"):
        found.unclear.append(f"{first.name}={first.present} beside {option.name}={option.present}")


def _is_of_a_used_part(option: ScriptOption, script: Script) -> bool:
    """Whether an option is of no part of the program (FSDP, DeepSpeed, ...), or of one of which the
    launch gives an option."""
    part = _PARTS.match(option.last)
    given = (other.name for other in script.options if other.given is not None)
    return part is None or any(name.startswith(part[0].rstrip("_")) for name in given)


def _tell_precision_once(found: OptionMatches, decided: Mapping[str, Any]) -> None:
    """Keeps either the option that names the precision or the flags that switch it on, as the
    program goes by them."""
    flags = found.precision_flags
    if "precision" in found.used:
        named = found.used["precision"]
        is_said = any(each.default or each.option.given is not None for each in flags)
        if flags and (is_said or named.option.given is None or named.default is None):
            # it is the type of the weights, beside the flags of autocast
            del found.used["precision"]
        else:
            flags.clear()
    if any(each.default in ("bf16", "fp16") for each in flags):
        # beside one of these tf32 is about what is left in fp32: it stays as launched
        flags[:] = [each for each in flags if each.values != ("tf32",)]
    started, says = found.script.started, any(each.default for each in flags)
    if started and started.launcher == "accelerate" and decided.get("precision") and not says:
        flags.clear()  # transformers takes the launcher's number format where no flag says another


def _fixed(found: OptionMatches, decided: dict[str, Any]) -> dict[str, Any]:
    """The knobs with one value for all trials: what files, the launcher and the code decide and no
    option tells."""
    script = found.script
    if found.template and found.template.precision:
        found.used.pop("precision", None)
        found.precision_flags.clear()
        decided = {**decided, "precision": found.template.precision}
    told = {*found.used, *(["precision"] if found.precision_flags else [])}
    told |= {"zero_stage"} if found.template else set()
    computes_in = ("" if script.code.is_switched else script.code.autocast) or (
        "bf16" if script.code.loads_as[0] == "bfloat16" else ""
    )
    if "precision" not in told and "precision" not in decided and computes_in:
        decided = {**decided, "precision": computes_in}
    steps = found.constant("accumulation_steps")
    if "accumulation_steps" not in told and isinstance(steps, int) and steps > 0:
        decided = {"accumulation_steps": steps, **decided}
    in_code = {knob: made.value for knob, made in script.in_code.items()}
    if script.code.recomputes_4_bits and by_bits(script, "") == "qlora":
        in_code = {**in_code, "recompute": "full"}
    if (stage := _stage_of_strategy(script)) and "zero_stage" not in told:
        decided = {"zero_stage": stage, **decided}
    if "zero_stage" in in_code and "zero_stage" not in told:
        decided = {"zero_stage": in_code["zero_stage"], **decided}
    for knob in ("recompute", "compile"):
        value = in_code.get(knob, decided.get(knob))
        if knob in in_code or (knob, value) == ("recompute", "full"):
            found.used.pop(knob, None)
            told -= {knob}
            decided = {**decided, knob: value}
    if "precision" in in_code:
        decided = _with_tf32(found, decided)
    is_open = {knob: value for knob, value in decided.items() if knob not in told}
    return {knob: value for knob, value in is_open.items() if value not in (False, "none")}


def _stage_of_strategy(script: Script) -> int:
    """The ZeRO stage of Lightning's strategy, such as `deepspeed_stage_2` or `fsdp`; 0 without
    sharding."""
    said = str(script.said.get("strategy") or "") if script.is_of_lightning else ""
    found = re.match(r"deepspeed(?:_stage_([123]))?|fsdp", said)
    if found is None:
        return 0
    return int(found[1] or 2) if said.startswith("deepspeed") else 3


def _contradicting(found: OptionMatches) -> Iterator[str]:
    """Options of the batch beside DeepSpeed's file, which says another number."""
    for of_file in found.of_deepspeed:
        meaning = found.used[of_file.name]
        option = meaning.option
        if not meaning.expression and option.present not in (None, of_file.given):
            yield f"{option.shown}={option.present}, where {of_file.file} has {of_file.given}"


def _said_by_code(found: OptionMatches) -> Iterator[str]:
    """What the code alone tells DeepSpeed or a pipeline."""
    script = found.script
    is_told = script.started is None or value_of(script.arguments, *DEEPSPEED_FILES)
    if script.code.initializes_deepspeed and not is_told:
        yield "deepspeed.initialize without an argument for DeepSpeed's file"
    if "colossalai" in script.code.imports:
        yield "ColossalAI's plugin, which may shard or split the model"
    if script.code.pipelined and "pp" not in found.used:
        yield f"{script.code.pipelined} without an option for the stages"


_BY_VARIABLE = frozenset(
    {"micro_batch_size", "accumulation_steps", "global_batch_size", "seq_len", "steps"}
)
"""what a variable of the environment may tell: names of others are too short to be sure"""


def _told_by_variables(script: Script) -> Iterator[ScriptOption]:
    """The environment variables that the program reads as options, with what the launch exports,
    else with their defaults."""
    exported = script.started.env if script.started else {}
    for name, default in script.code.variables.items():
        value = typed(str(exported.get(name, default)))
        if type(value) is int and target_of(name.lower()) in _BY_VARIABLE:
            given = value if name in exported else None
            yield ScriptOption(
                name=name.lower(), kind="int", default=value, given=given, variable=name
            )


def _with_tf32(found: OptionMatches, decided: dict[str, Any]) -> dict[str, Any]:
    """What is decided of a program that computes fp32 as tf32; its option's word for fp32 is that
    for tf32."""
    if "precision" in found.used:
        meaning = found.used["precision"]
        own = {"tf32" if value == "fp32" else value: word for value, word in meaning.words.items()}
        values = tuple("tf32" if value == "fp32" else value for value in meaning.values)
        words = {"tf32": "fp32", **own} if "fp32" in meaning.values else own
        default = "tf32" if meaning.default == "fp32" else meaning.default
        found.used["precision"] = replace(meaning, words=words, values=values, default=default)
    elif not (found.precision_flags or found.script.code.formats):
        is_plain = decided.get("precision", "fp32") == "fp32"
        return {**decided, "precision": "tf32"} if is_plain else decided
    return decided


def _format_of(option: ScriptOption) -> str:
    """The number format that the option says, with which a flag switches autocast on."""
    said = str(option.present).lower()
    return next((value for value, words in WORDS["precision"].items() if said in words), "")


def _unclear(option: ScriptOption, meaning: Meaning | None) -> str | None:
    """What is said of precision, recomputation, sharding or a degree and is not understood; None
    where all is, or nothing is said."""
    target, value = target_of(option.last), option.present
    if is_of_another_part(option) or value in (None, False, "", 0, 1):
        return None
    if target == "precision" and value == "auto":
        return None  # the type in which weights are loaded is the checkpoint's
    is_unknown = OTHER_DEGREES.fullmatch(option.last) is not None and type(value) is int
    if option.kind == "text" and (option.given is not None or option.file):
        has_words = target in ("precision", "recompute", "zero_stage")
        is_unknown |= has_words and (meaning is None or meaning.default is None)
        is_unknown |= target in DEGREES and not isinstance(value, int)
    said = "" if value is True else f"={value}"
    return f"{option.shown}{said}" if is_unknown else None


def _does_nothing(option: ScriptOption, target: str, script: Script) -> bool:
    """Whether an option decides nothing of a trial: the stage of a DeepSpeed that is off; and
    options that count ranks, which are the launcher's business, except where the script starts its
    ranks itself."""
    if target == "zero_stage" and "fsdp" not in option.last:
        return script.is_without_deepspeed
    # Lightning compares them with torchrun's
    starts_its_own = script.spawns or script.is_of_lightning
    return target in ("nnodes", "nproc_per_node", "world_size") and not starts_its_own


@final
@dataclass(frozen=True)
class LaunchToday:
    """What the present launch trains at a place, and what a trial that is like it does."""

    found: OptionMatches
    place: Place

    @cached_property
    def is_alone(self) -> bool:
        """Whether it is one process whatever the cluster has."""
        return starts_one(self.found.script)

    @cached_property
    def _asked(self) -> int | None:
        """Ranks that the launch, or the program that starts its own, asks for."""
        script, asked = self.found.script, None
        if script.spawns:
            told = self.found.count("world_size") or self.found.count("nproc_per_node")
            asked = told or script.code.spawned
        return asked or (self.place.asked if script.started else None)

    @cached_property
    def degrees(self) -> dict[str, int]:
        """Degrees above 1 that it is started with."""
        told = {degree: self.found.count(degree) or 1 for degree in DEGREES}
        return {degree: value for degree, value in told.items() if value > 1}

    @property
    def ranks(self) -> int:
        """Ranks of the present launch."""
        return 1 if self.is_alone else self._asked or self.place.ranks

    @property
    def ranks_of_trials(self) -> int:
        """Ranks of a trial: no more than the cluster has."""
        return min(self.ranks, self.place.ranks)

    @property
    def is_assumed(self) -> bool:
        """Whether neither the launch nor a cluster says how many there are."""
        is_said = self.is_alone or self._asked is not None or self.place.name is not None
        return bool(self.found.script.started) and not is_said

    @property
    def _model(self) -> int:
        return math.prod(self.degrees.get(degree, 1) for degree in ("tp", "pp", "cp"))

    @property
    def replicas(self) -> int:
        """Ranks of the present launch with data of their own."""
        return max(1, self.ranks // self._model)

    @property
    def replicas_of_trials(self) -> int:
        """The same of a trial."""
        return max(1, self.ranks_of_trials // self._model)

    @property
    def is_part(self) -> bool:
        """Whether the launch may use a part of the cluster: of this machine nothing is known
        here."""
        is_less = self.place.name is None or self.ranks_of_trials < self.place.ranks
        return self._asked is not None and not self.is_alone and is_less

    @property
    def is_elsewhere(self) -> bool:
        """Whether the launch has more ranks than the cluster."""
        return self.ranks > self.ranks_of_trials

    @property
    def problem(self) -> str:
        """Why its degrees are not those of a config; empty where they are."""
        if self.ranks_of_trials % self._model or self.ranks % self._model:
            shown = " x ".join(f"{name}={value}" for name, value in self.degrees.items())
            return f"{shown} does not divide {number_of(self.ranks_of_trials, 'rank')}"
        return ""

    @cached_property
    def micro_batch_size(self) -> int | None:
        """Sequences of a rank and micro-batch, as far as it is said."""
        found = self.found
        micro = found.count("micro_batch_size")
        if micro is None and found.divides_batch:
            batch, steps = found.count("global_batch_size"), found.count("accumulation_steps")
            per_sequence = self.replicas * (steps or 1)
            return batch // per_sequence if batch and steps and batch % per_sequence == 0 else None
        used = found.used.get("micro_batch_size")
        return max(1, micro // self.replicas) if micro and used and used.over_ranks else micro

    @property
    def is_accumulation_unsaid(self) -> bool:
        """Whether an option accumulates, and nobody says how often."""
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
        """(sequences of a step, where that is from, whether it is only a stand-in)"""
        found, script = self.found, self.found.script
        if stated := found.count("global_batch_size"):
            return stated, found.where("global_batch_size"), False
        micro, steps = self.micro_batch_size or BATCH, found.count("accumulation_steps") or 1
        accumulation, told = (
            found.used.get(name) for name in ("accumulation_steps", "micro_batch_size")
        )
        is_total = accumulation is not None and bool(accumulation.expression)
        whole = micro * steps * (1 if is_total else self.replicas)
        what = "sequences per optimizer step"
        is_given = told is not None and told.option.given is not None
        if self.micro_batch_size is None or (script.held_elsewhere and not is_given):
            return whole, f"{what} (not found in the script)", True
        if self.is_accumulation_unsaid:
            return whole, f"{what}: {UNSAID_STEPS}", True
        if (chosen := self._batch_of_program) is not None:
            return whole, f"{what}: {chosen} lets the program choose the batch", True
        parts = f"{'as launched' if script.started else 'its defaults'}, {micro} x {steps}"
        if not is_total and self.replicas > 1:
            parts += f" on {number_of(self.ranks, 'rank')}"
            parts += (
                f", {self.replicas} of them with their own data"
                if self.replicas < self.ranks
                else ""
            )
        if self.is_assumed:
            why = "the launch does not give the number of ranks"
            return whole, f"{what}, {parts}: {why}", True
        if found.accumulates:
            return whole, f"{what}: {parts}", False
        if script.started and not (script.is_read and script.parser):
            return whole, f"{what}, {parts} if it does not accumulate", True
        if told is None or self.is_elsewhere:
            return whole, what, False
        why = "no accumulation option was found, so each micro-batch counts as a batch"
        return [scale * self.replicas for scale in around(micro)], why, False
