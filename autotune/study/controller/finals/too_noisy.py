"""Decides whether a machine is too noisy for a result: the runs of the baseline disagree.

    v_1 .. v_n   tokens/s of the baseline at the median step of each of its runs, search and finals, in order
    too noisy    max v / min v > `LIMIT`, the runs are not at levels of a machine that changed, and those of the finals are not steady
    steady       at least `LEAST` runs within a factor of `ALIKE`: speedups use the finals alone, so noise during the search does not matter
    levels       a run within a factor of `ALIKE` of the previous one continues its level, as on a machine that slows down steadily; otherwise it begins a new
                 level. A level has at least two runs, except the first
    disturbed    a run that differs from both neighbors, which agree with each other; ignored if there is at most one per `PER_DISTURBED` runs

The limit is derived from what finals can average out. The range of four runs is about twice their
standard deviation (Tippett 1925), so a range of 1.3 means a standard deviation of about 13%. Four
rounds, the maximum of a race of two finalists, then give an interval of a factor of 1.25 to both
sides, and hardly any gain of a config over another is larger. Runs with a standard deviation of 5%
stay within 1.3 in more than 99 of 100 studies of ten runs.

A lasting change of the machine does not matter, because finals alternate, so that both sides of a
ratio are at the same level.

A gain far larger than the noise is reported nevertheless, with the widest interval:

    clear        runs w_1 .. w_m of another config, m and n at least `LEAST`: min w > max v x (max v / min v)
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
"""maximum ratio of the baseline's fastest and slowest run"""
ALIKE = 1.1
"""maximum ratio of consecutive runs at the same level"""
PER_DISTURBED = 5
"""number of runs of the baseline per run that may be disturbed"""
LEAST = 3
"""minimum number of runs of a config, and of the baseline, for a result in spite of the noise"""
REMEDY = "stop other jobs, give trials more steps (measure.min_steps) or use a dedicated node, and tune again"


@dataclass(frozen=True, slots=True, kw_only=True)
class TooNoisy(Plain):
    """The range of the baseline's runs on a machine that is too noisy."""

    slowest: float
    """tokens/s at the median step of the slowest run"""
    fastest: float
    """tokens/s at the median step of the fastest run"""
    runs: int
    """number of runs of the baseline"""

    @property
    def factor(self) -> float:
        """Speed of the fastest run divided by that of the slowest."""
        return self.fastest / self.slowest

    def __str__(self) -> str:
        return f"too noisy to tell: the baseline ran between {_count(self.slowest)} and {_count(self.fastest)} tokens/s"

    def range_of_gain(
        self, config: ParallelConfig, trials: Sequence[Trial]
    ) -> tuple[float, float] | None:
        """Lowest and highest speedup of the config's runs over the baseline's; None unless even the
        lowest exceeds the noise."""
        speeds = _speeds(config, trials)
        if min(self.runs, len(speeds)) < LEAST or min(speeds) <= self.fastest * self.factor:
            return None
        return min(speeds) / self.fastest, max(speeds) / self.slowest

    def notes(self) -> tuple[str, ...]:
        """Notes for a study without a speedup."""
        return (
            f"{self} in its {self.runs} runs, a factor of {self.factor:.2g}, but averaging is reliable only up to a factor of {LIMIT}",
            f"no speedup is claimed: {REMEDY}",
        )

    def note_beside(self, gain: tuple[float, float]) -> str:
        """Note for a speedup that is given in spite of the noise. `gain`: its range."""
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
    """The range of the baseline's runs if they disagree too much for a result, else None. `default`:
    first measurement of the baseline."""
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
    """Whether the runs are at levels of a machine that changed, apart from few disturbed ones."""
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
    """The entry `too_noisy` of a stored result; None if the machine was not too noisy, or an older
    release did not check that."""
    return result.get("too_noisy") or None


def _count(speed: float) -> str:
    """Tokens/s with a unit prefix: `4.1k`, `10.5k`, `980`."""
    for unit in ("", "k", "M", "G"):
        if speed < 999.5 or unit == "G":
            return f"{speed:.1f}{unit}" if unit and speed < 99.95 else f"{speed:.0f}{unit}"
        speed /= 1000
    raise AssertionError("the last unit always returns")
