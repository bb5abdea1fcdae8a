"""Stacked areas over an order of samples, with a limit as a line, marks below, and a legend.

x is the number of a sample, y the height of the stack; steps are drawn square, for a sample holds
until the next one.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from html import escape

from autotune.report.svg.canvas import LEFT, RIGHT, TOP, Format, open_figure, tick_words, ticks

WIDTH, PLOT = 860.0, 260.0
"""user units: of the figure, and of the plot's height"""
BOTTOM = TOP + PLOT
PER_ROW = 6
"""entries of the legend side by side"""
LEAST_LABEL, LEAST_LETTER = 56.0, 10.0
"""width of a stretch whose label is written, and of one that gets its first letter"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Stretch:
    """A part of the x axis with a name."""

    label: str
    first: int
    """sample"""
    end: int
    """one past its last sample"""


def stacked_area(
    layers: Mapping[str, Sequence[float]],
    *,
    names: Mapping[str, str],
    colors: Mapping[str, str],
    titles: Sequence[str],
    stretches: Sequence[Stretch],
    limit: float | None,
    limit_label: str,
    number: Format,
    unit: float,
    description: str,
) -> str:
    """`layers`: heights by name, all of one length, from the bottom up; `titles`: what the pointer
    shows at each sample."""
    highest = max(sum(heights) for heights in zip(*layers.values(), strict=True))
    plot = _Plot(count=len(titles), high=1.06 * max(highest, limit or 0.0, 1e-12))
    used = [name for name in names if any(layers.get(name, ()))]
    height = BOTTOM + 50.0 + 20.0 * math.ceil(len(used) / PER_ROW)
    parts = (
        open_figure(WIDTH, height, description),
        *_grid(plot, number, unit),
        *_areas(plot, {name: layers[name] for name in used}, names, colors),
        *_pointed_at(plot, titles),
        _horizontal("axis", f"{BOTTOM:g}"),
        *_stretches(plot, stretches),
        *(() if limit is None else _limit(plot, limit, limit_label)),
        *_legend(used, names, colors),
        "</svg>",
    )
    return "".join(parts)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Plot:
    """Where samples and heights are drawn."""

    count: int
    """samples"""
    high: float
    """height of the plot, in units of the layers"""

    def x(self, index: float) -> float:
        """Where a sample begins."""
        return LEFT + index / self.count * (WIDTH - LEFT - RIGHT)

    def y(self, value: float) -> float:
        """Where a height is."""
        return BOTTOM - value / self.high * PLOT


def _horizontal(kind: str, y: str) -> str:
    return f'<line class="{kind}" x1="{LEFT:g}" x2="{WIDTH - RIGHT:g}" y1="{y}" y2="{y}"/>'


def _text(text: str, x: str, y: str, anchor: str = "") -> str:
    placed = f' text-anchor="{anchor}"' if anchor else ""
    return f'<text class="tick" x="{x}" y="{y}"{placed}>{escape(text)}</text>'


def _grid(plot: _Plot, number: Format, unit: float) -> Iterator[str]:
    values = [unit * tick for tick in ticks(0.0, plot.high / unit)]
    for value, words in zip(values, tick_words(values, number), strict=True):
        y = plot.y(value)
        yield _horizontal("grid", f"{y:.1f}")
        yield _text(words, f"{LEFT - 8:g}", f"{y + 4:.1f}", "end")


def _areas(
    plot: _Plot,
    layers: Mapping[str, Sequence[float]],
    names: Mapping[str, str],
    colors: Mapping[str, str],
) -> Iterator[str]:
    floor = [0.0] * plot.count
    for name, heights in layers.items():
        roof = [low + part for low, part in zip(floor, heights, strict=True)]
        forth = "".join(f"V{plot.y(y):.1f}H{plot.x(i + 1):.1f}" for i, y in enumerate(roof))
        back = "".join(
            f"V{plot.y(y):.1f}H{plot.x(i):.1f}" for i, y in reversed(list(enumerate(floor)))
        )
        path = f"M{plot.x(0):.1f} {plot.y(floor[0]):.1f}{forth}{back}Z"
        yield f'<path d="{path}" fill="{escape(colors[name])}"><title>{escape(names[name])}</title></path>'
        floor = roof


def _pointed_at(plot: _Plot, titles: Sequence[str]) -> Iterator[str]:
    wide = plot.x(1) - plot.x(0)
    for index, title in enumerate(titles):
        yield f'<rect x="{plot.x(index):.1f}" y="{TOP:g}" width="{wide:.1f}" height="{PLOT:g}" fill="transparent"><title>{escape(title)}</title></rect>'


def _stretches(plot: _Plot, stretches: Sequence[Stretch]) -> Iterator[str]:
    for stretch in stretches:
        x, wide = plot.x(stretch.first), plot.x(stretch.end) - plot.x(stretch.first)
        yield f'<line class="axis" x1="{x:.1f}" x2="{x:.1f}" y1="{BOTTOM:g}" y2="{BOTTOM + 6:g}"/>'
        if wide >= LEAST_LETTER:
            label = stretch.label if wide >= LEAST_LABEL else stretch.label[:1]
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
