"""`-o -` prints, in every command that prints where no file is named."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click
import pytest
import typer

from autotune.cli import application


def commands(command: Any, name: str = "") -> list[tuple[str, Any]]:
    if isinstance(command, click.Group) or hasattr(command, "commands"):
        return [found for key, inner in command.commands.items() for found in commands(inner, f"{name} {key}".strip())]
    return [(name, command)]


PRINTING = [
    (name, parameter)
    for name, command in commands(typer.main.get_command(application()))
    for parameter in command.params
    if "-o" in parameter.opts and "print" in (parameter.help or "")
]


def test_commands_with_an_output_that_is_printed_are_found() -> None:
    assert {"report", "export", "init", "import"} <= {name for name, _ in PRINTING}


@pytest.mark.parametrize(("name", "parameter"), PRINTING, ids=[name for name, _ in PRINTING])
def test_a_dash_is_no_file(name: str, parameter: Any) -> None:
    context = click.Context(click.Command(name))
    assert parameter.process_value(context, "-") is None
    assert parameter.process_value(context, "x.md") == Path("x.md")


def test_what_a_dash_prints_is_what_nothing_prints(run, write, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    study = run("tune", write(budget={"max_trials": 1}), "--json").document["study"]["id"]
    script = tmp_path / "train.sh"
    script.write_text("torchrun --nproc_per_node 2 train.py --batch-size 4\n")
    before = set(tmp_path.iterdir())
    for line in (
        ("report", study, "--format", "markdown"),
        ("export", study, "--to", "torchtitan"),
        ("init", "train.sh"),
    ):
        plain, dashed = run(*line), run(*line, "-o", "-")
        assert dashed.out == plain.out
        assert dashed.code == plain.code
    assert set(tmp_path.iterdir()) == before
