"""Adapters of programs that post-train: by the names of Hugging Face's PEFT, which verl and TRL
take."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import Any

from autotune.spec.workload import Peft

ALL = "all-linear"
ATTENTION = ("q_proj", "k_proj", "v_proj", "o_proj")
_OF_ATTENTION = re.compile(
    r"([qkvo]|qkv|out|[qkv][ab]|kv_[ab]|q_[ab])_?proj\w*|c_attn|query|key|value|query_key_value|dense|wqkv|w[qkvo]|W_pack|"
    r"(self_)?att(e)?n(tion)?|linear_(qkv|proj)"
)
"""what the matrices of attention are called by models"""
_OF_FEED_FORWARD = re.compile(
    r"all([-_]?linear)?|(gate|up|down|gate_up|c)_proj|c_fc|fc_?\d|w[123]|mlp|ffn|feed_forward|layers|dense_h_to_4h|dense_4h_to_h|linear_fc\d"
)
"""the same of those beside it; GPT-2's and Qwen's `c_proj` are in both"""


def written_modules(peft: Peft) -> str | list[str]:
    """PEFT's `target_modules` for what a workload adapts."""
    return ALL if peft.targets == "all" else list(ATTENTION)


def targets_of(modules: Iterable[str]) -> str:
    """`attention` or `all` for the matrices that have adapters; empty where there are none, or one
    of them is not known."""
    names = list(modules)
    if names and all(_OF_ATTENTION.fullmatch(name) for name in names):
        return "attention"
    is_known = all(
        _OF_ATTENTION.fullmatch(name) or _OF_FEED_FORWARD.fullmatch(name) for name in names
    )
    return "all" if names and is_known else ""


def read_adapters(rank: int | None, modules: str | Sequence[str] | None) -> dict[str, Any]:
    """`peft` of a workload for LoRA of this rank on these modules; nothing for no rank."""
    if not rank:
        return {}
    names = [modules] if isinstance(modules, str) else modules or [ALL]
    return {
        "method": "lora",
        "rank": rank,
        "targets": targets_of(names) or "all",
        "library": "peft",
    }
