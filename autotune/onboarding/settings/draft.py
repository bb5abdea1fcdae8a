"""`autotune init` of a program's settings: the file that it is started with, or the options of its command. A trial overrides some of them."""

from __future__ import annotations

import math
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, final

from autotune.errors import SpecError
from autotune.onboarding.configuration_files import ON, is_pure_bf16, precision_of, sharding_of
from autotune.onboarding.draft import Draft, Entry, Item, Place, file_name, model_named
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
from autotune.spec.texts.usual_names import optimizer_named
from autotune.trainers.documents.placeholders import braced
from autotune.trainers.present_configuration import at_path

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
    """launcher and program of a trial, where the script starts its program itself; empty: torchrun and the module"""
    decided: Mapping[str, Any] = field(default_factory=dict)
    """knobs that its launcher decides"""


_FUSED_LOSS = ("enable_liger_kernel", "liger_fused_linear_cross_entropy")
"""LLaMA-Factory's and axolotl's settings for Liger's loss"""


def settings_draft(
    told: Settings, place: Place, *, model: str | None = None, folder: Path
) -> Draft:
    """The draft for the settings; `folder`: of the spec, against which its paths are read. Raises `SpecError` for settings that train nothing."""
    program, document = told.program, told.document
    if other := sorted(program.others & {key for key, value in document.items() if value}):
        raise SpecError(
            f"{told.source.name} holds settings for {program.name}, but not for training: it has {', '.join(other)}",
            remedy="give the file that you train with",
            field="FILE",
        )
    known = (model, "") if model else model_named(document.get(program.model), told.cwd, folder)
    micro, steps, seq_len = (
        _count(document, key)
        for key in (program.micro_batch_size, program.accumulation_steps, program.seq_len)
    )
    key, words, usual = program.recompute
    recompute = (
        usual
        if key not in document
        else next((k for k, w in words.items() if w.lower() == str(document[key]).lower()), "full")
    )
    degrees = {
        knob: max(_count(document, (name, 1)) for name in names)
        for knob, names in program.degrees.items()
    }
    fixed = {
        **{knob: degree for knob, degree in degrees.items() if degree > 1},
        "precision": _precision(program, document),
        **sharding_of(document, told.cwd),
        **({"loss": "fused"} if any(document.get(key) in ON for key in _FUSED_LOSS) else {}),
        **told.decided,
    }
    replicas = max(1, place.ranks // math.prod(degrees.get(knob, 1) for knob in ("tp", "pp", "cp")))
    batch = micro * steps * replicas
    by_steps = (program.accumulation_steps[0], "{accumulation_steps}")
    if program.whole_batch:
        by_steps = (program.whole_batch, "{global_batch_size}")
        batch = _count(document, (program.whole_batch, micro * replicas))
    settings = {
        program.micro_batch_size[0]: "{micro_batch_size}",
        by_steps[0]: by_steps[1],
        key: "{recompute}",
    }
    overrides = (*(f"{name}={value}" for name, value in settings.items()), *program.more)
    argv = [
        *(Item(word) for word in told.start or (*place.torchrun, "-m", program.module)),
        *([Item(told.file)] if told.file else []),
        *(
            Item(word)
            for argument in told.arguments
            for word in _kept(argument, {*settings, *program.own})
        ),
        *(
            Item(f"{program.prefix}{word}" if told.file else f"--{word}".replace("'", ""))
            for word in overrides
        ),
    ]
    loop = "deepspeed" if document.get("deepspeed") else program.loop
    added = {**program.env, **told.env}
    why = f"as {told.source.name} exports it" if told.env else f"identifies {program.name}"
    env = (Entry(key="env", value=added, comment=why),) if added else ()
    trainer = (
        Entry(key="kind", value="command"),
        Entry(
            key="cwd",
            value=os.path.relpath(told.cwd.resolve(), folder.resolve()),
            comment="where it runs, relative to this file; fill in if paths in the file start elsewhere",
        ),
        Entry(key="argv", items=tuple(argv)),
        Entry(key="values", value={"recompute": dict(words)}),
        *env,
        Entry(key="fixed", value=fixed, comment="decided by the settings"),
        *(
            (Entry(key="metrics", value=dict(program.metrics), comment="its log"),)
            if program.metrics
            else ()
        ),
    )
    values = [micro // 2, micro, 2 * micro, 4 * micro]
    space = {
        "micro_batch_size": sorted({max(1, value) for value in values}),
        "recompute": list(words),
    }
    where, runner = place.entries
    entries = (
        Entry(key="name", value=file_name(told.source.name)),
        Entry(
            key="model",
            value=known[0] if known else STAND_IN_MODEL,
            comment=known[1]
            if known
            else f"fill in: {document.get(program.model) or 'the model'} as a catalog name or its config.json",
        ),
        where,
        Entry(
            key="workload",
            value={
                "seq_len": seq_len,
                "global_batch_size": batch,
                **_optimizer(program, document),
                **({"pure_bf16": True} if _is_pure(program, document, loop) else {}),
                **_peft(program, document),
                **({"loop": loop} if loop else {}),
            },
            comment=f"batch: {micro} x {batch // (micro * replicas)} on {place.ranks} ranks"
            + (f", {replicas} with their own data" if replicas < place.ranks else ""),
        ),
        Entry(key="space", value={**space, **{knob: [value] for knob, value in fixed.items()}}),
        Entry(
            key="baseline",
            value=",".join(
                f"{k}={v}"
                for k, v in {"micro_batch_size": micro, **fixed, "recompute": recompute}.items()
            ),
            comment="the current settings",
        ),
        Entry(key="trainer", parts=trainer),
        runner,
    )
    return Draft(
        heading=(
            f"A first spec, written by `autotune init` from {told.source.name} (settings of {program.name}). Nothing was run.",
        ),
        entries=entries,
        fill_in=(*(() if known else ("model",)), *place.fill_in),
        notes=tuple(_notes(told)),
    )


def _kept(argument: Argument, told: set[str]) -> Iterator[str]:
    """The words of an argument, without what a trial is told otherwise."""
    if argument.name:
        yield from () if argument.name in told else written(argument, True)
    else:
        yield from (braced(word) for word in argument.words if word.partition("=")[0] not in told)


def _notes(told: Settings) -> Iterator[str]:
    held = told.file or told.source.name
    yield f"{held} holds settings of {told.program.name}: it is not changed, and each trial overrides some on the command line"
    if isinstance(named := told.document.get("deepspeed"), str) and named:
        yield f"the ZeRO stage is taken from deepspeed={named}; correct it under `fixed` if yours differs"
    program, document = told.program, told.document
    if (said := _said_optimizer(program, document)) and optimizer_named(said) is None:
        yield of_unknown_optimizer(said)
    if _is_as_loaded(program, document):
        yield f"{NOT_COUNTED}the checkpoint's precision, in which {program.name} keeps the weights next to {said}; plans assume bf16"
    for key, plain in program.methods.items():
        method = str(document.get(key) or "").lower()
        if method and method not in (*plain, "false"):
            name = key if method == "true" else method
            more = BEYOND_BY_METHOD.get(name, "what it adds to plain training")
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
    """Whether weights, gradients and moments are in bf16: by its settings, or as they are loaded where DeepSpeed keeps no masters."""
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


def _optimizer(program: SettingsProgram, document: Mapping[str, Any]) -> dict[str, Any]:
    found = optimizer_named(_said_optimizer(program, document)) or "adamw"
    return {} if found == "adamw" else {"optimizer": found}


def _peft(program: SettingsProgram, document: Mapping[str, Any]) -> dict[str, Any]:
    method = str(at_path(document, program.peft[0]) or "")
    if method not in ("lora", "qlora"):
        return {}
    quantized = at_path(document, "quant_config.quantization_bit") or document.get(
        "quantization_bit"
    )
    is_quantized = method == "qlora" or quantized == 4 or bool(document.get("load_in_4bit"))
    method = "qlora" if is_quantized else "lora"
    return {
        "peft": {
            "method": method,
            "rank": _count(document, (program.peft[1], 8)),
            "library": "peft",
        }
    }
