"""autotune import: files, standard output, JSON, and what is refused."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

DS = '{"train_batch_size": 64, "train_micro_batch_size_per_gpu": 4, "gradient_accumulation_steps": 2, "zero_optimization": {"stage": 3}}'


def test_an_imported_spec_is_planned(run: Callable[..., Any], tmp_path: Path) -> None:
    (tmp_path / "ds.json").write_text(DS)
    known = ("--model", "llama-8b", "--cluster", "h100-sxm-1x8")
    done = run("import", "--from", "deepspeed", "ds.json", *known, "-o", "specs/study.yaml")
    assert (done.code, done.out) == (0, "")
    assert "next: fill in these values, then autotune plan specs/study.yaml" in done.err
    assert run("plan", "specs/study.yaml", "--top", "1").code == 0


def test_only_force_overwrites_a_file(
    run: Callable[..., Any], refusal: Callable[..., Any], tmp_path: Path
) -> None:
    (tmp_path / "ds.json").write_text(DS)
    (tmp_path / "study.yaml").write_text("mine")
    assert "study.yaml exists; choose another file with -o, or replace it with --force" in refusal(
        "import", "--from", "deepspeed", "ds.json", "-o", "study.yaml"
    )
    assert (tmp_path / "study.yaml").read_text() == "mine"
    assert run("import", "--from", "deepspeed", "ds.json", "-o", "study.yaml", "--force").code == 0
    assert (
        "kind: deepspeed" in (tmp_path / "study.yaml").read_text()
        or "trainer: deepspeed" in (tmp_path / "study.yaml").read_text()
    )


def test_json_has_the_spec_and_the_placeholders(run: Callable[..., Any], tmp_path: Path) -> None:
    (tmp_path / "ds.json").write_text(DS)
    document = run("import", "--from", "deepspeed", "ds.json", "--json").document
    assert document["fill_in"] == ["model", "cluster", "workload.seq_len"]
    assert document["spec"]["baseline"].startswith(
        "tp=1,dp=8,micro_batch_size=4,accumulation_steps=2"
    )


def test_import_of_a_trainer_without_a_configuration_file_suggests_init(
    refusal: Callable[..., Any], tmp_path: Path
) -> None:
    (tmp_path / "train.py").write_text("")
    assert "run `autotune init FILE` to write a first spec from a script" in refusal(
        "import", "--from", "command", "train.py"
    )


SCRIPT = """import argparse
parser = argparse.ArgumentParser()
parser.add_argument("--batch-size", type=int, default=4)
parser.add_argument("--grad-accum", type=int, default=2)
parser.add_argument("--max-steps", type=int, default=10)
args = parser.parse_args()
for step in range(args.max_steps):
    print(f"step {step} loss {1 / (step + 1):.4f} time {0.01:.3f} s")
"""


def test_init_writes_a_spec_that_is_planned_from_another_folder(
    run: Callable[..., Any], tmp_path: Path
) -> None:
    (tmp_path / "code").mkdir()
    (tmp_path / "code" / "train.py").write_text(SCRIPT)
    done = run(
        "init",
        "code/train.py",
        "--model",
        "nano-gpt",
        "--cluster",
        "cpu-1x1",
        "-o",
        "specs/train.yaml",
    )
    assert (done.code, done.out) == (0, "")
    assert "cannot be loaded" not in done.err
    assert "fill in: workload.seq_len" in done.err
    assert "next: fill in these values, then autotune check specs/train.yaml" in done.err
    assert run("plan", "specs/train.yaml", "--top", "1", "--json").document["feasible"] > 0


def test_init_json_has_the_text_with_comments(run: Callable[..., Any], tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(SCRIPT)
    document = run("init", "train.py", "--json").document
    assert "# line 3, default 4" in document["text"]
    assert document["spec"]["trainer"]["argv"][-1] == "--max-steps={steps}"


def test_init_rejects_a_missing_file(refusal: Callable[..., Any]) -> None:
    assert "missing.py cannot be read: No such file or directory" in refusal("init", "missing.py")


def test_an_unknown_cluster_is_reported_with_the_nearest_name(
    refusal: Callable[..., Any], tmp_path: Path
) -> None:
    (tmp_path / "train.py").write_text(SCRIPT)
    assert "h100-sxm" in refusal("init", "train.py", "--cluster", "h100-sxn-1x8")
