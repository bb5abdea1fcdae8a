"""Enumerates all valid configs of a space as columns, without building the invalid ones.

The product of the knobs grows by one knob at a time. Each rule is checked as soon as all knobs that
it reads are known, so an invalid degree is removed before it is combined with further knobs. A knob
with a single value stays a single number until the end. A removed row counts as all combinations
that it would have grown into, so the counts in `excluded` and the valid rows add up to the full
product.

    choices   the values (codes) of each knob in ascending order; for a derived dp the world sizes, for derived accumulation_steps the batch sizes

The product grows in chunks of `CHUNK` rows, so it needs at most a few hundred MB besides the valid
rows.

`exclusion_words` translates the names under which excluded combinations are counted:

    tp_heads            a rule
    megatron_compile    a trainer, and the knob whose value it cannot express
    memory              the cost model expects the config to run out of memory

Names from older releases may be sentences already and are kept. JSON documents contain the names.
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
from autotune.spec import (
    FIELDS,
    KNOBS,
    ConfigTable,
    Knob,
    ParallelConfig,
    SpaceSpec,
    Workload,
    number_of,
)
from autotune.spec.checks import nearest
from autotune.trainers import trainer_names

Columns = dict[str, NDArray[Any]]

MAX_VALUES = 4096
"""maximum number of values of a knob"""
MAX_COMBINATIONS = 50_000_000
"""maximum number of rows that adding a knob may check"""
MAX_ROWS = 5_000_000
"""maximum number of rows after adding a knob"""
MAX_CONFIGS = 2_000_000
"""maximum number of valid configs of a space; estimates and searchers need a few GB for them"""
CHUNK = 1 << 18
"""rows that are combined at once"""
_FACTORS = ("tp", "pp", "cp", "dp", "micro_batch_size", "accumulation_steps")
"""factors of world size and batch, which are columns even with a single value"""
DERIVED = ("dp", "accumulation_steps")
"""knobs that are derived from world size and batch if a space does not list them"""

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
"""the knobs that rules restrict most, in the order in which they are added; all others follow"""


def choices_of(workload: Workload, space: SpaceSpec) -> dict[str, NDArray[np.int64]]:
    """The values of every knob as codes in ascending order. Raises `SpecError` for unknown knobs and
    invalid values."""
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

    def codes(name: str) -> NDArray[np.int64]:
        if name in given:
            return given[name]
        values = derived.get(name, (KNOBS[name].encode(KNOBS[name].default),))
        return np.array(sorted(values), dtype=np.int64)

    return {name: codes(name) for name in _order(own)}


def world_sizes(workload: Workload, space: SpaceSpec) -> tuple[int, ...]:
    """The numbers of ranks that configs may use on this cluster; by default all its GPUs.

    Numbers larger than the cluster are ignored, so that one space works for many clusters. Raises
    `SpecError` if none remains or one is not a positive integer.
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
            f"{workload.cluster.name} has {number_of(workload.cluster.num_gpus, 'GPU')}, but the smallest of the space's world_sizes is {asked[0]}",
            remedy="use a larger cluster, or smaller world_sizes",
            field="space.world_sizes",
        )
    return sizes


def _training_gpus(workload: Workload, space: SpaceSpec) -> tuple[int, ...]:
    """The possible numbers of GPUs that train: all GPUs of the cluster, minus those that only
    generate."""
    whole = workload.cluster.num_gpus
    if workload.rl is None:
        return (whole,)
    generating = space.extra.get("rollout_gpus", (workload.rl.rollout_gpus,))
    return tuple(sorted({whole - int(gpus) for gpus in generating if gpus < whole})) or (whole,)


def laws_of(workload: Workload, space: SpaceSpec) -> tuple[Law, ...]:
    """The rules for a space: those for the workload, with the world sizes of the space."""
    exact = world_size_law(world_sizes(workload, space))
    return tuple(exact if law.name == exact.name else law for law in laws_for(workload))


def enumerate_configs(workload: Workload, space: SpaceSpec) -> tuple[ConfigTable, dict[str, int]]:
    """All valid configs, and the number of excluded combinations by name of the rule. Raises
    `SpecError` if there are too many to list."""
    own = space.own_knobs
    order = _order(own)
    declared = {**KNOBS, **{knob.name: knob for knob in own}}
    choices, laws = choices_of(workload, space), laws_of(workload, space)
    excluded = {law.name: 0 for law in laws}
    rows: Columns = {}
    constants: Columns = {}
    known: set[str] = set()
    for place, knob in enumerate(order):
        if _length(rows) * len(choices[knob]) > MAX_COMBINATIONS:
            raise _too_many(choices)
        later = math.prod(len(choices[name]) for name in order[place + 1 :])
        limit = MAX_CONFIGS if place == len(order) - 1 else MAX_ROWS
        known.add(knob)
        due = [
            law
            for law in laws
            if knob in law.fields and known.issuperset(declared.keys() & law.fields)
        ]
        is_constant = len(choices[knob]) == 1 and knob not in _FACTORS
        if is_constant:
            constants[knob] = choices[knob].astype(declared[knob].dtype)
            chunks = iter([(rows, 0, "")])
        else:
            chunks = _grow(rows, declared[knob], choices[knob], space)
        valid: list[Columns] = []
        count = 0
        for grown, underivable, law_name in chunks:
            if underivable:
                excluded[law_name] += underivable * later
            columns = grown
            for law in due:
                holds = law.check(workload, ConfigTable({**columns, **constants}, own))
                removed = len(holds) - int(np.count_nonzero(holds))
                if removed:
                    excluded[law.name] += removed * later
                    columns = {name: column[holds] for name, column in columns.items()}
            valid.append(columns)
            count += _length(columns)
            if count > limit:
                raise _too_many(choices)
        rows = _concatenated(valid)
    counts = {name: count for name, count in excluded.items() if count}
    return ConfigTable({**rows, **constants}, own), counts


def _concatenated(parts: Sequence[Columns]) -> Columns:
    if len(parts) == 1:
        return parts[0]
    return {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}


def nearest_miss(
    workload: Workload, space: SpaceSpec, *, sample: int = 50_000
) -> tuple[ParallelConfig, dict[str, str]]:
    """The combination that violates the fewest rules, and the reasons by name of the rule. With more
    than `sample` combinations, only a random sample with a fixed seed is checked."""
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
    violations = sum((~law.check(workload, table)).astype(np.int64) for law in laws)
    config = table[int(np.argmin(violations))]
    return config, {law.name: reason for law in laws for reason in reasons(workload, config, [law])}


def _grow(
    rows: Columns, knob: Knob, values: NDArray[np.int64], space: SpaceSpec
) -> Iterator[tuple[Columns, int, str]]:
    """Yield chunks of `rows` times `values`. For a derived knob, each comes with the number of
    combinations dropped because the knob would not be an integer, and the rule they violate."""
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
    """Add the knob as `totals / by`, and drop the rows in which that is not an integer."""
    is_integer = totals % by == 0
    columns = {name: column[is_integer] for name, column in part.items()}
    columns[knob] = totals[is_integer] // by[is_integer]
    return columns, len(is_integer) - int(np.count_nonzero(is_integer)), law


def _order(own: Sequence[Knob]) -> tuple[str, ...]:
    """All knobs in the order in which they are added. The study's own come last, because no rule
    reads them."""
    return (
        *GROWN_FIRST,
        *(name for name in KNOBS if name not in GROWN_FIRST),
        *(knob.name for knob in own),
    )


def _length(rows: Mapping[str, NDArray[Any]]) -> int:
    """Number of rows; 1 without columns, for the empty product."""
    return len(next(iter(rows.values()))) if rows else 1


def _codes(knob: Knob, values: Sequence[Any]) -> NDArray[np.int64]:
    """The distinct values of a knob as codes in ascending order. Raises `SpecError` for invalid or
    too many values."""
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
"""the name under which configs expected to run out of memory are counted"""
_WORDS = {law.name: law.broken for law in (*LAWS, *RL_LAWS)} | {
    MEMORY: "expected to run out of memory"
}


def exclusion_words(name: str) -> str:
    """Describe in words why the configs counted under this name are excluded."""
    if name in _WORDS:
        return _WORDS[name]
    trainer = next((known for known in trainer_names() if name.startswith(f"{known}_")), None)
    if trainer is not None and " " not in name:
        return f"{trainer} cannot run this {name.removeprefix(f'{trainer}_')}"
    return name


def in_words(counts: Mapping[str, int]) -> dict[str, int]:
    """The counts by description, the largest first."""
    by_words: dict[str, int] = {}
    for name, count in counts.items():
        words = exclusion_words(name)
        by_words[words] = by_words.get(words, 0) + count
    return dict(sorted(by_words.items(), key=lambda item: -item[1]))
