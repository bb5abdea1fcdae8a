"""DeepSpeed's file of a launch script as a template: a trial's own file has the config's ZeRO stage and batch in the places of those that it holds."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, final

from autotune.onboarding.configuration_files import read_present
from autotune.onboarding.launch_script import Started, value_of
from autotune.trainers.nested_documents import parse_document
from autotune.trainers.placeholders import braced

OPTIONS = ("deepspeed", "deepspeed_config")
"""arguments that name the file"""
_BATCH = {
    "train_batch_size": "{global_batch_size}",
    "train_micro_batch_size_per_gpu": "{micro_batch_size}",
    "gradient_accumulation_steps": "{accumulation_steps}",
}


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Template:
    """The file, with placeholders."""

    name: str
    """its name among the files of a trial"""
    given: str
    """how the launch script names it"""
    document: Mapping[str, Any]
    """its contents"""
    stages: tuple[int, ...]
    """ZeRO stages that it can have, that of today first"""
    precision: str = ""
    """the number format that it fixes; empty where it leaves that to the program (`auto`)"""


def deepspeed_template(started: Started, base: Path) -> Template | None:
    """The template of the file that the script names; None where it names none, or one that is not there or shards nothing."""
    given = value_of(started.arguments, *OPTIONS)
    path = base / given
    if not given or path.suffix != ".json" or not path.is_file():
        return None
    document = _escaped(parse_document(path.name, read_present(path).files[path.name]))
    sharding = document.get("zero_optimization")
    stage = sharding.get("stage") if isinstance(sharding, dict) else None
    if stage not in (1, 2, 3):
        return None
    of_stage_3 = "offload_param" in sharding
    stages = (stage,) if of_stage_3 else (stage, *(other for other in (1, 2, 3) if other != stage))
    batch = {key: text for key, text in _BATCH.items() if isinstance(document.get(key), int)}
    told = {**document, **batch, "zero_optimization": {**sharding, "stage": "{zero_stage}"}}
    return Template(name=path.name, given=given, document=told, stages=stages, precision=_fixed_format(document))


def _fixed_format(document: Mapping[str, Any]) -> str:
    """The format that the file switches on itself."""
    for key, value in (("bf16", "bf16"), ("bfloat16", "bf16"), ("fp16", "fp16")):
        section = document.get(key)
        if isinstance(section, Mapping) and section.get("enabled") is True:
            return value
    return ""


def _escaped(node: Any) -> Any:
    """The document with the braces of its texts doubled: they are no placeholders."""
    if isinstance(node, dict):
        return {key: _escaped(value) for key, value in node.items()}
    if isinstance(node, list):
        return [_escaped(value) for value in node]
    return braced(node) if isinstance(node, str) else node
