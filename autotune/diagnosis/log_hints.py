"""Recognize log lines of well-known libraries that indicate a cause of lost time, and times of
waiting for data."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import final

WARNED_OF = frozenset({"input", "communication_inside_node", "communication_between_nodes"})
"""causes for which a line is only a warning: it does not show that time is lost"""
RECOMPILED = 4
"""minimum number of lines about single recompilations; a few of them are normal"""
_KNOBS = r"flash|attention|compil|bf16|fp16|fp8|amp\b|tf32|overlap|cuda ?graph|fused|pin_memory|num_workers|sequence parallel|recompute|checkpointing|liger|triton"
_PATTERNS: tuple[tuple[str, re.Pattern[str]], ...] = tuple(
    (cause, re.compile(text, re.IGNORECASE))
    for cause, text in (
        ("recompilation", r"torch\._dynamo hit (?:config\.)?\w*(?:cache_size|recompile)_limit|recompile_limit reached|\[__recompiles\].*Recompiling function|Recompiling function \S+ in "),
        ("memory", r"(?:allocator cache flush|cache flushes since last step|num_alloc_retries\D+[1-9]|high memory pressure|[1-9]\d* \w+ memory allocation retries|cuda ?malloc ret(?:ri|ir)es\s*:\s*[1-9])"),
        ("slow_rank", r"straggler.{0,80}\b(?:ranks?|gpus?|nodes?)\b.{0,20}\d|worse relative performance.{0,40}\d|\brank \d+ is (?:a straggler|slow(?:er)?\b)"),
        ("input", r"does not have many workers which may be a bottleneck|data ?loader is (?:too )?slow|dataloader (?:bottleneck|starv)"),
        ("communication_between_nodes", r"NET/IB ?: ?No device found|Using network Socket|NET/Socket ?: ?Using"),
        ("communication_inside_node", r"P2P is disabled|Disabled P2P|peer access is not (?:available|supported)"),
        ("clocks", r"(?:SW|HW) (?:Thermal|Power).{0,20}Slowdown\s*:\s*Active|thermal throttling"),
        (
            "knob_without_effect",
            rf"(?=.*(?:{_KNOBS}))(?:.*\b(?:falling back|fall back|has no effect|have no effect|will be ignored|is ignored|not available[,;].*using|will not be used|disabling|suppress_errors)\b)",
        ),
    )
)  # fmt: skip
_RANKS = re.compile(r"\branks?\W{1,4}(\d+)\b(?!\s*,\s*\d)")
_DATA = r"\b(?:data(?:[_ -]?(?:time|load(?:ing)?(?:[_ -]time)?|wait))?|batch-generator)"
_DATA_TIME = re.compile(
    rf"{_DATA}(?:\s*[:=]\s*\(?\s*(\d+(?:\.\d+)?(?:e-?\d+)?)\s*(ms|s)?\b|\s+(\d+(?:\.\d+)?)\s*(ms|s)\b)",
    re.IGNORECASE,
)


def cause_in(line: str) -> str | None:
    """Return the class of cause that the line indicates, or None."""
    return next((cause for cause, pattern in _PATTERNS if pattern.search(line)), None)


@final
class Hints:
    """Collects lines that indicate a cause."""

    def __init__(self) -> None:
        self._first: dict[str, str] = {}
        self._recompiled = 0

    def hear(self, line: str) -> None:
        """Read a line, and keep it if it is the first one for its cause."""
        cause = cause_in(line)
        if cause is None:
            return
        if "Recompiling function" in line:
            self._recompiled += 1
            if self._recompiled < RECOMPILED:
                return
        self._first.setdefault(cause, line.strip()[:200])

    @property
    def found(self) -> tuple[tuple[str, str], ...]:
        """Pairs of (class, line)."""
        return tuple(self._first.items())


def hints_of(lines: Iterable[str]) -> tuple[tuple[str, str], ...]:
    """Return pairs of (class, line) from a complete log: the first line for each cause."""
    hints = Hints()
    for line in lines:
        hints.hear(line)
    return hints.found


def named_rank(line: str) -> int | None:
    """Return the rank in the line; None if it contains none or several."""
    ranks = set(_RANKS.findall(line.lower()))
    return int(ranks.pop()) if len(ranks) == 1 else None


def data_time_s(line: str) -> float | None:
    """Return the seconds of waiting for data that the line reports, or None. A number without a
    unit is in seconds, as in all known formats."""
    match = _DATA_TIME.search(line)
    if match is None:
        return None
    number, unit = match[1] or match[3], match[2] or match[4] or ""
    return float(number) * (1e-3 if unit.lower() == "ms" else 1.0)
