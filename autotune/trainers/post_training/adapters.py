"""Adapters of programs that post-train: by the names of Hugging Face's PEFT, which verl and TRL take."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from autotune.spec.workload import Peft

ALL = "all-linear"
ATTENTION = ("q_proj", "k_proj", "v_proj", "o_proj")


def written_modules(peft: Peft) -> str | list[str]:
    """PEFT's `target_modules` for what a workload adapts."""
    return ALL if peft.targets == "all" else list(ATTENTION)


def read_adapters(rank: int | None, modules: str | Sequence[str] | None) -> dict[str, Any]:
    """`peft` of a workload for LoRA of this rank on these modules; nothing for no rank."""
    if not rank:
        return {}
    names = {modules} if isinstance(modules, str) else set(modules or (ALL,))
    targets = "attention" if names <= set(ATTENTION) else "all"
    return {"method": "lora", "rank": rank, "targets": targets, "library": "peft"}
