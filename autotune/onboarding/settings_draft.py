"""`autotune init` of a program's settings: the file that it is started with, or the options of its command. A trial overrides some of them."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, final

from autotune.onboarding.decided_elsewhere import precision_of, zero_stage_of
from autotune.onboarding.draft import Draft, Entry, Item, file_name
from autotune.onboarding.hub_names import model_named
from autotune.onboarding.launch_script import Argument
from autotune.onboarding.named_cluster import Place
from autotune.onboarding.script_argv import written
from autotune.onboarding.settings_program import SettingsProgram
from autotune.trainers.placeholders import braced

STAND_IN_MODEL = "nano-llama"


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


def settings_draft(told: Settings, place: Place, *, model: str | None = None, folder: Path) -> Draft:
    """The draft for the settings; `folder`: of the spec, against which its paths are read."""
    program, document = told.program, told.document
    known = (model, "") if model else model_named(document.get(program.model), told.cwd, folder)
    micro, steps, seq_len = (
        _count(document, key) for key in (program.micro_batch_size, program.accumulation_steps, program.seq_len)
    )
    key, words, usual = program.recompute
    recompute = (
        usual
        if key not in document
        else next((k for k, w in words.items() if w.lower() == str(document[key]).lower()), "full")
    )
    fixed = {"precision": precision_of(document), "zero_stage": zero_stage_of(document, told.cwd)}
    settings = {
        program.micro_batch_size[0]: "{micro_batch_size}",
        program.accumulation_steps[0]: "{accumulation_steps}",
        key: "{recompute}",
    }
    overrides = (*(f"{name}={value}" for name, value in settings.items()), *program.more)
    argv = [
        *(Item(word) for word in (*place.torchrun, "-m", program.module, *((told.file,) if told.file else ()))),
        *(Item(word) for argument in told.arguments for word in _kept(argument, {*settings, *program.own})),
        *(Item(f"{program.prefix}{word}" if told.file else f"--{word}".replace("'", "")) for word in overrides),
    ]
    env = (Entry(key="env", value=dict(told.env), comment=f"as {told.source.name} exports it"),) if told.env else ()
    trainer = (
        Entry(key="kind", value="command"),
        Entry(
            key="cwd",
            value=os.path.relpath(told.cwd.resolve(), folder.resolve()),
            comment="where it runs, relative to this file; fill in where paths in the file begin elsewhere",
        ),
        Entry(key="argv", items=tuple(argv)),
        Entry(key="values", value={"recompute": dict(words)}),
        *env,
        Entry(key="fixed", value=fixed, comment="what the settings decide alone"),
    )
    values = [micro // 2, micro, 2 * micro, 4 * micro]
    space = {"micro_batch_size": sorted({max(1, value) for value in values}), "recompute": ["none", "full"]}
    where, runner = place.entries
    entries = (
        Entry(key="name", value=file_name(told.source.name)),
        Entry(
            key="model",
            value=known[0] if known else STAND_IN_MODEL,
            comment=known[1]
            if known
            else f"fill in: {document.get(program.model)} by a catalog name or its config.json",
        ),
        where,
        Entry(
            key="workload",
            value={"seq_len": seq_len, "global_batch_size": micro * steps * place.ranks, **_peft(program, document)},
            comment=f"batch: {micro} x {steps} on {place.ranks} ranks",
        ),
        Entry(key="space", value={**space, **{knob: [value] for knob, value in fixed.items()}}),
        Entry(
            key="baseline",
            value=",".join(f"{k}={v}" for k, v in {"micro_batch_size": micro, **fixed, "recompute": recompute}.items()),
            comment="the present settings",
        ),
        Entry(key="trainer", parts=trainer),
        runner,
    )
    return Draft(
        heading=(
            f"A first spec of {told.source.name}, settings of {program.name}, by `autotune init`. Nothing was run.",
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
    yield f"{held} holds settings of {told.program.name}: it stays as it is, and each trial overrides some by its command"
    if named := told.document.get("deepspeed"):
        yield f"the ZeRO stage is that of deepspeed={named}; correct it under `fixed` if it is another"


def _count(document: Mapping[str, Any], key: tuple[str, int]) -> int:
    value = document.get(key[0])
    return value if isinstance(value, int) and value > 0 else key[1]


def _peft(program: SettingsProgram, document: Mapping[str, Any]) -> dict[str, Any]:
    method = str(document.get(program.peft[0]) or "")
    if method not in ("lora", "qlora"):
        return {}
    is_quantized = method == "qlora" or document.get("quantization_bit") == 4 or bool(document.get("load_in_4bit"))
    method = "qlora" if is_quantized else "lora"
    return {"peft": {"method": method, "rank": _count(document, (program.peft[1], 8)), "library": "peft"}}
