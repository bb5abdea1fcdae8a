"""JSON that people write: a key that is given twice is refused wherever it is read."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from autotune.api import load_study
from autotune.cli import main
from autotune.errors import SpecError
from autotune.spec import ModelSpec
from autotune.spec.texts.json_text import read_json
from autotune.trainers import trainer
from autotune.trainers.present_configuration import parse_document

TWICE = '{"hidden_size": 64, "hidden_size": 128}'


def of_a_model(folder: Path) -> object:
    return ModelSpec.from_hf(file(folder, "config.json", TWICE))


def of_a_spec(folder: Path) -> object:
    file(folder, "config.json", TWICE)
    spec = {"name": "x", "model": {"hf": str(folder / "config.json")}, "cluster": "a100-80gb-1x8"}
    workload = {"seq_len": 32, "global_batch_size": 8}
    spec |= {"workload": workload, "space": {"tp": [1, 2]}}
    return load_study(file(folder, "spec.json", json.dumps(spec)))


def of_a_configuration(folder: Path) -> object:
    return parse_document("ds_config.json", '{"zero": {"hidden_size": 1, "hidden_size": 2}}')


def of_an_option(folder: Path) -> object:
    return trainer("command").checked({"argv": ["python", "t.py"], "env": TWICE})


def file(folder: Path, name: str, text: str) -> Path:
    (folder / name).write_text(text)
    return folder / name


@pytest.mark.parametrize("read", [of_a_model, of_a_spec, of_a_configuration, of_an_option])
def test_a_repeated_key_is_named(read: Callable[[Path], object], tmp_path: Path) -> None:
    with pytest.raises(SpecError, match="the key 'hidden_size' is given twice"):
        read(tmp_path)


def test_an_import_names_a_repeated_key(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = file(tmp_path, "ds_config.json", TWICE)
    with pytest.raises(SystemExit, match="2"):
        main(["import", "--from", "deepspeed", str(path)])
    assert "ds_config.json is not JSON: the key 'hidden_size' is given twice" in (
        capsys.readouterr().err
    )


def test_other_json_is_read_as_usual() -> None:
    text = '{"a": {"x": 1}, "b": [{"x": 1}, {"x": 2}], "c": NaN}'
    assert str(read_json(text)) == str(json.loads(text))
    with pytest.raises(json.JSONDecodeError, match="line 1 column 2"):
        read_json("{,}")
