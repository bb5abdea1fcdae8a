"""Sizes of weights, their shards and gradients, by which a profile tells them from what depends on the data."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from autotune.spec import TracedWeight

SHARDS = 2
"""ranks that divide the weights of a profile's sharded runs"""


def sizes_of_weights(weights: Sequence[TracedWeight]) -> frozenset[int]:
    """Bytes of weights, of all weights that FSDP gathers at once, and of their shards: a sum of sizes may be divisible by a prime that none of them is."""
    groups: dict[int, list[int]] = {}
    for weight in weights:
        rows, *others = weight.shape or (1,)
        groups.setdefault(weight.layer, []).append(-(-rows // SHARDS) * SHARDS * int(np.prod(others, dtype=np.int64)))
    elements = {sum(group) for group in groups.values()} | {numel for group in groups.values() for numel in group}
    elements |= {weight_bytes(weight) // 4 for weight in weights}
    elements |= {numel // SHARDS for numel in elements}
    return frozenset(numel * size for numel in elements for size in (1, 2, 4))


def weight_bytes(weight: TracedWeight) -> int:
    """In fp32, on this rank before data parallelism."""
    return 4 * int(np.prod(weight.shape, dtype=np.int64)) if weight.shape else 4
