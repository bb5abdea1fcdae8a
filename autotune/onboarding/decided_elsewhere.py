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


def precision_of(settings: Mapping[str, Any]) -> str:
    """The number format by the settings `bf16` and `fp16`; bf16 also where a program is to find out itself (`auto`)."""
    on = (True, "auto", "true", "True", "full")
    return next((name for name in ("bf16", "fp16") if settings.get(name) in on), "fp32")


def zero_stage_of(settings: Mapping[str, Any], base: Path) -> int:
    """The ZeRO stage by the settings `deepspeed` (a file; `base`: where its path begins) and `fsdp`."""
    named = settings.get("deepspeed")
    if named:
        stage: int = decided_by("deepspeed", str(named), base).get("zero_stage", 0)
        return stage
    shards = f"{settings.get('fsdp') or ''} {settings.get('fsdp_config') or ''}".lower()
    return (2 if "shard_grad_op" in shards else 3) if shards.strip() else 0


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
        found["zero_stage"] = zero_stage_of(settings, base)
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
        return {"zero_stage": int(stage[1])}
    return {"zero_stage": 3} if "fsdp" in tail else {}
