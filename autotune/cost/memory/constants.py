"""Constants of memory by trainer: fitted where published runs print peaks or failures, else
assumed, with the wider error bar.

`constants.json` beside it is written by `python -m research.fit_memory --write` and by nothing
else, so that a fit of time changes no memory.
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
"""the same on a GPU and trainer of which no run is published"""


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class MemorySource:
    """Where a pair's memory constants come from."""

    fitted: tuple[str, ...]
    """constants that measurements of this trainer determine"""
    assumed: tuple[str, ...]
    """constants that no measurement of it does"""
    source: str
    """the measurements, in words; empty when there are none"""


@cache
def _known() -> Mapping[str, Any]:
    return dict(json.loads(Path(__file__).with_name("constants.json").read_text(encoding="utf-8")))


def memory_values(gpu: str, trainer: str) -> dict[str, float]:
    """The memory constants of a GPU type and trainer by name; on a GPU that the trainer was not
    measured on the error bar is the assumed one."""
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
    """Which memory constants of a pair are fitted, and which assumed."""
    entry = _known()["trainers"].get(trainer, {})
    fitted = tuple(entry.get("fitted", ())) if gpu in entry.get("on", ()) else ()
    assumed = tuple(name for name in MEMORY_CONSTANTS if name not in fitted)
    return MemorySource(
        fitted=fitted, assumed=assumed, source=entry.get("source", "") if fitted else ""
    )


def reserved_sigma(gpu: str, trainer: str) -> float:
    """Standard deviation of the log of what is reserved, where what is allocated is known."""
    fitted = "fragmentation" in memory_source(gpu, trainer).fitted
    return MEASURED_RESERVED_SIGMA if fitted else ASSUMED_RESERVED_SIGMA
