"""All legal configs of a space as columns, without ever building the illegal ones.

The product of the knobs is grown one knob at a time; each law is checked as soon as the knobs that
it reads are there, so a degree that breaks a law is cut before anything is multiplied onto it. A
knob with one value multiplies nothing: it is one number until the end. A cut row counts as all the
combinations that it would have grown into: the counts in `excluded` add up, with the legal rows, to
the full product.

    choices   the values (codes) of each knob, in rising order; for a derived dp the world sizes, for derived accumulation_steps the batch sizes

Memory: growth goes in chunks of `CHUNK` rows, so beyond the legal rows themselves it needs a few
hundred MB at most.

Why configs are excluded, for people: the words for the short names under which excluded
combinations are counted.

    tp_heads            a law: what is wrong with configs that break it
    megatron_compile    a limit: the trainer, and the knob whose value it cannot express
    memory              the cost model expects it to run out of memory

Names that are sentences already, such as those of studies of older releases, stay as they are. JSON
documents keep the names.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from autotune.errors import ConfigError, SpecError
from autotune.space.completion import default_precision
from autotune.space.constraint import LAWS, laws_for, reasons
from autotune.space.law import Law
from autotune.space.mesh_laws import world_size_law
from autotune.space.rl_laws import RL_LAWS
from autotune.spec import FIELDS, KNOBS, ConfigTable, Knob, ParallelConfig, SpaceSpec, Workload
from autotune.spec.checks import nearest
from autotune.trainers import trainer_names

Columns = dict[str, NDArray[Any]]

MAX_VALUES = 4096
"""Values that one knob may have."""
MAX_COMBINATIONS = 50_000_000
"""Rows that one step of the growth may look at."""
MAX_ROWS = 5_000_000
"""Rows that may be left after a step."""
MAX_CONFIGS = 2_000_000
"""Legal configs that a space may have: what estimates and searchers can hold in a few GB."""
CHUNK = 1 << 18
_FACTORS = ("tp", "pp", "cp", "dp", "micro_batch_size", "accumulation_steps")
"""Factors of world size and batch: they are columns while the space grows, even with one value."""
DERIVED = ("dp", "accumulation_steps")
"""Knobs that follow from world size and batch where a space does not list them."""

GROWN_FIRST = (
    "tp",
    "pp",
    "cp",
    "cp_style",
    "dp",
    "zero_stage",
    "dp_replicas",
    "ep",
    "dispatcher",
    "virtual_stages",
    "pp_split",
    "pp_schedule",
    "sequence_parallel",
    "async_tp",
    "micro_batch_size",
    "accumulation_steps",
)
"""The knobs that laws cut most, in the order in which they are grown; all others follow."""


def choices_of(workload: Workload, space: SpaceSpec) -> dict[str, NDArray[np.int64]]:
    """The values of every knob as codes, in rising order. Raises `SpecError` for knobs and values
    that do not exist."""
    for name in space.knobs:
        if name not in FIELDS:
            raise SpecError(
                f"there is no knob {name!r}",
                remedy=nearest(name, FIELDS) or f"knobs: {', '.join(FIELDS)}",
                field="space",
            )
    own = space.own_knobs
    given = {name: _codes(KNOBS[name], values) for name, values in space.knobs.items()}
    given |= {knob.name: _codes(knob, space.extra[knob.name]) for knob in own}
    derived = {
        "dp": world_sizes(workload, space),
        "accumulation_steps": workload.global_batch_sizes,
        "precision": (KNOBS["precision"].encode(default_precision(workload)),),
    }
    return {
        name: given[name]
        if name in given
        else np.array(
            sorted(derived.get(name, (KNOBS[name].encode(KNOBS[name].default),))), dtype=np.int64
        )
        for name in _order(own)
    }


def world_sizes(workload: Workload, space: SpaceSpec) -> tuple[int, ...]:
    """The numbers of ranks that a config in the space may use on this cluster; all its GPUs when
    the space does not say.

    A space may name more ranks than a cluster has, so that one space serves many clusters; but it
    must leave some.
    """
    asked = tuple(sorted(set(space.world_sizes))) or _training_gpus(workload, space)
    for size in asked:
        if isinstance(size, bool) or not isinstance(size, int) or size < 1:
            raise SpecError(
                f"world_sizes must be whole numbers above zero, but one of them is {size!r}",
                field="space.world_sizes",
            )
    sizes = tuple(size for size in asked if size <= workload.cluster.num_gpus)
    if not sizes:
        raise SpecError(
            f"{workload.cluster.name} has {workload.cluster.num_gpus} GPUs, but the smallest of the space's world_sizes is {asked[0]}",
            remedy="use a larger cluster, or smaller world_sizes",
            field="space.world_sizes",
        )
    return sizes


def _training_gpus(workload: Workload, space: SpaceSpec) -> tuple[int, ...]:
    """All GPUs of the cluster, less those that only generate."""
    whole = workload.cluster.num_gpus
    if workload.rl is None:
        return (whole,)
    generating = space.extra.get("rollout_gpus", (workload.rl.rollout_gpus,))
    return tuple(sorted({whole - int(gpus) for gpus in generating if gpus < whole})) or (whole,)


def laws_of(workload: Workload, space: SpaceSpec) -> tuple[Law, ...]:
    """`LAWS`, with the world sizes of the space."""
    exact = world_size_law(world_sizes(workload, space))
    return tuple(exact if law.name == exact.name else law for law in laws_for(workload))


def enumerate_configs(workload: Workload, space: SpaceSpec) -> tuple[ConfigTable, dict[str, int]]:
    """All legal configs, and how many combinations each law cut. Raises `SpecError` when there are
    too many to list."""
    own = space.own_knobs
    order = _order(own)
    declared = {**KNOBS, **{knob.name: knob for knob in own}}
    choices, laws = choices_of(workload, space), laws_of(workload, space)
    excluded = {law.name: 0 for law in laws}
    rows: Columns = {}
    constants: Columns = {}
    known: set[str] = set()
    for place, knob in enumerate(order):
        combinations = _length(rows) * len(choices[knob])
        if combinations > MAX_COMBINATIONS:
            raise _too_many(choices)
        later = math.prod(len(choices[name]) for name in order[place + 1 :])
        known.add(knob)
        due = [
            law
            for law in laws
            if knob in law.fields and known.issuperset(declared.keys() & law.fields)
        ]
        kept: list[Columns] = []
        count = 0
        alone = len(choices[knob]) == 1 and knob not in _FACTORS
        if alone:
            constants[knob] = choices[knob].astype(declared[knob].dtype)
        parts = [(rows, 0, "")] if alone else _grow(rows, declared[knob], choices[knob], space)
        for grown, illegal, law_name in parts:
            if illegal:
                excluded[law_name] += illegal * later
            columns = grown
            for law in due:
                holds = law.check(workload, ConfigTable({**columns, **constants}, own))
                cut = len(holds) - int(np.count_nonzero(holds))
                if cut:
                    excluded[law.name] += cut * later
                    columns = {name: column[holds] for name, column in columns.items()}
            kept.append(columns)
            count += _length(columns)
            if count > (MAX_CONFIGS if place == len(order) - 1 else MAX_ROWS):
                raise _too_many(choices)
        rows = (
            kept[0]
            if len(kept) == 1
            else {name: np.concatenate([p[name] for p in kept]) for name in kept[0]}
        )
    return ConfigTable({**rows, **constants}, own), {
        name: count for name, count in excluded.items() if count
    }


def nearest_miss(
    workload: Workload, space: SpaceSpec, *, sample: int = 50_000
) -> tuple[ParallelConfig, dict[str, str]]:
    """The combination that breaks fewest laws, and the reason of each by the law's name. Beyond
    `sample` combinations a fixed draw of them is looked at."""
    own = space.own_knobs
    order = _order(own)
    choices, laws = choices_of(workload, space), laws_of(workload, space)
    total = math.prod(len(values) for values in choices.values())
    if total <= sample:
        picks = np.unravel_index(np.arange(total), [len(choices[name]) for name in order])
    else:
        random = np.random.default_rng(0)
        picks = tuple(random.integers(0, len(choices[name]), sample) for name in order)
    columns: Columns = {name: choices[name][pick] for name, pick in zip(order, picks, strict=True)}
    if _is_derived("dp", space):
        columns["dp"] = np.maximum(
            1, columns["dp"] // (columns["tp"] * columns["pp"] * columns["cp"])
        )
    if _is_derived("accumulation_steps", space):
        one_step = columns["micro_batch_size"] * columns["dp"]
        columns["accumulation_steps"] = np.maximum(1, columns["accumulation_steps"] // one_step)
    table = ConfigTable(columns, own)
    broken = sum((~law.check(workload, table)).astype(np.int64) for law in laws)
    config = table[int(np.argmin(broken))]
    return config, {law.name: reason for law in laws for reason in reasons(workload, config, [law])}


def _grow(
    rows: Columns, knob: Knob, values: NDArray[np.int64], space: SpaceSpec
) -> Iterator[tuple[Columns, int, str]]:
    """Chunks of `rows` times `values`, with the number of combinations that no whole number
    completes, and the law that they break."""
    length = _length(rows)
    chunk = max(1, CHUNK // len(values))
    for start in range(0, max(length, 1), chunk):
        part = {
            name: np.repeat(column[start : start + chunk], len(values))
            for name, column in rows.items()
        }
        column = np.tile(values, min(chunk, length - start))
        if knob.name == "dp" and _is_derived("dp", space):
            yield _derive(
                part, "dp", column, by=part["tp"] * part["pp"] * part["cp"], law="world_size"
            )
        elif _is_derived(knob.name, space):
            yield _derive(
                part, knob.name, column, by=part["micro_batch_size"] * part["dp"], law="batch"
            )
        else:
            part[knob.name] = column.astype(knob.dtype)
            yield part, 0, "batch"


def _is_derived(knob: str, space: SpaceSpec) -> bool:
    return knob in DERIVED and knob not in space.knobs


def _derive(
    part: Columns, knob: str, totals: NDArray[np.int64], *, by: NDArray[np.int64], law: str
) -> tuple[Columns, int, str]:
    """The knob as `totals / by` where that is whole."""
    whole = totals % by == 0
    columns = {name: column[whole] for name, column in part.items()}
    columns[knob] = totals[whole] // by[whole]
    return columns, len(whole) - int(np.count_nonzero(whole)), law


def _order(own: Sequence[Knob]) -> tuple[str, ...]:
    """All knobs in the order in which they are grown; the study's own come last, for no law reads
    them."""
    return (
        *GROWN_FIRST,
        *(name for name in KNOBS if name not in GROWN_FIRST),
        *(knob.name for knob in own),
    )


def _length(rows: Mapping[str, NDArray[Any]]) -> int:
    """Rows so far; the empty product has one."""
    return len(next(iter(rows.values()))) if rows else 1


def _codes(knob: Knob, values: Sequence[Any]) -> NDArray[np.int64]:
    """The values of a knob as codes, each once, in rising order."""
    where = f"knobs.{knob.name}" if knob.is_own else f"space.{knob.name}"
    if not values:
        raise SpecError(f"the knob {knob.name} must have at least one value", field=where)
    if len(values) > MAX_VALUES:
        raise SpecError(
            f"a knob may have at most {MAX_VALUES} values, but {knob.name} has {len(values)}",
            field=where,
        )
    for value in values:
        try:
            knob.check(value)
        except ConfigError as error:
            raise SpecError(error.message, remedy=error.remedy, field=where) from None
    return np.array(sorted({knob.encode(value) for value in values}), dtype=np.int64)


def _too_many(choices: Mapping[str, NDArray[np.int64]]) -> SpecError:
    total = math.prod(len(values) for values in choices.values())
    widest = sorted(choices, key=lambda name: -len(choices[name]))[:4]
    return SpecError(
        f"a space may have at most {MAX_CONFIGS:,} valid configs, but this one has more, among {total:,} combinations",
        remedy="narrow "
        + ", ".join(
            f"{name} ({len(choices[name])} values)" for name in widest if len(choices[name]) > 1
        ),
        field="space",
    )


MEMORY = "memory"
"""the name under which configs are counted that are expected to run out of memory"""
_WORDS = {law.name: law.broken for law in (*LAWS, *RL_LAWS)} | {
    MEMORY: "expected to run out of memory"
}


def exclusion_words(name: str) -> str:
    """What is wrong with the configs that are counted under this name."""
    if name in _WORDS:
        return _WORDS[name]
    trainer = next((known for known in trainer_names() if name.startswith(f"{known}_")), None)
    if trainer is not None and " " not in name:
        return f"{trainer} cannot run this {name.removeprefix(f'{trainer}_')}"
    return name


def in_words(counts: Mapping[str, int]) -> dict[str, int]:
    """The counts by what is wrong, the most frequent first."""
    found: dict[str, int] = {}
    for name, count in counts.items():
        words = exclusion_words(name)
        found[words] = found.get(words, 0) + count
    return dict(sorted(found.items(), key=lambda item: -item[1]))
