"""Knobs that a configuration does not state because they follow from others.

ranks = tp * pp * dp * cp                                 the world size
batch = micro_batch_size * accumulation_steps * dp        sequences per optimizer step
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from autotune.errors import SpecError


def completed(knobs: Mapping[str, Any], *, ranks: int | None = None, batch: int | None = None) -> dict[str, Any]:
    """The knobs that are known (None: not), with those that follow from them. Raises `SpecError` where they contradict each other."""
    found = {name: value for name, value in knobs.items() if value is not None}
    degrees = {name: found.get(name, 1) for name in ("tp", "pp", "cp")}
    if ranks is not None and "dp" not in found:
        others = math.prod(degrees.values())
        _divides(others, ranks, f"{_words(degrees)} must divide the {ranks} ranks")
        found["dp"] = ranks // others
    steps: dict[str, int] = {
        name: found[name] for name in ("micro_batch_size", "accumulation_steps", "dp") if name in found
    }
    if batch is not None and len(steps) == 2:
        (missing,) = {"micro_batch_size", "accumulation_steps", "dp"} - steps.keys()
        _divides(math.prod(steps.values()), batch, f"{_words(steps)} must divide the global batch of {batch}")
        found[missing] = batch // math.prod(steps.values())
    elif batch is not None and len(steps) == 3 and math.prod(steps.values()) != batch:
        raise SpecError(f"{_words(steps)} must make the global batch, but it is {batch}", field="global_batch_size")
    return found


def batch_of(knobs: Mapping[str, Any]) -> int | None:
    """Sequences per optimizer step; None where the knobs do not tell."""
    parts = [knobs.get(name) for name in ("micro_batch_size", "accumulation_steps", "dp")]
    return None if None in parts else math.prod(part for part in parts if part is not None)


def _divides(divisor: int, number: int, law: str) -> None:
    if divisor < 1 or number % divisor:
        raise SpecError(f"{law}, but do not", remedy="give the whole exported folder, or the ranks of the job")


def _words(values: Mapping[str, int]) -> str:
    return " * ".join(f"{name}={value}" for name, value in values.items())
