"""A timeline of at most some hundred samples, which keeps the shape of the curve: of each stretch its highest and its lowest sample."""

from __future__ import annotations

from collections.abc import Sequence

from autotune.spec import MemorySample

STRETCHES = 200
"""into which a step is cut"""


def thinned(samples: Sequence[MemorySample], stretches: int = STRETCHES) -> tuple[MemorySample, ...]:
    """The first and the last sample, and two of each stretch, in order."""
    if len(samples) <= 2 * stretches:
        return tuple(samples)
    kept = {0, len(samples) - 1}
    for stretch in range(stretches):
        places = range(stretch * len(samples) // stretches, (stretch + 1) * len(samples) // stretches)
        kept |= {
            max(places, key=lambda i: samples[i].total_bytes),
            min(places, key=lambda i: samples[i].total_bytes),
        }
    return tuple(samples[i] for i in sorted(kept))
