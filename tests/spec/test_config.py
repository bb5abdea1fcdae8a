"""Configs: text, mapping and columns say the same."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from autotune.errors import ConfigError
from autotune.spec import FIELDS, PRECISIONS, RECOMPUTES, SCHEDULES, ConfigTable, ParallelConfig
from autotune.spec.config import COUNTS, FLAGS, WORDS

counts = st.integers(1, 1 << 30)
configs = st.builds(
    ParallelConfig,
    **dict.fromkeys(COUNTS, counts),
    **{name: st.booleans() for name in FLAGS},
    zero_stage=st.integers(0, 3),
    precision=st.sampled_from(PRECISIONS),
    recompute=st.sampled_from(RECOMPUTES),
    pp_schedule=st.sampled_from(SCHEDULES),
)
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
    for name, words in WORDS.items():
        for word in words:
            assert table.is_word(name, word).tolist() == [getattr(row, name) == word for row in rows]


@laws
@given(st.lists(st.builds(ParallelConfig, tp=st.integers(1, 64), dp=st.integers(1, 64), pp=st.integers(1, 64))))
def test_derived_columns_are_those_of_the_rows(rows: list[ParallelConfig]) -> None:
    table = ConfigTable.of(rows)
    assert table.world_size.tolist() == [row.world_size for row in rows]
    assert table.global_batch_size.tolist() == [row.global_batch_size for row in rows]


def test_every_knob_is_a_count_a_word_a_flag_or_the_zero_stage() -> None:
    assert set(COUNTS) | set(WORDS) | set(FLAGS) | {"zero_stage"} == set(FIELDS)


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
        ("tp2 pp1 bf17", "'bf17' has no '=' and is no word"),
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
def test_what_is_no_config_says_why(text: str, match: str) -> None:
    with pytest.raises(ConfigError, match=match):
        ParallelConfig.parse(text)


def test_table_refuses_unknown_columns_and_shapes() -> None:
    with pytest.raises(ConfigError, match="no knob is called"):
        ConfigTable({"tq": np.array([1])})
    with pytest.raises(ConfigError, match="one dimension"):
        ConfigTable({"tp": np.ones((2, 2), dtype=np.int64)})


def test_a_table_survives_pickling() -> None:
    import pickle

    table = ConfigTable({"tp": [1, 2], "precision": [0, 2]})
    again = pickle.loads(pickle.dumps(table))
    assert list(again) == list(table)
