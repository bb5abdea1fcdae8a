"""`autotune init` of a script: its first spec. The script is read, not run; each value's comment says where it was found.

    argv      the launcher, the script, and one word for each option that stands for a knob or a figure of the workload
    space     the values that the script can be told; a knob without an option has one value
    baseline  what the script is started with today, where a launch script says so, else its own defaults

What the script does not say (its cluster, often its model) stands there as a stand-in, and is listed as to be filled in.

What a training has in place of what only trials are told: the user's own steps, seed, saving, logging and trackers, for the exported launch.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from autotune.onboarding.configuration_files import offloaded_weights, unread_files
from autotune.onboarding.draft import (
    Draft,
    Entry,
    Place,
    around,
    baseline_text,
    file_name,
    named_cluster,
)
from autotune.onboarding.hub_names import model_named
from autotune.onboarding.script.adapters import (
    NEEDS_LESS,
    NOT_COUNTED,
    NOT_PREDICTED,
    ON_HOST,
    frozen,
    is_unfused,
    loaded_in,
    made_optimizer,
    optimizer_of,
    peft_of,
    second_models,
)
from autotune.onboarding.script.argv import (
    argv_of,
    ideas_of,
    left_out,
    precision_words,
    trial_words,
    values_of,
    written,
)
from autotune.onboarding.script.library_options import BEYOND, BEYOND_BY_METHOD
from autotune.onboarding.script.machine_defaults import settled
from autotune.onboarding.script.option_matches import (
    DEGREES,
    OptionMatches,
    RanksToday,
    match_options,
    ranks_today,
)
from autotune.onboarding.script.option_names import (
    FLAGS_OF_SHAPE,
    MORE_OF_SHAPE,
    SHAPE,
    meaning_of,
)
from autotune.onboarding.script.print_statements import EVERY_STEP, is_known, patterns_of
from autotune.onboarding.script.reading import Script, starts_one
from autotune.spec.texts.usual_names import optimizer_named
from autotune.trainers.command.training import APPEND
from autotune.trainers.documents.placeholders import braced
from autotune.trainers.present_configuration import nested


def training_of(found: OptionMatches) -> dict[str, Any]:
    """The option `training` of the trainer: by word of `argv`, `steps` and `seed`, what the script is started with today; null where it is told nothing."""
    given: dict[str, list[str]] = {}
    for argument in found.script.arguments:
        given.setdefault(argument.name, []).extend(written(argument, found.script.is_read))

    def own(name: str) -> Any:
        words = given.get(name, [])
        return words[0] if len(words) == 1 else words or None

    training: dict[str, Any] = {}
    for target in ("steps", "seed"):
        if target in found.used:
            option, _ = found.used[target]
            value = option.present if option.is_in_file else option.given
            # -1 stands for no limit
            is_number = isinstance(value, int) and not isinstance(value, bool) and value >= 0
            training[target] = value if is_number else None
    for word in trial_words(found):
        mine = own(word.lstrip("-+").partition("=")[0].replace("-", "_"))
        if mine != word:
            training[word] = mine
    if (
        (interval := found.log_interval) is not None
        and interval.is_in_file
        and found.settings is not None
    ):
        training[found.settings.name] = nested({interval.name: interval.present})
    if watched := [word for option in found.trackers for word in given.get(option.name, ())]:
        training[APPEND] = watched
    return training


_HOLDS_OPTIONS = re.compile(
    r"\$\{?(\w*_)?(args?|arguments|opts?|options?|params?|parameters|flags?)(_\w*)?(\[[@*]\])?\}?",
    re.IGNORECASE,
)
"""a variable of a shell that may hold any number of options"""
MODEL, SEQ_LEN, VOCAB_SIZE = "nano-gpt", 1024, 50304
"""stand-ins for figures that the script does not say"""
_UNSAID_STEPS = "the number of accumulated micro-batches was not found"
BATCH = 8
"""sequences per micro-batch where nothing tells them"""


def script_draft(
    script: Script, place: Place, *, cwd: Path, source: Path, model: str | None = None, folder: Path
) -> Draft:
    """The draft for a script; `cwd`: where it runs, `source`: the file that was read, `folder`: of the spec, against which its paths are read."""
    started = script.started
    script = settled(script, place)
    found = match_options(script, cwd)
    is_plain = script.plain_on_cpu and (place.is_cpu or _is_on_cpu(script))
    if is_plain:
        found.without_autocast()
    ranks = ranks_today(found, place)
    if ranks.of_trials == 1:
        found.without_sharding()
    fill_in: list[str] = list(place.fill_in)
    shape = _model(found, model, cwd, folder)
    if shape is None or "fill in" in shape.comment:
        fill_in.append("model")
    items = list(argv_of(found, place))
    values = values_of(found)
    metrics = patterns_of(script.printed)
    # patterns would hide the rate and the loss of its bar
    if set(metrics) == {"step"} and "tqdm" in script.imports:
        metrics = {}
    relative = os.path.relpath(cwd.resolve(), folder.resolve())
    trainer = [
        Entry(key="kind", value="command"),
        Entry(key="cwd", value=relative, comment="where it runs, relative to this file"),
        Entry(
            key="argv",
            items=tuple(items),
            comment=_arguments_asked(found),
            below=tuple(ideas_of(found)),
        ),
    ]
    env, why = (
        dict(started.env) if started else {},
        f"as {source.name} exports it" if started else "",
    )
    if _uses_accelerate(script) and place.is_cpu:
        why = "without ACCELERATE_USE_CPU, accelerate (and transformers' Trainer) trains separately on each CPU rank"
        env["ACCELERATE_USE_CPU"] = "true"
    if own := found.variables:
        why = "; ".join(filter(None, [why, f"trials set {', '.join(own)}"]))
    if env or own:
        kept = {name: braced(text) for name, text in env.items()}
        trainer.append(Entry(key="env", value={**kept, **own}, comment=why))
    if values:
        trainer.append(Entry(key="values", value=values))
    if found.files:
        given = " and ".join(file.given for file in (found.template, found.settings) if file)
        trainer.append(
            Entry(key="files", value=found.files, comment=f"{given}, as each trial gets it")
        )
    if found.fixed:
        trainer.append(Entry(key="fixed", value=dict(found.fixed), comment=_decided_by(script)))
    if training := training_of(found):
        trainer.append(
            Entry(
                key="training",
                value=training,
                comment="what launch.sh uses instead; null omits the argument",
            )
        )
    if metrics:
        trainer.append(Entry(key="metrics", value=metrics, comment="from its print statements"))
        trainer += _counts(found)
    if found.required:
        fill_in.append("trainer.argv")
    notes = [
        _what_reads(found),
        *_what_variables_tell(found),
        *_what_starts(script, source),
        *_what_is_beyond(script),
    ]
    baseline = tuple(_baseline(found, ranks))
    # what is sharded is kept in fp32
    if not any("zero_stage=" in entry.value for entry in baseline):
        notes += _what_weights(script)
    away = script.offloads
    if script.started is not None:
        notes += unread_files(script.started, cwd)
        away = offloaded_weights(script.started, cwd) or away
    if away:
        notes.append(f"{NOT_COUNTED}{ON_HOST} ({away}), planned on the GPU: {NEEDS_LESS}")
    if _tunes_nothing(found):
        fill_in.append("trainer.argv")
        notes.append(_how_to_be_told(found))
    workload, unsaid = _workload(found, ranks)
    fill_in += unsaid
    if _formats_unsaid(found) or _is_format_unknown(found):
        fill_in.append("space.precision")
    if why_none := _no_baseline(found, ranks):
        fill_in.append("baseline")
        notes.append(
            f"no baseline: {why_none}; add the current settings of {source.name} as `baseline:`"
        )
    if is_plain:
        notes.append(
            f"on CPUs {script.name} always computes in fp32 (line {script.plain_on_cpu}), so precision stays fp32"
        )
    if (
        script.shards
        and ranks.today > 1
        and not found.template
        and "zero_stage" not in {*found.used, *found.fixed}
    ):
        notes.append(
            f"{NOT_COUNTED}sharding that {script.name} does under a condition, or in a module that it imports, planned as none: if it shards, {NEEDS_LESS}"
        )
    if why_one := _one_config(found, ranks):
        notes.append(why_one)
    if not_seen := _what_is_not_printed(script, metrics):
        notes.append(not_seen)
    if dropped := left_out(found, place):
        named = ", ".join(dropped)
        notes.append(
            f"left out in trials, because autotune starts their ranks: {named}; add what is needed to trainer.argv before the program"
        )
    notes += _what_is_off(found, source, ranks)
    heading = (
        f"A first spec for {source.name}, written by `autotune init`. Nothing was run; line numbers refer to {script.name}.",
        "Next: fill in what the comments ask for, then `autotune check` (five real steps) and `autotune tune`.",
    )
    where, runner = place.entries
    entries = (
        Entry(key="name", value=file_name(source.name)),
        shape
        or Entry(
            key="model",
            value=MODEL,
            comment="fill in: `autotune models`, a config.json, or the shape",
        ),
        where,
        workload,
        Entry(key="space", value=_space(found, ranks, place)),
        *baseline,
        Entry(key="trainer", parts=tuple(trainer)),
        runner,
    )
    return Draft(
        heading=heading,
        entries=entries,
        fill_in=tuple(dict.fromkeys(fill_in)),
        notes=tuple(notes),
        today={
            meaning.expression or target: option.present
            for target, (option, meaning) in found.used.items()
        },
    )


def _decided_by(script: Script) -> str:
    """What fixes knobs: settings, or code that no option changes."""
    made = ((f"{knob}={str(it.value).lower()}", it.line) for knob, it in script.in_code.items())
    lines = ", ".join(f"{what} on line {line} of {script.name}" for what, line in made)
    return f"decided by its settings{f' or code: {lines}' if lines else ''}"


def _is_on_cpu(script: Script) -> bool:
    """Whether an option says that it runs on the CPU."""
    devices = (
        o.present
        for o in script.options
        if re.fullmatch("device(_type)?|accelerator", o.name.rpartition(".")[2])
    )
    return any(str(device).startswith("cpu") for device in devices)


def _counts(found: OptionMatches) -> list[Entry]:
    """What a line of the log counts, where the loop over the micro-batches of a step stands beside the print statement, or around it."""
    if "accumulation_steps" not in found.used:
        return []
    name = found.used["accumulation_steps"][0].name
    printed = {each.loop for each in found.script.printed if each.every == EVERY_STEP}
    for loop in found.script.loops:
        if name in loop.names and printed == {loop.around}:
            said = f"lines are printed once after the loop over {name} on line {loop.line}"
            return [Entry(key="counts", value="steps", comment=said)]
        if name in loop.names and printed == {loop.line}:
            said = f"lines are printed within the loop over {name} on line {loop.line}"
            return [Entry(key="counts", value="micro-batches", comment=said)]
    return []


def _formats_unsaid(found: OptionMatches) -> tuple[str, ...]:
    """Number formats that the program's code names, where neither an option nor a setting says which one it trains in."""
    return () if _is_format_said(found) else tuple(sorted(found.script.formats))


def _is_format_unknown(found: OptionMatches) -> bool:
    """Whether nothing says the number format, of a program whose code was not found or not understood, or whose options are declared where nobody looked."""
    script = found.script
    is_elsewhere = not script.parser and any(argument.name for argument in script.arguments)
    return (not script.is_read or is_elsewhere or bool(script.unread)) and not _is_format_said(
        found
    )


def _is_format_said(found: OptionMatches) -> bool:
    return "precision" in found.used or bool(found.precision_flags) or "precision" in found.fixed


def _precisions(found: OptionMatches) -> list[Any]:
    """The number formats that it can be told, that of today first."""
    if "precision" in found.used:
        default = found.used["precision"][1].default
        return [
            value
            for value in found.used["precision"][1].values
            if value != "fp8" or default == "fp8"
        ]
    if not found.precision_flags:
        return [found.fixed.get("precision", "fp32")]
    words = precision_words(found.precision_flags, found.plain_format)
    default = next(
        (meaning.default for _, meaning in found.precision_flags if meaning.default),
        found.plain_format,
    )
    return sorted(words, key=lambda value: value != default)


def _worth_trying(found: OptionMatches, place: Place) -> list[Any]:
    """The number format of today, and those that it can be told and that may be faster where it runs.

    On GPUs bf16 is faster than fp32 and as fast as fp16, which needs its losses scaled; fp32 is slower than all others. fp16 is faster than fp32 where bf16 is not to be
    had. On CPUs it depends on the processor, but nobody trains in fp16 there. Of a program whose format is not known, all.
    """
    today, *others = _precisions(found)
    if not others or _is_format_open(found):
        return [today, *others]
    cluster = named_cluster(place.name)
    if cluster is not None and cluster.gpu.is_cpu:
        return [today, *(each for each in others if each != "fp16")]
    has_bf16 = "bf16" in (today, *others) and (
        cluster is None or "bf16" in cluster.gpu.peak_flops_per_s
    )
    faster = ["bf16"] if has_bf16 else ["fp16"]
    if today in ("fp32", "tf32"):
        faster = ["tf32", *faster]
    return [today, *(each for each in others if each in faster and today != "bf16")]


def _is_format_open(found: OptionMatches) -> bool:
    """Whether nothing says which format it trains in today."""
    return "precision" in found.used and found.used["precision"][1].default is None


def _micro(found: OptionMatches, ranks: RanksToday) -> int | None:
    """Sequences of a rank and micro-batch today, as far as it is said."""
    micro = found.count("micro_batch_size")
    if micro is None and _divides_batch(found):
        batch, steps = found.count("global_batch_size"), found.count("accumulation_steps")
        per_sequence = ranks.replicas * (steps or 1)
        return batch // per_sequence if batch and steps and batch % per_sequence == 0 else None
    is_over_all = "micro_batch_size" in found.used and found.used["micro_batch_size"][1].over_ranks
    return max(1, micro // ranks.replicas) if micro and is_over_all else micro


def _divides_batch(found: OptionMatches) -> bool:
    """Whether the micro-batch is what is left of the batch of all ranks, divided by the ranks and the accumulation: options say those two and not the micro-batch."""
    is_told = "micro_batch_size" in found.used or found.constant("micro_batch_size")
    both = [found.used.get(target) for target in ("global_batch_size", "accumulation_steps")]
    return not is_told and all(match is not None and not match[1].expression for match in both)


def _accumulates(found: OptionMatches) -> bool:
    """Whether it does, by an option, or as its own text says."""
    constants = (found.constant("accumulation_steps"), found.constant("global_batch_size"))
    return bool({"accumulation_steps", "global_batch_size"} & found.used.keys() or any(constants))


def _space(found: OptionMatches, ranks: RanksToday, place: Place) -> dict[str, Any]:
    space: dict[str, Any] = {}
    if starts_one(found.script):
        space["world_sizes"] = [1]
    elif ranks.is_part or _spawns_unasked(found):
        space["world_sizes"] = [ranks.of_trials]
    micro = _micro(found, ranks)
    if "micro_batch_size" in found.used or (micro and _divides_batch(found)):
        offered = _choices(found, "micro_batch_size") or around(micro or BATCH)
        batch, _, is_open = _batches(found, ranks)
        if isinstance(batch, int) and not is_open:  # the others are in no step of that batch
            offered = [each for each in offered if batch % each == 0] or offered
        space["micro_batch_size"] = offered
    elif micro:
        space["micro_batch_size"] = [micro]
    if not _accumulates(found):
        space["accumulation_steps"] = [1]
    elif choices := _choices(found, "accumulation_steps"):
        space["accumulation_steps"] = choices
    for target in DEGREES:
        if target in found.used:
            space[target] = _choices(found, target) or {"powers_of_two": [1, 8]}
    space["precision"] = _worth_trying(found, place)
    for target in ("recompute", "zero_stage", "compile", "sequence_parallel"):
        if target in found.used and found.used[target][1].values:
            space[target] = list(found.used[target][1].values)
        elif target == "zero_stage" and found.template:
            space[target] = list(found.template.stages)
    return {**space, **{knob: [value] for knob, value in found.fixed.items()}}


def _one_config(found: OptionMatches, ranks: RanksToday) -> str:
    """What to do where the batch leaves one micro-batch alone, because no option accumulates; empty elsewhere."""
    batch, _, _ = _batches(found, ranks)
    if not _micro(found, ranks) or _accumulates(found) or not isinstance(batch, int):
        return ""
    return (
        f"no accumulation option of {found.script.name} was recognized, so a batch of {batch} allows one micro-batch for each number of ranks: "
        "list the batches that may be used as `workload.global_batch_size`, or put its accumulation option into argv as {accumulation_steps}"
    )


def _choices(found: OptionMatches, target: str) -> list[int]:
    """The numbers that an option may have; empty where it may have any."""
    choices = found.used[target][0].choices if target in found.used else ()
    return sorted(choice for choice in choices if isinstance(choice, int) and choice > 0)


def _accumulation_unsaid(found: OptionMatches) -> bool:
    return "accumulation_steps" in found.used and found.count("accumulation_steps") is None


def _batches(found: OptionMatches, ranks: RanksToday) -> tuple[Any, str, bool]:
    """(the global batch, where it is from, whether it is only a stand-in)"""
    known, steps = _micro(found, ranks), found.count("accumulation_steps") or 1
    micro = known or BATCH
    script = found.script
    stated = found.count("global_batch_size")
    if stated:
        return stated, found.where("global_batch_size"), False
    is_total = "accumulation_steps" in found.used and bool(
        found.used["accumulation_steps"][1].expression
    )
    whole = micro * steps * (1 if is_total else ranks.replicas)
    is_given = (
        "micro_batch_size" in found.used and found.used["micro_batch_size"][0].given is not None
    )
    if known is None or (_held_elsewhere(script) and not is_given):
        return whole, "sequences per optimizer step (not found in the script)", True
    if _accumulation_unsaid(found):
        return whole, f"sequences per optimizer step: {_UNSAID_STEPS}", True
    how = "as launched" if script.started else "its defaults"
    parts = f"{how}, {micro} x {steps}" + (
        "" if is_total or ranks.replicas == 1 else f" on {ranks.said}"
    )
    if ranks.is_assumed:
        return (
            whole,
            f"sequences per optimizer step, {parts}: the launch does not give the number of ranks",
            True,
        )
    if _accumulates(found):
        return whole, f"sequences per optimizer step: {parts}", False
    if script.started and (not script.is_read or not script.parser):
        return whole, f"sequences per optimizer step, {parts} if it does not accumulate", True
    if "micro_batch_size" not in found.used or ranks.is_elsewhere:
        return whole, "sequences per optimizer step", False
    return (
        [scale * ranks.replicas for scale in around(micro)],
        "no accumulation option was found, so each micro-batch counts as a batch",
        False,
    )


def _workload(found: OptionMatches, ranks: RanksToday) -> tuple[Entry, tuple[str, ...]]:
    """(the workload, what of it is to be filled in)"""
    batch, why, is_open = _batches(found, ranks)
    seq_len = found.count("seq_len")
    told = (
        f"seq_len: {found.where('seq_len')}" if seq_len else "fill in: seq_len, tokens per sequence"
    )
    value: dict[str, Any] = {"seq_len": seq_len or SEQ_LEN, "global_batch_size": batch}
    if loop := _loop(found.script):
        value["loop"] = loop
    if peft := peft_of(found.script):
        value["peft"] = dict(peft)
    elif (
        loop not in ("deepspeed", "lightning")
        and loaded_in(found.script) == "bfloat16"
        and _precisions(found)[0] == "bf16"
    ):
        value |= {
            "pure_bf16": True,
            **({"shards_in_fp32": True} if loop in ("hf_trainer", "accelerate") else {}),
        }
    by_option = optimizer_of(found.script) if loop in ("hf_trainer", "deepspeed") else ""
    if optimizer := optimizer_named(by_option or made_optimizer(found.script)):
        value |= {} if optimizer == "adamw" else {"optimizer": optimizer}
    if is_unfused(found.script):
        value["unfused_attention"] = True
    fill_in = (
        *(() if seq_len else ("workload.seq_len",)),
        *(("workload.global_batch_size",) if is_open else ()),
    )
    asked = "fill in: global_batch_size," if is_open else "batch:"
    return Entry(key="workload", value=value, comment=f"{told}; {asked} {why}"), fill_in


def _held_elsewhere(script: Script) -> str:
    """Variables of the launch, set by nobody here, that may hold further options."""
    words = (word for argument in script.arguments for word in argument.words)
    return ", ".join(dict.fromkeys(word for word in words if _HOLDS_OPTIONS.fullmatch(word)))


def _no_baseline(found: OptionMatches, ranks: RanksToday) -> str:
    """Why what it is started with is no config of a study; empty where it is one."""
    if formats := _formats_unsaid(found):
        return f"its code mentions {' and '.join(formats)}, but it is unclear whether it trains in that format: `space.precision` is a placeholder"
    if held := _held_elsewhere(found.script):
        return f"the script does not set {held}, which may contain options of the program"
    if found.unclear:
        return f"autotune does not understand {', '.join(dict.fromkeys(found.unclear))}"
    if found.undecided:
        named = " and ".join(f"{option.shown} ({option.place})" for option in found.undecided)
        return f"the default of {named} depends on the machine: give the value in the launch, or the cluster (--cluster)"
    if "precision" in found.used and found.used["precision"][1].default is None:
        option = found.used["precision"][0]
        return f"the precision is unknown: {option.shown} ({option.place}) is not given and has no default"
    if ranks.problem:
        return ranks.problem
    micro = _micro(found, ranks)
    if not micro:
        return "the sequences per micro-batch were not found" if found.script.started else ""
    if _accumulation_unsaid(found):
        return _UNSAID_STEPS
    batch, _, _ = _batches(found, ranks)
    per_step = micro * ranks.replicas_of_trials
    if (
        isinstance(batch, int)
        and (steps := _steps_by_deepspeed(found))
        and batch != per_step * steps
    ):
        return f"a batch of {batch} is not {steps} x {micro} on {ranks.replicas_of_trials} replicas"
    if isinstance(batch, int) and (
        batch % per_step or (batch != per_step and not _accumulates(found))
    ):
        return f"a batch of {batch} cannot be divided into micro-batches of {micro} on {ranks.replicas_of_trials} replicas"
    return ""


def _steps_by_deepspeed(found: OptionMatches) -> int | None:
    """The accumulation that DeepSpeed's file gives."""
    of_file = found.template.options if found.template else ()
    return next((o.given for o in of_file if o.name == "accumulation_steps"), None)


def _baseline(found: OptionMatches, ranks: RanksToday) -> Iterator[Entry]:
    """What the script is started with: nothing where a part of it is not known, because speedups over another config mean nothing."""
    micro = _micro(found, ranks)
    if not micro or _no_baseline(found, ranks):
        return
    values: dict[str, Any] = {"dp": 1} if starts_one(found.script) else {}
    if ranks.degrees or ranks.is_part:
        values |= {**ranks.degrees, "dp": ranks.replicas_of_trials}
    values |= {"micro_batch_size": micro, "precision": _precisions(found)[0]}
    if not _accumulates(found):
        values["accumulation_steps"] = 1
    for target in ("recompute", "zero_stage", "compile", "sequence_parallel"):
        if target in found.used and found.used[target][1].values:
            values[target] = found.used[target][1].values[0]
    values |= {"zero_stage": found.template.stages[0]} if found.template else {}
    values |= {knob: value for knob, value in found.fixed.items() if knob not in values}
    comment = "as launched" if found.script.started else "the script's defaults"
    if ranks.is_elsewhere:
        comment += f", on {ranks.of_trials} ranks for {ranks.today}"
    yield Entry(key="baseline", value=baseline_text(values), comment=comment)


def _tunes_nothing(found: OptionMatches) -> bool:
    return not found.used and not found.precision_flags


def _arguments_asked(found: OptionMatches) -> str:
    """The comment on a command without any place for a knob; empty for others."""
    if not _tunes_nothing(found):
        return ""
    return "fill in: an argument for each knob, e.g. '--batch-size={micro_batch_size}'"


def _model(found: OptionMatches, asked: str | None, cwd: Path, folder: Path) -> Entry | None:
    if asked is not None:
        return Entry(key="model", value=asked)
    if second_models(found.script):
        return None
    named = found.default("model")
    if isinstance(named, str) and (known := model_named(named, cwd, folder)):
        return Entry(key="model", value=known[0], comment=known[1] or found.where("model"))
    if (
        named is None
        and (loaded := found.script.loaded)
        and (known := model_named(loaded[0], cwd, folder))
    ):
        line = f"line {loaded[1]}"
        return Entry(
            key="model", value=known[0], comment=f"{known[1]} ({line})" if known[1] else line
        )
    sizes = {target: found.count(target) for target in SHAPE}
    is_default = _held_elsewhere(found.script) and not any(
        found.used[target][0].given for target in SHAPE if target in found.used
    )
    routes_unsaid = (found.count("num_experts") or 1) > 1 and not found.count("experts_per_token")
    is_other = bool(found.of_other_models) or routes_unsaid
    if all(isinstance(sizes[target], int) for target in SHAPE[:3]) and not (is_default or is_other):
        return _shape(found, {**sizes, "vocab_size": sizes["vocab_size"] or VOCAB_SIZE})
    return None


_USUAL_SHAPE = {
    "ffn_hidden_size": "a feed-forward of four times the width",
    "num_kv_heads": "as many key-value heads as heads",
    "gated_mlp": "a plain MLP (not gated)",
    "tied_embeddings": "a head that is not tied to the embedding",
}
"""what is taken for granted of a shape that does not say it"""


def _shape(found: OptionMatches, sizes: dict[str, Any]) -> Entry:
    """The model by the sizes that the program is told, with what they leave open."""
    said = {name: found.count(name) for name in MORE_OF_SHAPE}
    flags = {name: found.default(name) for name in FLAGS_OF_SHAPE if name in found.used}
    ratio = found.default("ffn_ratio")
    if isinstance(ratio, int | float) and ratio > 0:
        said["ffn_hidden_size"] = said["ffn_hidden_size"] or round(ratio * sizes["hidden_size"])
    if said["num_experts"] == 1:
        said["num_experts"] = said["experts_per_token"] = None
    told = {**{name: size for name, size in said.items() if size}, **flags}
    open_ = ", ".join(words for name, words in _USUAL_SHAPE.items() if name not in told)
    comments = [] if found.count("vocab_size") else ["fill in: vocab_size"]
    comments += [f"taken as having {open_}"] if open_ else []
    value = {**sizes, **{name: size for name, size in told.items() if size}}
    return Entry(key="model", value=value, comment="; ".join(comments))


def _loop(script: Script) -> str:
    """The training loop that the program runs, by its options, imports and launcher; empty where none of them says. transformers' Trainer leaves the step to DeepSpeed where it is told to."""
    if script.by_deepspeed or any(
        a.name.rpartition(".")[2] in ("deepspeed", "deepspeed_config") for a in script.arguments
    ):
        return "deepspeed"
    if script.parser == "HfArgumentParser":
        return "hf_trainer"
    if script.imports & {"lightning", "pytorch_lightning"}:
        return "lightning"
    return next(
        (
            name
            for name in ("accelerate", "deepspeed")
            if name in {script.launcher, *script.imports}
        ),
        "",
    )


def _uses_accelerate(script: Script) -> bool:
    """Whether accelerate forms its ranks: its own scripts, and those with transformers' TrainingArguments."""
    return script.launcher == "accelerate" or script.parser == "HfArgumentParser"


def _what_starts(script: Script, source: Path) -> Iterator[str]:
    """How a launch script starts it."""
    if (started := script.started) is None or started.program == source.name:
        return
    how = (
        "python (it launches its own ranks; trials use torchrun instead)"
        if started.starts_ranks
        else started.launcher
    )
    yield f"{source.name} starts {started.program} with {started.tasks or how}; its arguments without a knob are kept"
    if started.spelled_out:
        yield f"the settings of {started.spelled_out} are given as options, because {started.program} takes no option besides that file"
    if started.tasks:
        yield (
            f"trials start {started.program} with torchrun on each node, instead of one {started.tasks} task per rank: it must read RANK, "
            "LOCAL_RANK and WORLD_SIZE"
        )


ASSUMED_WEIGHTS = "weights are planned as "


def _what_is_beyond(script: Script) -> Iterator[str]:
    """What its plan does not have, or takes for granted."""
    if script.beyond:
        yield f"{NOT_PREDICTED}{BEYOND[script.beyond]} ({script.beyond}); trials measure whole steps, and `rl:` and `rollout:` in a spec describe the phases of one"

    elif (method := Path(script.name).stem.lower()) in BEYOND_BY_METHOD:
        yield f"{NOT_PREDICTED}{BEYOND_BY_METHOD[method]}, judging by the name {Path(script.name).name}"
    yield from frozen(script)


def _what_weights(script: Script) -> Iterator[str]:
    """What is assumed of the type in which a program of transformers keeps the weights that it trains."""
    loaded = loaded_in(script)
    if any(
        option.name == "torch_dtype" and option.given is None and option.default
        for option in script.options
    ):
        yield f"{ASSUMED_WEIGHTS}{loaded}, the type of most checkpoints: {script.name} trains in the checkpoint's own type unless torch_dtype is given"
        return
    if loaded == "auto":
        why = "dtype is auto"
    elif script.loads_as[0] == "?" and not loaded and not peft_of(script):
        why = f"line {script.loads_as[1]} of {script.name} computes their type"
    elif script.untyped and not loaded:
        why = f"line {script.untyped} of {script.name} loads them without dtype"
    elif not (loaded or script.is_read) and _loop(script) == "hf_trainer" and not peft_of(script):
        why = f"{script.name} was not found"
    else:
        return
    yield f"{ASSUMED_WEIGHTS}fp32 ({why}): transformers 5 takes the checkpoint's own type by default, often bf16, which needs about half the memory; if so, set workload.pure_bf16: true, or give the type in the launch (dtype)"


def _spawns_unasked(found: OptionMatches) -> bool:
    """Whether it starts its ranks itself, as many as its text says."""
    told = found.used.keys() & {"world_size", "nproc_per_node"}
    return found.script.spawns and not told


def _what_is_off(found: OptionMatches, source: Path, ranks: RanksToday) -> Iterator[str]:
    """What trials do otherwise than the launch, and what they cannot do."""
    if found.finds_batch:
        named = ", ".join(option.shown for option in found.finds_batch)
        yield f"off in trials: {named}, because it halves the batch when memory runs out, so a different batch would be measured"
    if found.trackers:
        named = ", ".join(option.shown for option in found.trackers)
        yield f"left out in trials, but kept in the exported launch: {named}"
    if found.script.started and starts_one(found.script) and ranks.of_cluster > 1:
        yield f"{source.name} starts one process, so trials have one rank; to tune over several ranks, give a script that uses torchrun, accelerate or srun"
    if _spawns_unasked(found):
        many = f"{ranks.of_trials}{'' if found.script.spawned else ' are assumed'}"
        yield f"{found.script.name} starts its own ranks, and no option says how many: {many}; give it such an option (--world-size) to tune their number"
    if ranks.is_elsewhere:
        yield f"{source.name} starts {ranks.today} ranks, and trials have {ranks.of_trials}: the batch per step stays the same"


def _what_variables_tell(found: OptionMatches) -> Iterator[str]:
    if found.variables:
        said = ", ".join(f"{name} as {text}" for name, text in found.variables.items())
        yield f"{found.script.name} reads environment variables, which trials set: {said}; a micro-batch is taken as sequences per rank"


def _what_reads(found: OptionMatches) -> str:
    script, file = found.script, found.settings
    if file:
        return f"{file.given} is not changed: each trial gets a copy with its own values (`files`)"
    if not script.is_read:
        return f"{script.name} was not found: only its arguments are known"
    if script.overridden:
        return f"the command of {script.name} overrides values of {script.overridden}; values that argv does not set stay as they are in the file"
    if not script.parser:
        known = "; only those on the command line are known" if script.options else ""
        return f"{script.name} has no recognizable options{known}"
    return (
        f"{script.name} reads {len(script.options)} options with {script.parser}; those not in argv keep their defaults"
        + ("" if script.started else ": add the ones you use today, such as data and model")
    )


NOT_PRINTED = "no line with a "


def _what_is_not_printed(script: Script, metrics: Mapping[str, str]) -> str:
    """What no pattern was found for; empty where all is found, or where the training loop has lines that are known."""
    if (
        script.parser == "HfArgumentParser"
        or _loop(script) in ("hf_trainer", "lightning")
        or is_known(script.printed)
    ):
        return ""
    if not metrics and "tqdm" in script.imports:
        return ""
    has_time = any("_per_s" in name or "_time_" in name for name in metrics)
    found = {"step": "step" in metrics or has_time, "time": has_time, "loss": "loss" in metrics}
    missing = [word for word, is_found in found.items() if not is_found]
    if not missing:
        return ""
    where = (
        f"the print statements of {script.name}"
        if script.is_read
        else f"{script.name}, which was not read"
    )
    follows = (
        "a diverging loss goes unnoticed"
        if has_time
        else "only the probe times the steps, and it works only in Python programs"
    )
    return (
        f"{NOT_PRINTED}{' or '.join(missing)} was recognized in {where}: {follows}; "
        "write patterns of its log as `metrics`, or let `autotune init --run` start and observe it"
    )


def _how_to_be_told(found: OptionMatches) -> str:
    """What to do with a script that cannot be told anything."""
    fixed = ((constant, meaning_of(constant)) for constant in found.script.constants)
    named = [
        f"{c.name}={c.default} (line {c.line})"
        for c, meaning in fixed
        if meaning is not None and meaning.target not in SHAPE
    ]
    settled = f": it sets {', '.join(named[:6])} itself" if named else ""
    return (
        f"nothing can be tuned yet{settled}. If it reads a settings file, give `autotune init` the shell script that starts it. "
        "Otherwise make it read such values from its command line, from a JSON, YAML or TOML file (`files:`), or from the environment (`env:`), and list them in argv"
    )
