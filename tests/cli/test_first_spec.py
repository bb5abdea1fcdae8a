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
    assert "next: autotune plan specs/study.yaml" in done.err
    assert run("plan", "specs/study.yaml", "--top", "1").code == 0


def test_it_overwrites_with_force_alone(run: Callable[..., Any], tmp_path: Path) -> None:
    (tmp_path / "ds.json").write_text(DS)
    (tmp_path / "study.yaml").write_text("mine")
    refused = run("import", "--from", "deepspeed", "ds.json", "-o", "study.yaml")
    assert refused.code == 2
    assert "study.yaml exists; name another file with -o, or replace it with --force" in refused.err
    assert (tmp_path / "study.yaml").read_text() == "mine"
    assert run("import", "--from", "deepspeed", "ds.json", "-o", "study.yaml", "--force").code == 0
    assert (
        "kind: deepspeed" in (tmp_path / "study.yaml").read_text()
        or "trainer: deepspeed" in (tmp_path / "study.yaml").read_text()
    )


def test_json_holds_the_spec_and_what_is_to_be_filled_in(run: Callable[..., Any], tmp_path: Path) -> None:
    (tmp_path / "ds.json").write_text(DS)
    document = run("import", "--from", "deepspeed", "ds.json", "--json").document
    assert document["fill_in"] == ["model", "cluster", "workload.seq_len"]
    assert document["spec"]["baseline"].startswith("tp=1,dp=8,micro_batch_size=4,accumulation_steps=2")


def test_a_trainer_without_a_configuration_of_its_own_points_to_init(run: Callable[..., Any], tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("")
    done = run("import", "--from", "command", "train.py")
    assert done.code == 2
    assert "`autotune init FILE` makes a first spec of a script" in done.err
