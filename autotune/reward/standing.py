"""At what speed a measured config stands among those of all studies.

    speed      of a config that took part in its study's finals: what they showed of it; of any other: its measurement, but less than what they showed of the winner

The fastest of many configs that were measured once was lucky on average (the winner's curse). So no config stands before the winner of its own study, and the
config that heads an answer is the one that `autotune best` and `autotune export` name for that study.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, TypeVar

from autotune.spec import ParallelConfig

Key = TypeVar("Key")


def speeds_in_finals(result: Mapping[str, Any]) -> dict[ParallelConfig, float]:
    """Tokens per second of the configs that a study measured again, the winner's first. `result`: of the study's record; empty before its end."""
    return {
        ParallelConfig.from_dict(final["config"]): final["tokens_per_s"]
        for final in result.get("finals") or ()
        if isinstance(final, Mapping) and final.get("config") and final.get("tokens_per_s")
    }


def standing(config: Key, speed: float, speeds: Mapping[Key, float]) -> float:
    """The speed at which a config stands that was measured at `speed`. `speeds`: in its study's finals, the winner's first, in the same unit."""
    speed, winner = speeds.get(config, speed), next(iter(speeds), config)
    return speed if config == winner else min(speed, math.nextafter(speeds[winner], 0.0))
