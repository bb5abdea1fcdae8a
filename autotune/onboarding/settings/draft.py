"""`autotune init` of a program's settings: the file that it is started with, or the options of its
command. A trial overrides some of them."""

from __future__ import annotations

import math
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, final

from autotune.errors import SpecError
from autotune.onboarding.configuration_files import ON, is_pure_bf16, precision_of, sharding_of
from autotune.onboarding.draft import (
    Draft,
    Entry,
    Item,
    Place,
    file_name,
    filled,
    model_named,
    stated,
)
from autotune.onboarding.launch.launch_script import Argument
from autotune.onboarding.script.adapters import (
    ALL_TRAINED,
    EIGHT_BITS,
    NOT_COUNTED,
    NOT_PREDICTED,
    of_unknown_optimizer,
)
from autotune.onboarding.script.argv import written
from autotune.onboarding.script.library_options import BEYOND_BY_METHOD
from autotune.onboarding.settings.program import SettingsProgram
from autotune.spec.texts.as_text import number_of
from autotune.spec.texts.usual_names import optimizer_named
from autotune.trainers.documents.placeholders import braced
from autotune.trainers.present_configuration import DOCUMENTS, at_path, flat

STAND_IN_MODEL = "nano-llama"
_PARTLY_TRAINED = ("lisa_n_layers", "unfrozen_parameters")
"""settings of axolotl by which some weights are trained at a time, or at all"""


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """What a program is told today."""

    program: SettingsProgram
    document: Mapping[str, Any]
    """its settings"""
    source: Path
    """the file that says so: the settings themselves, or the script that starts the program"""
    cwd: Path
    """the folder in which it runs"""
    file: str = ""
    """the file of settings as the command names it; empty where the command has all of them"""
    arguments: tuple[Argument, ...] = ()
    """the other arguments of the command"""
    env: Mapping[str, str] = field(default_factory=dict)
    """what the script adds to its environment"""
    start: tuple[str, ...] = ()
    """launcher and program of a trial, where the script starts its program itself; empty: torchrun
    and the module"""
    decided: Mapping[str, Any] = field(default_factory=dict)
    """knobs that its launcher decides"""


_ABOVE = 4
"""folders above the settings that are searched for the files named in them"""
_FUSED_LOSS = ("enable_liger_kernel", "liger_fused_linear_cross_entropy")
"""LLaMA-Factory's and axolotl's settings for Liger's loss"""


def started_in(file: Path, document: Mapping[str, Any]) -> Path:
    """The folder in which the program of these settings starts: the nearest folder above their file
    from which a path in the settings leads to a file; otherwise their file's folder."""
    values = (value for _, value in flat(document) if isinstance(value, str))
    named = [value for value in values if "/" in value and value.endswith(DOCUMENTS)]
    above = (file.parent, *file.resolve().parent.parents[:_ABOVE])
    holding = (each for each in above if any((each / name).is_file() for name in named))
    return next(holding, file.parent)


def settings_draft(
    told: Settings, place: Place, *, model: str | None = None, folder: Path
) -> Draft:
    """The draft for the settings; `folder`: of the spec, against which its paths are read. Raises
    `SpecError` for settings that train nothing."""
    program, document = told.program, told.document
    if other := sorted(program.others & {key for key, value in document.items() if value}):
        raise SpecError(
            f"{told.source.name} holds settings for {program.name}, but not for training, because it has {', '.join(other)}",
            remedy="pass the file that you train with",
            field="FILE",
        )
    known = (model, "") if model else model_named(document.get(program.model), told.cwd, folder)
    asked = f"fill in: {document.get(program.model) or 'the model'} as a catalog name or the path of its config.json"
    value, comment = known or (STAND_IN_MODEL, asked)
    micro, seq_len = (_count(document, key) for key in (program.micro_batch_size, program.seq_len))
    key, words, recompute = program.recompute
    if key in document:
        now = str(document[key]).lower()
        recompute = next((k for k, word in words.items() if word.lower() == now), "full")
    degrees = {
        knob: max(_count(document, (name, 1)) for name in names)
        for knob, names in program.degrees.items()
    }
    is_fused = any(document.get(name) in ON for name in _FUSED_LOSS)
    fixed = {
        **{knob: degree for knob, degree in degrees.items() if degree > 1},
        "precision": _precision(program, document),
        **sharding_of(document, told.cwd),
        **stated(loss="fused" if is_fused else ""),
        **told.decided,
    }
    replicas = max(1, place.ranks // math.prod(degrees.get(knob, 1) for knob in ("tp", "pp", "cp")))
    if place.ranks == 1:  # there is nothing to shard
        fixed["zero_stage"] = 0
    batch = micro * _count(document, program.accumulation_steps) * replicas
    if program.whole_batch:
        batch = _count(document, (program.whole_batch, micro * replicas))
    loop = "deepspeed" if document.get("deepspeed") else program.loop
    optimizer = optimizer_named(_said_optimizer(program, document)) or "adamw"
    workload = {
        "seq_len": seq_len,
        "global_batch_size": batch,
        **stated(
            optimizer=optimizer if optimizer != "adamw" else "",
            pure_bf16=_is_pure(program, document, loop),
            peft=_peft(program, document),
            loop=loop,
        ),
    }
    shared = f", {replicas} of them with their own data" if replicas < place.ranks else ""
    sizes = f"batch: {micro} x {batch // (micro * replicas)} on {number_of(place.ranks, 'rank')}{shared}"
    space = {
        "micro_batch_size": sorted({max(1, micro // 2), micro, 2 * micro, 4 * micro}),
        "recompute": list(words),
        **{knob: [value] for knob, value in fixed.items()},
    }
    today = {"micro_batch_size": micro, **fixed, "recompute": recompute}
    baseline = ",".join(f"{knob}={value}" for knob, value in today.items())
    cwd = os.path.relpath(told.cwd.resolve(), folder.resolve())
    env = {**program.env, **told.env}
    trainer = filled(
        Entry(key="kind", value="command"),
        Entry(key="cwd", value=cwd, comment=_WHERE),
        Entry(key="argv", items=tuple(map(Item, _argv(told, place)))),
        Entry(key="values", value={"recompute": dict(words)}),
        Entry(
            key="env",
            value=env,
            comment=f"as {told.source.name} exports it"
            if told.env
            else f"identifies {program.name}",
        ),
        Entry(key="fixed", value=fixed, comment="decided by the settings"),
        Entry(key="metrics", value=dict(program.metrics), comment="from the program's log"),
    )
    where, limits, runner = place.entries
    return Draft(
        heading=(
            f"A first spec, written by `autotune init` from {told.source.name} ({program.name} settings). Nothing was run.",
        ),
        entries=(
            Entry(key="name", value=file_name(told.source.name)),
            Entry(key="model", value=value, comment=comment),
            where,
            Entry(key="workload", value=workload, comment=sizes),
            Entry(key="space", value=space),
            Entry(key="baseline", value=baseline, comment="the current settings"),
            Entry(key="trainer", parts=trainer),
            *filled(limits),
            runner,
        ),
        fill_in=(*(() if known else ("model",)), *place.fill_in),
        notes=tuple(_notes(told)),
    )


_WHERE = "where the program runs, relative to this file; change it if paths in the settings start elsewhere"


def _argv(told: Settings, place: Place) -> Iterator[str]:
    """The command of a trial: launcher and program, the file, what stays, and the settings that it
    overrides."""
    program = told.program
    settings = {
        program.micro_batch_size[0]: "{micro_batch_size}",
        program.whole_batch or program.accumulation_steps[0]: "{accumulation_steps}",
        program.recompute[0]: "{recompute}",
    }
    if program.whole_batch:
        settings[program.whole_batch] = "{global_batch_size}"
    yield from told.start or (*place.torchrun, "-m", program.module)
    yield from filter(None, [told.file])
    for argument in told.arguments:
        yield from _kept(argument, {*settings, *program.own})
    for word in (*(f"{name}={value}" for name, value in settings.items()), *program.more):
        yield f"{program.prefix}{word}" if told.file else f"--{word}".replace("'", "")


def _kept(argument: Argument, told: set[str]) -> Iterator[str]:
    """The words of an argument, without what a trial is told otherwise."""
    if argument.name:
        yield from () if argument.name in told else written(argument, True)
    else:
        yield from (braced(word) for word in argument.words if word.partition("=")[0] not in told)


def _notes(told: Settings) -> Iterator[str]:
    held = told.file or told.source.name
    yield f"{held} holds settings for {told.program.name}; trials do not change {held}, but override some settings on the command line"
    if isinstance(named := told.document.get("deepspeed"), str) and named:
        yield f"the ZeRO stage is taken from deepspeed={named}; if your stage differs, correct `zero_stage` under `fixed`"
    program, document = told.program, told.document
    if (said := _said_optimizer(program, document)) and optimizer_named(said) is None:
        yield of_unknown_optimizer(said)
    if _is_as_loaded(program, document):
        yield f"{NOT_COUNTED}the checkpoint's precision, in which {program.name} keeps the weights with {said}, planned as bf16"
    for key, plain in program.methods.items():
        method = str(document.get(key) or "").lower()
        if method and method not in (*plain, "false"):
            name = key if method == "true" else method
            more = BEYOND_BY_METHOD.get(name, "the work that this method adds to plain training")
            yield f"{NOT_PREDICTED}{more} ({key}: {document[key]})"
    method = str(at_path(document, program.peft[0]) or "")
    if method not in (*program.whole, "lora", "qlora"):
        yield f"{NOT_COUNTED}{program.peft[0]}={method}, {ALL_TRAINED}; plans support lora and qlora"
    for key in _PARTLY_TRAINED:
        if document.get(key):
            yield f"{NOT_COUNTED}{key}, {ALL_TRAINED}"
    if document.get("load_in_8bit") in ON or document.get("quantization_bit") == 8:
        yield f"{NOT_COUNTED}{EIGHT_BITS}"


def _is_pure(program: SettingsProgram, document: Mapping[str, Any], loop: str) -> bool:
    """Whether weights, gradients and moments are in bf16: by its settings, or as they are loaded
    where DeepSpeed keeps no masters."""
    is_loaded = program.loads_in_bf16 and loop != "deepspeed" and not _peft(program, document)
    if is_loaded and _precision(program, document) == "bf16":
        return True
    return is_pure_bf16(document) or _is_as_loaded(program, document)


def _is_as_loaded(program: SettingsProgram, document: Mapping[str, Any]) -> bool:
    """Whether the weights keep the type of the checkpoint, which the settings do not say."""
    says = any(document.get(key) in ON for key in ("bf16", "fp16", "pure_bf16"))
    return not says and any(document.get(flag) in ON for flag in program.pure)


def _precision(program: SettingsProgram, document: Mapping[str, Any]) -> str:
    return "bf16" if _is_as_loaded(program, document) else precision_of(document, program.precision)


def _count(document: Mapping[str, Any], key: tuple[str, int]) -> int:
    value = at_path(document, key[0])
    return value if isinstance(value, int) and value > 0 else key[1]


def _said_optimizer(program: SettingsProgram, document: Mapping[str, Any]) -> str:
    """The optimizer as the settings call it; empty where they do not say."""
    flag = next((name for name in program.optimizers if document.get(name) in ON), "")
    return flag.removeprefix("use_") or str(at_path(document, program.optimizer) or "")


def _peft(program: SettingsProgram, document: Mapping[str, Any]) -> dict[str, Any]:
    method = str(at_path(document, program.peft[0]) or "")
    if method not in ("lora", "qlora"):
        return {}
    quantized = at_path(document, "quant_config.quantization_bit") or document.get(
        "quantization_bit"
    )
    is_quantized = method == "qlora" or quantized == 4 or bool(document.get("load_in_4bit"))
    rank = _count(document, (program.peft[1], 8))
    if not is_quantized:
        return {"method": "lora", "rank": rank, "library": "peft"}
    upcast = {} if program.upcast is None else {"upcast": program.upcast}
    return {"method": "qlora", "rank": rank, "library": "peft", **upcast}
