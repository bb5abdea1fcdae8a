"""Memory constants by trainer: fitted to published runs that print peaks or failures, otherwise
assumed, with a larger error.

`constants.json` in this folder is written only by `python -m research.fit_memory --write`, so that
a fit of step times never changes memory.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, final

MEMORY_CONSTANTS = (
    "activation_factor", "waiting_in_layer", "waiting_at_head", "buffer_bytes", "framework_bytes", "fragmentation", "usable_fraction", "memory_sigma",
)  # fmt: skip
"""the constants of `Calibration` that belong to memory"""

MEASURED_RESERVED_SIGMA = 0.017
"""standard deviation of log(reserved / allocated) over the 28 published runs that print both
(SimuMax, eight B200 under Megatron-LM: 1.028 to 1.079)"""
ASSUMED_RESERVED_SIGMA = 0.05
"""the same for a GPU and trainer without published runs"""


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class MemorySource:
    """Where a pair's memory constants come from."""

    fitted: tuple[str, ...]
    """constants fitted to measurements of this trainer"""
    assumed: tuple[str, ...]
    """all other constants"""
    source: str
    """text about the measurements; empty if there are none"""


@cache
def _known() -> Mapping[str, Any]:
    return dict(json.loads(Path(__file__).with_name("constants.json").read_text(encoding="utf-8")))


def memory_values(gpu: str, trainer: str) -> dict[str, float]:
    """Return the memory constants of a GPU type and trainer by name. On a GPU without
    measurements of the trainer, `memory_sigma` is at least the assumed one."""
    known = _known()
    if gpu == "cpu":
        return {**known["assumed"], **known["cpu"]}
    entry = known["trainers"].get(trainer, {})
    found = {
        **known["assumed"],
        **{name: entry[name] for name in MEMORY_CONSTANTS if name in entry},
    }
    if gpu not in entry.get("on", ()):
        found["memory_sigma"] = max(found["memory_sigma"], known["assumed"]["memory_sigma"])
    return found


def memory_source(gpu: str, trainer: str) -> MemorySource:
    """Return which memory constants of a GPU type and trainer are fitted, and which are assumed."""
    entry = _known()["trainers"].get(trainer, {})
    fitted = tuple(entry.get("fitted", ())) if gpu in entry.get("on", ()) else ()
    assumed = tuple(name for name in MEMORY_CONSTANTS if name not in fitted)
    return MemorySource(
        fitted=fitted, assumed=assumed, source=entry.get("source", "") if fitted else ""
    )


def reserved_sigma(gpu: str, trainer: str) -> float:
    """Return the standard deviation of ln reserved memory for a known allocated memory."""
    fitted = "fragmentation" in memory_source(gpu, trainer).fitted
    return MEASURED_RESERVED_SIGMA if fitted else ASSUMED_RESERVED_SIGMA
