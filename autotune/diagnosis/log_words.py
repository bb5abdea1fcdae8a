"""What a program's log says of what holds it back: lines of well-known libraries, and the time that it says it waited for data."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

MOST_HINTS = 20
_KNOBS = r"flash|attention|compil|bf16|fp16|fp8|amp\b|tf32|overlap|cuda ?graph|fused|pin_memory|num_workers|sequence parallel|recompute|checkpointing|liger|triton"
_PATTERNS: tuple[tuple[str, re.Pattern[str]], ...] = tuple(
    (cause, re.compile(text, re.IGNORECASE))
    for cause, text in (
        ("recompilation", r"torch\._dynamo hit (?:config\.)?\w*(?:cache_size|recompile)_limit|recompile_limit reached"),
        ("memory", r"(?:allocator cache flush|cache flushes since last step|num_alloc_retries\D+[1-9]|high memory pressure)"),
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
_DATA = r"\b(?:data(?:[_ -]?(?:time|load(?:ing)?(?:[_ -]time)?|wait))?|batch-generator)"
_DATA_TIME = re.compile(
    rf"{_DATA}(?:\s*[:=]\s*\(?\s*(\d+(?:\.\d+)?(?:e-?\d+)?)\s*(ms|s)?\b|\s+(\d+(?:\.\d+)?)\s*(ms|s)\b)", re.IGNORECASE
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Hint:
    """A line of a log that speaks of a cause."""

    cause: str
    line: str


def hint_of(line: str) -> Hint | None:
    """What the line speaks of; None for most."""
    for cause, pattern in _PATTERNS:
        if pattern.search(line):
            return Hint(cause=cause, line=line.strip()[:200])
    return None


def hints_of(lines: Iterable[str]) -> list[Hint]:
    """One of each cause: the first line that speaks of it."""
    found: dict[str, Hint] = {}
    for line in lines:
        if (hint := hint_of(line)) is not None:
            found.setdefault(hint.cause, hint)
    return list(found.values())


def data_time_s(line: str) -> float | None:
    """Seconds that the line says were spent waiting for data; None where it says nothing of it. Without a unit they are seconds, as all known formats have."""
    found = _DATA_TIME.search(line)
    if found is None:
        return None
    number, unit = found[1] or found[3], found[2] or found[4] or ""
    return float(number) * (1e-3 if unit.lower() == "ms" else 1.0)
