"""`autotune init` of a script: its first spec. The script is read, not run; each value's comment says where it was found.

    argv      the launcher, the script, and one word for each option that stands for a knob or a figure of the workload
    space     the values that the script can be told; a knob without an option has one value
    baseline  the script's own defaults

What the script does not say (its cluster, often its model) stands there as a stand-in, and is listed as to be filled in.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from autotune.onboarding.draft import Draft, Entry, Item, file_name
from autotune.onboarding.named_cluster import is_spread, named_cluster, ranks_on, torchrun_words
from autotune.onboarding.option_matches import OptionMatches, match_options
from autotune.onboarding.option_names import SHAPE, Meaning, meaning_of
from autotune.onboarding.printed_lines import patterns_of
from autotune.onboarding.script import Script
from autotune.onboarding.script_options import ScriptOption
from autotune.spec import KNOBS, catalog
from autotune.trainers.launcher_limits import DEEPSPEED_NODES, DEEPSPEED_ONE, MACHINES

MODEL, SEQ_LEN, VOCAB_SIZE = "nano-gpt", 1024, 50304
"""stand-ins for figures that the script does not say"""
BATCH = 8
"""sequences per micro-batch where nothing tells them"""
FILL_IN = "FILL-IN"
"""value of an option that the script requires and that nobody but its owner knows"""
MAX_IDEAS = 4
"""options that are suggested as knobs of the study's own"""
DEGREES = ("tp", "pp", "cp", "ep")


def script_draft(
    script: Script, path: Path, *, model: str | None = None, cluster: str | None = None, folder: Path
) -> Draft:
    """The draft for a script; `path`: where it is, `folder`: of the spec, against which its paths are read."""
    found = match_options(script)
    fill_in: list[str] = []
    shape = _model(found, model)
    if shape is None or "fill in" in shape.comment:
        fill_in.append("model")
    items = list(_argv(found, cluster))
    values = _values(found)
    metrics = patterns_of(script.printed)
    relative = os.path.relpath(path.resolve().parent, folder.resolve())
    trainer = [
        Entry(key="kind", value="command"),
        Entry(key="cwd", value=relative, comment="where it runs, relative to this file"),
        Entry(key="argv", items=tuple(items), below=tuple(_ideas(found))),
    ]
    if _uses_accelerate(script) and _is_cpu(cluster):
        why = "without it accelerate trains alone on each CPU rank, under transformers' Trainer too"
        trainer.append(Entry(key="env", value={"ACCELERATE_USE_CPU": "true"}, comment=why))
    if values:
        trainer.append(Entry(key="values", value=values))
    if metrics:
        trainer.append(Entry(key="metrics", value=metrics, comment="from its print statements"))
    if found.required:
        fill_in.append("trainer.argv")
    notes = [_what_reads(script)]
    if not found.used and not found.precision_flags:
        fill_in.append("trainer.argv")
        notes.append(_how_to_be_told(found))
    workload = _workload(found, cluster)
    if not found.count("seq_len"):
        fill_in.append("workload.seq_len")
    heading = (
        f"A first spec of {script.name}, by `autotune init`. Nothing was run; lines are those of {script.name}.",
        "Next: fill in what the comments name, then `autotune check` (five real steps) and `autotune tune`.",
    )
    entries = (
        Entry(key="name", value=file_name(script.name)),
        shape or Entry(key="model", value=MODEL, comment="fill in: `autotune models`, a config.json, or the shape"),
        Entry(
            key="cluster", value=cluster or "local", comment="" if cluster else "this machine; else e.g. h100-sxm-1x8"
        ),
        workload,
        Entry(key="space", value=_space(found)),
        *_baseline(found),
        Entry(key="trainer", parts=tuple(trainer)),
        Entry(key="runner", value="ray" if is_spread(cluster) else "local"),
    )
    return Draft(heading=heading, entries=entries, fill_in=tuple(dict.fromkeys(fill_in)), notes=tuple(notes))


def _argv(found: OptionMatches, cluster: str | None) -> Iterator[Item]:
    """The launcher, the script and its options."""
    script, launcher, over_nodes = found.script, found.script.launcher, is_spread(cluster)
    reasons = {
        "torchrun": "it expects torchrun's environment",
        "accelerate": "it imports accelerate; for CPU ranks name their cluster: autotune init --cluster cpu-1x2",
        "deepspeed": "it reads --local_rank, which DeepSpeed's launcher gives it",
        "python": "",
    }
    if launcher == "accelerate" and _is_cpu(cluster):
        launcher, reasons["torchrun"] = "torchrun", "accelerate launch starts one process only on CPUs"
    starts = {
        "python": ["python"],
        "torchrun": [*torchrun_words(cluster)],
        "deepspeed": ["deepspeed", *(DEEPSPEED_NODES if over_nodes else DEEPSPEED_ONE)],
        "accelerate": ["accelerate", "launch", "--num_processes={world_size}", *(MACHINES if over_nodes else ())],
    }
    first, *more = starts[launcher]
    yield Item(first, reasons[launcher])
    yield from (Item(word) for word in more)
    yield Item(script.name)
    if script.parser == "LightningCLI":
        yield Item("fit")
    for target, (option, meaning) in found.used.items():
        if target in (*SHAPE, "model") or (option.kind == "flag" and len(meaning.values) < 2):
            continue
        word = "{%s}" % (meaning.expression or target)
        yield Item(f"{option.prefix}{word}", _where(option, meaning))
    if found.precision_flags:
        named = ", ".join(f"{option.shown} (line {option.line})" for option, _ in found.precision_flags)
        yield Item("{precision}", named)
    if script.parser == "HfArgumentParser":
        yield Item("--logging_steps=1", "a loss for every step")
    if found.log_interval is not None:
        option = found.log_interval
        yield Item(f"{option.prefix}1", f"a line for every step (line {option.line}, default {option.default})")
    for option in found.required:
        yield Item(f"{option.prefix}{FILL_IN}", f"fill in: the script requires it (line {option.line})")


def _where(option: ScriptOption, meaning: Meaning) -> str:
    default = "" if option.default is None else f", default {option.default}"
    assumed = ""
    if meaning.target == "micro_batch_size":
        assumed = ", over all ranks" if meaning.expression else ", taken as sequences per rank"
    elif meaning.target == "accumulation_steps" and meaning.expression:
        assumed = ", which it divides by its ranks"
    shown = "" if option.prefix else f"{option.shown}, "
    return f"{shown}line {option.line}{default}{assumed}"


def _ideas(found: OptionMatches) -> Iterator[str]:
    """Comments: options that could be knobs of the study's own."""
    for option in found.ideas[:MAX_IDEAS]:
        if option.kind == "flag":
            yield f'could be tuned (line {option.line}): knobs: {{{option.name}: [false, true]}}, here "{{{option.name}}}" and values below'
        else:
            values = (
                option.choices or ((option.default or 0), *((2, 4) if not option.default else (option.default * 2,)))
                if option.kind == "int"
                else option.choices
            )
            if values:
                text = ", ".join(map(str, values))
                yield f'could be tuned (line {option.line}): knobs: {{{option.name}: [{text}]}}, here "{option.prefix}{{{option.name}}}"'


def _values(found: OptionMatches) -> dict[str, dict[Any, Any]]:
    """The option `values`: the script's words by knob."""
    said: dict[str, dict[Any, Any]] = {}
    for target, (_, meaning) in found.used.items():
        if meaning.words and len(meaning.values) > 1:
            said[target] = {_key(value): word for value, word in meaning.words.items()}
    if found.precision_flags:
        said["precision"] = _precision_words(found.precision_flags)
    return said


def _key(value: str) -> Any:
    return {"true": True, "false": False}.get(value, int(value) if value.isdecimal() else value)


def _precision_words(flags: list[tuple[ScriptOption, Meaning]]) -> dict[Any, Any]:
    """The whole argument for each number format. Of flags that are on by default the first alone counts: one word cannot switch two."""
    on = [(option, meaning.values[0]) for option, meaning in flags if option.default]
    if on:
        option, precision = on[0]
        return {precision: None} if option.off is None else {precision: None, "fp32": f"{option.prefix}{option.off}"}
    return {**{meaning.values[0]: f"{option.prefix}{option.on}" for option, meaning in flags}, "fp32": None}


def _precisions(found: OptionMatches) -> list[Any]:
    """The number formats that it can be told, its default first."""
    if "precision" in found.used:
        default = found.used["precision"][1].default
        return [value for value in found.used["precision"][1].values if value != "fp8" or default == "fp8"]
    words = _precision_words(found.precision_flags) if found.precision_flags else {"fp32": None}
    default = next((value for value, word in words.items() if word is None), "fp32")
    return sorted(words, key=lambda value: value != default)


def _space(found: OptionMatches) -> dict[str, Any]:
    space: dict[str, Any] = {}
    if found.script.launcher == "python":
        space["world_sizes"] = [1]
    micro = found.count("micro_batch_size")
    if "micro_batch_size" in found.used:
        around = micro or BATCH
        space["micro_batch_size"] = sorted({max(1, around // 4), max(1, around // 2), around, 2 * around, 4 * around})
    elif micro:
        space["micro_batch_size"] = [micro]
    if "accumulation_steps" not in found.used and "global_batch_size" not in found.used:
        space["accumulation_steps"] = [1]
    for target in DEGREES:
        if target in found.used:
            space[target] = {"powers_of_two": [1, 8]}
    space["precision"] = _precisions(found)
    for target in ("recompute", "zero_stage", "compile", "sequence_parallel"):
        if target in found.used and found.used[target][1].values:
            space[target] = list(found.used[target][1].values)
    return space


def _batches(found: OptionMatches, cluster: str | None) -> tuple[Any, str]:
    """(the global batch, where it is from)"""
    micro, steps = found.count("micro_batch_size") or BATCH, found.count("accumulation_steps") or 1
    ranks = _ranks(found, cluster)
    stated = found.used.get("global_batch_size")
    if stated and isinstance(stated[1].default, int):
        in_tokens = bool(stated[1].expression)
        seq_len = found.count("seq_len") or SEQ_LEN
        return (stated[1].default // seq_len if in_tokens else stated[1].default), f"line {stated[0].line}"
    is_total = "accumulation_steps" in found.used and bool(found.used["accumulation_steps"][1].expression)
    is_over_all = "micro_batch_size" in found.used and bool(found.used["micro_batch_size"][1].expression)
    whole = micro * steps * (1 if is_total or is_over_all else ranks)
    if "accumulation_steps" in found.used:
        return whole, "sequences per optimizer step: its defaults" + (
            "" if is_total or ranks == 1 else f" on {ranks} ranks"
        )
    sizes = sorted(
        {max(1, micro // 4) * ranks, max(1, micro // 2) * ranks, micro * ranks, 2 * micro * ranks, 4 * micro * ranks}
    )
    if "micro_batch_size" not in found.used:
        return micro * ranks, "sequences per optimizer step"
    return sizes, "it cannot accumulate, so each micro-batch is a batch"


def _ranks(found: OptionMatches, cluster: str | None) -> int:
    if found.script.launcher == "python":
        return 1
    return ranks_on(cluster)


def _workload(found: OptionMatches, cluster: str | None) -> Entry:
    batch, why = _batches(found, cluster)
    seq_len = found.count("seq_len")
    told = f"seq_len: {found.where('seq_len')}" if seq_len else "fill in: seq_len, tokens per sequence"
    value = {"seq_len": seq_len or SEQ_LEN, "global_batch_size": batch}
    return Entry(key="workload", value=value, comment=f"{told}; batch: {why}")


def _baseline(found: OptionMatches) -> Iterator[Entry]:
    """The script's own defaults, as far as it says them."""
    micro = found.count("micro_batch_size")
    if "micro_batch_size" not in found.used or not micro:
        return
    values: dict[str, Any] = {"dp": 1} if found.script.launcher == "python" else {}
    values |= {"micro_batch_size": micro, "precision": _precisions(found)[0]}
    if "accumulation_steps" not in found.used and "global_batch_size" not in found.used:
        values["accumulation_steps"] = 1
    for target in ("recompute", "zero_stage", "compile", "sequence_parallel"):
        if target in found.used and found.used[target][1].values:
            values[target] = found.used[target][1].values[0]
    shown = {k: v for k, v in values.items() if KNOBS[k].always_shown or v != KNOBS[k].default}
    text = ",".join(f"{name}={KNOBS[name].text(value)}" for name, value in shown.items())
    yield Entry(key="baseline", value=text, comment="the script's defaults")


def _model(found: OptionMatches, asked: str | None) -> Entry | None:
    if asked is not None:
        return Entry(key="model", value=asked)
    named = found.default("model")
    if isinstance(named, str) and (named in catalog.model_names() or named.lower() in catalog.hub_models()):
        return Entry(key="model", value=named, comment=f"line {found.used['model'][0].line}")
    sizes = {target: found.default(target) for target in SHAPE}
    if all(isinstance(sizes[target], int) for target in SHAPE[:3]):
        vocab = sizes["vocab_size"] or VOCAB_SIZE
        return Entry(
            key="model",
            value={**sizes, "vocab_size": vocab},
            comment="" if sizes["vocab_size"] else "fill in: vocab_size",
        )
    return None


def _uses_accelerate(script: Script) -> bool:
    """Whether accelerate forms its ranks: its own scripts, and those with transformers' TrainingArguments."""
    return script.launcher == "accelerate" or script.parser == "HfArgumentParser"


def _is_cpu(cluster: str | None) -> bool:
    """Whether its ranks are said to be CPU processes. Raises `CatalogError` for an unknown one."""
    found = named_cluster(cluster)
    return found is not None and found.gpu.is_cpu


def _what_reads(script: Script) -> str:
    if not script.options:
        return f"{script.name} has no options that could be found"
    return (
        f"{script.name} reads {len(script.options)} options by {script.parser}; those that argv does not name keep their defaults: "
        "add those that you start it with today, such as its data and its model"
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
        f"nothing can be tuned yet{settled}. Let it read such values from its command line, from a JSON, YAML or TOML file (`files:`), "
        "or from the environment (`env:`), and name them in argv"
    )
