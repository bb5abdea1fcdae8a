"""`autotune check` of a real program in torch: what is said beside what is seen, what `--fix`
mends, and files that stay as they were."""

from __future__ import annotations

import shutil
import sys

import pytest
import yaml

from tests.workers.probe.watching import PROGRAMS


@pytest.fixture
def spec(tmp_path):
    """A spec whose seq_len is wrong and whose `--dtype` is misspelt, beside a program that saves
    over a checkpoint of the user's."""
    shutil.copy(PROGRAMS / "decoder.py", tmp_path / "train.py")
    (tmp_path / "mine.pt").write_text("weeks of work")
    argv = [
        sys.executable,
        "train.py",
        "--batch={micro_batch_size}",
        "--accumulate={accumulation_steps}",
    ]
    argv += ["--steps={steps}", "--dtype={precision}", "--model-file=mine.pt"]
    shape = {
        "num_layers": 2,
        "hidden_size": 32,
        "num_attention_heads": 4,
        "ffn_hidden_size": 128,
        "vocab_size": 64,
    }
    document = {
        "name": "seen",
        "model": {**shape, "tied_embeddings": True, "gated_mlp": False},
        "cluster": {"gpu": "cpu", "num_nodes": 1, "gpus_per_node": 1},
        "workload": {"seq_len": 32, "global_batch_size": 4},
        "space": {"micro_batch_size": [2, 4], "precision": ["fp32", "bf16"]},
        "runner": {"kind": "local", "device": "cpu"},
        "trainer": {
            "kind": "command",
            "argv": argv,
            "cwd": str(tmp_path),
            "values": {"precision": {"fp32": "float32"}},
        },
    }
    path = tmp_path / "spec.yaml"
    path.write_text(yaml.safe_dump(document))
    return path


@pytest.mark.thorough
def test_differences_are_reported_and_fixed_and_files_are_restored(run, spec):
    done = run("check", spec, "--fix", "--json")
    assert done.code == 1
    found = done.document
    assert found["time_from"] == "probe"
    assert not found["ready"]
    first, second = found["said_and_seen"]
    assert (first["micro_batches"] * first["sequences"], first["facts"]["world"]) == (
        first["micro_batches"] * 4,
        1,
    )
    assert {row["name"] for row in first["rows"] if row["agrees"] is False} == {"seq_len"}
    assert {row["name"] for row in second["rows"] if row["agrees"] is False} == {
        "seq_len",
        "precision",
    }
    assert any("precision has no effect" in told for told in found["differences"])
    assert "to existing files outside its trial's folder: " in found["remedy"]
    assert found["files"][str(spec.parent / "mine.pt")] == {
        "how": "written",
        "existed": True,
        "kept": True,
    }
    assert (spec.parent / "mine.pt").read_text() == "weeks of work"
    assert yaml.safe_load(spec.read_text())["workload"]["seq_len"] == 16
    assert sorted(p.name for p in spec.parent.iterdir() if "autotune" in p.name) == []


@pytest.mark.thorough
def test_a_correct_spec_is_ready_and_may_allow_replaced_files(output_of, spec):
    document = yaml.safe_load(spec.read_text())
    document["workload"]["seq_len"] = 16
    document["trainer"]["values"]["precision"]["bf16"] = "bfloat16"
    spec.write_text(yaml.safe_dump({**document, "outputs": "keep"}))
    output = output_of("check", spec)
    assert "read 5 steps" in output
    assert "each by the probe" in output
    assert (spec.parent / "mine.pt").read_bytes()[:2] == b"PK"


@pytest.mark.thorough
def test_a_variable_disables_the_probe(run, spec, monkeypatch):
    monkeypatch.setenv("AUTOTUNE_PROBE", "off")
    done = run("check", spec, "--json")
    assert done.document["time_from"] != "probe"
    assert done.document["said_and_seen"][0]["rows"] == []


@pytest.mark.thorough
def test_an_image_model_is_ready_after_the_proposed_changes(run, output_of, tmp_path):
    """No shape of a decoder has its weights, and it is trained by SGD: `--fix` writes both."""
    shutil.copy(PROGRAMS / "images.py", tmp_path / "train.py")
    path = tmp_path / "images.yaml"
    document = {
        "name": "images",
        "cluster": {"gpu": "cpu", "num_nodes": 1, "gpus_per_node": 1},
        "model": "nano-gpt",
        "workload": {"seq_len": 1, "global_batch_size": [2, 4]},
        "space": {"micro_batch_size": [2, 4], "accumulation_steps": [1], "precision": ["fp32"]},
        "runner": {"kind": "local", "device": "cpu"},
        "trainer": {
            "kind": "command",
            "argv": [
                sys.executable,
                "train.py",
                "--batch-size={micro_batch_size}",
                "--steps={steps}",
            ],
            "cwd": str(tmp_path),
        },
    }
    path.write_text(yaml.safe_dump(document))
    first = run("check", path, "--fix")
    assert first.code == 1, first.out
    assert "set `model: {parameters: 314}`" in first.out
    mended = yaml.safe_load(path.read_text())
    assert mended == {
        **document,
        "model": {"parameters": 314},
        "workload": {**document["workload"], "optimizer": "sgd"},
    }
    assert "known only by its 314 weights" in output_of("check", path)


@pytest.mark.thorough
def test_what_a_program_does_beside_its_spec_is_seen(run, tmp_path):
    """Sequences twice as long as said, a file that it does not read, adapters, a frozen reference,
    and a moving average."""
    shutil.copy(PROGRAMS / "unlike_its_spec.py", tmp_path / "train.py")
    document = {
        "name": "unlike",
        "model": {"parameters": 64 * 32 + 32 * 32 + 32 + 64 + 32 * 64 + 64},
        "cluster": {"gpu": "cpu", "num_nodes": 1, "gpus_per_node": 1},
        "workload": {"seq_len": 8, "global_batch_size": 4},
        "space": {"micro_batch_size": [1, 2], "precision": ["fp32"]},
        "baseline": "micro_batch_size=2,precision=fp32",
        "runner": {"kind": "local", "device": "cpu"},
        "trainer": {
            "kind": "command",
            "argv": [sys.executable, "train.py", "{files}/train.json"],
            "files": {
                "train.json": {"batch": "{micro_batch_size}", "times": "{accumulation_steps}"}
            },
            "cwd": str(tmp_path),
        },
    }
    path = tmp_path / "unlike.yaml"
    path.write_text(yaml.safe_dump(document))
    found = run("check", path, "--json").document
    assert not found["ready"]
    assert any(told.startswith("batch options have no effect") for told in found["differences"])
    rows = {row["name"]: row for row in found["said_and_seen"][0]["rows"]}
    assert {name for name, row in rows.items() if row["agrees"] is False} == {
        "seq_len",
        "trained weights",
    }
    assert rows["seq_len"]["seen"] == "16"
    assert rows["trained weights"]["seen"] == "64 of 5,280"
    assert rows["other models"]["seen"] == "5,280 weights"
    assert rows["copies of weights"]["seen"] == "5,184 weights"
