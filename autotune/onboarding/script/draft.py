"""The first spec that `autotune init` writes for a Python script. The script is parsed, not run.
Each value's comment says where the value was found.

    argv      launcher, script, and one argument for each option that sets a knob or a workload field
    space     the values that the script's options accept; a knob without an option has one value
    baseline  the options that a launch script passes today, or else the script's defaults

Fields that the script does not define (the cluster, often the model) get a placeholder value and
are listed in `fill_in`.

Trials override steps, seed, saving, logging and trackers. `training` holds the user's values of
these options, for the exported launch.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
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
from autotune.onboarding.pairs import as_pairs
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
from autotune.onboarding.script.library_options import BEYOND, BEYOND_BY_METHOD, OF_PAIRS
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
"""placeholders for fields that the script does not define"""
_WITH_WORDS = ("recompute", "zero_stage", "compile", "sequence_parallel")
"""knobs, besides precision, whose options take words instead of numbers"""


def script_draft(
    script: Script, place: Place, *, cwd: Path, source: Path, model: str | None = None, folder: Path
) -> Draft:
    """Returns the draft for a script. `cwd`: where the script runs; `source`: the file that the
    user passed; `folder`: the folder of the spec, which its paths are relative to. Raises
    `SpecError` if the script only submits the training to a scheduler."""
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
    model_entry = _model(found, model, cwd, folder)
    workload, unsaid = _workload(today)
    no_baseline_reason = _no_baseline(today)
    fill_in = [*place.fill_in, *(["model"] if "fill in" in model_entry.comment else [])]
    if found.required or _tunes_nothing(found):
        fill_in.append("trainer.argv")
    fill_in += unsaid
    if _is_precision_open(found):
        fill_in.append("space.precision")
    if no_baseline_reason:
        fill_in.append("baseline")
    has_none = no_baseline_reason or not today.micro_batch_size
    baseline = Entry(key="baseline") if has_none else _baseline(today)
    notes = [
        _parser_note(found),
        *_variable_notes(found),
        *_launch_notes(script, source),
        *frozen(script),
    ]
    # sharded weights are kept in fp32
    if "zero_stage=" not in str(baseline.value):
        notes += _weight_type_notes(script)
    offloading = "" if script.is_off(script.code.offloads_if) else script.code.offloads
    if script.started is not None:
        notes += unread_files(script.started, cwd)
        offloading = offloaded_weights(script.started, cwd) or offloading
    if offloading:
        consequence = (
            f"; if {script.name} keeps them on the host,"
            if offloading.endswith(UNDER_CONDITION)
            else ", so"
        )
        notes.append(
            f"{NOT_COUNTED}{ON_HOST} ({offloading}); planned on the GPU{consequence} {NEEDS_LESS}, but takes more time"
        )
    if _tunes_nothing(found):
        notes.append(_no_options_note(found))
    if no_baseline_reason:
        notes.append(
            f"no baseline: {no_baseline_reason}; add the current settings of {source.name} as `baseline:`"
        )
    if is_plain:
        notes.append(
            f"on CPUs {script.name} always computes in fp32 (line {script.code.plain_on_cpu}), so precision stays fp32"
        )
    sets_sharding = found.template or "zero_stage" in {*found.used, *found.fixed}
    if script.code.shards and today.ranks > 1 and not sets_sharding:
        notes.append(
            f"{NOT_COUNTED}sharding under a condition or in a module that {script.name} imports; planned as no sharding; if {script.name} shards, {NEEDS_LESS}"
        )
    template = found.template
    sets_recompute = "recompute" in {*found.used, *found.fixed}
    if template and "activation_checkpointing" in template.document and not sets_recompute:
        notes.append(
            f"{NOT_COUNTED}activation checkpointing; {template.given} has settings for it, but plans assume that it is off; if {script.name} recomputes, {NEEDS_LESS}"
        )
    if one_config_reason := _one_config(today):
        remedy = (
            "move accumulation_steps from trainer.fixed to trainer.overrides"
            if "accumulation_steps" in found.fixed
            else "write {accumulation_steps} as the value of the accumulation option in trainer.argv"
        )
        notes.append(
            f"{one_config_reason}: list the possible batches under workload.global_batch_size, or {remedy}"
        )
    if unprinted := _missing_log_lines(script, metrics):
        notes.append(unprinted)
    if dropped := left_out(found, place):
        notes.append(OMITTED.format(", ".join(dropped)))
    notes += _difference_notes(today, source)
    heading = (
        f"A first spec for {source.name}, written by `autotune init`. Nothing was run; line numbers refer to {script.name}.",
        "Next, fill in what the comments ask for, then run `autotune check` (five real steps) and `autotune tune`.",
    )
    where, limits, runner = place.entries
    draft = Draft(
        heading=heading,
        entries=filled(
            Entry(key="name", value=file_name(source.name)),
            model_entry,
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
    imports = script.code.imports  # empty for a program of the library
    if script.beyond in OF_PAIRS and ("trl" in imports or not imports):
        return as_pairs(draft, has_reference=_has_reference(script), source=script.beyond)
    return replace(draft, notes=(*draft.notes, *_unpredicted_notes(script)))


def _has_reference(script: Script) -> bool:
    """Whether the reference model of a training on pairs runs in each step."""
    is_before = any(o.last == "precompute_ref_log_probs" and o.present for o in script.options)
    return OF_PAIRS[script.beyond] and not is_before


def _trainer(today: LaunchToday, source: Path, cwd: str) -> tuple[Entry, ...]:
    """The parts of the spec's `trainer` section. `cwd`: where the program runs, relative to the
    spec."""
    found, place, script = today.found, today.place, today.found.script
    argv_comment = "fill in: an argument for each knob, e.g. '--batch-size={micro_batch_size}'"
    env = dict(script.started.env) if script.started else {}
    env_reasons = [f"as {source.name} exports it"] if script.started else []
    if _uses_accelerate(script) and place.is_cpu:
        env_reasons = [
            "without ACCELERATE_USE_CPU, accelerate (and transformers' Trainer) trains separately on each CPU rank"
        ]
        env["ACCELERATE_USE_CPU"] = "true"
    if variables := found.variables:
        env_reasons.append(f"trials set {', '.join(variables)}")
    exported = {name: braced(text) for name, text in env.items()}
    files = " and ".join(file.given for file in (found.template, found.settings) if file)
    metrics = patterns_of(script.code.printed)
    if set(metrics) == {"step"} and "tqdm" in script.code.imports:
        metrics = {}  # patterns would hide the rate and the loss that the tqdm bar shows
    return filled(
        Entry(key="kind", value="command"),
        Entry(key="cwd", value=cwd, comment="where the program runs, relative to this file"),
        Entry(
            key="argv",
            items=tuple(argv_of(found, place)),
            comment=argv_comment if _tunes_nothing(found) else "",
            below=tuple(ideas_of(found)),
        ),
        Entry(key="env", value={**exported, **variables}, comment="; ".join(env_reasons)),
        Entry(key="values", value=values_of(found)),
        Entry(key="files", value=found.files, comment=f"{files}, as each trial gets it"),
        Entry(key="fixed", value=dict(found.fixed), comment=_fixed_comment(script)),
        Entry(
            key="training",
            value=training_of(found),
            comment="values that launch.sh uses instead; null omits the argument",
        ),
        Entry(key="metrics", value=metrics, comment="from the script's print statements"),
        *(_counts_entry(found) if metrics else ()),
    )


def training_of(found: OptionMatches) -> dict[str, Any]:
    """The trainer's option `training`: for each argument that trials override, the user's current
    value; None if the launch does not set it."""
    words_by_option: dict[str, list[str]] = {}
    for argument in found.script.arguments:
        words_by_option.setdefault(argument.name, []).extend(
            written(argument, found.script.is_read)
        )
    training: dict[str, Any] = {}
    for target in NUMBERS:
        if target in found.used:
            option = found.used[target].option
            value = option.present if option.is_in_file else option.given
            # -1 means no limit
            training[target] = value if type(value) is int and value >= 0 else None
    for word in trial_words(found):
        launched = words_by_option.get(word.lstrip("-+").partition("=")[0].replace("-", "_"), [])
        users_words = launched[0] if len(launched) == 1 else launched or None
        if users_words != word:
            training[word] = users_words
    in_file = {path: of_user for path, (_, of_user) in found.of_run.items()}
    if (interval := found.log_interval) and interval.is_in_file:
        in_file[interval.name] = interval.present
    if in_file and found.settings:
        training[found.settings.name] = nested(in_file)
    if tracker_words := [
        word for option in found.trackers for word in words_by_option.get(option.name, ())
    ]:
        training[APPEND] = tracker_words
    return training


def _fixed_comment(script: Script) -> str:
    """The comment of `fixed`: which settings or lines of code fix these knobs."""
    set_in_code = (
        (f"{knob}={str(it.value).lower()}", it.line) for knob, it in script.in_code.items()
    )
    lines = ", ".join(
        f"{assignment} on line {line} of {script.name}" for assignment, line in set_in_code
    )
    return f"decided by the program's settings{f' or code: {lines}' if lines else ''}"


def _is_on_cpu(script: Script) -> bool:
    """Whether an option selects the CPU as device."""
    devices = (o for o in script.options if re.fullmatch("device(_type)?|accelerator", o.last))
    return any(str(option.present).startswith("cpu") for option in devices)


def _counts_entry(found: OptionMatches) -> Iterator[Entry]:
    """The entry `counts`, which says whether one log line covers a step or a micro-batch. Only if
    the loop over the micro-batches is directly around the print statement, or next to it."""
    if "accumulation_steps" not in found.used:
        return
    name = found.used["accumulation_steps"].option.name
    printed = {each.loop for each in found.script.code.printed if each.every == EVERY_STEP}
    for loop in found.script.code.loops:
        if name in loop.names and printed in ({loop.around}, {loop.line}):
            is_step = printed == {loop.around}
            position = "once after" if is_step else "within"
            comment = f"lines are printed {position} the loop over {name} on line {loop.line}"
            yield Entry(
                key="counts", value="steps" if is_step else "micro-batches", comment=comment
            )
            return


def _formats_without_switch(found: OptionMatches) -> tuple[str, ...]:
    """Number formats mentioned in the code, if neither an option nor a setting selects one."""
    return () if _is_format_said(found) else tuple(sorted(found.script.code.formats))


def _is_format_unknown(found: OptionMatches) -> bool:
    """Whether the number format cannot be determined: no option or setting selects it, and the code
    was not found, was not understood, or keeps its options or its training loop in files that were
    not read."""
    script = found.script
    has_unknown_parser = not script.parser and any(argument.name for argument in script.arguments)
    is_hidden = not script.is_read or has_unknown_parser or bool(script.unread)
    has_no_loop = not script.code.own.calls("backward") and bool(script.overridden)
    is_hidden |= has_no_loop or (_tunes_nothing(found) and not script.code.whole.calls("backward"))
    return is_hidden and not _is_format_said(found)


def _is_format_said(found: OptionMatches) -> bool:
    return "precision" in {*found.used, *found.fixed} or bool(found.precision_flags)


def _precisions(found: OptionMatches) -> list[Any]:
    """The number formats that the script can be set to, the current one first."""
    if used := found.used.get("precision"):
        return [value for value in used.values if value != "fp8" or used.default == "fp8"]
    flags, plain = found.precision_flags, found.plain_format
    if not flags:
        return [found.fixed.get("precision", "fp32")]
    default = next((flag.default for flag in flags if flag.default), plain)
    return sorted(precision_words(flags, plain), key=lambda value: value != default)


def _worth_trying(found: OptionMatches, place: Place) -> list[Any]:
    """The current number format, then the others that may be faster on this hardware.

    On GPUs bf16 is faster than fp32 and as fast as fp16, which also needs loss scaling. fp16 is
    faster than fp32 on GPUs without bf16. On CPUs it depends on the processor, but fp16 is not used
    for training there. If the current format is unknown, all formats are returned.
    """
    current, *others = _precisions(found)
    cluster = named_cluster(place.name)
    if _is_format_open(found):
        worth = others
    elif place.is_cpu:
        worth = [each for each in others if each != "fp16"]
    elif current == "bf16":
        worth = []
    else:
        is_known = cluster is None or "bf16" in cluster.gpu.peak_flops_per_s
        faster = ["bf16" if is_known and "bf16" in (current, *others) else "fp16"]
        faster += ["tf32"] if current in ("fp32", "tf32") else []
        worth = [each for each in others if each in faster]
    return [current, *worth]


def _is_format_open(found: OptionMatches) -> bool:
    """Whether an option selects the format, but its current value is unknown."""
    return "precision" in found.used and found.used["precision"].default is None


def _space(today: LaunchToday) -> dict[str, Any]:
    found, micro, space = today.found, today.micro_batch_size, dict[str, Any]()
    if today.is_alone or today.is_part or _spawns_fixed_number(found):
        space["world_sizes"] = [today.ranks_of_trials]
    if "micro_batch_size" in found.used or (micro and found.divides_batch):
        offered = found.choices("micro_batch_size") or around(micro or BATCH)
        batch, _, is_open = today.batch
        if isinstance(batch, int) and not is_open:  # other sizes do not divide the batch
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
    """Why the fixed batch allows only one micro-batch size: no option sets the accumulation, or the
    code fixes it. Empty if several sizes are possible."""
    batch, found, steps = today.batch[0], today.found, "accumulation_steps"
    is_free = found.accumulates and steps not in found.fixed
    if not today.micro_batch_size or is_free or not isinstance(batch, int):
        return ""
    why = f"{found.script.name} has no accumulation option that autotune recognizes"
    if steps in found.fixed:
        why = f"{steps} is always {found.fixed[steps]} ({found.where(steps) or 'as launched'})"
    return f"{why}, so a batch of {batch} allows only one micro-batch size for each number of ranks"


def _space_entry(today: LaunchToday) -> Entry:
    space, why = _space(today), _one_config(today)
    is_choice = len(space.get("micro_batch_size", ())) > 1
    comments = ["fill in: precision"] if _is_precision_open(today.found) else []
    comments += [why] if is_choice and why else []
    return Entry(key="space", value=space, comment="; ".join(comments))


def _is_precision_open(found: OptionMatches) -> bool:
    """Whether the space's precision is a placeholder."""
    return bool(_formats_without_switch(found)) or _is_format_unknown(found)


def _workload(today: LaunchToday) -> tuple[Entry, tuple[str, ...]]:
    """(the entry `workload`, names of its fields to be filled in)"""
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
    length_source = f"seq_len: {found.where('seq_len') or 'a default of the program'}"
    missing = [
        name
        for name, is_known in (("seq_len", seq_len), ("global_batch_size", not is_open))
        if not is_known
    ]
    length = length_source if seq_len else "fill in: seq_len, tokens per sequence"
    batch_comment = "fill in: global_batch_size," if is_open else "batch:"
    entry = Entry(key="workload", value=value, comment=f"{length}; {batch_comment} {why}")
    return entry, tuple(f"workload.{name}" for name in missing)


def _no_baseline(today: LaunchToday) -> str:
    """Why the current launch is not a valid config of the study; empty if it is one."""
    found, micro = today.found, today.micro_batch_size
    if found.script.unread and not found.script.options:
        return f"autotune does not understand {found.script.unread}"
    if formats := _formats_without_switch(found):
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
    """Accumulation steps given by DeepSpeed's file; None if it gives none."""
    return next((o.given for o in found.of_deepspeed if o.name == "accumulation_steps"), None)


def _baseline(today: LaunchToday) -> Entry:
    """The entry `baseline`: the config that the script is launched with today. Called only if all
    of it is known, because a speedup over any other config means nothing."""
    found, template = today.found, today.found.template
    values: dict[str, Any] = {"dp": 1} if today.is_alone else {}
    if today.degrees or today.is_part:
        values |= {**today.degrees, "dp": today.replicas_of_trials}
    values |= {"micro_batch_size": today.micro_batch_size, "precision": _precisions(found)[0]}
    if not found.accumulates:
        values["accumulation_steps"] = 1
    values |= {knob: words[0] for knob in _WITH_WORDS if (words := found.values(knob))}
    values |= {"zero_stage": template.stages[0]} if template else {}
    comment = "as launched" if found.script.started else "the script's defaults"
    if _is_precision_open(found):
        comment = f"fill in: precision; else {comment}"
    if today.is_elsewhere:
        comment += f", on {number_of(today.ranks_of_trials, 'rank')} instead of {today.ranks}"
    text = baseline_text({**values, **found.fixed, **values})
    return Entry(key="baseline", value=text, comment=comment)


def _tunes_nothing(found: OptionMatches) -> bool:
    return not found.used and not found.precision_flags


def _model(found: OptionMatches, asked: str | None, cwd: Path, folder: Path) -> Entry:
    """The entry `model`: the model that the user asked for, or else the one that the script names,
    or else the shape that its options set, or else a placeholder."""
    if asked is not None:
        return Entry(key="model", value=asked)
    placeholder = Entry(
        key="model",
        value=MODEL,
        comment="fill in: a name from `autotune models`, a config.json, or the shape",
    )
    if second_models(found.script):
        return placeholder
    named, source = found.default("model"), found.where("model")
    if isinstance(named, str) and (match := model_named(named, cwd, folder)):
        return Entry(key="model", value=match[0], comment=match[1] or source)
    if named is None and found.script.code.loaded:
        loaded, line = found.script.code.loaded
        if match := model_named(loaded, cwd, folder):
            where = f"{match[1]} (line {line})" if match[1] else f"line {line}"
            return Entry(key="model", value=match[0], comment=where)
    current_values = {each.last: each.present for each in found.script.options}
    if named is None and (built := built_model(found.script.code.own, current_values)):
        fields, line = built
        lacks = "fill in: vocab_size; " if fields["vocab_size"] is None else ""
        value = fields | {"vocab_size": fields["vocab_size"] or VOCAB_SIZE}
        return Entry(key="model", value=value, comment=f"{lacks}line {line}")
    shape = {target: found.count(target) for target in SHAPE}
    shape_options = [found.used[target].option for target in SHAPE if target in found.used]
    is_default = found.script.held_elsewhere and not any(each.given for each in shape_options)
    lacks_experts_per_token = (found.count("num_experts") or 1) > 1 and not found.count(
        "experts_per_token"
    )
    if (
        is_default
        or found.of_other_models
        or lacks_experts_per_token
        or None in [shape[each] for each in SHAPE[:3]]
    ):
        return placeholder
    return _shape(found, {**shape, "vocab_size": shape["vocab_size"] or VOCAB_SIZE})


_USUAL_SHAPE = {
    "ffn_hidden_size": "a feed-forward four times as wide as the model",
    "num_kv_heads": "as many key-value heads as attention heads",
    "gated_mlp": "a plain MLP (not gated)",
    "tied_embeddings": "a head that is not tied to the embedding",
}
"""assumptions about fields of a shape that the script does not set, as messages say them"""


def _shape(found: OptionMatches, sizes: dict[str, Any]) -> Entry:
    """The entry `model` with the shape that the program's options set. Its comment names what is
    assumed."""
    extra: dict[str, Any] = {name: found.count(name) for name in MORE_OF_SHAPE}
    ratio = found.default("ffn_ratio")
    if isinstance(ratio, int | float) and ratio > 0 and not extra["ffn_hidden_size"]:
        extra["ffn_hidden_size"] = round(ratio * sizes["hidden_size"])
    gate = found.used.get("gated_mlp")
    if gate and gate.option.last == "activation_type" and extra["ffn_hidden_size"]:
        extra["ffn_hidden_size"] //= 2  # OLMo's value includes the gate
    if extra["num_experts"] == 1:
        extra["num_experts"] = extra["experts_per_token"] = None
    shape = {name: size for name, size in extra.items() if size}
    shape |= {name: found.default(name) for name in FLAGS_OF_SHAPE if name in found.used}
    assumptions = ", ".join(words for name, words in _USUAL_SHAPE.items() if name not in shape)
    comments = [] if found.count("vocab_size") else ["fill in: vocab_size"]
    comments += [f"assumed to have {assumptions}"] if assumptions else []
    value = {**sizes, **{name: size for name, size in shape.items() if size}}
    return Entry(key="model", value=value, comment="; ".join(comments))


def _loop(script: Script) -> str:
    """The training loop, by the script's options, imports and launcher; empty if none of them
    tells. transformers' Trainer with a DeepSpeed file counts as "deepspeed", because DeepSpeed then
    runs the step."""
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
    """Whether accelerate initializes the ranks: `accelerate launch`, or transformers'
    TrainingArguments."""
    return script.launcher == "accelerate" or script.parser == "HfArgumentParser"


def _launch_notes(script: Script, source: Path) -> Iterator[str]:
    """Notes on how the launch script starts the program."""
    if (started := script.started) is None or started.program == source.name:
        return
    launch = (
        "python (it launches its own ranks; trials use torchrun instead)"
        if started.starts_ranks
        else started.launcher
    )
    yield f"{source.name} starts {started.program} with {started.tasks or launch}; arguments that no knob sets are kept"
    if started.spelled_out:
        yield f"the settings in {started.spelled_out} are passed as options, because {started.program} takes either that file or options"
    if started.tasks:
        yield (
            f"trials start {started.program} with torchrun on each node, instead of one {started.tasks} task per rank, so {started.program} must read RANK, "
            "LOCAL_RANK and WORLD_SIZE"
        )


ASSUMED_WEIGHTS = "weights are planned as "
"""beginning of notes about an assumed type of the weights"""


_OF_TRAINING = re.compile(r"^(train|run|finetune)_|_(train|trainer|trl)$")
"""parts of a program's name to strip, so that its training method is left: `train_dpo` is `dpo`"""


def _unpredicted_notes(script: Script) -> Iterator[str]:
    """Notes on parts of the training that predictions leave out."""
    if script.beyond:
        yield f"{NOT_PREDICTED}{BEYOND[script.beyond]} ({script.beyond}); trials measure whole steps, and `rl:` and `rollout:` in a spec describe the phases of a step"
    elif (method := _OF_TRAINING.sub("", Path(script.name).stem.lower())) in BEYOND_BY_METHOD:
        yield f"{NOT_PREDICTED}{BEYOND_BY_METHOD[method]}, judging by the name {Path(script.name).name}"


def _planned_adapters(script: Script) -> Mapping[str, Any]:
    """`peft` of the workload; empty without adapters. Sets `upcast` to False if the code skips
    PEFT's preparation of 4-bit models, and `frozen_fp32` to True if frozen weights stay in fp32,
    except under DeepSpeed, which casts them."""
    written = script.written.workload if script.written else {}
    adapters = {**(written.get("peft") or peft_of(script))}
    if adapters:
        adapters["method"] = by_bits(script, adapters["method"])
    if adapters.get("method") == "qlora" and script.code.casts_nothing:
        adapters["upcast"] = False
    is_fp32 = adapters.pop("frozen_fp32", False) or loaded_in(script) == "float32"
    casts = adapters.get("method") != "lora" or _loop(script) == "deepspeed"
    return {**adapters, "frozen_fp32": True} if is_fp32 and not casts else adapters


def _weight_type_notes(script: Script) -> Iterator[str]:
    """Notes on the assumed type of trained weights, for programs that load them with
    transformers."""
    loaded = loaded_in(script)
    if _planned_adapters(script).get("frozen_fp32"):
        reason = (
            f"as line {line} of {script.name} loads them"
            if (line := script.code.loads_as[1])
            else "trl's default, because no dtype is given"
        )
        yield f"{ASSUMED_WEIGHTS}fp32 next to adapters ({reason}); dtype=bfloat16 needs half the memory"
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
        yield f"{ASSUMED_WEIGHTS}bf16 next to adapters ({why}): transformers before release 5 loads fp32 by default, in which case the weights need twice the memory; then set workload.peft.frozen_fp32 to true, or set dtype in the launch"
        return
    yield f"{ASSUMED_WEIGHTS}fp32 ({why}): transformers 5 loads the checkpoint's own type by default; if this type is bf16, the weights need about half the memory; then set workload.pure_bf16 to true, or set dtype in the launch"


def _spawns_fixed_number(found: OptionMatches) -> bool:
    """Whether the script starts its own ranks and no option sets their number."""
    return found.script.spawns and found.used.keys().isdisjoint(("world_size", "nproc_per_node"))


def _difference_notes(today: LaunchToday, source: Path) -> Iterator[str]:
    """Notes on what trials do differently from the launch, and on what trials cannot do."""
    found, script = today.found, today.found.script
    if found.finds_batch:
        yield f"trials turn off {_shown(found.finds_batch)}, which halves the batch when memory runs out, so a different batch would be measured"
    if found.trackers:
        yield f"trials omit {_shown(found.trackers)}, which the exported launch keeps"
    if script.started and today.is_alone and today.place.ranks > 1:
        yield f"{source.name} starts one process, so trials have one rank; to tune over several ranks, pass a script that uses torchrun, accelerate or srun"
    placed, line = script.code.shared_placement
    if placed and today.ranks_of_trials > 1:
        yield f"{NOT_COUNTED}device_map={placed} in line {line} of {script.name}, which puts the models of all {today.ranks_of_trials} ranks on the same GPUs; planned with one GPU per rank; omit device_map, or give each rank its own GPU"
    if _spawns_fixed_number(found):
        many = f"{today.ranks_of_trials}{'' if script.code.spawned else ' are assumed'}"
        yield f"{script.name} starts its own ranks, and no option sets their number ({many}); to tune the number, add an option to {script.name} for it (--world-size)"
    if today.is_elsewhere:
        yield f"{source.name} starts {number_of(today.ranks, 'rank')}, but trials have {today.ranks_of_trials}, with the same batch per step"


def _shown(options: Sequence[ScriptOption]) -> str:
    return ", ".join(option.shown for option in options)


def _variable_notes(found: OptionMatches) -> Iterator[str]:
    if found.variables:
        assignments = ", ".join(f"{name} as {text}" for name, text in found.variables.items())
        yield f"trials set the environment variables that {found.script.name} reads ({assignments}); the micro-batch size is assumed to be in sequences per rank"


def _parser_note(found: OptionMatches) -> str:
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
        f"{script.name} reads {number_of(len(script.options), 'option')} with {script.parser}; options that are not in argv keep their defaults"
        + (
            ""
            if script.started
            else ", so add the options that you use today, such as data and model"
        )
    )


NOT_PRINTED = "no line with a "


def _missing_log_lines(script: Script, metrics: Mapping[str, str]) -> str:
    """The note on missing log lines (step, time or loss); empty if all were recognized, or if the
    format of the training loop's log is known."""
    has_known_log = _loop(script) in ("hf_trainer", "lightning") or is_known(script.code.printed)
    if (
        has_known_log
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
    consequence = "only the probe times the steps, and it works only in Python programs"
    if has_time:
        consequence = "a diverging loss goes unnoticed"
    return (
        f"{NOT_PRINTED}{' or '.join(missing)} was recognized in {where}, so {consequence}; "
        "write patterns for the log under `metrics`, or run `autotune init --run`, which starts and observes the program"
    )


def _no_options_note(found: OptionMatches) -> str:
    """The note for a script without options: which constants it has, and how to make them
    settable."""
    constants = ((constant, meaning_of(constant)) for constant in found.script.constants)
    named = [
        f"{c.name}={c.default} (line {c.line})"
        for c, meaning in constants
        if meaning is not None and meaning.target not in SHAPE
    ]
    reason = f", because the script sets {', '.join(named[:6])} itself" if named else ""
    return (
        f"nothing can be tuned yet{reason}. If the script reads a settings file, pass the shell script that starts it to `autotune init`. "
        "Otherwise make the script read such values from its command line, from a JSON, YAML or TOML file (`files:`), or from the environment (`env:`), and list these values in argv"
    )
