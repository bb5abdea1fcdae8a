"""The worked examples of the page "My run is slow" give the answers that stand there."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from autotune.cli import run
from tests.docs.pages import ROOT, blocks

PAGE = blocks(ROOT / "docs" / "how-to" / "my-run-is-slow.md")


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for block in PAGE:
        if block.title:
            (tmp_path / block.title).write_text(block.text)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("AUTOTUNE_STORE", str(tmp_path / "results.db"))
    return tmp_path


def said_after(command: str) -> str:
    """The answer that the page shows below a command."""
    at = next(
        i for i, block in enumerate(PAGE) if block.language == "console" and command in block.text
    )
    return PAGE[at + 1].text.replace("autotune: ", "")


@pytest.mark.parametrize("log", ["waits.log", "pauses.log"])
def test_a_log_gives_the_answer_of_the_page(
    folder: Path, log: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["diagnose", "--log", log, "slow.yaml"]) == 0
    told = capsys.readouterr().out
    for line in said_after(log).splitlines():
        assert line in told


@pytest.mark.thorough
def test_the_program_itself_gives_its_class_and_line(folder: Path) -> None:
    tool = str(Path(sys.executable).with_name("autotune"))
    done = subprocess.run(
        [tool, "run", "--diagnose", "--json", "--", sys.executable, "loads.py"],
        stdout=subprocess.PIPE,
        text=True,
        timeout=900,
        check=True,
    )
    first, *_ = (f for f in json.loads(done.stdout)["findings"] if f["class"] != "foreign_process")
    assert said_after("loads.py").startswith(f"1. {first['class']}")
    assert first["line"].endswith("loads.py:12")
    assert "num_workers" in first["change"]
    assert first["low"] <= first["share"] <= first["high"]
