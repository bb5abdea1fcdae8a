"""Stalls: on some runs of a pipeline over nodes every send between stages waits, and the step takes several times as long.

    stalled step = step + s * n        n: sends of the busiest rank that wait one after another: 2 m v min(p - 1, 2)        s: seconds of a stalled send
    chance       = 1 / (1 + exp(-(a + b log2 nodes)))                                                                       0 for a pipeline inside a domain

In a published sweep on 2 to 16 nodes one such run in ten stalls, and 0.29 s a send explain all of them: whatever the model, the message, the degrees and the number
of nodes. So a stall is a property of network and software and not of the config, and no training on one node shows it. Predicted is the mixture of both: the
step time of an estimate is that without a stall, its interval is that of the mixture. a, b and s are fitted by `research/fit_stalls.py`.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, final

import numpy as np

from autotune.cost.layout import Column, Layout
from autotune.spec import ClusterSpec


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Stalls:
    """How often sends stall, and for how long."""

    log_odds: float
    """a: log odds that a pipeline over nodes stalls, without the term of the nodes"""
    per_doubling: float
    """b: what twice the nodes add to the log odds"""
    send_s: float
    """s: seconds of a stalled send"""


@cache
def known_stalls() -> Stalls:
    """The stalls of published sweeps."""
    path = Path(__file__).with_name("constants.json")
    values: Mapping[str, Any] = json.loads(path.read_text(encoding="utf-8"))["stalls"]
    return Stalls(**{name: values[name] for name in Stalls.__dataclass_fields__})


def stall_probability(cluster: ClusterSpec, layout: Layout, stalls: Stalls) -> Column:
    """Chance that sends between stages stall, shape (N,)."""
    nodes = np.ceil(layout.world / cluster.gpus_per_node)
    chance = 1.0 / (1.0 + np.exp(-stalls.log_odds - stalls.per_doubling * np.log2(nodes)))
    return np.where(layout.stages_per_domain < layout.pp, chance, 0.0)


def with_stalls(cluster: ClusterSpec, layout: Layout, step_s: Column) -> tuple[Column, Column]:
    """Chance that the sends of a step of `step_s` seconds stall, and seconds of the step then, each of shape (N,)."""
    stalls = known_stalls()
    chance = stall_probability(cluster, layout, stalls)
    return chance, np.where(chance > 0, step_s + stalls.send_s * waiting_sends(layout), step_s)


def waiting_sends(layout: Layout) -> Column:
    """n: sends of a step that wait one after another on the busiest rank, shape (N,). A rank between two others sends and receives in both passes."""
    return 2.0 * layout.accumulation * layout.virtual * np.minimum(layout.pp - 1.0, 2.0)
