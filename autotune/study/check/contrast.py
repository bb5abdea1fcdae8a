"""The second config of a check: one that differs from the first in as many knobs as can be seen to
act, so that a knob without effect shows."""

from __future__ import annotations

from itertools import islice

from autotune.spec import ParallelConfig
from autotune.study.assembly import Assembly

MOST = 4000
"""configs of a large space that are looked at, evenly spread"""
SHOWN = (
    "micro_batch_size",
    "accumulation_steps",
    "precision",
    "recompute",
    "compile",
    "zero_stage",
)
"""knobs whose effect the probe can see"""


def contrast_of(
    assembly: Assembly, first: ParallelConfig, capacity: float
) -> ParallelConfig | None:
    """A config that can be run where the first one can; None where the space has no other."""
    space = assembly.space
    stride = max(1, len(space) // MOST)
    others = (space[place] for place in range(0, len(space), stride))
    fitting = [
        c for c in others if c != first and c.world_size <= min(capacity, max(first.world_size, 1))
    ]
    fitting.sort(key=lambda config: _worth(config, first))
    return next((config for config in islice(fitting, 100) if not assembly.refuse(config)), None)


def _worth(config: ParallelConfig, first: ParallelConfig) -> tuple[int, ...]:
    """One that is not compiled first, because that takes minutes; then most knobs that can be seen;
    of equals, those of the first config's size, which need no more memory, and few tokens."""
    seen = sum(config.value(name) != first.value(name) for name in SHOWN)
    compiles = config.compile and not first.compile
    doubles = (
        config.accumulation_steps >= 2 * first.accumulation_steps
        or first.accumulation_steps >= 2 * config.accumulation_steps
    )
    return (
        int(compiles),
        -seen - doubles,
        abs(config.world_size - first.world_size),
        int(config.micro_batch_size > first.micro_batch_size),
        config.global_batch_size,
    )
