"""The answer of a review: what the launch trains, whether it fits, how fast it should be, and which
edits make it faster.

gain    step time of the launch divided by that of the edited one: 1.2 means 20% more tokens/s
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
    """A changed line of the user's file."""

    file: str
    """name of the file"""
    line: int
    """line number, from 1"""
    before: str
    """old text"""
    after: str
    """new text; empty if the line is removed"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Gain:
    """How much faster a config is than the launch."""

    gain: float
    """median of the predicted gain"""
    low: float
    """lower end of the 90% interval"""
    high: float
    """upper end"""

    @property
    def chance(self) -> float:
        """Probability of a gain. The logarithm of the gain is normally distributed on each side of
        its median, with the standard deviation that follows from that end of the 90% interval."""
        sd = self._sd_towards_none
        return (
            float(self.gain > 1.0)
            if sd <= 0
            else float(normal_cdf(np.asarray(math.log(self.gain) / sd)))
        )

    @property
    def expected(self) -> float:
        """Expected gain of a trial if the faster of the two configs is kept: exp E[max(g, 0)],
        where g is the logarithm of the gain.

        On the side of the median where g = 0 lies, it is the part of a normal expectation above
        zero, s (phi(m / s) + m / s Phi(m / s)) (Jones et al. 1998, eq. 15). For a median of at
        least zero, the other side adds the difference of the means, (s_up - s_down) phi(0).
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
        """Standard deviation of the logarithm, on the side of its median where g = 0 lies."""
        ratio = self.gain / self.low if self.gain >= 1.0 else self.high / self.gain
        return math.log(ratio) / Z90


@dataclass(frozen=True, slots=True, kw_only=True)
class Edit(Plain):
    """A single change."""

    changes: Mapping[str, tuple[Any, Any]]
    """(old, new) by knob; the accumulation changes with the micro-batch to keep the batch"""
    alone: Gain | None
    """gain of this edit without the others; None if it is valid, fits, or surely gains only
    together with them"""
    beside: Gain | None = None
    """gain of this edit in addition to the others, if it is not certain alone; None if the others
    need it"""
    memory_bytes: float = 0.0
    """change of the predicted peak memory, in bytes"""
    oom_probability: float = 0.0
    """probability that the edited launch runs out of memory"""
    lines: tuple[LineEdit, ...] = ()
    """changed lines of the files"""
    unplaced: tuple[str, ...] = ()
    """settings without a line in the files: `--option=value`, or the path of a key"""
    remark: str = ""
    """what to know before applying it"""

    @property
    def knob(self) -> str:
        """The main knob of the edit."""
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
    """All edits applied together."""

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
    """A warning about something wrong or dangerous."""

    text: str
    """what, why, and what to do"""
    line: int | None = None
    """line of the launch; None if no line sets it"""
    file: str = ""
    """file of that line"""
    makes_fit: bool = False
    """whether the text says how to make the launch fit"""

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON values."""
        return {"text": self.text, "line": self.line, "file": self.file or None}


@dataclass(frozen=True, slots=True, kw_only=True)
class Missing(Plain):
    """A value without which nothing can be predicted."""

    what: str
    """the missing value"""
    remedy: str
    """how to set it"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Observed(Plain):
    """A measured step time of the launch."""

    step_time_s: float
    """median seconds per step"""
    source: str
    """where it comes from, in words"""
    slower: float
    """measured step time divided by the time predicted without it"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Review:
    """The result of reviewing a launch."""

    target: str
    """name of the file or command"""
    understood: str
    """model, GPUs, tokens per batch and config, in one line"""
    assumed: tuple[str, ...] = ()
    """assumptions, each with how to change it"""
    missing: tuple[Missing, ...] = ()
    """missing values; if there are any, nothing is predicted"""
    study: Study | None = None
    """the study that `init` would create; None if something is missing"""
    config: ParallelConfig | None = None
    """the current config"""
    estimate: Estimate | None = None
    """prediction for that config; floats"""
    observed: Observed | None = None
    """measured step time of that config"""
    earlier: Earlier | None = None
    """earlier measurement of the nearest config; None if the results database has none"""
    edits: tuple[Edit, ...] = ()
    """proposed edits, the best first"""
    together: Together | None = None
    """all edits together; None if there are none"""
    best: Together | None = None
    """the highest prediction of all configs that fit, proposed or not"""
    trials: tuple[Edit, ...] = ()
    """changes that are worth a trial, the most promising first, if none is certain to gain"""
    if_out_of_memory: Edit | None = None
    """a change that makes the launch fit, if it may not and no edit surely does; it may cost
    speed"""
    is_upper_bound: bool = False
    """whether the launch may need less memory than predicted"""
    is_lower_bound: bool = False
    """whether the launch needs more memory than predicted"""
    warnings: tuple[Danger, ...] = ()
    """warnings, the worst first"""
    lines: tuple[LineEdit, ...] = ()
    """changed lines for all edits together"""
    unplaced: tuple[str, ...] = ()
    """settings for all edits together that have no line in the files"""
    texts: Mapping[str, str] = field(default_factory=dict)
    """texts of the files, by name"""
    metrics: Mapping[str, Any] = field(default_factory=dict)
    """patterns for the program's log, if a study cannot be created yet"""
    spec: str = ""
    """the spec of a study that tunes the launch, as `init` writes it; the text itself if it is a
    spec"""

    @property
    def fits(self) -> bool | None:
        """Whether the launch is expected to fit into memory; None if unknown, for example because
        it needs more, or less, than predicted by an unknown amount."""
        if self.estimate is None:
            return None
        fits = float(self.estimate.oom_probability) <= FITS
        is_unknown = self.is_lower_bound and self.observed is None if fits else self.is_upper_bound
        return None if is_unknown else fits

    @property
    def best_gain(self) -> float:
        """The highest predicted gain of any config that fits; 1 if none is faster."""
        return max(1.0, self.best.gain.gain) if self.best else 1.0

    @property
    def checkpoints(self) -> CheckpointPolicy | None:
        """How often to save checkpoints, and what is lost nevertheless; None if the spec does not
        give the cluster's failure rate."""
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
