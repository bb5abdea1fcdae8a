"""The space of a study: the list of all configs that may be tried.

    N   configs            d   knobs: the general ones, then the study's own

A space is built from knobs and rules (`SearchSpace.build`) or from a given list (`SearchSpace.of`),
and is immutable. Searchers refer to its configs by index.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, final

import numpy as np
from numpy.typing import NDArray

from autotune.errors import InfeasibleError
from autotune.space.constraint import why_not
from autotune.space.enumeration import (
    DERIVED,
    choices_of,
    enumerate_configs,
    in_words,
    laws_of,
    nearest_miss,
    world_sizes,
)
from autotune.space.launchable import Launchable
from autotune.spec import KNOBS, ConfigTable, ParallelConfig, SpaceSpec, Study, Workload, number_of

SAID_LAWS = 2
"""number of rules whose reasons an error quotes for the nearest miss, those that exclude most"""


@final
class SearchSpace:
    """All configs of a study as columns, with counts of what the rules exclude."""

    __slots__ = ("_knobs", "excluded", "launchable", "spec", "table", "workload")

    def __init__(
        self,
        workload: Workload,
        table: ConfigTable,
        *,
        excluded: Mapping[str, int],
        spec: SpaceSpec | None,
        launchable: Launchable | None = None,
    ) -> None:
        """Use `build` or `of`."""
        self.workload = workload
        """model, cluster and batch"""
        self.table = table
        """all configs, N rows"""
        self.excluded = dict(excluded)
        """number of excluded combinations of knob values, by name of the rule or limit"""
        self.spec = spec
        """the knobs it was built from; None for a given list of configs"""
        self.launchable = launchable
        """limits of the trainer that were applied; None if none were"""
        self._knobs: dict[str, tuple[Any, ...]] | None = None

    @classmethod
    def of_study(cls, study: Study) -> SearchSpace:
        """The space of a study: configs that are valid and that its trainer can launch. Raises the
        errors of `build`."""
        return cls.build(study.workload, study.space, launchable=Launchable.of(study))

    @classmethod
    def build(
        cls, workload: Workload, space: SpaceSpec, *, launchable: Launchable | None = None
    ) -> SearchSpace:
        """Every valid combination of the knobs of `space`, except those that the trainer of
        `launchable` cannot launch.

        Raises `SpecError` for unknown knobs, impossible values and spaces that are too large to
        list, `InfeasibleError` (with counts by rule and the nearest miss) if no combination is
        valid.
        """
        table, excluded = enumerate_configs(workload, space)
        if not len(table):
            raise _nothing_valid(workload, space, excluded)
        if launchable is not None:
            can_launch, limited = launchable.cut(workload, table)
            if not can_launch.any():
                raise _nothing_launchable(workload, space, launchable, table, limited)
            if not can_launch.all():
                table = table.take(can_launch)
            excluded = {**excluded, **limited}
        return cls(workload, table, excluded=excluded, spec=space, launchable=launchable)

    @classmethod
    def of(cls, workload: Workload, configs: Iterable[ParallelConfig] | ConfigTable) -> SearchSpace:
        """Exactly these configs, in their order, each once. No rule is applied, so that measured
        configs can be replayed.

        Raises `InfeasibleError` if there are none, `ConfigError` if a column of a table has a count
        below 1.
        """
        table = configs if isinstance(configs, ConfigTable) else ConfigTable.of(configs)
        if not len(table):
            raise InfeasibleError(
                "a space needs at least one config, but the list is empty",
                remedy="pass at least one config",
            )
        table.check_counts()
        rows = np.stack([table.column(name).astype(np.int64) for name in table.knobs], axis=1)
        first = np.sort(np.unique(rows, axis=0, return_index=True)[1])
        return cls(
            workload,
            table if len(first) == len(table) else table.take(first),
            excluded={},
            spec=None,
        )

    def __len__(self) -> int:
        return len(self.table)

    def __getitem__(self, index: int) -> ParallelConfig:
        """Config `index`, 0 to N - 1."""
        return self.table[index]

    def __iter__(self) -> Iterator[ParallelConfig]:
        return iter(self.table)

    def __contains__(self, config: object) -> bool:
        return isinstance(config, ParallelConfig) and self.index_of(config) is not None

    def index_of(self, config: ParallelConfig) -> int | None:
        """The index of `config` in the list, or None."""
        rows: NDArray[np.intp] | None = None
        if config.extra.keys() != {knob.name for knob in self.table.own}:
            return None
        for name, knob in self.table.knobs.items():
            column, value = self.table.column(name), config.value(name)
            if knob.values and value not in knob.values:
                return None
            code = knob.encode(value)
            rows = np.flatnonzero(column == code) if rows is None else rows[column[rows] == code]
            if not len(rows):
                return None
        return None if rows is None else int(rows[0])

    def why_not(self, config: ParallelConfig) -> str | None:
        """Why `config` is not in the space, in words; None if it is."""
        if self.index_of(config) is not None:
            return None
        if self.spec is None:
            broken = why_not(self.workload, config)
            return (
                broken
                or f"the space is a list of {number_of(len(self), 'config')}, and {config} is not among them"
            )
        broken = why_outside(self.workload, self.spec, config)
        if broken:
            return broken
        if self.launchable is not None and (
            broken := self.launchable.why_not(self.workload, config)
        ):
            return broken
        raise AssertionError(
            f"{config} satisfies every rule and has allowed values, but was not enumerated"
        )

    @property
    def knobs(self) -> Mapping[str, tuple[Any, ...]]:
        """The values of each knob that occur in the space, in ascending order (words in the order of
        their codes)."""
        if self._knobs is None:
            self._knobs = {
                name: tuple(knob.decode(code) for code in np.unique(self.table.column(name)))
                for name, knob in self.table.knobs.items()
            }
        return self._knobs

    @property
    def world_sizes(self) -> tuple[int, ...]:
        """The numbers of ranks that configs may use, in ascending order."""
        if self.spec is not None:
            return world_sizes(self.workload, self.spec)
        return tuple(int(size) for size in np.unique(self.table.world_size))

    def coordinates(self) -> NDArray[np.float64]:
        """The coordinates of each config, shape (N, d) (`ConfigTable.coordinates`)."""
        return self.table.coordinates()

    def coordinates_of(self, config: ParallelConfig) -> NDArray[np.float64]:
        """The coordinates of a config on the axes of this space, shape (1, d). It need not be in
        the space.

        A study's own knobs are axes too. A config of another study is at their defaults, and knobs
        that only that study has are left out.
        """
        coordinates = []
        for name, knob in self.table.knobs.items():
            value = config.value(name)
            if value is None or (knob.values and value not in knob.values):
                value = knob.default
            coordinates.append(knob.coordinate(np.array([knob.encode(value)], dtype=knob.dtype)))
        return np.stack(coordinates, axis=1)


def why_outside(workload: Workload, space: SpaceSpec, config: ParallelConfig) -> str | None:
    """Why `config` is not in the space described by `space`, in words; None if it is. The space is
    not enumerated."""
    broken = why_not(workload, config, laws_of(workload, space))
    if broken:
        return broken
    declared = {**KNOBS, **{knob.name: knob for knob in space.own_knobs}}
    for name, codes in choices_of(workload, space).items():
        if name in DERIVED and name not in space.knobs:
            continue
        knob, value = declared[name], config.value(name)
        allowed = [knob.decode(code) for code in codes]
        if value not in allowed:
            given = "not set" if value is None else f"{name}={knob.text(value)}"
            listed = ", ".join(knob.text(one) for one in allowed)
            return f"the space gives {name} the values {listed}, but {given}; add this value to the space's knobs"
    for name in config.extra:
        if name not in declared:
            return f"{name} is not a knob of this study; declare it under `knobs`"
    return None


def _nothing_launchable(
    workload: Workload,
    space: SpaceSpec,
    launchable: Launchable,
    table: ConfigTable,
    cut: Mapping[str, int],
) -> InfeasibleError:
    counts = ", ".join(
        f"{name} {count:,}" for name, count in sorted(cut.items(), key=lambda item: -item[1])
    )
    return InfeasibleError(
        f"the {launchable.trainer.name} trainer cannot launch any of the {len(table):,} valid configs in the space {space.name!r} for "
        f"{workload.model.name} ({counts}); for example {table[0]}: {launchable.why_not(workload, table[0])}",
        remedy="add values that the trainer supports to the space, or choose another trainer",
        field="trainer",
    )


def _nothing_valid(
    workload: Workload, space: SpaceSpec, excluded: Mapping[str, int]
) -> InfeasibleError:
    config, reasons = nearest_miss(workload, space)
    quoted = sorted(reasons, key=lambda name: -excluded.get(name, 0))[:SAID_LAWS]
    by_words = in_words(excluded)
    counts = "; ".join(f"{count:,}: {words}" for words, count in by_words.items())
    total = sum(excluded.values())
    broken = (
        "the only combination violates a rule"
        if total == 1
        else f"all {total:,} combinations violate a rule"
    )
    error = InfeasibleError(
        f"no config in the space {space.name!r} is valid for {workload.model.name} on {workload.cluster.name}: "
        f"{broken} ({counts}); the nearest miss is {config}: {'; and '.join(reasons[name] for name in quoted)}",
        field="space",
    )
    error.brief = max(by_words, key=lambda words: by_words[words], default="")
    return error
