"""When a machine is too noisy to tell: the runs of the baseline disagree with each other.

    v_1 .. v_n   tokens/s of the baseline at the median step of each of its runs, search and finals, in order
    too noisy    max v / min v > `LIMIT`, and the runs are no levels of a machine that changed
    levels       a run that is within `ALIKE` of the one before it goes on with its level, as on a machine that slows down steadily; another begins one; two runs
                 at least make a level, of which the first may have one alone, since nothing was there to contradict it
    disturbed    a run that is off while those before and after it are alike; one run in `PER_DISTURBED` may be, and is left aside

The limit comes from what finals can average away. The range of four runs is about twice their standard deviation (Tippett 1925), so runs that are 1.3 apart have one
of about 13%. Four rounds, the most that a race of two finalists has, then leave an interval of a factor of 1.25 to both sides: hardly any gain that a config has over
another is outside of it. Runs with 5% between them stay within 1.3 in more than 99 of 100 studies of ten runs.

A change that lasts is another matter: finals alternate, so both sides of a ratio are at the same level. But nothing is claimed from runs that agree with nobody.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from autotune.spec import Trial
from autotune.spec.plain import Plain

LIMIT = 1.3
"""times the slowest run of the baseline that its fastest may be"""
ALIKE = 1.1
"""times by which runs of one level differ at most from the one before"""
PER_DISTURBED = 5
"""runs of the baseline, of which one may have been disturbed"""
REMEDY = "stop other jobs, give trials more steps (measure.min_steps) or use a dedicated node, and tune again"


@dataclass(frozen=True, slots=True, kw_only=True)
class TooNoisy(Plain):
    """How far apart the runs of the baseline are."""

    slowest: float
    """tokens/s at the median step"""
    fastest: float
    """the same"""
    runs: int
    """of the baseline"""

    @property
    def factor(self) -> float:
        """The fastest over the slowest."""
        return self.fastest / self.slowest

    def __str__(self) -> str:
        return f"too noisy to tell: the baseline ran between {_count(self.slowest)} and {_count(self.fastest)} tokens/s"

    def notes(self) -> tuple[str, ...]:
        """What is said beside the answer."""
        return (
            f"{self} in its {self.runs} runs, a factor of {self.factor:.2g}; at most {LIMIT} can be averaged out",
            f"no speedup is claimed: {REMEDY}",
        )

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON values."""
        return {
            "message": str(self),
            "tokens_per_s_low": self.slowest,
            "tokens_per_s_high": self.fastest,
            "factor": self.factor,
            "limit": LIMIT,
            "runs": self.runs,
            "remedy": REMEDY,
        }


def too_noisy(trials: Sequence[Trial], default: Trial | None) -> TooNoisy | None:
    """Whether the runs of the baseline (`default`: its first) disagree so much that nothing can be claimed."""
    if default is None:
        return None
    speeds = [
        t.measured.median_tokens_per_s
        for t in sorted(trials, key=lambda t: t.number)
        if t.config == default.config and t.measured is not None
    ]
    if len(speeds) < 2 or max(speeds) <= LIMIT * min(speeds) or _are_levels(speeds):
        return None
    return TooNoisy(slowest=min(speeds), fastest=max(speeds), runs=len(speeds))


def _are_levels(speeds: Sequence[float]) -> bool:
    """Whether the runs are those of a machine that changed from one level to another."""
    logs = [math.log(speed) for speed in speeds]
    disturbed = [
        i
        for i in range(1, len(logs) - 1)
        if _alike(logs[i - 1], logs[i + 1])
        and not (_alike(logs[i - 1], logs[i]) or _alike(logs[i], logs[i + 1]))
    ]
    if PER_DISTURBED * len(disturbed) > len(logs):
        return False
    levels: list[list[float]] = []
    for i, y in enumerate(logs):
        if i in disturbed:
            continue
        if levels and _alike(y, levels[-1][-1]):
            levels[-1].append(y)
        else:
            levels.append([y])
    return all(len(level) > 1 for level in levels[1:])


def _alike(one: float, other: float) -> bool:
    return abs(one - other) <= math.log(ALIKE)


def noisy_of(result: Mapping[str, Any]) -> dict[str, Any] | None:
    """The document of a stored result; None where the machine was quiet, or an older release did not look."""
    return result.get("too_noisy") or None


def _count(speed: float) -> str:
    """`4.1k`, `10.5k`, `980`."""
    for unit in ("", "k", "M", "G"):
        if speed < 999.5 or unit == "G":
            return f"{speed:.1f}{unit}" if unit and speed < 99.95 else f"{speed:.0f}{unit}"
        speed /= 1000
    raise AssertionError("the last unit always answers")
