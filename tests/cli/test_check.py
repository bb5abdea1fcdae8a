"""`autotune check` tries a spec for five steps: what it prints, what it proposes, and its exit
codes."""

from __future__ import annotations

import sys
from contextlib import closing

import pytest
import yaml

from autotune import api
from tests.program_specs import PROGRAM, program_spec


@pytest.fixture
def write_program(tmp_path):
    """Writes a program with its spec, changed by keyword, and returns the spec's path."""

    def write(program=PROGRAM, trainer=(), **changes):
        document = program_spec(tmp_path, program, **dict(trainer)) | {"measure": {}} | changes
        path = tmp_path / "spec.yaml"
        path.write_text(yaml.safe_dump(document))
        return path

    return write


def test_a_program_with_a_readable_log_is_ready(run, output_of, write_program, tmp_path):
    template = {"train.json": {"batch": "{micro_batch_size}"}}
    path = write_program(trainer={"files": template, "env": {"CONFIG": "{files}/train.json"}})
    output = output_of("check", path)
    command = f"{sys.executable} {tmp_path}/train.py --steps=32 --batch=1 --accum=4"
    assert f"command   {command}" in output.splitlines()
    for line in (
        "space     2 valid configs",
        "config    tp1 pp1 dp1 mb1 acc4 fp32 (the baseline)",
        f"program   {sys.executable}",
        "variable  CONFIG=FILES/train.json",
        "file      train.json",
        '            "batch": 1',
        f"{'-':34} loading data",
        f"{'step 3, 10 ms, loss 9.7':34} iter 3: loss 9.70, time 10.03ms",
    ):
        assert line in output.splitlines(), line
    assert ".".join(map(str, sys.version_info[:3])) in output
    assert output.splitlines()[-1].startswith(
        "ready: read 5 steps, 10 ms each by its log, with losses"
    )
    assert run("list", "--json").document["studies"] == [], "it is no study"


def test_overridden_values_are_shown_without_the_file_that_sets_them(
    output_of, write_program, tmp_path
):
    own = {"train.py": {"BATCH": "{micro_batch_size}", "STEPS": "{accumulation_steps}"}}
    words = [sys.executable, "train.py", "--steps={steps}"]
    path = write_program(
        f"BATCH = 8\nSTEPS = 2\n{PROGRAM}",
        trainer={"argv": words, "cwd": str(tmp_path), "overrides": own},
    )
    lines = output_of("check", path).splitlines()
    begins = lines.index("file      train.py, which starts the program with")
    assert lines[begins + 1 : begins + 4] == ["          BATCH = 1", "          STEPS = 4", ""]


def test_patterns_are_proposed_for_an_unreadable_log(run, write_program):
    done = run("check", write_program(trainer={"metrics": {}}))
    assert done.code == 1
    assert done.out.splitlines()[-1].startswith("not ready: none of the ")
    block = done.out[done.out.index("  metrics:") : done.out.index("not ready")]
    proposed = yaml.safe_load(block)["metrics"]
    assert set(proposed) == {"step", "step_time_ms", "loss"}
    assert run("check", write_program(trainer={"metrics": proposed})).code == 0


def test_one_document_with_json(run, write_program):
    done = run("check", write_program(), "--json")
    assert (done.code, done.err) == (0, "")
    document = done.document
    assert document["ready"]
    assert document["steps"] == 5
    assert document["metrics"] == ["step", "step_time_s", "loss"]
    assert document["launch"]["command"].endswith("--batch=1 --accum=4")
    assert document["lines"][0] == {"node": 0, "text": "loading data", "metrics": {}}
    done = run(
        "check",
        write_program("import sys; print('error: unrecognized arguments: --x'); sys.exit(2)"),
        "--json",
    )
    assert done.code == 1
    assert not done.document["ready"]
    assert "does not accept these arguments" in done.document["remedy"]


@pytest.mark.parametrize(
    ("changes", "code", "words"),
    [
        ({"runner": "flux"}, 2, "there is no runner"),
        ({"runner": {"kind": "local", "device": "cpu", "max_rank": 1}}, 2, "max_ranks"),
        ({"cluster": "h100-sxm-1x1", "runner": "local"}, 2, "no GPU is visible"),
        ({"space": {"tp": [5], "precision": ["fp32"]}}, 1, "tp"),
    ],
)
def test_a_program_that_cannot_be_checked_is_rejected_before_it_starts(
    refusal, write_program, monkeypatch, changes, code, words
):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    assert words in refusal("check", write_program(**changes), code=code)


def test_tune_reports_a_faulty_program_and_skips_the_check_on_request(refusal, write_program):
    path = write_program("print('hello')", budget={"max_trials": 1})
    output = refusal("tune", path, code=1)
    assert (
        "error: the study has not started, because its program does not work: none of the 1 line"
        in output
    )
    assert "trial 0" not in output
    assert "metrics missing" in refusal("tune", path, "--no-check", code=1)


def test_the_service_does_the_check_of_a_submission_unless_disabled(run, write_program):
    path = write_program("print('hello')")
    assert run("submit", path, "--json").code == 0
    study = run("submit", path, "--no-check", "--json").document["study"]["id"]
    with closing(api.open_store()) as database:
        assert not database.study(study).study.check
        assert all(record.study.check for record in database.studies() if record.id != study)
