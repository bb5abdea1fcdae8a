"""`autotune init` of the YAML of a program that is started with a file of settings, any of which its command overrides: LLaMA-Factory and axolotl.

    torchrun -m llamafactory.launcher sft.yaml per_device_train_batch_size=2 ...
    torchrun -m axolotl.cli.train sft.yml --micro_batch_size=2 ...

The file stays as it is. What the file alone decides (number format, sharding) is fixed. Facts of the programs: LLaMA-Factory 0.9.5 (hparams/parser.py),
axolotl 0.21 (cli/train.py, cli/config.py).
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, final

from autotune.onboarding.draft import Draft, Entry, Item, file_name
from autotune.onboarding.named_cluster import is_spread, ranks_on, torchrun_words
from autotune.schema.files import is_model_file
from autotune.spec import catalog

STAND_IN_MODEL = "nano-llama"


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class SettingsProgram:
    """A program that is told by a file, and the names of its settings."""

    name: str
    module: str
    """what torchrun starts"""
    marks: frozenset[str]
    """keys of which a file of this program has one, and files of others none"""
    prefix: str
    """before the name of a setting in the command"""
    model: str
    micro_batch_size: tuple[str, int]
    """its key, and its value where the file does not say"""
    accumulation_steps: tuple[str, int]
    seq_len: tuple[str, int]
    recompute: tuple[str, Mapping[str, str], str]
    """key, its words by the knob's values, and the knob's value where the file does not say"""
    peft: tuple[str, str]
    """keys of the kind and of the rank of adapters"""
    more: tuple[str, ...]
    """settings of every trial"""


PROGRAMS = (
    SettingsProgram(
        name="LLaMA-Factory",
        module="llamafactory.launcher",
        marks=frozenset({"finetuning_type", "cutoff_len"}),
        prefix="",
        model="model_name_or_path",
        micro_batch_size=("per_device_train_batch_size", 8),
        accumulation_steps=("gradient_accumulation_steps", 1),
        seq_len=("cutoff_len", 2048),
        recompute=("disable_gradient_checkpointing", {"full": "false", "none": "true"}, "full"),
        peft=("finetuning_type", "lora_rank"),
        more=("max_steps={steps}", "logging_steps=1", "save_strategy='no'", "plot_loss=false"),
    ),
    SettingsProgram(
        name="axolotl",
        module="axolotl.cli.train",
        marks=frozenset({"base_model", "sample_packing", "sequence_len"}),
        prefix="--",
        model="base_model",
        micro_batch_size=("micro_batch_size", 1),
        accumulation_steps=("gradient_accumulation_steps", 1),
        seq_len=("sequence_len", 512),
        recompute=("gradient_checkpointing", {"none": "False", "full": "True"}, "none"),
        peft=("adapter", "lora_r"),
        more=("--max_steps={steps}", "--logging_steps=1"),
    ),
)


def settings_program(document: Mapping[str, Any]) -> SettingsProgram | None:
    """The program whose file it is; None for none of these."""
    return next((program for program in PROGRAMS if program.marks & document.keys()), None)


def settings_draft(
    program: SettingsProgram,
    document: Mapping[str, Any],
    path: Path,
    *,
    model: str | None = None,
    cluster: str | None = None,
    folder: Path,
) -> Draft:
    """The draft for the file; `folder`: of the spec, against which its paths are read."""
    ranks = ranks_on(cluster)
    known = (model, "") if model else _model(document.get(program.model), path, folder)
    micro, steps, seq_len = (
        _count(document, key) for key in (program.micro_batch_size, program.accumulation_steps, program.seq_len)
    )
    key, words, usual = program.recompute
    recompute = (
        usual
        if key not in document
        else next((k for k, w in words.items() if w.lower() == str(document[key]).lower()), "full")
    )
    fixed = {"precision": _precision(document), "zero_stage": _zero_stage(document)}
    settings = {
        program.micro_batch_size[0]: "{micro_batch_size}",
        program.accumulation_steps[0]: "{accumulation_steps}",
        key: "{recompute}",
    }
    argv = [
        *(Item(word) for word in (*torchrun_words(cluster), "-m", program.module, path.name)),
        *(Item(f"{program.prefix}{name}={value}") for name, value in settings.items()),
        *(Item(word) for word in program.more),
    ]
    trainer = (
        Entry(key="kind", value="command"),
        Entry(
            key="cwd",
            value=os.path.relpath(path.resolve().parent, folder.resolve()),
            comment="where it runs, relative to this file; fill in where paths in the file begin elsewhere",
        ),
        Entry(key="argv", items=tuple(argv)),
        Entry(key="values", value={"recompute": dict(words)}),
        Entry(key="fixed", value=fixed, comment="what the file decides alone"),
    )
    values = [micro // 2, micro, 2 * micro, 4 * micro]
    space = {"micro_batch_size": sorted({max(1, value) for value in values}), "recompute": ["none", "full"]}
    named = cluster or "local"
    entries = (
        Entry(key="name", value=file_name(path.name)),
        Entry(
            key="model",
            value=known[0] if known else STAND_IN_MODEL,
            comment=known[1]
            if known
            else f"fill in: {document.get(program.model)} by a catalog name or its config.json",
        ),
        Entry(key="cluster", value=named, comment="" if cluster else "this machine; else e.g. h100-sxm-1x8"),
        Entry(
            key="workload",
            value={"seq_len": seq_len, "global_batch_size": micro * steps * ranks, **_peft(program, document)},
            comment=f"batch: {micro} x {steps} on {ranks} ranks",
        ),
        Entry(key="space", value={**space, **{knob: [value] for knob, value in fixed.items()}}),
        Entry(
            key="baseline",
            value=",".join(f"{k}={v}" for k, v in {"micro_batch_size": micro, **fixed, "recompute": recompute}.items()),
            comment="the file's",
        ),
        Entry(key="trainer", parts=trainer),
        Entry(key="runner", value="ray" if is_spread(cluster) else "local"),
    )
    return Draft(
        heading=(f"A first spec of {path.name}, settings of {program.name}, by `autotune init`. Nothing was run.",),
        entries=entries,
        fill_in=() if known else ("model",),
        notes=tuple(_notes(program, document, path)),
    )


def _notes(program: SettingsProgram, document: Mapping[str, Any], path: Path) -> Iterator[str]:
    yield f"{path.name} holds settings of {program.name}: it stays as it is, and each trial overrides some by its command"
    if document.get("deepspeed"):
        yield (
            f"the ZeRO stage is read from the name of deepspeed={document['deepspeed']}; correct it under `fixed` if it is another"
        )


def _count(document: Mapping[str, Any], key: tuple[str, int]) -> int:
    value = document.get(key[0])
    return value if isinstance(value, int) and value > 0 else key[1]


def _precision(document: Mapping[str, Any]) -> str:
    """bf16 also where a program is to find out itself (`auto`)."""
    return next((name for name in ("bf16", "fp16") if document.get(name) in (True, "auto", "true", "full")), "fp32")


def _zero_stage(document: Mapping[str, Any]) -> int:
    """By the name of a DeepSpeed file, such as ds_z3_config.json or zero2.json, or by FSDP's strategy."""
    if found := re.search(r"z(?:ero)?_?([0-3])", str(document.get("deepspeed") or "").rpartition("/")[2]):
        return int(found[1])
    shards = f"{document.get('fsdp') or ''} {document.get('fsdp_config') or ''}".lower()
    return (2 if "shard_grad_op" in shards else 3) if shards.strip() else 0


def _peft(program: SettingsProgram, document: Mapping[str, Any]) -> dict[str, Any]:
    method = str(document.get(program.peft[0]) or "")
    if method not in ("lora", "qlora"):
        return {}
    is_quantized = method == "qlora" or document.get("quantization_bit") == 4 or bool(document.get("load_in_4bit"))
    return {"peft": {"method": "qlora" if is_quantized else "lora", "rank": _count(document, (program.peft[1], 8))}}


def _model(named: Any, path: Path, folder: Path) -> tuple[str, str] | None:
    """(the model for the spec, a comment): of the hub as the catalog has it, or the config.json of a folder; None for any other."""
    text = str(named or "")
    found = catalog.hub_models().get(text.lower())
    if found is not None:
        return found, ""
    of_tail = {_tail(hub): name for hub, name in catalog.hub_models().items()}
    if text and (found := of_tail.get(_tail(text))) is not None:
        return found, f"taken for {text}"
    local = path.parent / text / "config.json"
    if text and local.is_file() and is_model_file(str(local)):
        return os.path.relpath(local.resolve(), folder.resolve()), ""
    return None


def _tail(hub: str) -> str:
    """A hub id without owner and without what says how the weights were tuned, which no shape depends on."""
    name = hub.rpartition("/")[2].lower().removeprefix("meta-")
    return re.sub(r"-(hf|base|instruct|chat|it|sft|dpo)$", "", name)
