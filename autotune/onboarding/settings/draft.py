"""The draft that `autotune init` writes for a program that is configured by a settings file, or by
the same settings as options of its command. Trials override some settings."""

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
from autotune.onboarding.pairs import as_pairs
from autotune.onboarding.script.adapters import (
    ALL_TRAINED,
    EIGHT_BITS,
    NOT_COUNTED,
    NOT_PREDICTED,
    of_unknown_optimizer,
)
from autotune.onboarding.script.argv import written
from autotune.onboarding.script.library_options import BEYOND_BY_METHOD, METHODS_OF_PAIRS
from autotune.onboarding.settings.program import SettingsProgram
from autotune.spec.texts.as_text import number_of
from autotune.spec.texts.usual_names import optimizer_named
from autotune.trainers.documents.placeholders import braced
from autotune.trainers.present_configuration import DOCUMENTS, at_path, flat

STAND_IN_MODEL = "nano-llama"
_PARTLY_TRAINED = ("lisa_n_layers", "unfrozen_parameters")
"""settings of axolotl that train only some weights, or some at a time"""


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """Current settings of a program."""

    program: SettingsProgram
    document: Mapping[str, Any]
    """settings by key"""
    source: Path
    """the file that the user passed: the settings, or the script that starts the program"""
    cwd: Path
    """the folder in which the program runs"""
    file: str = ""
    """the settings file as the command names it; empty if the command has all settings"""
    arguments: tuple[Argument, ...] = ()
    """other arguments of the command"""
    env: Mapping[str, str] = field(default_factory=dict)
    """variables that the script exports"""
    start: tuple[str, ...] = ()
    """launcher and program of a trial, for a script that starts the program itself; empty: torchrun
    and the module"""
    decided: Mapping[str, Any] = field(default_factory=dict)
    """knobs that the launcher sets"""


_ABOVE = 4
"""number of folders above the settings that are searched for files named in them"""
_FUSED_LOSS = ("enable_liger_kernel", "liger_fused_linear_cross_entropy")
"""settings of LLaMA-Factory and axolotl for Liger's fused loss"""


def started_in(file: Path, document: Mapping[str, Any]) -> Path:
    """The folder in which the program of these settings runs: the nearest folder above the settings
    file from which a path in the settings leads to a file; or else the file's folder."""
    values = (value for _, value in flat(document) if isinstance(value, str))
    named = [value for value in values if "/" in value and value.endswith(DOCUMENTS)]
    above = (file.parent, *file.resolve().parent.parents[:_ABOVE])
    holding = (each for each in above if any((each / name).is_file() for name in named))
    return next(holding, file.parent)


def settings_draft(
    settings: Settings, place: Place, *, model: str | None = None, folder: Path
) -> Draft:
    """The draft for the settings. `folder`: the folder of the spec, which its paths are relative
    to. Raises `SpecError` if the settings are not for training."""
    program, document = settings.program, settings.document
    if other := sorted(program.others & {key for key, value in document.items() if value}):
        raise SpecError(
            f"{settings.source.name} holds settings for {program.name}, but not for training, because it has {', '.join(other)}",
            remedy="pass the file that you train with",
            field="FILE",
        )
    match = (model, "") if model else model_named(document.get(program.model), settings.cwd, folder)
    model_comment = f"fill in: {document.get(program.model) or 'the model'} as a catalog name or the path of its config.json"
    value, comment = match or (STAND_IN_MODEL, model_comment)
    micro, seq_len = (_count(document, key) for key in (program.micro_batch_size, program.seq_len))
    key, words, recompute = program.recompute
    if key in document:
        current_word = str(document[key]).lower()
        recompute = next((k for k, word in words.items() if word.lower() == current_word), "full")
    degrees = {
        knob: max(_count(document, (name, 1)) for name in names)
        for knob, names in program.degrees.items()
    }
    is_fused = any(document.get(name) in ON for name in _FUSED_LOSS)
    fixed = {
        **{knob: degree for knob, degree in degrees.items() if degree > 1},
        "precision": _precision(program, document),
        **sharding_of(document, settings.cwd),
        **stated(loss="fused" if is_fused else ""),
        **settings.decided,
    }
    replicas = max(1, place.ranks // math.prod(degrees.get(knob, 1) for knob in ("tp", "pp", "cp")))
    if place.ranks == 1:  # nothing to shard
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
    replica_note = f", {replicas} of them with their own data" if replicas < place.ranks else ""
    sizes = f"batch: {micro} x {batch // (micro * replicas)} on {number_of(place.ranks, 'rank')}{replica_note}"
    space = {
        "micro_batch_size": sorted({max(1, micro // 2), micro, 2 * micro, 4 * micro}),
        "recompute": list(words),
        **{knob: [value] for knob, value in fixed.items()},
    }
    current = {"micro_batch_size": micro, **fixed, "recompute": recompute}
    baseline = ",".join(f"{knob}={value}" for knob, value in current.items())
    cwd = os.path.relpath(settings.cwd.resolve(), folder.resolve())
    env = {**program.env, **settings.env}
    trainer = filled(
        Entry(key="kind", value="command"),
        Entry(key="cwd", value=cwd, comment=_WHERE),
        Entry(key="argv", items=tuple(map(Item, _argv(settings, place)))),
        Entry(key="values", value={"recompute": dict(words)}),
        Entry(
            key="env",
            value=env,
            comment=f"as {settings.source.name} exports it"
            if settings.env
            else f"identifies {program.name}",
        ),
        Entry(key="fixed", value=fixed, comment="decided by the settings"),
        Entry(key="metrics", value=dict(program.metrics), comment="from the program's log"),
    )
    where, limits, runner = place.entries
    draft = Draft(
        heading=(
            f"A first spec, written by `autotune init` from {settings.source.name} ({program.name} settings). Nothing was run.",
        ),
        entries=(
            Entry(key="name", value=file_name(settings.source.name)),
            Entry(key="model", value=value, comment=comment),
            where,
            Entry(key="workload", value=workload, comment=sizes),
            Entry(key="space", value=space),
            Entry(key="baseline", value=baseline, comment="the current settings"),
            Entry(key="trainer", parts=trainer),
            *filled(limits),
            runner,
        ),
        fill_in=(*(() if match else ("model",)), *place.fill_in),
        notes=tuple(_notes(settings)),
    )
    for key, name in _methods(settings):
        if name in METHODS_OF_PAIRS:
            source = f"{key}: {document[key]}"
            return as_pairs(draft, has_reference=METHODS_OF_PAIRS[name], source=source)
    return draft


_WHERE = "where the program runs, relative to this file; change it if paths in the settings start elsewhere"
"""comment of `cwd`"""


def _argv(settings: Settings, place: Place) -> Iterator[str]:
    """The words of a trial's command: launcher and program, settings file, kept arguments, and
    overridden settings."""
    program = settings.program
    overrides = {
        program.micro_batch_size[0]: "{micro_batch_size}",
        program.whole_batch or program.accumulation_steps[0]: "{accumulation_steps}",
        program.recompute[0]: "{recompute}",
    }
    if program.whole_batch:
        overrides[program.whole_batch] = "{global_batch_size}"
    yield from settings.start or (*place.torchrun, "-m", program.module)
    yield from filter(None, [settings.file])
    for argument in settings.arguments:
        yield from _kept(argument, {*overrides, *program.own})
    for word in (*(f"{name}={value}" for name, value in overrides.items()), *program.more):
        yield f"{program.prefix}{word}" if settings.file else f"--{word}".replace("'", "")


def _kept(argument: Argument, overridden: set[str]) -> Iterator[str]:
    """The words of an argument, without settings that a trial overrides."""
    if argument.name:
        yield from () if argument.name in overridden else written(argument, True)
    else:
        yield from (
            braced(word) for word in argument.words if word.partition("=")[0] not in overridden
        )


def _notes(settings: Settings) -> Iterator[str]:
    """Notes on the settings and on what plans do not model."""
    holder = settings.file or settings.source.name
    yield f"{holder} holds settings for {settings.program.name}; trials do not change {holder}, but override some settings on the command line"
    if isinstance(deepspeed_file := settings.document.get("deepspeed"), str) and deepspeed_file:
        yield f"the ZeRO stage is taken from deepspeed={deepspeed_file}; if your stage differs, correct `zero_stage` under `fixed`"
    program, document = settings.program, settings.document
    if (optimizer := _said_optimizer(program, document)) and optimizer_named(optimizer) is None:
        yield of_unknown_optimizer(optimizer)
    if _is_as_loaded(program, document):
        yield f"{NOT_COUNTED}the checkpoint's precision, in which {program.name} keeps the weights with {optimizer}; planned as bf16"
    for key, name in _methods(settings):
        if name not in METHODS_OF_PAIRS:
            extra_work = BEYOND_BY_METHOD.get(
                name, "the work that this method adds to plain training"
            )
            yield f"{NOT_PREDICTED}{extra_work} ({key}: {document[key]})"
    method = str(at_path(document, program.peft[0]) or "")
    if method not in (*program.whole, "lora", "qlora"):
        yield f"{NOT_COUNTED}{program.peft[0]}={method}; {ALL_TRAINED}; plans support lora and qlora"
    for key in _PARTLY_TRAINED:
        if document.get(key):
            yield f"{NOT_COUNTED}{key}; {ALL_TRAINED}"
    if document.get("load_in_8bit") in ON or document.get("quantization_bit") == 8:
        yield f"{NOT_COUNTED}{EIGHT_BITS}"


def _methods(settings: Settings) -> Iterator[tuple[str, str]]:
    """(key, name) of each training method other than plain training."""
    document = settings.document
    for key, plain in settings.program.methods.items():
        method = str(document.get(key) or "").lower()
        if method and method not in (*plain, "false"):
            method = key if method == "true" else method
            loss = str(document.get("pref_loss") or method).lower()
            yield key, loss if method == "dpo" and loss in METHODS_OF_PAIRS else method


def _is_pure(program: SettingsProgram, document: Mapping[str, Any], loop: str) -> bool:
    """Whether weights, gradients and moments are in bf16: by the settings, or because the weights
    are loaded so and DeepSpeed keeps no fp32 master weights."""
    is_loaded = program.loads_in_bf16 and loop != "deepspeed" and not _peft(program, document)
    if is_loaded and _precision(program, document) == "bf16":
        return True
    return is_pure_bf16(document) or _is_as_loaded(program, document)


def _is_as_loaded(program: SettingsProgram, document: Mapping[str, Any]) -> bool:
    """Whether the weights keep the checkpoint's dtype, which the settings do not give."""
    sets_format = any(document.get(key) in ON for key in ("bf16", "fp16", "pure_bf16"))
    return not sets_format and any(document.get(flag) in ON for flag in program.pure)


def _precision(program: SettingsProgram, document: Mapping[str, Any]) -> str:
    return "bf16" if _is_as_loaded(program, document) else precision_of(document, program.precision)


def _count(document: Mapping[str, Any], key: tuple[str, int]) -> int:
    """A positive integer setting, or else its default. `key`: (path, default)."""
    value = at_path(document, key[0])
    return value if isinstance(value, int) and value > 0 else key[1]


def _said_optimizer(program: SettingsProgram, document: Mapping[str, Any]) -> str:
    """The optimizer as the settings name it; empty if they do not."""
    flag = next((name for name in program.optimizers if document.get(name) in ON), "")
    return flag.removeprefix("use_") or str(at_path(document, program.optimizer) or "")


def _peft(program: SettingsProgram, document: Mapping[str, Any]) -> dict[str, Any]:
    """`peft` of the workload; empty without LoRA adapters."""
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
