"""The knobs that vary in a study, with their values."""

from __future__ import annotations

from typing import Any

from autotune.report.figures.source import FigureSource


def varying(source: FigureSource) -> dict[str, tuple[Any, ...]]:
    """Knobs with two values or more among the space and the trials, in their usual order."""
    found: dict[str, set[Any]] = {}
    for trial in source.result.shown:
        for name, value in trial.config.values().items():
            found.setdefault(name, set()).add(value)
    if (space := source.space) is not None:
        for name, knob in space.table.knobs.items():
            column = set(space.table.column(name).tolist())
            found.setdefault(name, set()).update(knob.decode(code) for code in column)
    return {name: tuple(sorted(values, key=order_of)) for name, values in found.items() if len(values) > 1}


def word_of(value: Any) -> str:
    """A knob's value as people write it."""
    if isinstance(value, bool):
        return "yes" if value else "no"
    return "–" if value is None else str(value)


def order_of(value: Any) -> tuple[bool, float, str]:
    """The key that sorts values: numbers by size, then words."""
    is_number = isinstance(value, int | float)
    return not is_number, float(value) if is_number else 0.0, str(value)
