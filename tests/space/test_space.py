"""The space is exactly what brute force over laws would list."""

from __future__ import annotations

import itertools
import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from autotune.errors import ConfigError, InfeasibleError, SpecError
from autotune.space import SearchSpace, default_config, legal, why_not
from autotune.space.enumeration import GROWN_FIRST, choices_of
from autotune.spec import (
    FIELDS,
    KNOBS,
    ConfigTable,
    ModelSpec,
    ParallelConfig,
    SpaceSpec,
    Workload,
    catalog,
)
from tests.matrix import examples


def workload(
    cluster: str = "h100-sxm-2x4",
    *,
    batch: int | tuple[int, ...] = 16,
    seq_len: int = 64,
    **model: Any,
) -> Workload:
    shape = {
        "num_layers": 6,
        "hidden_size": 96,
        "num_attention_heads": 12,
        "num_kv_heads": 6,
        "vocab_size": 50257,
    }
    spec = ModelSpec(name="toy", **{**shape, "ffn_hidden_size": 384, **model})
    return Workload(
        model=spec, cluster=catalog.cluster(cluster), seq_len=seq_len, global_batch_size=batch
    )


VALUES: dict[str, tuple[Any, ...]] = {
    "tp": (1, 2, 3, 4, 6, 8),
    "pp": (1, 2, 3, 4, 8),
    "dp": (1, 2, 4, 8, 3),
    "cp": (1, 2, 4, 3),
    "ep": (1, 2, 3, 4),
    "micro_batch_size": (1, 2, 3, 16),
    "accumulation_steps": (1, 2, 4, 5, 16),
    "precision": ("fp32", "bf16", "fp8", "tf32", "fp16"),
    "recompute": ("none", "full"),
    "zero_stage": (0, 1, 2, 3),
    "sequence_parallel": (False, True),
    "pp_schedule": ("gpipe", "1f1b", "interleaved_1f1b", "interleaved_zero_bubble"),
    "virtual_stages": (1, 2, 3),
    "compile": (True, False),
    "dp_replicas": (1, 2, 3),
    **{name: KNOBS[name].values for name in FIELDS[FIELDS.index("dp_replicas") + 1 :]},
}


@st.composite
def small_spaces(draw: st.DrawFn) -> tuple[Workload, SpaceSpec]:
    names = draw(st.lists(st.sampled_from(FIELDS), unique=True, min_size=1, max_size=5))
    knobs = {
        n: tuple(draw(st.lists(st.sampled_from(VALUES[n]), min_size=1, max_size=3, unique=True)))
        for n in {*names, "tp"}
    }
    work = workload(
        draw(st.sampled_from(["h100-sxm-2x4", "v100-32gb-1x6", "cpu-1x4", "a100-80gb-4x2"])),
        batch=draw(st.sampled_from([16, 5, (4, 16), (1, 2, 24)])),
        seq_len=draw(st.sampled_from([64, 63, 24])),
        **draw(
            st.sampled_from([{}, {"num_experts": 4, "experts_per_token": 2}, {"num_layers": 1}])
        ),
    )
    sizes = draw(st.lists(st.integers(1, work.cluster.num_gpus), max_size=3, unique=True))
    return work, SpaceSpec(knobs=knobs, world_sizes=tuple(sizes))


def brute_force(work: Workload, space: SpaceSpec) -> list[ParallelConfig]:
    sizes = space.world_sizes or (work.cluster.num_gpus,)
    defaults = ParallelConfig(precision="fp16" if work.cluster.gpu.name == "v100-32gb" else "bf16")
    free = {name: space.knobs.get(name, (getattr(defaults, name),)) for name in FIELDS}
    if "dp" not in space.knobs:
        free["dp"] = tuple(range(1, max(sizes) + 1))
    if "accumulation_steps" not in space.knobs:
        free["accumulation_steps"] = tuple(range(1, max(work.global_batch_sizes) + 1))
    found = []
    for values in itertools.product(*free.values()):
        row = dict(zip(free, values, strict=True))
        if row["tp"] * row["pp"] * row["dp"] * row["cp"] not in sizes:
            continue
        if (
            row["micro_batch_size"] * row["accumulation_steps"] * row["dp"]
            not in work.global_batch_sizes
        ):
            continue
        config = ParallelConfig(**row)
        if why_not(work, config) is None:
            found.append(config)
    return found


@settings(deadline=None, derandomize=True, max_examples=examples(150))
@given(small_spaces())
def test_enumeration_is_brute_force(case: tuple[Workload, SpaceSpec]) -> None:
    work, spec = case
    expected = brute_force(work, spec)
    combinations = math.prod(len(values) for values in choices_of(work, spec).values())
    if not expected:
        with pytest.raises(InfeasibleError, match="nearest miss"):
            SearchSpace.build(work, spec)
        return
    space = SearchSpace.build(work, spec)
    assert set(space) == set(expected)
    assert len(space) == len(expected)
    assert sum(space.excluded.values()) + len(space) == combinations
    assert legal(work, space.table).all()
    assert all(space.why_not(config) is None for config in space)
    assert [space.index_of(config) for config in space] == list(range(len(space)))


def test_every_knob_is_grown_once() -> None:
    assert len(set(GROWN_FIRST)) == len(GROWN_FIRST)
    grown = choices_of(workload(), SpaceSpec(extra={"mine": (1, 2)}))
    assert sorted(grown) == sorted((*FIELDS, "mine"))


def test_coordinates_tell_configs_apart() -> None:
    space = SearchSpace.build(
        workload(), SpaceSpec(knobs={n: VALUES[n] for n in ("tp", "pp", "micro_batch_size")})
    )
    points = space.coordinates()
    assert points.shape == (len(space), len(FIELDS))
    assert np.isfinite(points).all()
    assert len(np.unique(points, axis=0)) == len(space)


def test_why_not_names_law_value_and_remedy() -> None:
    space = SearchSpace.build(workload(), SpaceSpec(knobs={"tp": (1, 2), "precision": ("bf16",)}))
    assert space.why_not(ParallelConfig(tp=4, dp=2, accumulation_steps=8)) == (
        "tp must divide num_kv_heads, but tp=4 and num_kv_heads=6; use 1, 2 or 3"
    )
    fp8 = ParallelConfig(tp=2, dp=4, accumulation_steps=4, precision="fp16")
    assert space.why_not(fp8) == (
        "the space gives precision the values bf16, but precision=fp16; add this value to the space's knobs"
    )
    assert "tp * pp * dp * cp must be 8" in str(
        space.why_not(ParallelConfig(tp=2, dp=2, accumulation_steps=8))
    )


def test_of_takes_what_was_measured_whatever_the_laws_say() -> None:
    odd = ParallelConfig(tp=5, pp=7, dp=2, micro_batch_size=3)
    plain = ParallelConfig(dp=8, accumulation_steps=2)
    space = SearchSpace.of(workload(), [odd, plain, odd])
    assert list(space) == [odd, plain]
    assert space.index_of(plain) == 1
    assert space.why_not(odd) is None
    assert "is not among them" in str(space.why_not(ParallelConfig(dp=4, accumulation_steps=4)))
    assert space.world_sizes == (8, 70)
    with pytest.raises(InfeasibleError):
        SearchSpace.of(workload(), [])
    with pytest.raises(ConfigError, match="dp must be at least 1"):
        SearchSpace.of(workload(), ConfigTable({"dp": np.array([1, 0])}))


def test_nothing_legal_says_why_and_what_comes_nearest() -> None:
    with pytest.raises(InfeasibleError) as error:
        SearchSpace.build(
            workload(), SpaceSpec(name="odd", knobs={"tp": (5, 7), "micro_batch_size": (1, 2)})
        )
    text = str(error.value)
    assert "'odd'" in text
    assert "tp does not divide num_attention_heads" in text
    assert "nearest miss is tp=5" in text
    assert "num_attention_heads=12" in text


@pytest.mark.parametrize(
    ("space", "match"),
    [
        (
            SpaceSpec(knobs={"micro_batch": (1,)}),
            "there is no knob 'micro_batch'; did you mean micro_batch_size",
        ),
        (SpaceSpec(knobs={"tp": ()}), "at least one value"),
        (SpaceSpec(knobs={"tp": (0,)}), "tp must be a whole number"),
        (SpaceSpec(knobs={"precision": ("bf17",)}), "did you mean bf16"),
        (SpaceSpec(knobs={"tp": tuple(range(1, 5000))}), "tp has 4999"),
        (SpaceSpec(world_sizes=(9,)), "h100-sxm-2x4 has 8 GPUs, but the smallest"),
    ],
)
def test_impossible_spaces_are_refused(space: SpaceSpec, match: str) -> None:
    with pytest.raises(SpecError, match=match):
        SearchSpace.build(workload(), space)


def test_a_space_too_large_to_list_says_what_to_narrow() -> None:
    wide = {name: VALUES[name] for name in ("precision", "recompute", "zero_stage", "compile")}
    knobs = {**wide, "micro_batch_size": tuple(range(1, 3001))}
    with pytest.raises(
        SpecError,
        match="narrow micro_batch_size \\(3000 values\\), accumulation_steps \\(3000 values\\)",
    ):
        SearchSpace.build(
            workload("h100-sxm-1x8", batch=tuple(range(1, 3001))),
            SpaceSpec(knobs=knobs, world_sizes=tuple(range(1, 9))),
        )


def test_the_limit_is_on_legal_configs_not_on_combinations() -> None:
    degrees = tuple(range(1, 2001))
    spec = SpaceSpec(
        knobs={
            "tp": degrees,
            "pp": degrees,
            "cp": degrees,
            "ep": degrees,
            "virtual_stages": degrees,
        }
    )
    space = SearchSpace.build(workload(batch=48, seq_len=48), spec)
    assert len(space) < 100
    assert sum(space.excluded.values()) + len(space) == 2000**5


def test_the_law_that_cuts_away_most_is_explained_first_and_two_at_most() -> None:
    knobs = {"tp": (16, 32), "pp": (7,), "dp": (1, 2, 4, 8), "micro_batch_size": (3,)}
    with pytest.raises(
        InfeasibleError, match=r"violate a rule \(8: tp does not divide num_attention_heads\)"
    ) as caught:
        SearchSpace.build(workload(), SpaceSpec(knobs=knobs))
    why = str(caught.value).rpartition("the nearest miss is ")[2].partition(": ")[2]
    assert why.startswith("tp must divide num_attention_heads")
    assert why.count("; and ") == 1


def test_the_nearest_miss_of_a_huge_space_is_found_among_a_fixed_draw() -> None:
    odd = tuple(range(5, 2001, 2))
    spec = SpaceSpec(knobs={"tp": odd, "pp": odd, "micro_batch_size": odd})
    with pytest.raises(InfeasibleError) as first:
        SearchSpace.build(workload(), spec)
    with pytest.raises(InfeasibleError) as second:
        SearchSpace.build(workload(), spec)
    assert str(first.value) == str(second.value)
    assert "nearest miss is tp=" in str(first.value)


def test_world_sizes_beyond_the_cluster_are_left_out() -> None:
    space = SearchSpace.build(workload(), SpaceSpec(knobs={"tp": (1, 2)}, world_sizes=(4, 8, 16)))
    assert space.world_sizes == (4, 8)
    assert set(space.table.world_size) == {4, 8}


@pytest.mark.parametrize(
    ("batch", "space", "expected"),
    [
        (
            16,
            SpaceSpec(
                knobs={"tp": (1, 2), "precision": ("fp32", "bf16"), "micro_batch_size": (2, 4)}
            ),
            ParallelConfig(dp=8, accumulation_steps=2, precision="fp32"),
        ),
        (
            12,  # cannot be dealt to eight ranks
            SpaceSpec(knobs={"tp": (1, 2), "precision": ("fp32",)}, world_sizes=(2, 4, 8)),
            ParallelConfig(dp=4, accumulation_steps=3, precision="fp32"),
        ),
        # the plainest of the space
        (
            4,
            SpaceSpec(knobs={"tp": (1, 2), "pp": (1, 2)}),
            ParallelConfig(tp=2, dp=4),
        ),
    ],
)
def test_default_config_is_data_parallel_where_that_is_legal(
    batch: int, space: SpaceSpec, expected: ParallelConfig
) -> None:
    assert default_config(SearchSpace.build(workload(batch=batch), space)) == expected


def test_a_space_of_one_combination_that_breaks_a_rule_says_so() -> None:
    one = SpaceSpec(
        name="one", knobs={"accumulation_steps": (1,), "micro_batch_size": (1,)}, world_sizes=(1,)
    )
    with pytest.raises(InfeasibleError, match=r"the only combination violates a rule \(1: "):
        SearchSpace.build(workload(), one)
