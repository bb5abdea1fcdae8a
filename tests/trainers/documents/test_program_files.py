"""Files of a program: values keep their type in each format, and what cannot be written is refused
before a trial."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from autotune.errors import ExportError, SpecError
from autotune.schema import parse_study, read_spec
from autotune.spec import ParallelConfig
from autotune.testing.trainers import WORKLOAD
from autotune.trainers import Launch, trainer, write_launch
from autotune.trainers.documents.file_formats import to_toml
from autotune.trainers.documents.placeholders import Values
from autotune.trainers.documents.program_files import check_templates, render

TEMPLATE: dict[str, Any] = {
    "name": "run-{tp}-{flash}",
    "lr": 0.1,
    "nothing": None,
    "train": {
        "batch": "{micro_batch_size * dp}",
        "flash": "{flash}",
        "type": "{precision}",
        "fraction": "{fraction}",
        "left_out": "{recompute}",
        "deep er": {"list": ["{tp}", "x{tp}", {"inner": "{tp}"}]},
    },
}
VALUES = Values(
    known={"tp": 2, "dp": 4, "micro_batch_size": 8, "flash": True, "precision": "bf16", "recompute": "none", "fraction": 0.5},
    written={"precision": {"bf16": "bfloat16"}, "recompute": {"none": None}},
)  # fmt: skip
RENDERED = {
    "name": "run-2-true",
    "lr": 0.1,
    "nothing": None,
    "train": {
        "batch": 32,
        "flash": True,
        "type": "bfloat16",
        "fraction": 0.5,
        "left_out": None,
        "deep er": {"list": [2, "x2", {"inner": 2}]},
    },
}


def without_nulls(document: Any) -> Any:
    if isinstance(document, dict):
        return {key: without_nulls(value) for key, value in document.items() if value is not None}
    return document


def test_values_keep_their_type_in_every_format() -> None:
    files = render(dict.fromkeys(("a.json", "conf/b.yaml", "c.yml", "d.toml"), TEMPLATE), VALUES)
    assert json.loads(files["a.json"]) == RENDERED
    assert yaml.safe_load(files["conf/b.yaml"]) == yaml.safe_load(files["c.yml"]) == RENDERED
    assert tomllib.loads(files["d.toml"]) == without_nulls(RENDERED)


SCALARS = st.one_of(
    st.booleans(),
    st.integers(-(2**63), 2**63 - 1),
    st.floats(allow_nan=False, allow_infinity=False),
    st.text(st.characters(codec="utf-8")),
)
KEYS = st.text(st.characters(codec="utf-8"), min_size=1, max_size=8)


@pytest.mark.thorough
@given(
    st.recursive(
        st.dictionaries(
            KEYS, st.one_of(SCALARS, st.lists(st.one_of(SCALARS, st.dictionaries(KEYS, SCALARS))))
        ),
        lambda inner: st.dictionaries(KEYS, inner, max_size=3),
        max_leaves=6,
    )
)
def test_toml_is_read_as_it_was_written(document: dict[str, Any]) -> None:
    assert tomllib.loads(to_toml(document)) == document


@pytest.mark.parametrize(
    ("files", "law"),
    [
        ({"../a.json": {}}, "plain relative name"),
        ({"a.ini": {}}, "must be JSON, YAML or TOML"),
        ({"a.json": "a.template.json"}, "must be a mapping of keys to values here"),
        ({"a.yaml": {"tp": {"tp": None}}}, "the placeholder {tp} has no quotes"),
        ({"a.json": {"x": ["{tpp}"]}}, "there is no placeholder {tpp}"),
        ({"a.json": {"x": "{"}}, "not valid text with placeholders"),
    ],
)
def test_a_file_that_cannot_be_written_is_refused(files: dict[str, Any], law: str) -> None:
    with pytest.raises((SpecError, ExportError), match=re.escape(law)) as caught:
        check_templates(files, frozenset({"tp"}))
    assert "files" in str(caught.value.field)


ARGV = ["python", "train.py", "--config={files}/conf/train.json", "{dp}"]
FILES = {"conf/train.json": {"batch": "{micro_batch_size}", "steps": "{accumulation_steps}"}}
CONFIG = ParallelConfig(dp=8, micro_batch_size=2, accumulation_steps=4)


def test_files_carry_knobs_and_the_program_is_told_where_they_are(tmp_path: Path) -> None:
    launch = trainer("command").launch(
        WORKLOAD, CONFIG, {"argv": ARGV, "files": FILES, "cwd": "/srv/code"}
    )
    assert json.loads(launch.files["conf/train.json"]) == {"batch": 2, "steps": 4}
    assert launch.cwd == "/srv/code"
    assert launch.placed(str(tmp_path)).argv[2] == f"--config={tmp_path}/conf/train.json"


@pytest.mark.parametrize(
    ("change", "law"),
    [
        ({"argv": ["python", "train.py", "{dp}"]}, "no argument passes this folder to the program"),
        ({"cwd": "src"}, "can only be used if the spec is a file"),
        ({"files": {}, "argv": ["x"], "cwd": "{files}"}, "but trainer.files is empty"),
        ({"files": {}}, "there is no placeholder {files}"),
    ],
)
def test_folders_that_mean_nothing_are_refused_at_load(change: dict[str, Any], law: str) -> None:
    with pytest.raises(SpecError, match=re.escape(law)):
        trainer("command").check_own_knobs([], {"argv": ARGV, "files": FILES, **change})


@pytest.mark.parametrize("cwd", ["", "{files}", "code"])
def test_an_exported_launch_finds_its_files_and_its_folder(tmp_path: Path, cwd: str) -> None:
    code = tmp_path / "it's code"
    code.mkdir()
    if cwd == "code":
        cwd = str(code)
    show = "import json, os, sys; print(json.dumps([os.getcwd(), json.load(open(sys.argv[1])), os.environ['CONF']]))"
    options = {
        "argv": [sys.executable, "-c", show, "{files}/conf/train.json", "{dp}"],
        "env": {"CONF": "{files}/conf"},
        "files": FILES,
        "cwd": cwd,
    }
    folder = tmp_path / "my launch"
    write_launch(trainer("command").launch(WORKLOAD, CONFIG, options), folder)
    done = subprocess.run(
        ["sh", str(folder / "launch.sh")],
        capture_output=True,
        cwd=tmp_path,
        timeout=600,
        check=True,
    )
    expected = {"": tmp_path, "{files}": folder}.get(cwd, code)
    assert json.loads(done.stdout) == [str(expected), {"batch": 2, "steps": 4}, f"{folder}/conf"]


def test_a_launch_without_files_is_written_as_before() -> None:
    assert Launch(argv=("x", "", "a b")).script.splitlines()[-1] == "exec x '' 'a b' \"$@\""


def spec_of(folder: Path, **trainer_options: Any) -> Path:
    options = {"kind": "command", "argv": ARGV, **trainer_options}
    path = folder / "spec.yaml"
    document = {
        "model": "nano-gpt",
        "cluster": "cpu-1x4",
        "workload": {"seq_len": 64, "global_batch_size": 16},
        "space": {"micro_batch_size": [1, 2], "precision": ["fp32"]},
        "trainer": options,
    }
    path.write_text(yaml.safe_dump(document))
    return path


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("t.json", '{"batch": "{micro_batch_size}", "steps": "{accumulation_steps}"}'),
        ("t.yaml", 'batch: "{micro_batch_size}"\nsteps: "{accumulation_steps}"\n'),
        ("t.toml", 'batch = "{micro_batch_size}"\nsteps = "{accumulation_steps}"\n'),
    ],
)
def test_folder_and_templates_are_relative_to_the_spec(
    tmp_path: Path, name: str, text: str
) -> None:
    (tmp_path / "code").mkdir()
    (tmp_path / name).write_text(text)
    document = read_spec(spec_of(tmp_path, cwd="code", files={"conf/train.json": name}))
    study = parse_study(document)
    assert study.trainer_options["cwd"] == str(tmp_path / "code")
    assert study.trainer_options["files"] == FILES


@pytest.mark.parametrize(
    ("options", "field", "law"),
    [
        ({"cwd": "nowhere"}, "trainer.cwd", "does not exist"),
        ({"files": {"a.json": "nowhere.json"}}, "trainer.files.a.json", "does not exist"),
        ({"files": {"a.toml": "bare.toml"}}, "trainer.files.a.toml", "is not TOML"),
        (
            {"files": {"conf/train.json": "bare.json"}},
            "trainer.files.conf/train.json",
            "has no quotes",
        ),
    ],
)
def test_a_folder_or_template_that_is_not_there_or_not_valid_is_named(
    tmp_path: Path, options: dict[str, Any], field: str, law: str
) -> None:
    (tmp_path / "bare.json").write_text('{"batch": {micro_batch_size}}')
    (tmp_path / "bare.toml").write_text("batch = {micro_batch_size}")
    with pytest.raises(SpecError, match=law) as caught:
        parse_study(read_spec(spec_of(tmp_path, **options)))
    assert caught.value.field == field


def test_a_command_that_names_a_file_beside_its_spec_runs_there_wherever_it_is_started(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "train.py").write_text("")
    spec = tmp_path / "spec.yaml"
    monkeypatch.chdir("/")
    for argv, cwd in (
        (["torchrun", "train.py"], str(tmp_path)),
        (["torchrun", "-m", "mine.train"], None),
    ):
        spec.write_text(json.dumps({"trainer": {"kind": "command", "argv": argv}}))
        assert read_spec(spec)["trainer"].get("cwd") == cwd
    spec.write_text(
        json.dumps(
            {"trainer": {"kind": "command", "argv": ["python", "train.py"], "cwd": "{files}"}}
        )
    )
    assert read_spec(spec)["trainer"]["cwd"] == "{files}"
