"""What a caller gets wrong ends with exit code 2 (1 when nothing is feasible), law, values and
remedy, and no traceback."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest


@pytest.mark.parametrize(
    ("changes", "code", "words"),
    [
        ({"serch": "x"}, 2, ["serch", "searcher"]),
        ({"model": "gpt2-smal"}, 2, ["gpt2-smal", "gpt2-small"]),
        ({"cluster": "a100-40gb-0x8"}, 2, ["num_nodes", "0"]),
        ({"searcher": "bayes"}, 2, ["bayes", "bayesian"]),
        ({"runner": "flux"}, 2, ["flux", "simulated"]),
        ({"trainer": "mega"}, 2, ["mega", "megatron"]),
        ({"space": "dense-singel-node"}, 2, ["dense-singel-node", "dense-single-node"]),
        ({"space": {"tp": [0]}}, 2, ["tp"]),
        ({"space": {"tpp": [1]}}, 2, ["tpp", "tp"]),
        ({"space": {"tp": [5]}}, 1, ["tp", "num_attention_heads"]),
        ({"workload": {"seq_len": -1, "global_batch_size": 8}}, 2, ["seq_len"]),
        ({"workload": {"seq_len": 1024}}, 2, ["global_batch_size"]),
        ({"data": "no/such/file.txt"}, 2, ["no/such/file.txt"]),
        ({"model": "no/config.json"}, 2, ["no/config.json"]),
        (
            {"model": "llama-405b", "workload": {"seq_len": 4096, "global_batch_size": 64}},
            1,
            ["GiB"],
        ),
    ],
)
def test_a_wrong_spec(refusal, write, changes, code, words):
    output = refusal("tune", write(**changes), code=code)
    assert output.startswith("error: ") or "\nerror: " in output
    assert "Traceback" not in output
    for word in words:
        assert word in output


@pytest.mark.parametrize(
    "line",
    [
        "nope",
        "tune",
        "tune missing.yaml",
        "status nothing",
        "best --top x",
        "best one --model gpt2-small",
        "list --status bogus",
        "models --bogus",
        "list --store mysql://x/y",
        "plan missing.yaml --tokens 5",
    ],
)
def test_a_wrong_command_line(refusal, line):
    output = refusal(*line.split())
    assert "error: " in output
    assert "Traceback" not in output
    assert "secret" not in output


def test_errors_as_one_json_document(run):
    done = run("status", "nothing", "--json")
    assert done.code == 2
    assert set(done.document["error"]) == {"kind", "message", "field", "remedy"}


def test_a_spec_that_is_not_yaml(refusal, tmp_path):
    (tmp_path / "bad.yaml").write_text("a: [1, 2")
    assert "bad.yaml" in refusal("plan", "bad.yaml")


def test_the_empty_command_line_shows_the_help(refusal):
    assert "Tune:" in refusal()


def test_nan_never_reaches_json():
    from autotune.cli.output import strict

    assert (
        json.dumps(strict({"a": [float("nan"), float("inf"), 1.0]}), allow_nan=False)
        == '{"a": [null, null, 1.0]}'
    )


@pytest.mark.thorough
@pytest.mark.parametrize("line", ["models", "models --json", "--version"])
def test_a_closed_pipe_is_not_a_failure(line: str) -> None:
    reading, writing = os.pipe()
    os.close(reading)  # as `autotune list | head` has once it has read enough
    command = [sys.executable, "-c", "from autotune.cli import main; main()", *line.split()]
    with open(writing, "wb") as gone:
        done = subprocess.run(
            command, stdout=gone, stderr=subprocess.PIPE, timeout=600, check=False
        )
    assert (done.returncode, done.stderr) == (0, b"")


def test_names_are_shown_as_they_are(run):
    made = run("token", "create", "--owner", "team[/a] [red]")
    assert made.code == 0, made.err
    assert "\tteam[/a] [red]\t" in run("token", "list").out


@pytest.mark.parametrize("command", [("list",), ("revoke", "abc"), ("audit",)])
def test_commands_that_read_tokens_create_no_store(refusal, tmp_path, command):
    assert "there is no store at" in refusal("token", *command)
    assert not (tmp_path / "results.db").exists()


@pytest.mark.parametrize("command", ["tune", "check"])
def test_a_disabled_probe_is_reported_once(run, write, monkeypatch, command):
    monkeypatch.setenv("AUTOTUNE_PROBE", "off")
    program = {"kind": "command", "argv": ["true", "{micro_batch_size}"]}
    output = run(command, write(trainer=program)).err
    assert output.count("AUTOTUNE_PROBE=off") == 1
    assert "the program is not observed" in output


@pytest.mark.parametrize(
    "line", ["init trainn.sh", "review trainn.sh", "review train.sh --log trainn.sh"]
)
def test_a_missing_file_is_reported_with_a_similar_name(refusal, tmp_path, line):
    (tmp_path / "train.sh").write_text("torchrun --nproc_per_node=8 train.py --batch_size 4\n")
    assert "did you mean train.sh?" in refusal(*line.split())


def test_a_status_filter_accepts_the_printed_form(run, refusal):
    output = refusal("list", "--status", "complete")
    assert "completed, failed, cancelled, but is 'complete'; did you mean completed?" in output
    assert run("list", "--status", "COMPLETED").code == 0
