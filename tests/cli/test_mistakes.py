"""Mistakes that people make at first: each is answered with what is wrong, where, and what to do,
in one message without a traceback."""

from __future__ import annotations

import re

import pytest

from autotune.cli import main

SPEC = """\
name: small
model: gpt2-small
cluster: a100-40gb-1x8
workload: {seq_len: 1024, global_batch_size: 64}
space: {tp: [1, 2], micro_batch_size: [1, 2, 4], precision: [bf16]}
budget: {max_trials: 4, max_wall_s: 1h}
searcher: cost_ranked
runner: {kind: simulated, noise: 0.01}
"""


@pytest.mark.parametrize(
    ("old", "new", "place", "words"),
    [
        (
            "gpt2-small",
            "gpt-2-small",
            "2:1",
            ["there is no model 'gpt-2-small'", "did you mean gpt2-small?"],
        ),
        (
            "gpt2-small",
            "meta-llama/Llama-3-9B",
            "2:1",
            ["neither a file nor the hub id of a catalog model", "did you mean meta-llama/"],
        ),
        (
            "a100-40gb-1x8",
            "a100-1x8",
            "3:1",
            ["there is no cluster 'a100-1x8'", "a100-40gb-1x8, a100-80gb-1x8"],
        ),
        (
            "a100-40gb-1x8",
            "a100-40gb",
            "3:1",
            ["'a100-40gb' is a GPU type", "write a100-40gb-NODESxGPUS, e.g. a100-40gb-1x8"],
        ),
        (
            "a100-40gb-1x8",
            "8xa100",
            "3:1",
            ["there is no cluster '8xa100'", "a100-40gb-1x8, a100-80gb-1x8"],
        ),
        (
            "workload: {",
            "workload:{",
            "4:9",
            ["a colon needs a space after it", "write `workload: ...`"],
        ),
        ("workload: {", "workload:\t{", "4:10", ["YAML does not allow tabs for indentation"]),
        ("64}", "64", "5:6", ["the braces that open on line 4 are not closed", "put `,` between"]),
        ("1024", "1k", "4:12", ["may mean 1 x 1000 or 1 x 1024", "write 1Ki"]),
        (
            "global_batch_size",
            "batch_size",
            "4:27",
            ["there is no key 'batch_size'", "global_batch_size"],
        ),
        ("1h", "1M", "6:25", ["has a unit that can mean millions or months", "write 1min"]),
        ("1h", "soon", "6:25", ["must be a time", "write e.g. 90s"]),
        (
            "max_trials: 4",
            "max_trails: 4",
            "6:10",
            ["there is no key 'max_trails'", "did you mean max_trials?"],
        ),
        ("max_trials: 4", "max_trials: four", "6:10", ["must be a whole number, but is 'four'"]),
        (
            "max_trials: 4",
            "max_trials: 0",
            "6:10",
            ["must be greater than or equal to 1, but is 0"],
        ),
        ("tp: [", "tensor_model_parallel_size: [", "5:9", ["did you mean tp?"]),
        ("bf16", "bfloat16", "5:50", ["but is 'bfloat16'", "did you mean bf16?"]),
        ("cost_ranked", "bayes", "7:1", ["there is no searcher 'bayes'", "did you mean bayesian?"]),
        ("noise:", "nois:", "8:27", ["has no option 'nois'", "did you mean noise?"]),
        ("simulated", "flux", "8:1", ["there is no runner 'flux'", "simulated"]),
        (
            "runner:",
            "trainer: deepsped\nrunner:",
            "8:1",
            ["there is no trainer 'deepsped'", "deepspeed?"],
        ),
        (
            "runner:",
            "data: here.txt\nrunner:",
            "8:1",
            ["'here.txt' does not exist", "set `data` to"],
        ),
        ("runner:", "name: twice\nrunner:", "8:1", ["the key 'name' is given twice"]),
    ],
)
def test_a_mistake_in_a_spec(
    refusal, tmp_path, old: str, new: str, place: str, words: list[str]
) -> None:
    (tmp_path / "study.yaml").write_text(SPEC.replace(old, new, 1))
    output = refusal("tune", "study.yaml")
    assert f"error: study.yaml:{place}: " in output
    assert re.search(r"^ +\| +\^+$", output, re.MULTILINE), "carets under the mistake"
    for word in words:
        assert word in output
    assert "Traceback" not in output


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("plan study.ymal", ["'study.ymal' does not exist", "did you mean study.yaml?"]),
        ("plan .", ["'.' is not a file"]),
        ("plan gpt2-medum-1x8", ["does not exist", "did you mean gpt2-medium-1x8?"]),
        ("plan qqqq", ["does not exist", "a built-in name: few-for-many-laptop, ", "laptop"]),
        ("plan binary.yaml", ["is not UTF-8 text", "pass a YAML or JSON file"]),
        (
            "plan --model gpt2-small --clusters h100-sxm,h200-sxm --seq-len 1024 --batch 64",
            ["'h100-sxm' is a GPU type", "h100-sxm-NODESxGPUS"],
        ),
        ("init empty.yaml", ["empty.yaml is empty", "pass the training script"]),
        (
            "plan words.yaml",
            ["must be a mapping of keys to values, but is text", "with a space after the colon"],
        ),
        ("plan empty.yaml", ["but is empty"]),
        (
            "plan study.yaml --tokens 15T",
            ["works only with --gpus or --clusters", "add e.g. --gpus 64,128"],
        ),
        ("plan study.yaml --gpus 8 --tokens 15Q", ["must be a number of tokens", "15Q", "300B"]),
        ("tune study.yaml --max-trials many", ["'--max-trials': must be a whole number"]),
        ("tune study.yaml --serchr x", ["--serchr", "--searcher"]),
        (
            "estimate study.yaml --config tensor_parallel=2",
            ["there is no knob", "did you mean tp?"],
        ),
        ("pln study.yaml", ["No such command 'pln'", "'plan'", "`autotune --help`"]),
        ("best --days inf", ["'--days'", "must be less than or equal to 36500"]),
        ("best --num-gpus 0", ["'--num-gpus': must be greater than or equal to 1"]),
        ("plan", ["needs a spec, or --model, --cluster", "e.g. autotune plan --model"]),
        ("status nothing", ["there is no study with the id or name 'nothing'", "`autotune list`"]),
        (
            "list --store /no/where.db",
            ["the folder /no of the store", "create the folder, or use another store"],
        ),
        ("list --store mysql://x/y", ["must be SQLite or PostgreSQL", "but is mysql"]),
        ("list --url http://[::1", ["must be http://HOST:PORT", "'http://[::1'", "AUTOTUNE_URL"]),
        ("list --url http://localhost:86oo", ["must be http://HOST:PORT", "86oo"]),
        ("list --url http://localhost:99999", ["must be http://HOST:PORT", "99999"]),
        ("list --url localhost:8600", ["must be http://HOST:PORT", "'localhost:8600'"]),
        ("store check --store none.db", ["there is no store at", "--store or AUTOTUNE_STORE"]),
    ],
)
def test_a_mistake_on_the_command_line(run, tmp_path, line: str, words: list[str]) -> None:
    (tmp_path / "study.yaml").write_text(SPEC)
    (tmp_path / "words.yaml").write_text("model gpt2")
    (tmp_path / "empty.yaml").write_text("")
    (tmp_path / "binary.yaml").write_bytes(b"\xff\xfe\x00")
    done = run(*line.split())
    assert done.code in (2, 3), done.err
    assert done.err.startswith("error: ")
    assert len(done.err.splitlines()) == 1
    for word in words:
        assert word in done.err


@pytest.mark.parametrize("command", ["plan", "check", "tune"])
@pytest.mark.parametrize(
    ("old", "new", "place"),
    [("simulated", "simulatd", "8:1: runner"), ("[1, 2, 4]", "[5]", "5:1: space")],
)
def test_a_mistake_found_after_reading_has_its_line(
    run, tmp_path, command: str, old: str, new: str, place: str
) -> None:
    (tmp_path / "study.yaml").write_text(SPEC.replace(old, new, 1))
    assert run(command, "study.yaml").err.startswith(f"error: study.yaml:{place}: ")


def test_mistakes_are_reported_in_the_order_of_the_spec(refusal, tmp_path) -> None:
    wrong = SPEC.replace("gpt2-small", "gpt2-smal").replace("max_trials", "max_trails")
    wrong = wrong.replace("cost_ranked", "bayes").replace("1024", "many").replace("bf16", "bf61")
    (tmp_path / "study.yaml").write_text(wrong.replace("name: small\n", "trainer: nativ\n"))
    output = refusal("plan", "study.yaml")
    assert re.findall(r"^error: study.yaml:(\d+)", output, re.MULTILINE) == list("124567")


@pytest.mark.parametrize("command", ["status", "best", "explain", "export"])
def test_a_similar_name_of_a_study_is_proposed(run, tmp_path, command: str) -> None:
    (tmp_path / "study.yaml").write_text(SPEC)
    assert run("tune", "study.yaml").code == 0
    output = run(command, "smal", *(["--to", "native"] if command == "export" else []))
    assert "there is no study with the id or name 'smal'" in output.err
    assert "did you mean small? `autotune list` shows the studies" in output.err


def test_windows_is_rejected_before_anything_is_imported(monkeypatch):
    monkeypatch.setattr("sys.platform", "win32")
    with pytest.raises(SystemExit, match="this is Windows; run autotune in WSL 2"):
        main(["plan"])
