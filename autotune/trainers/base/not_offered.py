"""Reasons for which a trainer has nothing for a knob: what `Trainer.cannot` says, in words that
several trainers share.

A trainer that has a knob of its own for one of these takes the knob out of its `cannot` and reads
it.
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
"""knobs and values that the launches of most trainers leave as they are"""


def without(*names: str) -> dict[str, str]:
    """`NOT_SET` without these knobs and values, which a trainer reads."""
    return {name: reason for name, reason in NOT_SET.items() if name not in names}
