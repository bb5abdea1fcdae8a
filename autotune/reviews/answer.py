"""The answer of a review: what was understood of a launch, whether it fits, how fast it should be,
and which edits make it faster.

gain    step time of the launch as it is over that of the edited one: 1.2 is 20% more tokens/s
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from autotune.cost.learn.uncertainty import Z90, normal_cdf
from autotune.plan.plan import FITS
from autotune.reviews.earlier import Earlier
from autotune.spec import Estimate, ParallelConfig, Study, config_label
from autotune.spec.failures import CheckpointPolicy
from autotune.spec.plain import Plain, to_plain
from autotune.spec.study import policy_for


@dataclass(frozen=True, slots=True, kw_only=True)
class LineEdit(Plain):
    """A line of somebody's file that changes."""

    file: str
    """name of the file"""
    line: int
    """number of the line, from 1"""
    before: str
    """its text"""
    after: str
    """its new text; empty if the line is removed"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Gain:
    """How much faster a config is than the launch as it is."""

    gain: float
    """the median of what is predicted"""
    low: float
    """lower end of the 90% interval"""
    high: float
    """upper end"""

    @property
    def chance(self) -> float:
        """That it is a gain: of a logarithm that is distributed on each side of its median as the
        normal distribution with that end of the interval."""
        sd = self._sd_towards_none
        return (
            float(self.gain > 1.0)
            if sd <= 0
            else float(normal_cdf(np.asarray(math.log(self.gain) / sd)))
        )

    @property
    def expected(self) -> float:
        """Expected gain of a trial, after which the faster of the two is kept: exp E[max(g, 0)], g
        the logarithm of the gain.

        On the side of the median where g is zero, the part of a normal expectation that lies above
        zero, s (phi(m / s) + m / s Phi(m / s)) (Jones et al. 1998, eq. 15). For a median not below
        zero the other side adds the difference of both means, (s_up - s_down) phi(0).
        """
        median, sd = math.log(self.gain), self._sd_towards_none
        at_zero = 1.0 / math.sqrt(2.0 * math.pi)
        if sd <= 0:
            improved = max(median, 0.0)
        else:
            z = median / sd
            improved = sd * (
                at_zero * math.exp(-0.5 * z * z) + z * float(normal_cdf(np.asarray(z)))
            )
        if median >= 0:
            improved += (math.log(self.high / self.gain) / Z90 - sd) * at_zero
        return math.exp(max(improved, 0.0))

    @property
    def _sd_towards_none(self) -> float:
        """Standard deviation of the logarithm on the side of its median where no gain lies."""
        ratio = self.gain / self.low if self.gain >= 1.0 else self.high / self.gain
        return math.log(ratio) / Z90


@dataclass(frozen=True, slots=True, kw_only=True)
class Edit(Plain):
    """One change, alone."""

    changes: Mapping[str, tuple[Any, Any]]
    """(from, to) by knob; a batch is kept by changing accumulation with the micro-batch"""
    alone: Gain | None
    """by this edit without the others; None where it surely gains, is legal, or fits, only together
    with them"""
    beside: Gain | None = None
    """by this edit when the others are made, where it is not sure alone; None where the others need
    it"""
    memory_bytes: float = 0.0
    """by how much the predicted peak memory rises, in bytes"""
    oom_probability: float = 0.0
    """that the launch runs out of memory with it"""
    lines: tuple[LineEdit, ...] = ()
    """what changes in the files"""
    unplaced: tuple[str, ...] = ()
    """what else the program must be told, of which the files have no line: `--option=value`, or the
    path of a key"""
    remark: str = ""
    """what to know before doing it"""

    @property
    def knob(self) -> str:
        """The knob that it is about."""
        return next(iter(self.changes))

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON values."""
        old, new = self.changes[self.knob]
        return {
            "knob": self.knob,
            "from": old,
            "to": new,
            "changes": to_plain(self.changes),
            "line": self.lines[0].line if self.lines else None,
            "lines": to_plain(self.lines),
            "unplaced": list(self.unplaced),
            "gain": self.alone.gain if self.alone else None,
            "gain_low": self.alone.low if self.alone else None,
            "gain_high": self.alone.high if self.alone else None,
            "chance": self.alone.chance if self.alone else None,
            "gain_beside": None
            if self.beside is None
            else [self.beside.gain, self.beside.low, self.beside.high],
            "memory_bytes": self.memory_bytes,
            "oom_probability": self.oom_probability,
            "remark": self.remark,
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Together(Plain):
    """All edits at once."""

    config: ParallelConfig
    estimate: Estimate
    """floats"""
    gain: Gain

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON values."""
        return {
            "config": self.config.to_dict(),
            "estimate": self.estimate.to_dict(),
            "gain": self.gain.gain,
            "gain_low": self.gain.low,
            "gain_high": self.gain.high,
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Danger(Plain):
    """Something that is wrong or dangerous."""

    text: str
    """what, why, and what to do"""
    line: int | None = None
    """line of the launch, where one says it"""
    file: str = ""
    """its file"""
    makes_fit: bool = False
    """whether it says what would make the launch fit"""

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON values."""
        return {"text": self.text, "line": self.line, "file": self.file or None}


@dataclass(frozen=True, slots=True, kw_only=True)
class Missing(Plain):
    """Something without which nothing can be predicted."""

    what: str
    """what was not found"""
    remedy: str
    """how to say it"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Observed(Plain):
    """A step time of the launch itself."""

    step_time_s: float
    """median seconds of a step"""
    source: str
    """who says so, in words"""
    slower: float
    """step time over that which was predicted before it was known"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Review:
    """What there is to say of a launch."""

    target: str
    """name of what was read"""
    understood: str
    """model, GPUs, tokens of a batch and config in one line"""
    assumed: tuple[str, ...] = ()
    """what was taken for granted, each with how to say otherwise"""
    missing: tuple[Missing, ...] = ()
    """what was not found; while there is something, nothing is predicted"""
    study: Study | None = None
    """the study that `init` would make of it; None while something is missing"""
    config: ParallelConfig | None = None
    """the launch as it is"""
    estimate: Estimate | None = None
    """of that config; floats"""
    observed: Observed | None = None
    """a measured step time of it"""
    earlier: Earlier | None = None
    """what a run of the nearest config measured before; None where the results database has none"""
    edits: tuple[Edit, ...] = ()
    """best first"""
    together: Together | None = None
    """all edits at once; None where there is none"""
    best: Together | None = None
    """the highest prediction of all configs that fit, proposed or not"""
    trials: tuple[Edit, ...] = ()
    """changes that are worth a trial, the most promising first, where none is sure to gain"""
    if_out_of_memory: Edit | None = None
    """what makes it fit where it may not and no edit surely does; it may cost speed"""
    is_upper_bound: bool = False
    """whether the launch may need less memory than is predicted"""
    is_lower_bound: bool = False
    """whether the launch needs more memory than is predicted"""
    warnings: tuple[Danger, ...] = ()
    """what is wrong or dangerous, the worst first"""
    lines: tuple[LineEdit, ...] = ()
    """all edits at once, as lines of the files"""
    unplaced: tuple[str, ...] = ()
    """what else must be set for all edits at once, of which the files have no line"""
    texts: Mapping[str, str] = field(default_factory=dict)
    """the files that were read, by name"""
    metrics: Mapping[str, Any] = field(default_factory=dict)
    """patterns by which the program's log is read, where something is missing for a study"""
    spec: str = ""
    """the spec of a study that tunes it, as `init` writes it; the text itself where it is one"""

    @property
    def fits(self) -> bool | None:
        """Whether it is expected to fit into memory; None if that is unknown, as when the launch
        needs more, or less, than is predicted by an unknown amount."""
        if self.estimate is None:
            return None
        fits = float(self.estimate.oom_probability) <= FITS
        is_unknown = self.is_lower_bound and self.observed is None if fits else self.is_upper_bound
        return None if is_unknown else fits

    @property
    def best_gain(self) -> float:
        """The most that is predicted of any config that fits; 1 where none is faster."""
        return max(1.0, self.best.gain.gain) if self.best else 1.0

    @property
    def checkpoints(self) -> CheckpointPolicy | None:
        """How often to save, and what is lost all the same; None where the spec does not say how
        the cluster fails."""
        if self.study is None or self.config is None or self.estimate is None:
            return None
        return policy_for(self.study, self.config, float(self.estimate.step_time_s))

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON values."""
        return {
            "target": self.target,
            "understood": self.understood,
            "assumed": list(self.assumed),
            "missing": to_plain(self.missing),
            "config": to_plain(self.config),
            "label": config_label(self.config) if self.config else None,
            "fits": self.fits,
            "estimate": to_plain(self.estimate),
            "checkpoints": to_plain(self.checkpoints),
            "observed": to_plain(self.observed),
            "earlier": to_plain(self.earlier),
            "edits": to_plain(self.edits),
            "together": to_plain(self.together),
            "best_gain": self.best_gain,
            "best": to_plain(self.best),
            "worth_a_trial": to_plain(self.trials[0]) if self.trials else None,
            "trials": to_plain(self.trials),
            "if_out_of_memory": to_plain(self.if_out_of_memory),
            "warnings": to_plain(self.warnings),
        }
