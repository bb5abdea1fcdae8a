"""Chooses the second config of a check: one that differs from the first in as many observable knobs as
possible, to detect knobs without effect."""

from __future__ import annotations

from itertools import islice

from autotune.spec import ParallelConfig
from autotune.study.assembly import Assembly

MOST = 4000
"""maximum number of configs examined, evenly spaced in a large space"""
SHOWN = (
    "micro_batch_size",
    "accumulation_steps",
    "precision",
    "recompute",
    "compile",
    "zero_stage",
)
"""knobs whose effect the probe can observe"""


def contrast_of(
    assembly: Assembly, first: ParallelConfig, capacity: float
) -> ParallelConfig | None:
    """The best second config with at most `capacity` ranks and at most as many as the first has; None
    if there is none."""
    space = assembly.space
    stride = max(1, len(space) // MOST)
    others = (space[index] for index in range(0, len(space), stride))
    fitting = [
        c for c in others if c != first and c.world_size <= min(capacity, max(first.world_size, 1))
    ]
    fitting.sort(key=lambda config: _preference(config, first))
    return next((config for config in islice(fitting, 100) if not assembly.refuse(config)), None)


def _preference(config: ParallelConfig, first: ParallelConfig) -> tuple[int, ...]:
    """Sort key, smallest first: configs without compilation, which takes minutes; then the most
    observable differences; then the same number of ranks as the first config, no larger
    micro-batch, and few tokens per step."""
    differences = sum(config.value(name) != first.value(name) for name in SHOWN)
    compiles = config.compile and not first.compile
    doubles = (
        config.accumulation_steps >= 2 * first.accumulation_steps
        or first.accumulation_steps >= 2 * config.accumulation_steps
    )
    return (
        int(compiles),
        -differences - doubles,
        abs(config.world_size - first.world_size),
        int(config.micro_batch_size > first.micro_batch_size),
        config.global_batch_size,
    )
