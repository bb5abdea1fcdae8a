"""Many configs as columns: N configs as arrays of length N under the names of their knobs, so that
the same code handles one config or a million.

A column has integers. Degrees and counts are stored unchanged, and all other values as a code
(`Knob.encode`), the value's index among the knob's values.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from autotune.errors import ConfigError
from autotune.spec.config import KNOBS, NO_EXTRA, Extra, ParallelConfig, unknown_knob
from autotune.spec.knob import Knob

Column = NDArray[Any]


class ConfigTable:
    """N configs as columns: `table.tp` is an int64 array of shape (N,), `table.precision` an int8
    array of codes."""

    __slots__ = ("_columns", "knobs")

    def __init__(self, columns: Mapping[str, Any], own: Iterable[Knob] = ()) -> None:
        """`columns`: arrays (or single values) of codes by knob; omitted knobs have their defaults.
        Shapes must agree.

        `own`: declarations of the study's own knobs.
        """
        self.knobs: Mapping[str, Knob] = {**KNOBS, **{k.name: k for k in own}}
        """the declarations of all knobs in the table by name"""
        for name in columns:
            if name not in self.knobs:
                raise unknown_knob(name, self.knobs)
        arrays = {
            name: np.asarray(columns.get(name, knob.encode(knob.default)), dtype=knob.dtype)
            for name, knob in self.knobs.items()
        }
        length = np.broadcast_shapes(
            (1,) if not columns else (), *(np.atleast_1d(a).shape for a in arrays.values())
        )
        if len(length) != 1:
            raise ConfigError(
                f"columns must have one dimension, but they broadcast to shape {length}"
            )
        self._columns: dict[str, Column] = {
            n: np.broadcast_to(a, length) for n, a in arrays.items()
        }

    @classmethod
    def of(
        cls, configs: Iterable[ParallelConfig], own: Iterable[Knob] | None = None
    ) -> ConfigTable:
        """Return the table of these configs, in the given order. Without `own`, the declarations of
        the configs' own knobs are derived from the values that occur.

        Raises `ConfigError` if the configs do not have the same knobs in `extra`, or if a config
        has a value that the knob's declaration does not list.
        """
        rows = list(configs)
        declared = tuple(_declared_by(rows)) if own is None else tuple(own)
        knobs = (*KNOBS.values(), *declared)
        names = {knob.name for knob in declared}
        for config in rows:
            if config.extra.keys() != names:
                raise ConfigError(
                    f"all configs of a table must have the same knobs in `extra`, but {config} has {', '.join(config.extra) or 'none'} "
                    f"and the table {', '.join(sorted(names)) or 'none'}",
                    field="extra",
                )
            for knob in declared:
                knob.check(config.extra[knob.name])
        return cls(
            {
                k.name: np.array([k.encode(c.value(k.name)) for c in rows], dtype=k.dtype)
                for k in knobs
            },
            declared,
        )

    @classmethod
    def concatenate(cls, tables: Sequence[ConfigTable]) -> ConfigTable:
        """Return all rows of all tables in order; the tables have the same knobs."""
        knobs = tables[0].knobs
        return cls({n: np.concatenate([t.column(n) for t in tables]) for n in knobs}, tables[0].own)

    @property
    def own(self) -> tuple[Knob, ...]:
        """The declarations of the study's own knobs."""
        return tuple(knob for knob in self.knobs.values() if knob.is_own)

    def column(self, name: str) -> Column:
        """Return the column of this knob, shape (N,)."""
        return self._columns[name]

    def __getattr__(self, name: str) -> Column:
        if name.startswith("_"):  # during unpickling, `_columns` does not exist yet
            raise AttributeError(name)
        try:
            return self._columns[name]
        except KeyError:
            raise AttributeError(name) from None

    def __len__(self) -> int:
        return len(self._columns["tp"])

    def __getitem__(self, index: int) -> ParallelConfig:
        """Return row `index` as a config."""
        values = {n: knob.decode(self._columns[n][index]) for n, knob in self.knobs.items()}
        own = {n: values.pop(n) for n in values.keys() - KNOBS.keys()}
        return ParallelConfig(**values, extra=Extra(own) if own else NO_EXTRA)

    def __iter__(self) -> Iterator[ParallelConfig]:
        return (self[i] for i in range(len(self)))

    def take(self, index: Any) -> ConfigTable:
        """Return the rows selected by `index` (integers or a mask)."""
        return ConfigTable({n: c[index] for n, c in self._columns.items()}, self.own)

    def is_word(self, name: str, word: str) -> NDArray[np.bool_]:
        """Mask of rows in which column `name` is `word`: `table.is_word("precision", "bf16")`."""
        return np.asarray(self._columns[name] == self.knobs[name].encode(word))

    def at_default(self, names: Iterable[str]) -> NDArray[np.bool_]:
        """Mask of rows in which all these knobs have their default, shape (N,)."""
        mask = np.ones(len(self), dtype=np.bool_)
        for name in names:
            mask &= self._columns[name] == self.knobs[name].encode(self.knobs[name].default)
        return mask

    def coordinates(self) -> NDArray[np.float64]:
        """Return the coordinates of each config, shape (N, d): log2 of counts, codes of words, 0 or
        1 for flags. One step in any column is one step of a knob."""
        return np.stack(
            [knob.coordinate(self.column(name)) for name, knob in self.knobs.items()], axis=1
        )

    def check_counts(self) -> None:
        """Raise `ConfigError` if a degree or count is below 1."""
        for name, knob in self.knobs.items():
            column = self._columns[name]
            if knob.kind in ("degree", "count") and len(self) and column.min() < 1:
                raise ConfigError(f"{name} must be at least 1, but is {column.min()}", field=name)

    @property
    def world_size(self) -> Column:
        """Ranks for each row."""
        return self.tp * self.pp * self.dp * self.cp

    @property
    def global_batch_size(self) -> Column:
        """Sequences per optimizer step for each row."""
        return self.micro_batch_size * self.accumulation_steps * self.dp


def _declared_by(configs: Sequence[ParallelConfig]) -> Iterator[Knob]:
    """Yield the declarations of the configs' own knobs, derived from their values."""
    for name in sorted({name for config in configs for name in config.extra}):
        yield Knob.own(name, list(dict.fromkeys(c.extra[name] for c in configs if name in c.extra)))
