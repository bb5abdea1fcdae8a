"""Reasons why trainers do not support a knob, for `Trainer.cannot`: texts that several trainers
share.

A trainer that supports one of these knobs removes it from its `cannot` and adds it to `reads`.
"""

from __future__ import annotations

from collections.abc import Mapping

UNSET = "this trainer's launches do not set this knob"

NOT_SET: Mapping[str, str] = dict.fromkeys(
    (
        "dp_replicas", "pp_split", "loss", "cp_style", "activation_budget", "offload", "async_tp", "cuda_graph", "dispatcher", "ep_overlap",
        "recompute=norm", "recompute=mlp", "precision=mxfp8", "precision=nvfp4",
    ),
    UNSET,
)  # fmt: skip
"""knobs and values that the launches of most trainers do not set"""


def without(*names: str) -> dict[str, str]:
    """`NOT_SET` without these knobs and values, which a trainer supports."""
    return {name: reason for name, reason in NOT_SET.items() if name not in names}
