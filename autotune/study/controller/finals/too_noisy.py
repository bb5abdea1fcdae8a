"""When a machine is too noisy to tell: the runs of the baseline disagree with each other.

    v_1 .. v_n   tokens/s of the baseline at the median step of each of its runs, search and finals, in order
    too noisy    max v / min v > `LIMIT`, the runs are no levels of a machine that changed, and those of the finals are not steady
    steady       at least `LEAST` runs, all within `ALIKE` of each other: speedups use the finals alone, so it does not matter what the search saw
    levels       a run that is within `ALIKE` of the one before it goes on with its level, as on a machine that slows down steadily; another begins one; two runs
                 at least make a level, of which the first may have one alone, since nothing was there to contradict it
    disturbed    a run that is off while those before and after it are alike; one run in `PER_DISTURBED` may be, and is left aside

The limit comes from what finals can average away. The range of four runs is about twice their
standard deviation (Tippett 1925), so runs that are 1.3 apart have one of about 13%. Four rounds,
the most that a race of two finalists has, then leave an interval of a factor of 1.25 to both sides:
hardly any gain that a config has over another is outside of it. Runs with 5% between them stay
within 1.3 in more than 99 of 100 studies of ten runs.

A change that lasts is another matter: finals alternate, so both sides of a ratio are at the same
level. But nothing is claimed from runs that agree with nobody.

A gain that is far larger than the noise is claimed all the same, with the widest interval:

    clear        w_1 .. w_m of another config, m and n at least `LEAST`: min w > max v x (max v / min v), though each of them ran between runs of the baseline
    interval     from min w / max v to max w / min v
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from autotune.spec import ParallelConfig, Trial, TrialPurpose
from autotune.spec.plain import Plain

LIMIT = 1.3
"""times the slowest run of the baseline that its fastest may be"""
ALIKE = 1.1
"""times by which runs of one level differ at most from the one before"""
PER_DISTURBED = 5
"""runs of the baseline, of which one may have been disturbed"""
LEAST = 3
"""runs of a config, and of the baseline, that a claim in spite of the noise takes"""
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

    def range_of_gain(
        self, config: ParallelConfig, trials: Sequence[Trial]
    ) -> tuple[float, float] | None:
        """The least and the most that the config's runs are faster than the baseline's; None unless
        even the least is more than the noise."""
        speeds = _speeds(config, trials)
        if min(self.runs, len(speeds)) < LEAST or min(speeds) <= self.fastest * self.factor:
            return None
        return min(speeds) / self.fastest, max(speeds) / self.slowest

    def notes(self) -> tuple[str, ...]:
        """What is said beside the answer."""
        return (
            f"{self} in its {self.runs} runs, a factor of {self.factor:.2g}, but averaging is reliable only up to a factor of {LIMIT}",
            f"no speedup is claimed: {REMEDY}",
        )

    def note_beside(self, gain: tuple[float, float]) -> str:
        """What is said beside a speedup that is claimed in spite of the noise. `gain`: its
        range."""
        return (
            f"the baseline ran between {_count(self.slowest)} and {_count(self.fastest)} tokens/s in its {self.runs} runs, a factor of {self.factor:.2g}. "
            f"A speedup is still claimed, because the slowest run of the best config was {gain[0]:.2g} times as fast as the fastest run of the baseline"
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
    """Whether the runs of the baseline (`default`: its first) disagree so much that nothing can be
    claimed."""
    if default is None:
        return None
    speeds = _speeds(default.config, trials)
    if len(speeds) < 2 or max(speeds) <= LIMIT * min(speeds) or _are_levels(speeds):
        return None
    finals = _speeds(default.config, [t for t in trials if t.purpose is TrialPurpose.FINAL])
    if len(finals) >= LEAST and max(finals) <= ALIKE * min(finals):
        return None
    return TooNoisy(slowest=min(speeds), fastest=max(speeds), runs=len(speeds))


def _speeds(config: ParallelConfig, trials: Sequence[Trial]) -> list[float]:
    """Tokens/s at the median step of each run of the config, in order."""
    return [
        t.measured.median_tokens_per_s
        for t in sorted(trials, key=lambda t: t.number)
        if t.config == config and t.measured is not None
    ]


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
    """The document of a stored result; None where the machine was quiet, or an older release did
    not look."""
    return result.get("too_noisy") or None


def _count(speed: float) -> str:
    """`4.1k`, `10.5k`, `980`."""
    for unit in ("", "k", "M", "G"):
        if speed < 999.5 or unit == "G":
            return f"{speed:.1f}{unit}" if unit and speed < 99.95 else f"{speed:.0f}{unit}"
        speed /= 1000
    raise AssertionError("the last unit always answers")
