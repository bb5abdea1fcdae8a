"""Memory over a step as columns: the samples of a dry run, reduced to a width without losing peaks.

A column shows the sample with the most memory of several consecutive samples. Samples are in the
order of the run; a dry run has no clock, so widths are not times.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise

from autotune.report.terminal import PART_COLORS, Palette, format_bytes
from autotune.spec import MemorySample

CATEGORY_NAMES: Mapping[str, str] = {
    "parameters": "weights",
    "buffers": "buffers",
    "optimizer": "optimizer",
    "gradients": "gradients",
    "activations": "activations",
    "temporaries": "temporaries",
    "communication": "communication",
    "inputs": "inputs",
}
"""Display names of a dry run's categories in stacking order: long-lived memory is at the bottom."""
CATEGORY_COLORS: Mapping[str, str] = {
    "parameters": PART_COLORS["weights"],
    "buffers": "#72b7b2",
    "optimizer": PART_COLORS["optimizer"],
    "gradients": PART_COLORS["gradients"],
    "activations": PART_COLORS["activations"],
    "temporaries": "#eeca3b",
    "communication": PART_COLORS["communication"],
    "inputs": "#9d9da1",
}
_LETTERS = {name: ("W" if name == "parameters" else name[0].upper()) for name in CATEGORY_NAMES}
MAX_LIMIT_RATIO = 1.6
"""if the limit is more than this factor above the highest sample, it is stated in words and not
drawn"""


def columns(timeline: Sequence[MemorySample], width: int) -> list[MemorySample]:
    """Return at most `width` samples in order, each the one with the most memory in its
    interval."""
    count = min(width, len(timeline))
    bounds = [len(timeline) * i // count for i in range(count + 1)] if count else []
    return [
        max(timeline[low:high], key=lambda sample: sample.total_bytes)
        for low, high in pairwise(bounds)
    ]


def phases(samples: Sequence[MemorySample]) -> list[tuple[str, int, int]]:
    """Return ranges of equal phase and micro-batch: (label, first sample, index after the last)."""
    ranges: list[tuple[str, int, int]] = []
    previous: tuple[str, int] | None = None
    for index, sample in enumerate(samples):
        key = (sample.moment.phase, sample.moment.micro_batch)
        if key == previous:
            label, first, _ = ranges[-1]
            ranges[-1] = (label, first, index + 1)
            continue
        suffix = f" {key[1] + 1}" if key[1] >= 0 else ""
        ranges.append((f"{key[0]}{suffix}", index, index + 1))
        previous = key
    return ranges


def sketch(
    timeline: Sequence[MemorySample],
    *,
    limit_bytes: float,
    palette: Palette,
    width: int = 64,
    height: int = 10,
) -> list[str]:
    """Return the figure as lines for a terminal, in rich markup: stacked columns, the limit as a
    line if it is near, phases below."""
    samples = columns(timeline, width)
    if not samples:
        return []
    # stretch a short run to the width
    shown = [samples[len(samples) * i // width] for i in range(width)]
    peak = max(sample.total_bytes for sample in shown)
    is_near = limit_bytes <= MAX_LIMIT_RATIO * peak
    top = max(peak, limit_bytes) if is_near else peak
    limit_mark = "─" if palette.unicode else "-"
    lines = []
    for row in range(height, 0, -1):
        level = top * (row - 0.5) / height
        label = format_bytes(top * row / height) if row in (height, (height + 1) // 2) else ""
        at_limit = is_near and top * (row - 1) / height < limit_bytes <= top * row / height
        empty = limit_mark if at_limit else " "
        cells = "".join(_cell(sample, level, empty, palette) for sample in shown)
        lines.append(
            f"{label:>9} {'│' if palette.unicode else '|'}{cells}" + (" limit" if at_limit else "")
        )
    lines.append(
        " " * 11
        + "".join(sample.moment.phase[0] for sample in shown)
        + "  f forward, b backward, o optimizer"
    )
    lines.append(" " * 11 + _legend(shown, palette))
    if not is_near:
        lines.append(
            " " * 11 + f"the limit, {format_bytes(limit_bytes)}, is above the top of the figure"
        )
    return lines


def _cell(sample: MemorySample, level: float, empty: str, palette: Palette) -> str:
    below = 0
    for name in CATEGORY_NAMES:
        below += sample.parts_bytes.get(name, 0)
        if level <= below:
            return f"[{CATEGORY_COLORS[name]}]█[/]" if palette.unicode else _LETTERS[name]
    return empty


def _legend(shown: Sequence[MemorySample], palette: Palette) -> str:
    used = [
        name for name in CATEGORY_NAMES if any(sample.parts_bytes.get(name, 0) for sample in shown)
    ]
    marks = {
        name: f"[{CATEGORY_COLORS[name]}]█[/] " if palette.unicode else f"{_LETTERS[name]}="
        for name in used
    }
    return "  ".join(f"{marks[name]}{CATEGORY_NAMES[name]}" for name in used)
