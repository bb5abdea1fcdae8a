"""The map of the feasible set: two knobs as a grid, the best config of each cell.

The knobs are tp and pp, unless neither varies: then the first two that do, or the only one that
does and pp. A cell stands for all configs with its two values. It shows the best measured speed
where one was measured, else the predicted one of the config that a plan ranks first, and is refused
where all of its configs ran, or are expected to run, out of memory.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass, field, replace

from autotune.report.figures.source import FigureSource, order_of, title_of, varying, word_of
from autotune.report.svg.tiles import LEVELS, Tile, tiles
from autotune.report.terminal import format_count
from autotune.results.figure import Column, Figure, table_of
from autotune.reward import tokens_per_s
from autotune.spec import FailureKind, Trial, TrialPurpose
from autotune.spec.texts.as_text import count_cell, number_of

AXES = ("pp", "tp")
"""(columns, rows)"""
MOST_VALUES = 12
"""values of a knob that has room as an axis"""
OF_TILES = {
    "plain": "All speeds are predicted.",
    "measured": "Solid frame: measured.",
    "predicted": "Dashed frame: only predicted. A dashed cell that looks fast has not been tried yet.",
    "refused": "Hatched: every config runs out of memory.",
}
"""what a cell means, by its kind; only kinds that are drawn are explained"""
NO_CONFIG = "Empty cells have no valid config."
RISKIER = "A predicted cell shows its first config by predicted speed times the probability that it fits into memory; another config in the cell may be faster, but is less likely to fit."


@dataclass
class _Cell:
    """What is known of the configs with these two values."""

    configs: int = 0
    fitting: int = 0
    predicted: float | None = None
    """tokens/s of the config that a plan ranks first among those that should fit"""
    fastest: float = 0.0
    """the highest predicted tokens/s, also of those that should not fit"""
    value: float = -1.0
    """by which it is ranked"""
    measured: list[Trial] = field(default_factory=list)
    out_of_memory: int = 0


def feasible_map(source: FigureSource) -> Figure | None:
    """The grid."""
    knobs = {name: values for name, values in varying(source).items() if len(values) <= MOST_VALUES}
    names = AXES if any(name in knobs for name in AXES) else tuple(knobs)[:2]
    if not names:
        return None
    across, down = (*names, *(name for name in AXES if name not in names))[:2]
    cells = _cells(source, across, down)
    columns = sorted({key[1] for key in cells}, key=order_of)
    rows = sorted({key[0] for key in cells}, key=order_of)
    speeds = sorted(v for cell in cells.values() if (v := _value(cell)) is not None)
    has_trials = any(cell.measured or cell.out_of_memory for cell in cells.values())
    drawn = {
        (rows.index(key[0]), columns.index(key[1])): _tile(
            cell,
            f"{down}={word_of(key[0])} {across}={word_of(key[1])}",
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
                *(words for kind, words in OF_TILES.items() if kind in kinds),
                *([NO_CONFIG] if len(drawn) < len(rows) * len(columns) else []),
                *([RISKIER] if any(map(_has_faster, cells.values())) else []),
            ]
        ),
        svg=tiles(
            drawn,
            columns=[word_of(value) for value in columns],
            rows=[word_of(value) for value in rows],
            column_name=across,
            row_name=down,
            description=f"Best speed by {down} and {across}: measured, predicted, or out of memory",
        ),
        table=table_of(
            (
                Column(name=down, head=down, show=word_of),
                Column(name=across, head=across, show=word_of),
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
                    cells.items(), key=lambda item: (order_of(item[0][0]), order_of(item[0][1]))
                )
            ],
        ),
    )


def _cells(source: FigureSource, across: str, down: str) -> dict[tuple[Hashable, Hashable], _Cell]:
    """Cells by (value of `down`, value of `across`)."""
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
    for t in source.own:
        if t.number not in source.counted and (
            t.is_measured or t.purpose is TrialPurpose.FINAL
        ):  # another one holds it
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
    """Whether a config of a predicted cell has a higher predicted speed than the one that is
    shown."""
    return (
        not cell.measured
        and cell.predicted is not None
        and format_count(cell.fastest) != format_count(cell.predicted)
    )


def _tile(cell: _Cell, name: str, speeds: list[float], *, has_trials: bool) -> Tile:
    """`has_trials`: whether any cell is measured, so that predicted ones are marked."""
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
    title = f"{name}: {format_count(value)} tokens/s measured; {counts}; {title_of(best)}"
    return replace(
        tile, lines=[format_count(value), f"#{best.number}"], title=title, kind="measured"
    )
