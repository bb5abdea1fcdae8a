"""The map of the feasible set: a grid over two knobs with the best config in each cell.

The knobs are tp and pp if either varies; otherwise the first two knobs that vary, or the only one
and pp. A cell represents all configs with its two values. It shows the best measured speed if there
is one, otherwise the predicted speed of the cell's first config in a plan. A cell is marked as
refused if all of its configs ran, or are expected to run, out of memory.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass, field, replace

from autotune.report.figures.source import (
    FigureSource,
    tooltip,
    value_sort_key,
    value_text,
    varying_knobs,
)
from autotune.report.svg.tiles import LEVELS, Tile, tiles
from autotune.report.terminal import format_count
from autotune.results.figure import Column, Figure, table_of
from autotune.reward import tokens_per_s
from autotune.spec import FailureKind, Trial, TrialPurpose
from autotune.spec.texts.as_text import count_cell, number_of

AXES = ("pp", "tp")
"""default knobs: (columns, rows)"""
MAX_VALUES = 12
"""maximum number of values of a knob that is an axis"""
TILE_TEXTS = {
    "plain": "All speeds are predicted.",
    "measured": "Solid frame: measured.",
    "predicted": "Dashed frame: only predicted. A dashed cell that looks fast has not been tried yet.",
    "refused": "Hatched: every config runs out of memory.",
}
"""explanations of the cells, by kind; only kinds that occur are explained"""
NO_CONFIG = "Empty cells have no valid config."
RISKIER = "A predicted cell shows its first config by predicted speed times the probability that it fits into memory; another config in the cell may be faster, but is less likely to fit."


@dataclass
class _Cell:
    """The configs with these two values."""

    configs: int = 0
    fitting: int = 0
    predicted: float | None = None
    """tokens/s of the config that a plan ranks first among those expected to fit"""
    fastest: float = 0.0
    """highest predicted tokens/s, including configs not expected to fit"""
    value: float = -1.0
    """the plan's ranking criterion for that config: tokens/s times the probability of fitting"""
    measured: list[Trial] = field(default_factory=list)
    out_of_memory: int = 0


def feasible_map(source: FigureSource) -> Figure | None:
    """Return the figure; None if no knob varies."""
    knobs = {
        name: values for name, values in varying_knobs(source).items() if len(values) <= MAX_VALUES
    }
    names = AXES if any(name in knobs for name in AXES) else tuple(knobs)[:2]
    if not names:
        return None
    across, down = (*names, *(name for name in AXES if name not in names))[:2]
    cells = _cells(source, across, down)
    columns = sorted({key[1] for key in cells}, key=value_sort_key)
    rows = sorted({key[0] for key in cells}, key=value_sort_key)
    speeds = sorted(v for cell in cells.values() if (v := _value(cell)) is not None)
    has_trials = any(cell.measured or cell.out_of_memory for cell in cells.values())
    drawn = {
        (rows.index(key[0]), columns.index(key[1])): _tile(
            cell,
            f"{down}={value_text(key[0])} {across}={value_text(key[1])}",
            speeds,
            has_trials=has_trials,
        )
        for key, cell in cells.items()
    }
    kinds = {tile.kind for tile in drawn.values()}
    total = (
        source.space.total
        if source.space is not None
        else sum(cell.configs for cell in cells.values())
    )
    fitting = sum(cell.fitting for cell in cells.values())
    fit = f" ({fitting:,} expected to fit)" if source.space is not None else ""
    return Figure(
        name="feasible_map",
        title="Map of the feasible set",
        shows=f"The {total:,} valid {'config' if total == 1 else 'configs'}{fit} by {down} and {across}: tokens per second of the best config in each cell, over all other knobs.",
        how_to_read=" ".join(
            [
                "The stronger a cell's color, the faster its config.",
                *(words for kind, words in TILE_TEXTS.items() if kind in kinds),
                *([NO_CONFIG] if len(drawn) < len(rows) * len(columns) else []),
                *([RISKIER] if any(map(_has_faster, cells.values())) else []),
            ]
        ),
        svg=tiles(
            drawn,
            columns=[value_text(value) for value in columns],
            rows=[value_text(value) for value in rows],
            column_name=across,
            row_name=down,
            description=f"Best speed by {down} and {across}: measured, predicted, or out of memory",
        ),
        table=table_of(
            (
                Column(name=down, head=down, show=value_text),
                Column(name=across, head=across, show=value_text),
                Column(name="configs", head="configs"),
                Column(name="expected_to_fit", head="expected to fit"),
                Column(
                    name="measured_tokens_per_s",
                    head="best measured, tokens/s",
                    show=count_cell,
                    bar_of=0.0,
                ),
                Column(
                    name="predicted_tokens_per_s",
                    head="best predicted, tokens/s",
                    show=count_cell,
                ),
                Column(name="out_of_memory", head="ran out of memory"),
            ),
            [
                (
                    *key,
                    cell.configs,
                    cell.fitting,
                    max(map(tokens_per_s, cell.measured), default=None),
                    cell.predicted,
                    cell.out_of_memory,
                )
                for key, cell in sorted(
                    cells.items(),
                    key=lambda item: (value_sort_key(item[0][0]), value_sort_key(item[0][1])),
                )
            ],
        ),
    )


def _cells(source: FigureSource, across: str, down: str) -> dict[tuple[Hashable, Hashable], _Cell]:
    """Return the cells by (value of `down`, value of `across`)."""
    cells: dict[tuple[Hashable, Hashable], _Cell] = {}
    if (space := source.space) is not None:
        codes = zip(
            space.table.column(down).tolist(), space.table.column(across).tolist(), strict=True
        )
        decode = {name: space.table.knobs[name].decode for name in (down, across)}
        predicted = (space.tokens_per_s.tolist(), space.fits.tolist(), space.value.tolist())
        for (a, b), speed, fits, value in zip(codes, *predicted, strict=True):
            cell = cells.setdefault((decode[down](a), decode[across](b)), _Cell())
            cell.configs += 1
            cell.fastest = max(cell.fastest, speed)
            if fits:
                cell.fitting += 1
                if value > cell.value:
                    cell.predicted, cell.value = speed, value
    for t in source.without_proxies:
        if t.number not in source.counted and (
            t.is_measured or t.purpose is TrialPurpose.FINAL
        ):  # another trial represents its config
            continue
        cell = cells.setdefault((t.config.value(down), t.config.value(across)), _Cell())
        cell.configs += source.space is None
        if t.is_measured:
            cell.measured.append(t)
        elif t.failure is not None and t.failure.kind is FailureKind.OUT_OF_MEMORY:
            cell.out_of_memory += 1
    return cells


def _value(cell: _Cell) -> float | None:
    return max(map(tokens_per_s, cell.measured), default=cell.predicted)


def _has_faster(cell: _Cell) -> bool:
    """Return whether a config in a predicted cell has a higher predicted speed than the config
    shown."""
    return (
        not cell.measured
        and cell.predicted is not None
        and format_count(cell.fastest) != format_count(cell.predicted)
    )


def _tile(cell: _Cell, name: str, speeds: list[float], *, has_trials: bool) -> Tile:
    """Return a cell of the grid. `speeds`: all cells' speeds, ascending. `has_trials`: whether any
    cell has trials, so that predictions are labeled."""
    value = _value(cell)
    counts = f"{number_of(cell.configs, 'config')}, {cell.fitting:,} expected to fit"
    if value is None:
        return Tile(
            lines=["out of", "memory"], title=f"{name}: out of memory; {counts}", kind="refused"
        )
    level = (
        min(LEVELS - 1, int(LEVELS * (value - speeds[0]) / (speeds[-1] - speeds[0])))
        if speeds[-1] > speeds[0]
        else LEVELS - 1
    )
    tile = Tile(
        lines=[format_count(value), *(["predicted"] if has_trials else [])],
        title="",
        kind="predicted" if has_trials else "plain",
        level=level,
    )
    if not cell.measured:
        faster = (
            f"; up to {format_count(cell.fastest)} with a lower chance of fitting"
            if _has_faster(cell)
            else ""
        )
        return replace(
            tile, title=f"{name}: {format_count(value)} tokens/s predicted{faster}; {counts}"
        )
    best = max(cell.measured, key=tokens_per_s)
    title = f"{name}: {format_count(value)} tokens/s measured; {counts}; {tooltip(best)}"
    return replace(
        tile, lines=[format_count(value), f"#{best.number}"], title=title, kind="measured"
    )
