"""What a log line says about an optimizer step, and the pieces with which trainers read their
lines."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field

MAX_LINE = 2000
"""characters of a log line that are read; the rest is ignored"""
_COLOUR = re.compile(r"\x1b\[[0-9;]{0,20}m")


@dataclass(frozen=True, slots=True, kw_only=True)
class StepMetrics:
    """The metrics of one optimizer step in one log line; None if missing."""

    step: int | None = None
    """number of the step, as counted by the trainer"""
    step_time_s: float | None = None
    """duration of the step in seconds (the mean since the last line, if the trainer logs every few
    steps)"""
    steps_per_s: float | None = None
    """steps per second, for trainers that log a rate instead of a time"""
    tokens_per_s: float | None = None
    """tokens per second for the whole job, for trainers that log a rate instead of a time"""
    tokens_per_s_per_gpu: float | None = None
    """tokens per second per rank, for trainers that log a rate instead of a time"""
    samples_per_s: float | None = None
    """sequences per second for the whole job, for trainers that log a rate instead of a time"""
    loss: float | None = None
    """training loss, nats per token"""
    grad_norm: float | None = None
    """global gradient norm"""
    peak_memory_bytes: float | None = None
    """peak device memory of the rank that wrote the line"""
    skipped: bool = False
    """whether loss scaling skipped the step"""
    ends_step: bool = False
    """whether it ends a step without giving a time, so that only the line's time of arrival is
    known"""
    resolution_s: float = 0.0
    """unit of the last printed digit of the time; 0 if unknown"""
    counts: str = field(default="", compare=False)
    """what its line, bar or number counts, if the format shows it: steps or micro-batches; empty if
    unknown"""

    def time_of(
        self, *, tokens_per_step: int, sequences_per_step: int, num_ranks: int
    ) -> float | None:
        """Duration of the step in seconds, from the time itself or a rate; None if there is
        neither."""
        if self.step_time_s is not None:
            return self.step_time_s
        if self.steps_per_s:
            return 1.0 / self.steps_per_s
        if self.tokens_per_s:
            return tokens_per_step / self.tokens_per_s
        if self.tokens_per_s_per_gpu:
            return tokens_per_step / (self.tokens_per_s_per_gpu * num_ranks)
        if self.samples_per_s:
            return sequences_per_step / self.samples_per_s
        return None

    def tokens_of(self, *, num_ranks: int) -> float | None:
        """Tokens of the step, if its line has both a rate and a time; otherwise None."""
        rate = self.tokens_per_s or (self.tokens_per_s_per_gpu or 0.0) * num_ranks
        return rate * self.step_time_s if rate and self.step_time_s else None


LineReader = Callable[[str], StepMetrics | None]


@dataclass(frozen=True, slots=True, kw_only=True)
class LineTest:
    """Selects the lines that may describe a step, for logs that are too long to pass on in full."""

    may_tell: Callable[[str], bool]
    """decided by the line alone"""
    marks: tuple[str, ...] = ()
    """every relevant line contains one of these, so that floods of other lines are recognized
    immediately; empty if unknown"""


def clean(line: str) -> str:
    """The line without color codes, cut at `MAX_LINE` characters."""
    return _COLOUR.sub("", line[: 2 * MAX_LINE])[:MAX_LINE]


def number_in(text: str, pattern: re.Pattern[str]) -> float | None:
    """The number in the pattern's first group; None if the pattern does not match the text."""
    found = pattern.search(text)
    return number(found[1]) if found else None


def number(text: str | None) -> float | None:
    """A number as trainers print it (`1,024`, `nan`, `2.5E+00`); None for other text."""
    if text is None:
        return None
    try:
        return float(text.replace(",", ""))
    except ValueError:
        return None
