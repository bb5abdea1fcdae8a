"""`-o -` prints, in every command that prints where no file is named, and no command writes a file
of that name."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import click
import pytest
import typer

from autotune.cli import application
from autotune.errors import SpecError


def commands(command: Any, name: str = "") -> list[tuple[str, Any]]:
    if isinstance(command, click.Group) or hasattr(command, "commands"):
        return [
            found
            for key, inner in command.commands.items()
            for found in commands(inner, f"{name} {key}".strip())
        ]
    return [(name, command)]


PARAMETERS = [
    (name, parameter)
    for name, command in commands(typer.main.get_command(application()))
    for parameter in command.params
]
PRINTING = [
    (name, parameter)
    for name, parameter in PARAMETERS
    if "-o" in parameter.opts and "print" in (parameter.help or "")
]

WRITTEN = [
    (name, parameter)
    for name, parameter in PARAMETERS
    if not getattr(parameter, "is_flag", False)
    and re.search(r"(?i)^(also )?write |^(file|folder) (to write|for)", parameter.help or "")
    and (name, parameter) not in PRINTING
]


def test_commands_that_can_print_their_output_are_known() -> None:
    assert {"report", "export", "init", "import"} <= {name for name, _ in PRINTING}


@pytest.mark.parametrize(("name", "parameter"), PRINTING, ids=[name for name, _ in PRINTING])
def test_a_dash_is_not_a_file(name: str, parameter: Any) -> None:
    context = click.Context(click.Command(name))
    assert parameter.process_value(context, "-") is None
    assert parameter.process_value(context, "x.md") == Path("x.md")


def test_commands_that_cannot_print_their_output_are_known() -> None:
    assert {"store backup", "store export", "review", "fit"} <= {name for name, _ in WRITTEN}


@pytest.mark.parametrize(("name", "parameter"), WRITTEN, ids=[name for name, _ in WRITTEN])
def test_a_dash_is_rejected_for_output_that_cannot_be_printed(name: str, parameter: Any) -> None:
    context = click.Context(click.Command(name))
    with pytest.raises(SpecError, match="specify a path"):
        parameter.process_value(context, "-")
    assert parameter.process_value(context, "x.html") == Path("x.html")


@pytest.mark.thorough
def test_a_dash_is_the_default_of_output(
    run, write, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
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


def test_parameters_that_cannot_be_printed_reject_a_dash(
    run, write, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    run("tune", write(budget={"max_trials": 1}))
    script = tmp_path / "train.sh"
    script.write_text("torchrun --nproc_per_node 2 train.py --batch-size 4\n")
    before = set(tmp_path.iterdir())
    for line, field in (
        (("store", "backup", "-"), "target"),
        (("store", "export", "-"), "folder"),
        (("review", "train.sh", "--write", "-"), "--write"),
    ):
        done = run(*line, "--json")
        assert done.code == 2, (line, done.err)
        assert done.document["error"]["field"] == field
        assert "specify a path" in done.err
    assert set(tmp_path.iterdir()) == before


def test_a_file_that_cannot_be_written_is_bad_input(run, write, tmp_path: Path) -> None:
    run("tune", write(budget={"max_trials": 1}))
    for line in (
        ("store", "backup", str(tmp_path / "spec.yaml")),
        ("store", "backup", str(tmp_path / "no" / "backup.db")),
        ("store", "export", str(tmp_path / "spec.yaml")),
    ):
        done = run(*line)
        assert done.code == 2, (line, done.err)
        assert line[2] in done.err
