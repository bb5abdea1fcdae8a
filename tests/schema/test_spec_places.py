"""A mistake in a spec is reported with its file, line and column, and with the line itself."""

from __future__ import annotations

import copy
import json
import pickle
from pathlib import Path
from typing import Any

import pytest

from autotune import load_study
from autotune.errors import AutotuneError, SpecError
from autotune.schema import ReadDocument, read_spec
from autotune.schema.reading import parse_text
from autotune.schema.source_text import MAX_CARETS

SPEC = """\
name: mine
model: gpt2-small
cluster: a100-40gb-1x8
workload: {seq_len: 1024, global_batch_size: 64}
space:
  tp: [1, 2]
  precision:
    - bf16
    - fp16
budget:
  max_trials: 4
  max_failed_trials: 3
trainer:
  kind: native
searcher: cost_ranked
runner: simulated
"""


def refused(folder: Path, text: str) -> SpecError:
    """The error of a spec with this text, in the file `study.yaml`."""
    path = folder / "study.yaml"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(AutotuneError) as caught:
        load_study(path)
    assert isinstance(caught.value, AutotuneError)
    return caught.value  # type: ignore[return-value]


@pytest.mark.parametrize(
    ("old", "new", "line", "column", "field", "underlined"),
    [
        ("max_trials", "max_trails", 11, 3, "budget.max_trails", "max_trails: 4"),
        ("max_trials: 4", "max_trials: .inf", 11, 3, "budget.max_trials", "max_trials: .inf"),
        (
            "max_trials: 4",
            "max_trials: 2026-01-01",
            11,
            3,
            "budget.max_trials",
            "max_trials: 2026-01-01",
        ),
        ("max_trials: 4", "max_trials: 0100", 11, 3, "budget.max_trials", "max_trials: 0100"),
        ("seq_len: 1024", "seq_len: long", 4, 12, "workload.seq_len", "seq_len: long"),
        (
            ", global_batch_size: 64",
            "",
            4,
            1,
            "workload.global_batch_size",
            "workload: {seq_len: 1024}",
        ),
        ("fp16", "fp17", 7, 3, "space.precision", "precision"),
        ("gpt2-small", "gpt2-smal", 2, 1, "model", "model: gpt2-smal"),
        ("a100-40gb-1x8", "b100-1x8", 3, 1, "cluster", "cluster: b100-1x8"),
        ("kind: native", "kind: native\n  speed: 3", 15, 3, "trainer.speed", "speed: 3"),
        ("cost_ranked", "fastest", 15, 1, "searcher", "searcher: fastest"),
        (
            "runner: simulated",
            "runner: simulated\nbaseline: tp=5",
            17,
            1,
            "baseline",
            "baseline: tp=5",
        ),
    ],
)
def test_an_error_shows_the_line_of_the_file(
    tmp_path: Path, old: str, new: str, line: int, column: int, field: str, underlined: str
) -> None:
    error = refused(tmp_path, SPEC.replace(old, new))
    assert error.place is not None
    assert (error.place.line, error.place.column, error.field) == (line, column, field)
    assert str(error).startswith(f"{tmp_path}/study.yaml:{line}:{column}: ")
    shown, carets = error.place.excerpt.splitlines()[-2:]
    begin, end = carets.index("^"), carets.rindex("^") + 1
    assert shown[begin:end] == underlined


@pytest.mark.parametrize(
    ("text", "line", "column", "words"),
    [
        (
            "a:\n\tb: 1\n",
            2,
            1,
            "YAML does not allow tabs for indentation; replace the tab with spaces",
        ),
        ("a: 1\n b: 2\n", 2, 3, "cannot begin here; check the indentation"),
        ("a: [1, 2\nb: 3\n", 2, 2, "list that begins on line 1 is not closed"),
        ("a: {b: 1\n", 2, 1, "braces that open on line 1 are not closed"),
        ("a: 'b\nc: 1\n", 3, 1, "quote that opens on line 1 is not closed"),
        ("a: 1\nb\nc: 2\n", 3, 1, "key that begins on line 2 has no colon"),
        ("a:\n  b: 1\n c: 2\n", 3, 2, "does not match the lines above"),
        ("a: 1\nb: @home\n", 2, 4, "cannot begin with this character; put quotes"),
        ("a: 1\na: 2\n", 2, 1, "the key 'a' is given twice"),
        ("a: 1\n---\nb: 2\n", 2, 1, "`---` begins a second document; write one document per file"),
    ],
)
def test_an_error_in_invalid_yaml_shows_the_line(
    text: str, line: int, column: int, words: str
) -> None:
    with pytest.raises(SpecError) as caught:
        parse_text(text, where="study.yaml", what="study spec", file="study.yaml")
    assert caught.value.place is not None
    assert (caught.value.place.line, caught.value.place.column) == (line, column)
    assert words in str(caught.value)
    assert str(caught.value).startswith(f"study.yaml:{line}:{column}: the study spec is not YAML: ")


def test_all_unknown_keys_and_wrong_values_are_reported_at_once_in_the_order_of_the_text(
    tmp_path: Path,
) -> None:
    wrong = (
        SPEC.replace("seq_len: 1024", "seq_len: x")
        .replace("max_trials", "max_trails")
        .replace("kind", "kin")
    )
    error = refused(tmp_path, wrong.replace("max_failed", "max_faild"))
    fields = [problem["field"] for problem in error.document()["problems"]]
    assert fields == [
        "workload.seq_len",
        "budget.max_trails",
        "budget.max_faild_trials",
        "trainer.kind",
    ]
    assert [problem["line"] for problem in error.document()["problems"]] == [4, 11, 12, 13]
    assert {"message", "field", "remedy", "file", "line", "column"} == set(
        error.document()["problems"][0]
    )


def test_the_wrong_values_of_all_knobs_are_reported_at_once(tmp_path: Path) -> None:
    head, _, tail = SPEC.partition("space:\n")
    wrong = "space: {precision: [bfloat16], recompute: [no, full], tp: [1, 0], zero_stage: [1]}\n"
    error = refused(tmp_path, f"{head}{wrong}{tail[tail.index('budget') :]}")
    told = {problem["field"]: problem["remedy"] for problem in error.document()["problems"]}
    assert told == {
        "space.precision": "did you mean bf16?",
        "space.recompute": "put quotes around a word: YAML reads yes, on, no and off as true and false",
        "space.tp": "",
    }


def test_an_error_in_an_included_file_shows_the_line_of_that_file(tmp_path: Path) -> None:
    (tmp_path / "mine.yaml").write_text("tp: [1]\nmicro_batchsize: [1, 2]\n", encoding="utf-8")
    head, _, tail = SPEC.partition("space:\n")
    error = refused(tmp_path, f"{head}space: mine.yaml\n{tail[tail.index('budget') :]}")
    assert str(error).startswith(f"{tmp_path}/mine.yaml:2:1: space.micro_batchsize")


def test_an_error_in_a_command_line_value_shows_no_line(tmp_path: Path) -> None:
    path = tmp_path / "study.yaml"
    path.write_text(SPEC, encoding="utf-8")
    with pytest.raises(AutotuneError) as caught:
        load_study(path, overrides={"searcher": "fastest"})
    assert caught.value.place is None
    assert "problems" not in caught.value.document()


def test_an_error_in_a_long_line_shows_an_excerpt() -> None:
    document: dict[str, Any] = {"name": "mine", "notes": ["x" * 300], "budget": {"max_trails": 4}}
    read = parse_text(json.dumps(document), where="the request", what="study spec")
    with pytest.raises(AutotuneError) as caught:
        load_study(read)
    error = next(
        error
        for error in (caught.value, *caught.value.others)
        if error.field == "budget.max_trails"
    )
    assert error.place is not None
    shown, carets = error.place.excerpt.splitlines()
    assert shown[carets.index("^") :].startswith('"max_trails": 4')
    assert len(shown) < 110


def test_carets_under_a_long_value_show_where_it_begins(tmp_path: Path) -> None:
    error = refused(tmp_path, f"name: {'n' * 300}\nmodel: gpt2-medium\n")
    assert error.place is not None
    line, carets = error.place.excerpt.splitlines()
    assert carets.count("^") == MAX_CARETS < len(line)
    assert line[carets.index("^") :].startswith("name: nnn")


def test_a_copied_document_keeps_its_text(tmp_path: Path) -> None:
    (tmp_path / "study.yaml").write_text(SPEC, encoding="utf-8")
    read = read_spec(tmp_path / "study.yaml")
    for same in (copy.deepcopy(read), pickle.loads(pickle.dumps(read))):
        assert isinstance(same, ReadDocument)
        assert same == read == json.loads(json.dumps(read))
        assert same.source == read.source


def test_a_key_with_dots_and_an_item_of_a_list_are_found() -> None:
    text = "trainer:\n  files:\n    config.json: {a: 1}\nenqueue:\n  - tp=1\n  - tp=7\n"
    source = parse_text(text, where="x", what="study spec").source
    for field, line, column in (
        ("trainer.files.config.json.a", 3, 19),
        ("enqueue.1", 6, 5),
        ("enqueue.9", 4, 1),
    ):
        place = source.place_of(field)
        assert place is not None
        assert (place.line, place.column) == (line, column)
    assert source.place_of("absent") is None
