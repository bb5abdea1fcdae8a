"""A limit: one value of a knob or of the model that a trainer cannot express, with the reason and
the nearest value that it can."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from autotune.errors import ExportError
from autotune.spec import KNOBS, ParallelConfig, Workload
from autotune.spec.texts.as_text import value_word


@dataclass(frozen=True, slots=True, kw_only=True)
class Limit:
    """One value that a trainer cannot express."""

    knob: str
    """a knob of ParallelConfig or of the study, or `model.FIELD` of ModelSpec, or `workload.FIELD`,
    or `world_size` or `nnodes` of its placement"""
    value: Any
    """the value that cannot be expressed"""
    message: str
    """the reason, as text"""
    nearest: Any = None
    """the nearest value that the trainer can express; None if there is none"""
    remedy: str = ""
    """another way to reach the goal, as text"""

    @property
    def way_out(self) -> str:
        """What to do instead, as text: the nearest value and the remedy. For a parallel degree
        without either, the degree 1. Empty if nothing helps."""
        nearest = "" if self.nearest is None else f"nearest: {self.knob}={value_word(self.nearest)}"
        if nearest or self.remedy:
            return "; ".join(filter(None, (nearest, self.remedy)))
        is_degree = self.knob in KNOBS and KNOBS[self.knob].kind == "degree"
        return f"use {self.knob}=1" if is_degree and self.value != 1 else ""

    def __str__(self) -> str:
        way_out = self.way_out
        return f"{self.knob}={value_word(self.value)}: {self.message}{f'; {way_out}' if way_out else ''}"

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON values."""
        return {
            "knob": self.knob,
            "value": self.value,
            "message": self.message,
            "nearest": self.nearest,
            "remedy": self.way_out,
        }


class Rule(NamedTuple):
    """A value that a trainer cannot express, and whether a config has it."""

    is_broken: object
    """whether the config has it, as any truthy value"""
    knob: str
    """as in `Limit`"""
    message: str
    nearest: Any = None
    remedy: str = ""
    value: Any = None
    """the value of a knob that is not a field of config, model or workload"""


def broken(workload: Workload, config: ParallelConfig, *rules: Rule) -> list[Limit]:
    """The limits of the rules that the config violates, in order."""
    owners = {"": config, "model": workload.model, "workload": workload}
    limits = []
    for _, knob, message, nearest, remedy, value in filter(lambda rule: rule.is_broken, rules):
        owner, _, field = knob.rpartition(".")
        found = getattr(owners[owner], field) if value is None else value
        limits.append(
            Limit(knob=knob, value=found, message=message, nearest=nearest, remedy=remedy)
        )
    return limits


def refuse(trainer: str, limits: Iterable[Limit], *, can_move: bool) -> None:
    """Raises an `ExportError` that names all limits, if there are any. `can_move`: whether the
    trainer has the option `nearest`."""
    found = tuple(limits)
    if not found:
        return
    bridgeable = can_move and all(limit.nearest is not None for limit in found)
    raise ExportError(
        f"{trainer} cannot express " + "; ".join(str(limit) for limit in found),
        remedy="export with the option nearest=true to use the nearest values"
        if bridgeable
        else "",
        field=found[0].knob,
    )


def moved(
    workload: Workload, config: ParallelConfig, limits: Iterable[Limit]
) -> tuple[Workload, ParallelConfig]:
    """Workload and config with the nearest values that can be expressed; each limit must have
    one."""
    found = tuple(limits)
    model = {
        limit.knob.removeprefix("model."): limit.nearest
        for limit in found
        if limit.knob.startswith("model.")
    }
    fixed = {
        limit.knob.removeprefix("workload."): limit.nearest
        for limit in found
        if limit.knob.startswith("workload.")
    }
    knobs = {limit.knob: limit.nearest for limit in found if "." not in limit.knob}
    return replace(workload, model=replace(workload.model, **model), **fixed), replace(
        config, **knobs
    )


def next_multiple(value: int, unit: int) -> int:
    """The smallest multiple of `unit` that is at least `value`, for remedies."""
    return -(-value // unit) * unit
