"""The options of a training script, matched to knobs and figures of the workload; and what is left of them.

How many ranks a program is started on today, how many a trial has, and how many of them have data of their own.

ranks       as the launch says; else those of the cluster that was named; else a usual node, which is said to be assumed
replicas    ranks / (tp x pp x cp), by the degrees that the program is started with
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, final

from autotune.onboarding.configuration_files import decided_for
from autotune.onboarding.draft import Place
from autotune.onboarding.launch.launch_script import value_of
from autotune.onboarding.script.adapters import loaded_in
from autotune.onboarding.script.option_names import (
    OF_MODEL,
    OTHER_MODELS,
    Meaning,
    are_of_fairseq,
    counts_tokens,
    is_explicit_micro,
    is_log_interval,
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
from autotune.spec.texts.usual_names import (
    AMP_FORMATS,
    FINDS_BATCH,
    OTHER_DEGREES,
    OTHER_PARTS,
    TRACKERS,
    WORDS,
    target_of,
)

DEGREES = ("tp", "pp", "cp", "ep")
_PARTS = re.compile("(fsdp|deepspeed|ds|zero|xla|tpu|dali|horovod)_")
"""beginnings of names of options that do something only in a launch that has that part"""
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
    used: dict[str, tuple[ScriptOption, Meaning]] = field(default_factory=dict)
    """by knob or figure: the option that stands for it; the first one where several do"""
    precision_flags: list[tuple[ScriptOption, Meaning]] = field(default_factory=list)
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
    """(knob or figure, value) of the file of settings that says again what another of its values says"""

    def default(self, target: str) -> Any:
        """The script's own value of a knob or figure, by option or constant; None where it does not say."""
        return self.used[target][1].default if target in self.used else self.constant(target)

    def count(self, target: str) -> int | None:
        """The script's own value, where it is a whole number above 0; of a batch in tokens its sequences, where their length is known."""
        value = self.default(target)
        if not isinstance(value, int) or isinstance(value, bool) or value <= 0:
            return None
        constant = next(self._constants(target), None) if target not in self.used else None
        meaning = self.used[target][1] if constant is None else meaning_of(constant)
        if meaning is None or not meaning.in_tokens:
            return value
        seq_len = self.count("seq_len")
        return max(1, value // seq_len) if seq_len else None

    @property
    def plain_format(self) -> str:
        """What it computes in where no flag switches another format on."""
        if loaded_in(self.script) == "bfloat16" and not any(
            meaning.default for _, meaning in self.precision_flags
        ):
            return "bf16"  # as its weights are
        has_switch = any("tf32" in meaning.values for _, meaning in self.precision_flags)
        return "tf32" if "precision" in self.script.in_code and not has_switch else "fp32"

    def without_autocast(self) -> None:
        """It computes in fp32, whatever it is told: its words of precision stay as they are."""
        self.used.pop("precision", None)
        self.precision_flags.clear()
        self.undecided = [
            option for option in self.undecided if target_of(_last(option)) != "precision"
        ]
        self.fixed = {**self.fixed, "precision": "fp32"}

    def without_sharding(self) -> None:
        """On one rank nothing is sharded, whatever stage it is started with."""
        self.fixed = {knob: value for knob, value in self.fixed.items() if knob != "zero_stage"}
        self.used.pop("zero_stage", None)
        if self.template is not None:
            self.template = replace(self.template, stages=(0,))

    def constant(self, target: str) -> Any:
        """A constant of the script's text."""
        return next((constant.default for constant in self._constants(target)), None)

    def where(self, target: str) -> str:
        """The line that says the value."""
        option = self.used[target][0] if target in self.used else next(self._constants(target))
        return option.file or ("as launched" if option.given is not None else option.place)

    @property
    def files(self) -> dict[str, Mapping[str, Any]]:
        """What each trial has its own files of, by name."""
        found = {self.template.name: self.template.document} if self.template else {}
        told = {
            option.name: f"{{{meaning.expression or target}}}"
            for target, (option, meaning) in self._told_by_file
        }
        for target, option in self.repeated:
            if target in self.used and (first := self.used[target][0].name) in told:
                told[option.name] = told[first]
        if self.settings and told:
            log = (
                {self.log_interval.name: 1}
                if self.log_interval and self.log_interval.is_in_file
                else {}
            )
            found[self.settings.name] = self.settings.told({**told, **log})
        return found

    @property
    def _told_by_file(self) -> Iterator[tuple[str, tuple[ScriptOption, Meaning]]]:
        return (
            (target, used)
            for target, used in self.used.items()
            if used[0].file and used[0].is_in_file and target not in OF_MODEL
        )

    @property
    def variables(self) -> dict[str, str]:
        """The environment variables that tell a trial its config, with their placeholders."""
        used = (
            (target, option, meaning)
            for target, (option, meaning) in self.used.items()
            if option.variable
        )
        return {
            option.variable: f"{{{meaning.expression or target}}}"
            for target, option, meaning in used
        }

    def _constants(self, target: str) -> Iterator[ScriptOption]:
        for constant in self.script.constants:
            meaning = meaning_of(constant)
            if meaning is not None and meaning.target == target:
                yield constant


def match_options(script: Script, cwd: Path) -> OptionMatches:
    """Matches a script's options; `cwd`: where it runs."""
    found = OptionMatches(script=script)
    decided: dict[str, Any] = {}
    if script.started:
        decided = decided_for(script.started, cwd)
        found.template = deepspeed_template(script.started, cwd)
    found.settings = settings_file(script, cwd)
    found.unclear += [script.unread] if script.unread else []
    found.unclear += found.settings.unclear if found.settings else ()
    options = tuple(_options(found, cwd))
    for option, meaning in _meanings(found, options):
        _sort(found, option, meaning)
    if found.used.keys().isdisjoint(("micro_batch_size", "global_batch_size")):
        found.unclear += [
            f"{each.shown}={each.present} (a batch in tokens is `{each.prefix}{{micro_batch_size * seq_len}}`)"
            for each in filter(may_be_batch, options)
        ]
    found.unclear += [*_contradicting(found), *_said_by_code(found)]
    _tell_precision_once(found, decided)
    if found.settings and found.settings.name not in found.files:
        found.settings = None
    found.fixed = _fixed(found, decided)
    return found


def _options(found: OptionMatches, cwd: Path) -> Iterator[ScriptOption]:
    """Everything that tells the program a value, what the launch gives first."""
    script = found.script
    yield from (option for option in script.options if option.given is not None)
    yield from overridden(script, cwd)
    yield from told_by_file(found.settings) if found.settings else ()
    yield from (option for option in script.options if option.given is None)
    yield from _told_by_variables(script)
    yield from found.template.options if found.template else ()


def _meanings(
    found: OptionMatches, options: Sequence[ScriptOption]
) -> Iterator[tuple[ScriptOption, Meaning | None]]:
    """Each option with what it means beside the others, without those that only say which format a flag switches on."""
    script = found.script
    of_deepspeed = tuple(found.template.options) if found.template else ()
    known = partial(
        meaning_of,
        divided=script.divided,
        has_micro=any(is_explicit_micro(each) for each in options if each not in of_deepspeed),
        by_tokens=counts_tokens(options),
        of_fairseq=are_of_fairseq(options),
    )
    switch = next(filter(_is_amp_switch, options), None)
    formats = next((o for o in options if switch and AMP_FORMATS.fullmatch(_last(o))), None)
    for option in options:
        if option is not formats and _last(option) not in _SUPPLIED:
            says = _format_of(formats) if option is switch and formats else script.autocast
            yield option, known(option, autocast=says)


def _sort(found: OptionMatches, option: ScriptOption, meaning: Meaning | None) -> None:
    """Puts an option where it belongs; the first that means something is the one that is used."""
    name, is_flag = _last(option), option.kind == "flag"
    if is_flag and option.given is True and TRACKERS.fullmatch(name) and not option.prefix:
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
        found.precision_flags.append((option, meaning))
    elif is_of_model or not _is_launched_otherwise(meaning.target, found.script):
        found.required += [option] if is_of_model and is_asked else []
        first, _ = found.used.setdefault(meaning.target, (option, meaning))
        if option is not first and not is_of_model:
            _sort_repeated(found, meaning.target, option, first)


def _sort_repeated(
    found: OptionMatches, target: str, option: ScriptOption, first: ScriptOption
) -> None:
    """The same key in another section of one file, as YAML's anchors repeat it, says the same or is unclear."""
    if _last(option) != _last(first) or not option.is_in_file or option.file != first.file:
        return
    if option.present == first.present:
        found.repeated.append((target, option))
    elif target in ("micro_batch_size", "accumulation_steps"):
        found.unclear.append(f"{first.name}={first.present} beside {option.name}={option.present}")


def _is_of_a_used_part(option: ScriptOption, script: Script) -> bool:
    """Whether an option is of no part of the program (FSDP, DeepSpeed, ...), or of one of which the launch gives an option."""
    part = _PARTS.match(_last(option))
    given = (other.name for other in script.options if other.given is not None)
    return part is None or any(name.startswith(part[0].rstrip("_")) for name in given)


def _tell_precision_once(found: OptionMatches, decided: Mapping[str, Any]) -> None:
    """Keeps either the option that names the precision or the flags that switch it on, as the program goes by them."""
    flags = found.precision_flags
    if "precision" in found.used:
        option, meaning = found.used["precision"]
        is_said = any(each.default or flag.given is not None for flag, each in flags)
        if flags and (is_said or option.given is None or meaning.default is None):
            # it is the type of the weights, beside the flags of autocast
            del found.used["precision"]
        else:
            flags.clear()
    if any(meaning.default in ("bf16", "fp16") for _, meaning in flags):
        # beside one of these tf32 is about what is left in fp32: it stays as launched
        flags[:] = [pair for pair in flags if pair[1].values != ("tf32",)]
    started, says = found.script.started, any(meaning.default for _, meaning in flags)
    if started and started.launcher == "accelerate" and decided.get("precision") and not says:
        flags.clear()  # transformers takes the launcher's number format where no flag says another


def _fixed(found: OptionMatches, decided: dict[str, Any]) -> dict[str, Any]:
    """The knobs with one value for all trials: what files, the launcher and the code decide and no option tells."""
    script = found.script
    if found.template and found.template.precision:
        found.used.pop("precision", None)
        found.precision_flags.clear()
        decided = {**decided, "precision": found.template.precision}
    told = {*found.used, *(["precision"] if found.precision_flags else [])}
    told |= {"zero_stage"} if found.template else set()
    computes_in = ("" if script.is_switched else script.autocast) or (
        "bf16" if script.loads_as[0] == "bfloat16" else ""
    )
    if "precision" not in told and "precision" not in decided and computes_in:
        decided = {**decided, "precision": computes_in}
    steps = found.constant("accumulation_steps")
    if "accumulation_steps" not in told and isinstance(steps, int) and steps > 0:
        decided = {"accumulation_steps": steps, **decided}
    in_code = {knob: made.value for knob, made in script.in_code.items()}
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


def _last(option: ScriptOption) -> str:
    return option.name.rpartition(".")[2]


def _contradicting(found: OptionMatches) -> Iterator[str]:
    """Options of the batch beside DeepSpeed's file, which says another number."""
    for of_file in found.template.options if found.template else ():
        option, meaning = found.used[of_file.name]
        if not meaning.expression and option.present not in (None, of_file.given):
            yield f"{option.shown}={option.present} beside {of_file.given} in {of_file.file}"


def _said_by_code(found: OptionMatches) -> Iterator[str]:
    """What the code alone tells DeepSpeed or a pipeline."""
    script = found.script
    is_told = script.started is None or value_of(script.arguments, *DEEPSPEED_FILES)
    if script.initializes_deepspeed and not is_told:
        yield "deepspeed.initialize without an argument for its file"
    if script.pipelined and "pp" not in found.used:
        yield f"{script.pipelined} without an option for the stages"


_BY_VARIABLE = frozenset(
    {"micro_batch_size", "accumulation_steps", "global_batch_size", "seq_len", "steps"}
)
"""what a variable of the environment may tell: names of others are too short to be sure"""


def _told_by_variables(script: Script) -> Iterator[ScriptOption]:
    """The environment variables that the program reads as options, with what the launch exports, else with their defaults."""
    exported = script.started.env if script.started else {}
    for name, default in script.variables.items():
        value = typed(str(exported.get(name, default)))
        if type(value) is int and target_of(name.lower()) in _BY_VARIABLE:
            given = value if name in exported else None
            yield ScriptOption(
                name=name.lower(), kind="int", default=value, given=given, variable=name
            )


def _with_tf32(found: OptionMatches, decided: dict[str, Any]) -> dict[str, Any]:
    """What is decided of a program that computes fp32 as tf32; its option's word for fp32 is that for tf32."""
    if "precision" in found.used:
        option, meaning = found.used["precision"]
        own = {"tf32" if value == "fp32" else value: word for value, word in meaning.words.items()}
        values = tuple("tf32" if value == "fp32" else value for value in meaning.values)
        words = {"tf32": "fp32", **own} if "fp32" in meaning.values else own
        default = "tf32" if meaning.default == "fp32" else meaning.default
        found.used["precision"] = (
            option,
            replace(meaning, words=words, values=values, default=default),
        )
        return decided
    is_plain = (
        not found.precision_flags
        and not found.script.formats
        and decided.get("precision", "fp32") == "fp32"
    )
    return {**decided, "precision": "tf32"} if is_plain else decided


def _is_amp_switch(option: ScriptOption) -> bool:
    return (
        option.kind == "flag"
        and re.fullmatch(r"(use_|enable_)?(amp|autocast|mixed_precision)", _last(option))
        is not None
    )


def _format_of(option: ScriptOption) -> str:
    """The number format that the option says, with which a flag switches autocast on."""
    said = str(option.present).lower()
    return next((value for value, words in WORDS["precision"].items() if said in words), "")


def _unclear(option: ScriptOption, meaning: Meaning | None) -> str | None:
    """What is said of precision, recomputation, sharding or a degree and is not understood; None where all is, or nothing is said."""
    name, value = _last(option).lower(), option.present
    if OTHER_PARTS.search(option.name.lower()) or value in (None, False, "", 0, 1):
        return None
    if target_of(name) == "precision" and value == "auto":
        return None  # the type in which weights are loaded is the checkpoint's
    is_said = option.given is not None or option.file
    said = f"{option.shown}{'' if value is True else f'={value}'}"
    if OTHER_DEGREES.fullmatch(name) and isinstance(value, int) and value is not True:
        return said
    target = target_of(name)
    is_word = target in ("precision", "recompute", "zero_stage") and option.kind == "text"
    if is_word and is_said and (meaning is None or meaning.default is None):
        return said
    is_degree = (
        target in DEGREES and option.kind == "text" and is_said and not isinstance(value, int)
    )
    return said if is_degree else None


def _is_launched_otherwise(target: str, script: Script) -> bool:
    """Options that count ranks are the launcher's business, except where the script starts its ranks itself."""
    # Lightning compares them with torchrun's
    of_lightning = not script.imports.isdisjoint({"lightning", "pytorch_lightning"})
    starts_its_own = script.spawns or of_lightning
    return target in ("nnodes", "nproc_per_node", "world_size") and not starts_its_own


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class RanksToday:
    """Ranks of the present launch and of trials."""

    today: int
    """of the present launch"""
    of_trials: int
    """of a trial that is like it: no more than the cluster has"""
    of_cluster: int
    degrees: Mapping[str, int]
    """degrees above 1 that it is started with"""
    is_assumed: bool
    """whether neither the launch nor a cluster says how many there are"""
    is_started: bool
    """whether a launch says something of it"""
    is_named: bool
    """whether a cluster is named, which then decides how many ranks there are"""

    @property
    def _model(self) -> int:
        return math.prod(self.degrees.get(degree, 1) for degree in ("tp", "pp", "cp"))

    @property
    def replicas(self) -> int:
        """Ranks of the present launch with data of their own."""
        return max(1, self.today // self._model)

    @property
    def replicas_of_trials(self) -> int:
        """The same of a trial."""
        return max(1, self.of_trials // self._model)

    @property
    def is_part(self) -> bool:
        """Whether the launch may use a part of the cluster: of this machine nothing is known here."""
        return self.is_started and (self.of_trials < self.of_cluster or not self.is_named)

    @property
    def is_elsewhere(self) -> bool:
        """Whether the launch has more ranks than the cluster."""
        return self.today > self.of_trials

    @property
    def said(self) -> str:
        """In words."""
        shared = f", {self.replicas} with their own data" if self.replicas < self.today else ""
        return f"{self.today} ranks{shared}"

    @property
    def problem(self) -> str:
        """Why its degrees are not those of a config; empty where they are."""
        if self._model > 1 and (self.of_trials % self._model or self.today % self._model):
            shown = " x ".join(f"{name}={value}" for name, value in self.degrees.items())
            return f"{shown} does not divide {min(self.of_trials, self.today)} ranks"
        return ""


def ranks_today(found: OptionMatches, place: Place) -> RanksToday:
    """The ranks of a script at that place."""
    degrees = {
        degree: value
        for degree in DEGREES
        if (value := found.count(degree)) is not None and value > 1
    }
    if starts_one(found.script):
        return RanksToday(
            today=1, of_trials=1, of_cluster=place.ranks, degrees=degrees, is_assumed=False, is_started=False, is_named=place.name is not None,
        )  # fmt: skip
    asked = place.asked if found.script.started else None
    if found.script.spawns:
        told = found.count("world_size") or found.count("nproc_per_node")
        asked = told or found.script.spawned or asked
    cluster = place.ranks
    today = asked or cluster
    return RanksToday(
        today=today,
        of_trials=min(today, cluster),
        of_cluster=cluster,
        degrees=degrees,
        is_assumed=bool(found.script.started) and asked is None and place.name is None,
        is_started=asked is not None,
        is_named=place.name is not None,
    )
