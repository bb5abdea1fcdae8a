"""Rates that a log prints, whether or not anybody reads its times from them: `13.2k tokens/s`,
`tok/s/gpu: 4720`, `samples_per_sec=31.5`."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from statistics import median

from autotune.trainers.logs.step_metrics import clean, number

_NUMBER = r"(\d{1,3}(?:,\d{3})+(?:\.\d+)?|\d+(?:\.\d+)?(?:[eE][-+]?\d+)?) ?([kKmM](?![A-Za-z]))?"
_WHAT = r"(tok(?:en)?s?|samples?|seqs?|sequences?|examples?)"
_PER_S = r"(?: ?/ ?|[ _]per[ _])s(?:ec(?:ond)?)?"
_GPU = r"((?: ?/ ?|[ _]per[ _])(?:gpu|device|rank))?(?![A-Za-z])"
_BEHIND = re.compile(
    rf"(?<![\w.]){_NUMBER} ?{_WHAT}{_PER_S}{_GPU}(?!\w|['\"]?\s{{0,8}}[:=])", re.IGNORECASE
)
_BEFORE = re.compile(
    rf"(?<![A-Za-z_]){_WHAT}{_PER_S}{_GPU}['\"]?\s{{0,8}}[:=]\s{{0,12}}['\"]?{_NUMBER}",
    re.IGNORECASE,
)
_SCALES = {"": 1.0, "k": 1e3, "m": 1e6}


@dataclass(frozen=True, slots=True, kw_only=True)
class PrintedRate:
    """What a log says of its speed."""

    per_s: float
    """median over its lines"""
    is_tokens: bool
    """tokens per second, else sequences"""
    is_per_gpu: bool
    """of one rank, else of whatever the program counts"""

    @property
    def unit(self) -> str:
        """In words."""
        return f"{'tokens' if self.is_tokens else 'samples'}/s{'/GPU' if self.is_per_gpu else ''}"


def printed_rate(lines: Sequence[str]) -> PrintedRate | None:
    """The rate that most lines print, tokens before sequences, without that of the first line,
    whose step is a warm-up; None where none does."""
    found: dict[tuple[bool, bool], list[float]] = {}
    for line in lines:
        for is_tokens, is_per_gpu, value in dict.fromkeys(_rates(clean(line))):
            found.setdefault((is_tokens, is_per_gpu), []).append(value)
    if not found:
        return None
    (is_tokens, is_per_gpu), values = max(
        found.items(), key=lambda item: (len(item[1]), item[0][0])
    )
    return PrintedRate(
        per_s=median(values[1:] or values), is_tokens=is_tokens, is_per_gpu=is_per_gpu
    )


def _rates(text: str) -> Iterator[tuple[bool, bool, float]]:
    for match in _BEHIND.finditer(text):
        digits, scale, what, gpu = match.groups()
        yield from _rate(digits, scale, what, gpu)
    for match in _BEFORE.finditer(text):
        what, gpu, digits, scale = match.groups()
        yield from _rate(digits, scale, what, gpu)


def _rate(
    digits: str, scale: str | None, what: str, gpu: str | None
) -> Iterator[tuple[bool, bool, float]]:
    value = number(digits)
    if value is not None and value > 0:
        yield (
            what.lower().startswith("tok"),
            gpu is not None,
            value * _SCALES[(scale or "").lower()],
        )
