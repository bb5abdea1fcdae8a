"""`autotune init` of a script: its first spec. The script is read, not run; each value's comment
says where it was found.

    argv      the launcher, the script, and one word for each option that stands for a knob or a figure of the workload
    space     the values that the script can be told; a knob without an option has one value
    baseline  what the script is started with today, where a launch script says so, else its own defaults

What the script does not say (its cluster, often its model) stands there as a stand-in, and is
listed as to be filled in.

What a training has in place of what only trials are told: the user's own steps, seed, saving,
logging and trackers, for the exported launch.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from autotune.errors import SpecError
from autotune.onboarding.configuration_files import offloaded_weights, unread_files
from autotune.onboarding.draft import (
    Draft,
    Entry,
    Place,
    around,
    baseline_text,
    file_name,
    filled,
    model_named,
    named_cluster,
    stated,
)
from autotune.onboarding.script.adapters import (
    NEEDS_LESS,
    NOT_COUNTED,
    NOT_PREDICTED,
    ON_HOST,
    by_bits,
    frozen,
    is_unfused,
    loaded_in,
    made_optimizer,
    optimizer_of,
    peft_of,
    second_models,
)
from autotune.onboarding.script.argv import (
    OMITTED,
    argv_of,
    ideas_of,
    left_out,
    precision_words,
    trial_words,
    values_of,
    written,
)
from autotune.onboarding.script.built_model import built_model
from autotune.onboarding.script.code import UNDER_CONDITION
from autotune.onboarding.script.library_options import BEYOND, BEYOND_BY_METHOD
from autotune.onboarding.script.option_matches import (
    BATCH,
    DEGREES,
    UNSAID_STEPS,
    LaunchToday,
    OptionMatches,
    match_options,
)
from autotune.onboarding.script.option_names import (
    FLAGS_OF_SHAPE,
    MORE_OF_SHAPE,
    SHAPE,
    meaning_of,
)
from autotune.onboarding.script.options import ScriptOption
from autotune.onboarding.script.print_statements import EVERY_STEP, is_known, patterns_of
from autotune.onboarding.script.reading import Script, settled
from autotune.spec.texts.as_text import number_of
from autotune.spec.texts.usual_names import optimizer_named
from autotune.trainers.command.training import APPEND, NUMBERS
from autotune.trainers.documents.placeholders import braced
from autotune.trainers.present_configuration import nested

MODEL, SEQ_LEN, VOCAB_SIZE = "nano-gpt", 1024, 50304
"""stand-ins for figures that the script does not say"""
_WITH_WORDS = ("recompute", "zero_stage", "compile", "sequence_parallel")
"""knobs, beside the precision, that an option tells in words of its own"""


def script_draft(
    script: Script, place: Place, *, cwd: Path, source: Path, model: str | None = None, folder: Path
) -> Draft:
    """The draft for a script; `cwd`: where it runs, `source`: the file that was read, `folder`: of
    the spec, against which its paths are read. Raises `SpecError` for a script that only submits
    the training."""
    if script.code.submits:
        raise SpecError(
            f"{script.name} submits the training to a scheduler with submitit, so a trial would end when its job is queued",
            remedy="pass the command that each task of the job runs, started with torchrun: autotune init -- torchrun --nproc-per-node=8 train.py ...",
            field="FILE",
        )
    script = settled(script, place)
    found = match_options(script, cwd)
    today = LaunchToday(found, place)
    is_plain = bool(script.code.plain_on_cpu) and (place.is_cpu or _is_on_cpu(script))
    if is_plain:
        found.without_autocast()
    if today.ranks_of_trials == 1:
        found.without_sharding()
    trainer = _trainer(today, source, os.path.relpath(cwd.resolve(), folder.resolve()))
    metrics = next((dict(part.value) for part in trainer if part.key == "metrics"), {})
    shape = _model(found, model, cwd, folder)
    workload, unsaid = _workload(today)
    why_none = _no_baseline(today)
    fill_in = [*place.fill_in, *(["model"] if "fill in" in shape.comment else [])]
    if found.required or _tunes_nothing(found):
        fill_in.append("trainer.argv")
    fill_in += unsaid
    if _formats_unsaid(found) or _is_format_unknown(found):
        fill_in.append("space.precision")
    if why_none:
        fill_in.append("baseline")
    has_none = why_none or not today.micro_batch_size
    baseline = Entry(key="baseline") if has_none else _baseline(today)
    notes = [
        _what_reads(found),
        *_what_variables_tell(found),
        *_what_starts(script, source),
        *_what_is_beyond(script),
    ]
    # what is sharded is kept in fp32
    if "zero_stage=" not in str(baseline.value):
        notes += _what_weights(script)
    away = "" if script.is_off(script.code.offloads_if) else script.code.offloads
    if script.started is not None:
        notes += unread_files(script.started, cwd)
        away = offloaded_weights(script.started, cwd) or away
    if away:
        so = (
            f"; if {script.name} keeps them on the host,"
            if away.endswith(UNDER_CONDITION)
            else ", so"
        )
        notes.append(
            f"{NOT_COUNTED}{ON_HOST} ({away}), planned on the GPU, which is faster{so} {NEEDS_LESS}"
        )
    if _tunes_nothing(found):
        notes.append(_how_to_be_told(found))
    if why_none:
        notes.append(
            f"no baseline: {why_none}; add the current settings of {source.name} as `baseline:`"
        )
    if is_plain:
        notes.append(
            f"on CPUs {script.name} always computes in fp32 (line {script.code.plain_on_cpu}), so precision stays fp32"
        )
    is_told = found.template or "zero_stage" in {*found.used, *found.fixed}
    if script.code.shards and today.ranks > 1 and not is_told:
        notes.append(
            f"{NOT_COUNTED}sharding under a condition or in a module that {script.name} imports, planned as no sharding; if {script.name} shards, {NEEDS_LESS}"
        )
    told = found.template
    is_known = "recompute" in {*found.used, *found.fixed}
    if told and "activation_checkpointing" in told.document and not is_known:
        notes.append(
            f"{NOT_COUNTED}activation checkpointing, for which {told.given} has settings, planned as off; if {script.name} recomputes, {NEEDS_LESS}"
        )
    if why_one := _one_config(today):
        tell = (
            "move accumulation_steps from trainer.fixed to trainer.overrides"
            if "accumulation_steps" in found.fixed
            else "write {accumulation_steps} as the value of the accumulation option in trainer.argv"
        )
        notes.append(
            f"{why_one}: list the possible batches under workload.global_batch_size, or {tell}"
        )
    if unprinted := _what_is_not_printed(script, metrics):
        notes.append(unprinted)
    if dropped := left_out(found, place):
        notes.append(OMITTED.format(", ".join(dropped)))
    notes += _what_is_off(today, source)
    heading = (
        f"A first spec for {source.name}, written by `autotune init`. Nothing was run; line numbers refer to {script.name}.",
        "Next, fill in what the comments ask for, then run `autotune check` (five real steps) and `autotune tune`.",
    )
    where, limits, runner = place.entries
    return Draft(
        heading=heading,
        entries=filled(
            Entry(key="name", value=file_name(source.name)),
            shape,
            where,
            workload,
            _space_entry(today),
            baseline,
            Entry(key="trainer", parts=trainer),
            limits,
            runner,
        ),
        fill_in=tuple(fill_in),
        notes=tuple(notes),
        today={
            meaning.expression or target: meaning.option.present
            for target, meaning in found.used.items()
        },
    )


def _trainer(today: LaunchToday, source: Path, cwd: str) -> tuple[Entry, ...]:
    """How trials start it; `cwd`: where it runs, relative to the spec."""
    found, place, script = today.found, today.place, today.found.script
    asked = "fill in: an argument for each knob, e.g. '--batch-size={micro_batch_size}'"
    env = dict(script.started.env) if script.started else {}
    why = [f"as {source.name} exports it"] if script.started else []
    if _uses_accelerate(script) and place.is_cpu:
        why = [
            "without ACCELERATE_USE_CPU, accelerate (and transformers' Trainer) trains separately on each CPU rank"
        ]
        env["ACCELERATE_USE_CPU"] = "true"
    if own := found.variables:
        why.append(f"trials set {', '.join(own)}")
    kept = {name: braced(text) for name, text in env.items()}
    files = " and ".join(file.given for file in (found.template, found.settings) if file)
    metrics = patterns_of(script.code.printed)
    if set(metrics) == {"step"} and "tqdm" in script.code.imports:
        metrics = {}  # patterns would hide the rate and the loss of its bar
    return filled(
        Entry(key="kind", value="command"),
        Entry(key="cwd", value=cwd, comment="where the program runs, relative to this file"),
        Entry(
            key="argv",
            items=tuple(argv_of(found, place)),
            comment=asked if _tunes_nothing(found) else "",
            below=tuple(ideas_of(found)),
        ),
        Entry(key="env", value={**kept, **own}, comment="; ".join(why)),
        Entry(key="values", value=values_of(found)),
        Entry(key="files", value=found.files, comment=f"{files}, as each trial gets it"),
        Entry(key="fixed", value=dict(found.fixed), comment=_decided_by(script)),
        Entry(
            key="training",
            value=training_of(found),
            comment="values that launch.sh uses instead; null omits the argument",
        ),
        Entry(key="metrics", value=metrics, comment="from the script's print statements"),
        *(_counts(found) if metrics else ()),
    )


def training_of(found: OptionMatches) -> dict[str, Any]:
    """The option `training` of the trainer: by word of `argv`, `steps` and `seed`, what the script
    is started with today; null where it is told nothing."""
    given: dict[str, list[str]] = {}
    for argument in found.script.arguments:
        given.setdefault(argument.name, []).extend(written(argument, found.script.is_read))
    training: dict[str, Any] = {}
    for target in NUMBERS:
        if target in found.used:
            option = found.used[target].option
            value = option.present if option.is_in_file else option.given
            # -1 stands for no limit
            training[target] = value if type(value) is int and value >= 0 else None
    for word in trial_words(found):
        own = given.get(word.lstrip("-+").partition("=")[0].replace("-", "_"), [])
        mine = own[0] if len(own) == 1 else own or None
        if mine != word:
            training[word] = mine
    in_file = {path: of_user for path, (_, of_user) in found.of_run.items()}
    if (interval := found.log_interval) and interval.is_in_file:
        in_file[interval.name] = interval.present
    if in_file and found.settings:
        training[found.settings.name] = nested(in_file)
    if watched := [word for option in found.trackers for word in given.get(option.name, ())]:
        training[APPEND] = watched
    return training


def _decided_by(script: Script) -> str:
    """What fixes knobs: settings, or code that no option changes."""
    made = ((f"{knob}={str(it.value).lower()}", it.line) for knob, it in script.in_code.items())
    lines = ", ".join(f"{what} on line {line} of {script.name}" for what, line in made)
    return f"decided by the program's settings{f' or code: {lines}' if lines else ''}"


def _is_on_cpu(script: Script) -> bool:
    """Whether an option says that it runs on the CPU."""
    devices = (o for o in script.options if re.fullmatch("device(_type)?|accelerator", o.last))
    return any(str(option.present).startswith("cpu") for option in devices)


def _counts(found: OptionMatches) -> Iterator[Entry]:
    """What a line of the log counts, where the loop over the micro-batches of a step stands beside
    the print statement, or around it."""
    if "accumulation_steps" not in found.used:
        return
    name = found.used["accumulation_steps"].option.name
    printed = {each.loop for each in found.script.code.printed if each.every == EVERY_STEP}
    for loop in found.script.code.loops:
        if name in loop.names and printed in ({loop.around}, {loop.line}):
            is_step = printed == {loop.around}
            how = "once after" if is_step else "within"
            said = f"lines are printed {how} the loop over {name} on line {loop.line}"
            yield Entry(key="counts", value="steps" if is_step else "micro-batches", comment=said)
            return


def _formats_unsaid(found: OptionMatches) -> tuple[str, ...]:
    """Number formats that the program's code names, where neither an option nor a setting says
    which one it trains in."""
    return () if _is_format_said(found) else tuple(sorted(found.script.code.formats))


def _is_format_unknown(found: OptionMatches) -> bool:
    """Whether nothing says the number format, of a program whose code was not found or not
    understood, or whose options or steps are where nobody looked."""
    script = found.script
    is_elsewhere = not script.parser and any(argument.name for argument in script.arguments)
    is_hidden = not script.is_read or is_elsewhere or bool(script.unread)
    is_away = not script.code.own.calls("backward") and bool(script.overridden)
    is_hidden |= is_away or (_tunes_nothing(found) and not script.code.whole.calls("backward"))
    return is_hidden and not _is_format_said(found)


def _is_format_said(found: OptionMatches) -> bool:
    return "precision" in {*found.used, *found.fixed} or bool(found.precision_flags)


def _precisions(found: OptionMatches) -> list[Any]:
    """The number formats that it can be told, that of today first."""
    if used := found.used.get("precision"):
        return [value for value in used.values if value != "fp8" or used.default == "fp8"]
    flags, plain = found.precision_flags, found.plain_format
    if not flags:
        return [found.fixed.get("precision", "fp32")]
    default = next((flag.default for flag in flags if flag.default), plain)
    return sorted(precision_words(flags, plain), key=lambda value: value != default)


def _worth_trying(found: OptionMatches, place: Place) -> list[Any]:
    """The number format of today, and those that it can be told and that may be faster where it
    runs.

    On GPUs bf16 is faster than fp32 and as fast as fp16, which needs its losses scaled; fp32 is
    slower than all others. fp16 is faster than fp32 where bf16 is not to be had. On CPUs it depends
    on the processor, but nobody trains in fp16 there. Of a program whose format is not known, all.
    """
    today, *others = _precisions(found)
    cluster = named_cluster(place.name)
    if _is_format_open(found):
        worth = others
    elif place.is_cpu:
        worth = [each for each in others if each != "fp16"]
    elif today == "bf16":
        worth = []
    else:
        is_known = cluster is None or "bf16" in cluster.gpu.peak_flops_per_s
        faster = ["bf16" if is_known and "bf16" in (today, *others) else "fp16"]
        faster += ["tf32"] if today in ("fp32", "tf32") else []
        worth = [each for each in others if each in faster]
    return [today, *worth]


def _is_format_open(found: OptionMatches) -> bool:
    """Whether nothing says which format it trains in today."""
    return "precision" in found.used and found.used["precision"].default is None


def _space(today: LaunchToday) -> dict[str, Any]:
    found, micro, space = today.found, today.micro_batch_size, dict[str, Any]()
    if today.is_alone or today.is_part or _spawns_unasked(found):
        space["world_sizes"] = [today.ranks_of_trials]
    if "micro_batch_size" in found.used or (micro and found.divides_batch):
        offered = found.choices("micro_batch_size") or around(micro or BATCH)
        batch, _, is_open = today.batch
        if isinstance(batch, int) and not is_open:  # the others are in no step of that batch
            offered = [each for each in offered if batch % each == 0] or offered
        space["micro_batch_size"] = offered
    elif micro:
        space["micro_batch_size"] = [micro]
    if steps := found.choices("accumulation_steps") if found.accumulates else [1]:
        space["accumulation_steps"] = steps
    for target in DEGREES:
        if target in found.used:
            space[target] = found.choices(target) or {"powers_of_two": [1, 8]}
    space["precision"] = _worth_trying(found, today.place)
    stages = found.template.stages if found.template else ()
    for target in _WITH_WORDS:
        if values := found.values(target) or (stages if target == "zero_stage" else ()):
            space[target] = list(values)
    return {**space, **{knob: [value] for knob, value in found.fixed.items()}}


def _one_config(today: LaunchToday) -> str:
    """Why the batch leaves one micro-batch alone: no option accumulates, or the text accumulates a
    fixed number; empty elsewhere."""
    batch, found, steps = today.batch[0], today.found, "accumulation_steps"
    is_free = found.accumulates and steps not in found.fixed
    if not today.micro_batch_size or is_free or not isinstance(batch, int):
        return ""
    why = f"no accumulation option of {found.script.name} was recognized"
    if steps in found.fixed:
        why = f"{steps} is always {found.fixed[steps]} ({found.where(steps) or 'as launched'})"
    return f"{why}, so a batch of {batch} allows one micro-batch for each number of ranks"


def _space_entry(today: LaunchToday) -> Entry:
    space, why = _space(today), _one_config(today)
    is_choice = len(space.get("micro_batch_size", ())) > 1
    return Entry(key="space", value=space, comment=why if is_choice else "")


def _workload(today: LaunchToday) -> tuple[Entry, tuple[str, ...]]:
    """(the workload, what of it is to be filled in)"""
    found, script = today.found, today.found.script
    batch, why, is_open = today.batch
    seq_len, loop = found.count("seq_len"), _loop(script)
    peft = dict(_planned_adapters(script))
    is_bf16 = loaded_in(script) == "bfloat16" and _precisions(found)[0] == "bf16"
    is_pure = is_bf16 and not peft and loop not in ("deepspeed", "lightning")
    by_option = optimizer_of(script) if loop in ("hf_trainer", "deepspeed") else ""
    optimizer = optimizer_named(by_option or made_optimizer(script))
    value = {
        "seq_len": seq_len or SEQ_LEN,
        "global_batch_size": batch,
        **stated(
            loop=loop,
            peft=peft,
            pure_bf16=is_pure,
            shards_in_fp32=is_pure and loop in ("hf_trainer", "accelerate"),
            optimizer=optimizer if optimizer != "adamw" else "",
            unfused_attention=is_unfused(script),
        ),
    }
    told = f"seq_len: {found.where('seq_len')}"
    open_ = [
        name
        for name, is_said in (("seq_len", seq_len), ("global_batch_size", not is_open))
        if not is_said
    ]
    length = told if seq_len else "fill in: seq_len, tokens per sequence"
    asked = "fill in: global_batch_size," if is_open else "batch:"
    entry = Entry(key="workload", value=value, comment=f"{length}; {asked} {why}")
    return entry, tuple(f"workload.{name}" for name in open_)


def _no_baseline(today: LaunchToday) -> str:
    """Why what it is started with is no config of a study; empty where it is one."""
    found, micro = today.found, today.micro_batch_size
    if found.script.unread and not found.script.options:
        return f"autotune does not understand {found.script.unread}"
    if formats := _formats_unsaid(found):
        return f"the script mentions {' and '.join(formats)}, but it is unclear whether it trains in that format, so `space.precision` is a placeholder"
    if held := found.script.held_elsewhere:
        return f"the script does not set {held}, which may contain options of the program"
    if found.unclear:
        return f"autotune does not understand {', '.join(dict.fromkeys(found.unclear))}"
    if found.undecided:
        named = " and ".join(f"{option.shown} ({option.place})" for option in found.undecided)
        return f"the default of {named} depends on the machine, so pass a value in the launch, or specify the cluster (--cluster)"
    if _is_format_open(found):
        option = found.used["precision"].option
        return f"the precision is unknown, because {option.shown} ({option.place}) is not given and has no default"
    if today.problem:
        return today.problem
    if not micro:
        return (
            "the number of sequences per micro-batch was not found" if found.script.started else ""
        )
    if today.is_accumulation_unsaid:
        return UNSAID_STEPS
    batch, replicas = today.batch[0], today.replicas_of_trials
    if not isinstance(batch, int):
        return ""
    per_step, steps = micro * replicas, _steps_by_deepspeed(found)
    if steps and batch != per_step * steps:
        return f"a batch of {batch} is not {steps} x {micro} sequences on {replicas} replicas"
    if batch % per_step or (batch != per_step and not found.accumulates):
        return f"a batch of {batch} cannot be divided into micro-batches of {micro} on {replicas} replicas"
    return ""


def _steps_by_deepspeed(found: OptionMatches) -> int | None:
    """The accumulation that DeepSpeed's file gives."""
    return next((o.given for o in found.of_deepspeed if o.name == "accumulation_steps"), None)


def _baseline(today: LaunchToday) -> Entry:
    """What the script is started with: nothing where a part of it is not known, because speedups
    over another config mean nothing."""
    found, template = today.found, today.found.template
    values: dict[str, Any] = {"dp": 1} if today.is_alone else {}
    if today.degrees or today.is_part:
        values |= {**today.degrees, "dp": today.replicas_of_trials}
    values |= {"micro_batch_size": today.micro_batch_size, "precision": _precisions(found)[0]}
    if not found.accumulates:
        values["accumulation_steps"] = 1
    values |= {knob: told[0] for knob in _WITH_WORDS if (told := found.values(knob))}
    values |= {"zero_stage": template.stages[0]} if template else {}
    comment = "as launched" if found.script.started else "the script's defaults"
    if today.is_elsewhere:
        comment += f", on {number_of(today.ranks_of_trials, 'rank')} instead of {today.ranks}"
    text = baseline_text({**values, **found.fixed, **values})
    return Entry(key="baseline", value=text, comment=comment)


def _tunes_nothing(found: OptionMatches) -> bool:
    return not found.used and not found.precision_flags


def _model(found: OptionMatches, asked: str | None, cwd: Path, folder: Path) -> Entry:
    """The model that is asked for or named, else its shape, else a stand-in."""
    if asked is not None:
        return Entry(key="model", value=asked)
    stand_in = Entry(
        key="model",
        value=MODEL,
        comment="fill in: a name from `autotune models`, a config.json, or the shape",
    )
    if second_models(found.script):
        return stand_in
    named, at = found.default("model"), found.where("model")
    if isinstance(named, str) and (known := model_named(named, cwd, folder)):
        return Entry(key="model", value=known[0], comment=known[1] or at)
    if named is None and found.script.code.loaded:
        loaded, line = found.script.code.loaded
        if known := model_named(loaded, cwd, folder):
            where = f"{known[1]} (line {line})" if known[1] else f"line {line}"
            return Entry(key="model", value=known[0], comment=where)
    told = {each.last: each.present for each in found.script.options}
    if named is None and (built := built_model(found.script.code.own, told)):
        fields, line = built
        lacks = "; fill in: vocab_size" if fields["vocab_size"] is None else ""
        value = fields | {"vocab_size": fields["vocab_size"] or VOCAB_SIZE}
        return Entry(key="model", value=value, comment=f"line {line}{lacks}")
    sizes = {target: found.count(target) for target in SHAPE}
    of_options = [found.used[target].option for target in SHAPE if target in found.used]
    is_default = found.script.held_elsewhere and not any(each.given for each in of_options)
    routes_unsaid = (found.count("num_experts") or 1) > 1 and not found.count("experts_per_token")
    if (
        is_default
        or found.of_other_models
        or routes_unsaid
        or None in [sizes[each] for each in SHAPE[:3]]
    ):
        return stand_in
    return _shape(found, {**sizes, "vocab_size": sizes["vocab_size"] or VOCAB_SIZE})


_USUAL_SHAPE = {
    "ffn_hidden_size": "a feed-forward four times as wide as the model",
    "num_kv_heads": "as many key-value heads as attention heads",
    "gated_mlp": "a plain MLP (not gated)",
    "tied_embeddings": "a head that is not tied to the embedding",
}
"""what is taken for granted of a shape that does not say it"""


def _shape(found: OptionMatches, sizes: dict[str, Any]) -> Entry:
    """The model by the sizes that the program is told, with what they leave open."""
    said: dict[str, Any] = {name: found.count(name) for name in MORE_OF_SHAPE}
    ratio = found.default("ffn_ratio")
    if isinstance(ratio, int | float) and ratio > 0 and not said["ffn_hidden_size"]:
        said["ffn_hidden_size"] = round(ratio * sizes["hidden_size"])
    gate = found.used.get("gated_mlp")
    if gate and gate.option.last == "activation_type" and said["ffn_hidden_size"]:
        said["ffn_hidden_size"] //= 2  # OLMo counts the gate with it
    if said["num_experts"] == 1:
        said["num_experts"] = said["experts_per_token"] = None
    told = {name: size for name, size in said.items() if size}
    told |= {name: found.default(name) for name in FLAGS_OF_SHAPE if name in found.used}
    open_ = ", ".join(words for name, words in _USUAL_SHAPE.items() if name not in told)
    comments = [] if found.count("vocab_size") else ["fill in: vocab_size"]
    comments += [f"assumed to have {open_}"] if open_ else []
    value = {**sizes, **{name: size for name, size in told.items() if size}}
    return Entry(key="model", value=value, comment="; ".join(comments))


def _loop(script: Script) -> str:
    """The training loop that the program runs, by its options, imports and launcher; empty where
    none of them says. transformers' Trainer leaves the step to DeepSpeed where it is told to."""
    given = {argument.name.rpartition(".")[2] for argument in script.arguments}
    given |= (
        {name for name, value in script.started.of_file.items() if value}
        if script.started
        else set()
    )
    if script.by_deepspeed or given & {"deepspeed", "deepspeed_config"}:
        return "deepspeed"
    if script.parser == "HfArgumentParser":
        return "hf_trainer"
    if script.is_of_lightning:
        return "lightning"
    starts = {script.launcher, *script.code.imports}
    starts -= {"deepspeed"} if script.is_without_deepspeed else set()
    return next((name for name in ("accelerate", "deepspeed") if name in starts), "")


def _uses_accelerate(script: Script) -> bool:
    """Whether accelerate forms its ranks: its own scripts, and those with transformers'
    TrainingArguments."""
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
    yield f"{source.name} starts {started.program} with {started.tasks or how}; arguments that no knob sets are kept"
    if started.spelled_out:
        yield f"the settings in {started.spelled_out} are passed as options, because {started.program} takes either that file or options"
    if started.tasks:
        yield (
            f"trials start {started.program} with torchrun on each node, instead of one {started.tasks} task per rank, so {started.program} must read RANK, "
            "LOCAL_RANK and WORLD_SIZE"
        )


ASSUMED_WEIGHTS = "weights are planned as "


_OF_TRAINING = re.compile(r"^(train|run|finetune)_|_(train|trainer|trl)$")
"""parts of a program's name beside what it trains for"""


def _what_is_beyond(script: Script) -> Iterator[str]:
    """What its plan does not have, or takes for granted."""
    if script.beyond:
        yield f"{NOT_PREDICTED}{BEYOND[script.beyond]} ({script.beyond}); trials measure whole steps, and `rl:` and `rollout:` in a spec describe the phases of a step"

    elif (method := _OF_TRAINING.sub("", Path(script.name).stem.lower())) in BEYOND_BY_METHOD:
        yield f"{NOT_PREDICTED}{BEYOND_BY_METHOD[method]}, judging by the name {Path(script.name).name}"
    yield from frozen(script)


def _planned_adapters(script: Script) -> Mapping[str, Any]:
    """The adapters of a workload, with what is not cast to fp32 beside 4 bits, and the type of the
    frozen weights where that is fp32: DeepSpeed casts them."""
    said = script.written.workload if script.written else {}
    found = {**(said.get("peft") or peft_of(script))}
    if found:
        found["method"] = by_bits(script, found["method"])
    if found.get("method") == "qlora" and script.code.casts_nothing:
        found["upcast"] = False
    is_fp32 = found.pop("frozen_fp32", False) or loaded_in(script) == "float32"
    casts = found.get("method") != "lora" or _loop(script) == "deepspeed"
    return {**found, "frozen_fp32": True} if is_fp32 and not casts else found


def _what_weights(script: Script) -> Iterator[str]:
    """What is assumed of the type in which a program of transformers keeps the weights that it
    trains."""
    loaded = loaded_in(script)
    if _planned_adapters(script).get("frozen_fp32"):
        how = (
            f"as line {line} of {script.name} loads them"
            if (line := script.code.loads_as[1])
            else "trl's default, because no dtype is given"
        )
        yield f"{ASSUMED_WEIGHTS}fp32 beside adapters ({how}); dtype=bfloat16 needs half the memory"
        return
    if any(
        option.name == "torch_dtype" and option.given is None and option.default
        for option in script.options
    ):
        yield f"{ASSUMED_WEIGHTS}{loaded}, the type of most checkpoints, because {script.name} trains in the checkpoint's own type unless torch_dtype is given"
        return
    if loaded == "auto":
        why = "dtype is auto"
    elif script.code.loads_as[0] == "?" and not loaded and not peft_of(script):
        why = f"line {script.code.loads_as[1]} of {script.name} computes their type"
    elif script.code.untyped and not loaded:
        why = f"line {script.code.untyped} of {script.name} loads them without dtype"
    elif not (loaded or script.is_read) and _loop(script) == "hf_trainer" and not peft_of(script):
        why = f"{script.name} was not found"
    else:
        return
    if _planned_adapters(script):
        yield f"{ASSUMED_WEIGHTS}bf16 beside adapters ({why}): transformers before release 5 loads fp32 by default; if it does, they need twice the memory, so set workload.peft.frozen_fp32 to true, or set dtype in the launch"
        return
    yield f"{ASSUMED_WEIGHTS}fp32 ({why}): transformers 5 loads the checkpoint's own type by default; if that is bf16, which needs about half the memory, set workload.pure_bf16 to true, or set dtype in the launch"


def _spawns_unasked(found: OptionMatches) -> bool:
    """Whether it starts its ranks itself, as many as its text says."""
    return found.script.spawns and found.used.keys().isdisjoint(("world_size", "nproc_per_node"))


def _what_is_off(today: LaunchToday, source: Path) -> Iterator[str]:
    """What trials do otherwise than the launch, and what they cannot do."""
    found, script = today.found, today.found.script
    if found.finds_batch:
        yield f"trials turn off {_shown(found.finds_batch)}, which halves the batch when memory runs out, so a different batch would be measured"
    if found.trackers:
        yield f"trials omit {_shown(found.trackers)}, which the exported launch keeps"
    if script.started and today.is_alone and today.place.ranks > 1:
        yield f"{source.name} starts one process, so trials have one rank; to tune over several ranks, pass a script that uses torchrun, accelerate or srun"
    placed, line = script.code.shared_placement
    if placed and today.ranks_of_trials > 1:
        yield f"{NOT_COUNTED}device_map={placed} in line {line} of {script.name}, which puts the models of all {today.ranks_of_trials} ranks on the same GPUs, planned with one GPU per rank; omit device_map, or give each rank its own GPU"
    if _spawns_unasked(found):
        many = f"{today.ranks_of_trials}{'' if script.code.spawned else ' are assumed'}"
        yield f"{script.name} starts its own ranks, and no option sets their number ({many}); to tune the number, add an option to {script.name} for it (--world-size)"
    if today.is_elsewhere:
        yield f"{source.name} starts {number_of(today.ranks, 'rank')}, but trials have {today.ranks_of_trials}, with the same batch per step"


def _shown(options: Sequence[ScriptOption]) -> str:
    return ", ".join(option.shown for option in options)


def _what_variables_tell(found: OptionMatches) -> Iterator[str]:
    if found.variables:
        said = ", ".join(f"{name} as {text}" for name, text in found.variables.items())
        yield f"{found.script.name} reads environment variables, which trials set: {said}; a micro-batch is assumed to count sequences per rank"


def _what_reads(found: OptionMatches) -> str:
    script, file = found.script, found.settings
    if file:
        return f"{file.given} is not changed, because each trial gets a copy with its own values (`files`)"
    if not script.is_read:
        return f"{script.name} was not found, so only its arguments are known"
    if script.overridden:
        return f"the command of {script.name} overrides values of {script.overridden}; values that argv does not set stay as they are in the file"
    if not script.parser:
        known = "; only options on the command line are known" if script.options else ""
        return f"{script.name} has no recognizable options{known}"
    return (
        f"{script.name} reads {len(script.options)} options with {script.parser}; options that are not in argv keep their defaults"
        + (
            ""
            if script.started
            else ", so add the options that you use today, such as data and model"
        )
    )


NOT_PRINTED = "no line with a "


def _what_is_not_printed(script: Script, metrics: Mapping[str, str]) -> str:
    """What no pattern was found for; empty where all is found, or where the training loop has lines
    that are known."""
    is_read = _loop(script) in ("hf_trainer", "lightning") or is_known(script.code.printed)
    if (
        is_read
        or script.parser == "HfArgumentParser"
        or (not metrics and "tqdm" in script.code.imports)
    ):
        return ""
    has_time = any("_per_s" in name or "_time_" in name for name in metrics)
    found = {"step": "step" in metrics or has_time, "time": has_time, "loss": "loss" in metrics}
    missing = [word for word, is_found in found.items() if not is_found]
    if not missing:
        return ""
    where = f"the print statements of {script.name}"
    if not script.is_read:
        where = f"{script.name}, which was not read"
    follows = "only the probe times the steps, and it works only in Python programs"
    if has_time:
        follows = "a diverging loss goes unnoticed"
    return (
        f"{NOT_PRINTED}{' or '.join(missing)} was recognized in {where}, so {follows}; "
        "write patterns for the log under `metrics`, or run `autotune init --run`, which starts and observes the program"
    )


def _how_to_be_told(found: OptionMatches) -> str:
    """What to do with a script that cannot be told anything."""
    fixed = ((constant, meaning_of(constant)) for constant in found.script.constants)
    named = [
        f"{c.name}={c.default} (line {c.line})"
        for c, meaning in fixed
        if meaning is not None and meaning.target not in SHAPE
    ]
    settled = f", because the script sets {', '.join(named[:6])} itself" if named else ""
    return (
        f"nothing can be tuned yet{settled}. If the script reads a settings file, pass the shell script that starts it to `autotune init`. "
        "Otherwise make the script read such values from its command line, from a JSON, YAML or TOML file (`files:`), or from the environment (`env:`), and list these values in argv"
    )
