"""What the probe saw is written into a spec where it stands."""

from __future__ import annotations

from typing import Any

import pytest
import yaml

from autotune.results.knobs_seen import Row
from autotune.study.check.mended_spec import fixes_of, mended
from tests.shortcuts import present

FLOW = "name: a\nworkload: {seq_len: 64, global_batch_size: 8}   # mine\nspace: {seq_len: 3}\n"
BLOCK = "workload:\n  # a comment\n  seq_len: 64   # tokens\n  optimizer: adamw\nspace:\n  optimizer: x\n"


@pytest.mark.parametrize(
    ("text", "key", "value"),
    [
        (FLOW, "seq_len", 128),
        (FLOW, "optimizer", "sgd"),
        (BLOCK, "seq_len", 128),
        (BLOCK, "optimizer", "sgd"),
    ],
)
def test_one_key_changes_and_nothing_else(text: str, key: str, value: Any) -> None:
    found = present(mended(text, f"workload.{key}", value))
    before = yaml.safe_load(text)
    assert yaml.safe_load(found) == {**before, "workload": {**before["workload"], key: value}}
    assert "# " in found


@pytest.mark.parametrize(
    "text",
    ["name: a\n", "workload: {a: {seq_len: 1}, seq_len: 2}\n", '{"workload": {"seq_len": 1}}'],
)
def test_a_text_of_another_form_is_left_alone(text: str) -> None:
    assert mended(text, "workload.seq_len", 2) is None


@pytest.mark.parametrize(
    "model",
    [
        "model: resnet",
        "model: {num_layers: 2, hidden_size: 8}  # mine",
        "model:\n  num_layers: 2\n\n  hidden_size: 8\n  # inside",
    ],
)
def test_a_model_that_no_shape_describes_is_written_as_its_number_of_weights(model: str) -> None:
    found = mended(f"name: a\n{model}\nworkload: {{seq_len: 1}}\n", "model.parameters", 9)
    assert found == "name: a\nmodel: {parameters: 9}\nworkload: {seq_len: 1}\n"
    assert mended("name: a\n", "model.parameters", 9) is None


def test_only_differences_that_say_a_value_are_written() -> None:
    rows = [
        Row(name="seq_len", said="1", seen="2", agrees=False, fix=("workload.seq_len", 2)),
        Row(name="optimizer", said="a", seen="a", agrees=True, fix=("optimizer", "a")),
        Row(name="compile", said="true", seen="false", agrees=False),
    ]
    assert fixes_of(rows) == {"workload.seq_len": 2}
