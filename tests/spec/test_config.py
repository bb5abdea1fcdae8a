"""Configs: text, mapping and columns say the same."""

from __future__ import annotations

import json
import pickle
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from autotune.errors import ConfigError
from autotune.spec import FIELDS, KNOBS, ConfigTable, Knob, ParallelConfig, config_label
from autotune.spec.config import knobs_of


def values_of(knob: Knob) -> st.SearchStrategy[Any]:
    """Any value that the knob may have."""
    return st.sampled_from(knob.values) if knob.values else st.integers(1, 1 << 30)


OWN = (
    Knob.own("num_workers", [2, 0, 4]),
    Knob.own("flash", [False, True]),
    Knob.own("rate", [1e-3, 0.5]),
    Knob.own("backend", ["inductor", "eager"]),
)
plain = st.fixed_dictionaries({name: values_of(knob) for name, knob in KNOBS.items()})
own = st.fixed_dictionaries({knob.name: values_of(knob) for knob in OWN})
configs = st.builds(ParallelConfig.of_values, plain)
own_configs = st.builds(lambda fixed, extra: ParallelConfig(**fixed, extra=extra), plain, own)
laws = settings(deadline=None, derandomize=True)


@laws
@given(configs)
def test_text_and_mapping_round_trip(config: ParallelConfig) -> None:
    assert ParallelConfig.parse(str(config)) == config
    assert ParallelConfig.from_dict(config.to_dict()) == config
    assert tuple(config.to_dict()) == FIELDS


@laws
@given(st.lists(configs, min_size=1, max_size=8))
def test_columns_round_trip(rows: list[ParallelConfig]) -> None:
    table = ConfigTable.of(rows)
    assert list(table) == rows
    assert list(table.take(slice(None, None, -1))) == rows[::-1]
    assert list(ConfigTable.concatenate([table, table])) == rows + rows
    for name, knob in KNOBS.items():
        for word in knob.values:
            assert table.is_word(name, word).tolist() == [
                getattr(row, name) == word for row in rows
            ]


@laws
@given(st.lists(own_configs, min_size=1, max_size=8))
def test_columns_of_own_knobs_round_trip(rows: list[ParallelConfig]) -> None:
    table = ConfigTable.of(rows, OWN)
    assert list(table) == rows
    assert list(table.take(slice(None, None, -1))) == rows[::-1]
    assert list(ConfigTable.concatenate([table, table])) == rows + rows
    assert list(ConfigTable.of(rows)) == rows, "declared by the values that occur"


@laws
@given(own_configs)
def test_own_knobs_round_trip_through_every_form(config: ParallelConfig) -> None:
    declared = {knob.name: knob for knob in OWN}
    assert ParallelConfig.from_dict(json.loads(json.dumps(config.to_dict()))) == config
    assert ParallelConfig.from_dict(knobs_of(str(config), declared)) == config
    assert ParallelConfig.from_dict(knobs_of(config_label(config), declared)) == config
    assert ParallelConfig.of_values(config.values()) == config
    assert hash(ParallelConfig.of_values(config.values())) == hash(config)
    assert pickle.loads(pickle.dumps(config)) == config


@laws
@given(configs)
def test_a_label_has_all_knobs_of_a_config(config: ParallelConfig) -> None:
    assert ParallelConfig.parse(config_label(config)) == config


@laws
@given(own_configs, own_configs)
def test_different_configs_have_different_keys(one: ParallelConfig, other: ParallelConfig) -> None:
    assert (one.key == other.key) == (one == other)


def test_a_key_has_a_version_and_the_non_default_values() -> None:
    assert ParallelConfig().key == "1:{}"
    assert ParallelConfig(dp=8, precision="fp32").key == '1:{"dp":8,"precision":"fp32"}'
    assert (
        ParallelConfig(tp=2, extra={"b": 1, "a": True}).key == '1:{"extra":{"a":true,"b":1},"tp":2}'
    )


@pytest.mark.parametrize(
    ("extra", "message"),
    [
        ({"tp": 2}, "tp is a built-in knob"),
        ({"x": [1]}, r"extra\.x must be a number, a word, true or false"),
        (3, "extra must map knobs to values"),
    ],
)
def test_extra_holds_plain_values_of_other_knobs(extra: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        ParallelConfig(extra=extra)


def test_a_table_has_one_set_of_own_knobs() -> None:
    with pytest.raises(ConfigError, match="the same knobs in `extra`"):
        ConfigTable.of([ParallelConfig(extra={"a": 1}), ParallelConfig()])
    with pytest.raises(ConfigError, match="must be one of 0, 2, 4, but is 3"):
        ConfigTable.of([ParallelConfig(extra={"num_workers": 3})], OWN[:1])


@laws
@given(
    st.lists(
        st.builds(
            ParallelConfig, tp=st.integers(1, 64), dp=st.integers(1, 64), pp=st.integers(1, 64)
        )
    )
)
def test_derived_columns_are_those_of_the_rows(rows: list[ParallelConfig]) -> None:
    table = ConfigTable.of(rows)
    assert table.world_size.tolist() == [row.world_size for row in rows]
    assert table.global_batch_size.tolist() == [row.global_batch_size for row in rows]


def test_a_table_fills_in_defaults_and_broadcasts() -> None:
    table = ConfigTable({"tp": np.array([1, 2, 4]), "precision": 0})
    assert len(table) == 3
    assert table[2] == ParallelConfig(tp=4, precision="fp32")
    assert len(ConfigTable({})) == 1


@pytest.mark.parametrize(
    ("text", "match"),
    [
        ("tp", "has no '='"),
        ("tp2 tp4", "tp is given twice"),
        ("tp2 pp1 bf17", "'bf17' has no '=' and is not part"),
        ("mb0", "micro_batch_size must be a whole number from 1"),
        ("zero7", "zero_stage must be 0, 1, 2 or 3"),
        ("tp=2,tp=4", "tp is given twice"),
        ("tp=two", "tp must be a whole number"),
        ("tp=0", "tp must be a whole number from 1"),
        ("dp=-1", "dp must be a whole number from 1"),
        ("pp=99999999999999999999", "from 1 to 2\\^30"),
        ("zero_stage=4", "zero_stage must be 0, 1, 2 or 3"),
        ("precision=bf17", "did you mean bf16"),
        ("compile=maybe", "compile must be true or false"),
        ("microbatch_size=2", "did you mean micro_batch_size"),
    ],
)
def test_an_invalid_config_has_an_error_with_the_reason(text: str, match: str) -> None:
    with pytest.raises(ConfigError, match=match):
        ParallelConfig.parse(text)


def test_a_table_rejects_unknown_columns_and_shapes() -> None:
    with pytest.raises(ConfigError, match="there is no knob"):
        ConfigTable({"tq": np.array([1])})
    with pytest.raises(ConfigError, match="one dimension"):
        ConfigTable({"tp": np.ones((2, 2), dtype=np.int64)})


def test_a_table_survives_pickling() -> None:
    import pickle

    table = ConfigTable({"tp": [1, 2], "precision": [0, 2]})
    again = pickle.loads(pickle.dumps(table))
    assert list(again) == list(table)
