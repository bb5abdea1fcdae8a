"""Knobs that a program's settings decide for a whole study: number format and ZeRO stage, by a file of DeepSpeed or accelerate that they name.

A file that is not there is judged by its name: `ds_z3_config.json`, `zero2.yaml`, `fsdp.yaml`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from autotune.errors import SpecError
from autotune.onboarding.configuration_files import read_present
from autotune.onboarding.launch_script import Started
from autotune.trainers import trainer
from autotune.trainers.nested_documents import parse_document
from autotune.trainers.readers.accelerate_yaml import PRECISIONS

ON = (True, "auto", "true", "True", "full")
"""values of a setting that is on; `auto`: where the GPU can"""
_FORMATS = {
    "fp8": ("fp8",),
    "bf16": ("bf16", "pure_bf16", "bfloat16"),
    "fp16": ("fp16", "float16"),
    "tf32": ("tf32",),
}
"""settings that switch a number format on, the narrowest first"""


def precision_of(settings: Mapping[str, Any], usual: str = "fp32") -> str:
    """The number format by the settings that switch one on; bf16 also where a program is to find out itself (`auto`). `usual`: where none says."""
    on = next((name for name, keys in _FORMATS.items() if any(settings.get(key) in ON for key in keys)), "fp32")
    said = any(settings.get(key) is not None for name in ("bf16", "fp16") for key in _FORMATS[name])
    return on if said or on == "fp8" or usual == "fp32" else usual


def is_pure_bf16(settings: Mapping[str, Any]) -> bool:
    """Whether the weights, too, are in bf16."""
    return any(settings.get(key) in ON for key in ("pure_bf16", "bfloat16"))


def sharding_of(settings: Mapping[str, Any], base: Path) -> dict[str, Any]:
    """The ZeRO stage, and whether the optimizer is on the host, by the settings `deepspeed` (a file; `base`: where its path begins), `fsdp`,
    `dist_config` and `use_distributed_optimizer`."""
    kind = settings.get("dist_config")
    kind = kind if isinstance(kind, Mapping) else {}
    named = settings.get("deepspeed") or kind.get("config_file")
    if isinstance(named, Mapping):
        inner = named.get("zero_optimization")
        return {"zero_stage": int(inner.get("stage", 0)) if isinstance(inner, Mapping) else 0}
    if named:
        found = decided_by("deepspeed", str(named), base)
        return {"zero_stage": 0, **{knob: found[knob] for knob in ("zero_stage", "offload") if knob in found}}
    inner = settings.get("fsdp_config")
    shards = f"{settings.get('fsdp') or ''} {inner or ''}".lower()
    if shards.strip() or kind.get("name") == "fsdp2":
        is_gathered = isinstance(inner, Mapping) and inner.get("reshard_after_forward") is False
        return {"zero_stage": 2 if is_gathered or "shard_grad_op" in shards else 3}
    return {"zero_stage": 1 if settings.get("use_distributed_optimizer") in ON else 0}


def decided_for(started: Started, base: Path) -> dict[str, Any]:
    """Knobs that the launch of a script decides: by options of accelerate, and by the files that launcher and script are given."""
    settings = {argument.name: argument.values[0] if argument.values else True for argument in started.arguments}
    settings |= {"deepspeed": file} if isinstance(file := settings.get("deepspeed_config"), str) else {}
    found: dict[str, Any] = {}
    if started.launcher == "accelerate":
        if file := started.option("config_file"):
            found |= decided_by("accelerate", file, base)
        if word := started.option("mixed_precision"):
            found["precision"] = PRECISIONS.get(word, "fp32")
        if stage := started.option("zero_stage"):
            found["zero_stage"] = int(stage) if stage in ("0", "1", "2", "3") else 0
    if isinstance(settings.get("deepspeed"), str):
        found |= decided_by("deepspeed", str(settings["deepspeed"]), base)
    elif settings.get("fsdp"):
        found |= sharding_of(settings, base)
    return found


def ranks_asked(started: Started, base: Path) -> tuple[int, int | None]:
    """(nodes, ranks of a node) that the launch asks for, also by the file of `accelerate launch --config_file`; None where it does not say."""
    file = base / started.option("config_file")
    if started.launcher == "accelerate" and started.gpus_per_node is None and file.is_file():
        with suppress(SpecError):
            asked = parse_document(file.name, read_present(file).files[file.name])
            ranks, nodes = asked.get("num_processes"), asked.get("num_machines", 1)
            if isinstance(ranks, int) and isinstance(nodes, int) and ranks >= nodes > 0:
                return nodes, ranks // nodes
    return started.nodes, started.gpus_per_node


def decided_by(name: str, file: str, base: Path) -> dict[str, Any]:
    """Knobs that a file of the trainer `deepspeed` or `accelerate` decides, where it says them."""
    knobs = ("precision", "zero_stage", "recompute", "compile", "offload")
    path = base / file
    if path.is_file():
        with suppress(SpecError):
            found = trainer(name).read_config(read_present(path)).knobs
            return {knob: found[knob] for knob in knobs if found.get(knob) is not None}
    tail = path.name.lower()
    if stage := re.search(r"z(?:ero)?[_-]?(?:stage)?[_-]?([0-3])", tail):
        return {"zero_stage": int(stage[1]), **({"offload": "optimizer"} if "offload" in tail else {})}
    return {"zero_stage": 3} if "fsdp" in tail else {}
