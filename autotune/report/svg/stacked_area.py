"""Stacked areas over a sequence of samples, with a limit as a line, phases below, and a legend.

x is the index of a sample, y the height of the stack. Steps are square, because a sample is valid
until the next one.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from html import escape

from autotune.report.svg.canvas import LEFT, RIGHT, TOP, Format, opening_tag, tick_labels, ticks

WIDTH, PLOT = 860.0, 260.0
"""width of the figure and height of the plot, user units"""
BOTTOM = TOP + PLOT
PER_ROW = 6
"""number of legend entries per row"""
MIN_LABEL_WIDTH, MIN_LETTER_WIDTH = 56.0, 10.0
"""minimum width of a phase for its whole label, and for the label's first letter, user units"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Phase:
    """A labeled range of the x axis."""

    label: str
    first: int
    """index of its first sample"""
    end: int
    """index after its last sample"""


def stacked_area(
    layers: Mapping[str, Sequence[float]],
    *,
    names: Mapping[str, str],
    colors: Mapping[str, str],
    titles: Sequence[str],
    phases: Sequence[Phase],
    limit: float | None,
    limit_label: str,
    number: Format,
    unit: float,
    description: str,
) -> str:
    """Return the figure as SVG. `layers`: heights by name, of equal lengths, from the bottom up.
    `titles`: tooltip of each sample."""
    highest = max(sum(heights) for heights in zip(*layers.values(), strict=True))
    plot = _Plot(count=len(titles), high=1.06 * max(highest, limit or 0.0, 1e-12))
    used = [name for name in names if any(layers.get(name, ()))]
    height = BOTTOM + 50.0 + 20.0 * math.ceil(len(used) / PER_ROW)
    parts = (
        opening_tag(WIDTH, height, description),
        *_grid(plot, number, unit),
        *_areas(plot, {name: layers[name] for name in used}, names, colors),
        *_tooltips(plot, titles),
        _horizontal("axis", f"{BOTTOM:g}"),
        *_phase_labels(plot, phases),
        *(() if limit is None else _limit(plot, limit, limit_label)),
        *_legend(used, names, colors),
        "</svg>",
    )
    return "".join(parts)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Plot:
    """The scales of the plot."""

    count: int
    """number of samples"""
    high: float
    """height of the plot, in units of the layers"""

    def x(self, index: float) -> float:
        """Return the x coordinate of a sample's left edge."""
        return LEFT + index / self.count * (WIDTH - LEFT - RIGHT)

    def y(self, value: float) -> float:
        """Return the y coordinate of a value."""
        return BOTTOM - value / self.high * PLOT


def _horizontal(kind: str, y: str) -> str:
    return f'<line class="{kind}" x1="{LEFT:g}" x2="{WIDTH - RIGHT:g}" y1="{y}" y2="{y}"/>'


def _text(text: str, x: str, y: str, anchor: str = "") -> str:
    placed = f' text-anchor="{anchor}"' if anchor else ""
    return f'<text class="tick" x="{x}" y="{y}"{placed}>{escape(text)}</text>'


def _grid(plot: _Plot, number: Format, unit: float) -> Iterator[str]:
    values = [unit * tick for tick in ticks(0.0, plot.high / unit)]
    for value, words in zip(values, tick_labels(values, number), strict=True):
        y = plot.y(value)
        yield _horizontal("grid", f"{y:.1f}")
        yield _text(words, f"{LEFT - 8:g}", f"{y + 4:.1f}", "end")


def _areas(
    plot: _Plot,
    layers: Mapping[str, Sequence[float]],
    names: Mapping[str, str],
    colors: Mapping[str, str],
) -> Iterator[str]:
    lower = [0.0] * plot.count
    for name, heights in layers.items():
        upper = [low + part for low, part in zip(lower, heights, strict=True)]
        forward = "".join(f"V{plot.y(y):.1f}H{plot.x(i + 1):.1f}" for i, y in enumerate(upper))
        back = "".join(
            f"V{plot.y(y):.1f}H{plot.x(i):.1f}" for i, y in reversed(list(enumerate(lower)))
        )
        path = f"M{plot.x(0):.1f} {plot.y(lower[0]):.1f}{forward}{back}Z"
        yield f'<path d="{path}" fill="{escape(colors[name])}"><title>{escape(names[name])}</title></path>'
        lower = upper


def _tooltips(plot: _Plot, titles: Sequence[str]) -> Iterator[str]:
    wide = plot.x(1) - plot.x(0)
    for index, title in enumerate(titles):
        yield f'<rect x="{plot.x(index):.1f}" y="{TOP:g}" width="{wide:.1f}" height="{PLOT:g}" fill="transparent"><title>{escape(title)}</title></rect>'


def _phase_labels(plot: _Plot, phases: Sequence[Phase]) -> Iterator[str]:
    for phase in phases:
        x, wide = plot.x(phase.first), plot.x(phase.end) - plot.x(phase.first)
        yield f'<line class="axis" x1="{x:.1f}" x2="{x:.1f}" y1="{BOTTOM:g}" y2="{BOTTOM + 6:g}"/>'
        if wide >= MIN_LETTER_WIDTH:
            label = phase.label if wide >= MIN_LABEL_WIDTH else phase.label[:1]
            yield _text(label, f"{x + wide / 2:.1f}", f"{BOTTOM + 18:g}", "middle")


def _limit(plot: _Plot, limit: float, label: str) -> tuple[str, str]:
    y = plot.y(limit)
    right = f"{WIDTH - RIGHT - 4:g}"
    return _horizontal("limit", f"{y:.1f}"), _text(label, right, f"{y - 5:.1f}", "end")


def _legend(
    used: Sequence[str], names: Mapping[str, str], colors: Mapping[str, str]
) -> Iterator[str]:
    for index, name in enumerate(used):
        x, y = LEFT + 130.0 * (index % PER_ROW), BOTTOM + 34 + 20.0 * (index // PER_ROW)
        yield f'<rect x="{x:g}" y="{y:g}" width="11" height="11" fill="{escape(colors[name])}"/>'
        yield _text(names[name], f"{x + 16:g}", f"{y + 10:g}")
