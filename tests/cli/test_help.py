"""The help pages: every command in one group, no sentence cut, and examples that the command line
accepts."""

from __future__ import annotations

import inspect
import re
import runpy
import shlex
from collections import Counter

import pytest
import typer

from autotune.cli import MODULES, application
from autotune.cli.help_pages import EXAMPLES, GROUPS, MORE, commands_of

PATHS = [path for path, _ in commands_of(application())]


def test_every_command_is_in_one_group() -> None:
    listed = Counter(name for names in GROUPS.values() for name in names)
    assert set(listed) == {path.split()[0] for path in PATHS}
    assert set(listed.values()) == {1}


def test_a_command_is_built_without_other_modules() -> None:
    for commands in MODULES.values():
        for word in commands:
            assert {path.split()[0] for path, _ in commands_of(application(word))} == set(commands)
    assert {path.split()[0] for path in PATHS} == {
        word for commands in MODULES.values() for word in commands
    }


def test_the_first_page_has_the_groups_and_whole_sentences(
    run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    page = run("--help").out
    assert re.findall(r"^(\S.*):$", page, re.MULTILINE) == ["Options", *GROUPS]
    assert f"{MORE}:" not in page
    assert "..." not in page.partition("Options:")[2]
    assert max(map(len, page.splitlines())) <= 80


@pytest.mark.thorough
@pytest.mark.parametrize("path", PATHS)
def test_the_examples_of_a_command_are_accepted_by_its_command_line(path: str) -> None:
    lines = EXAMPLES[path]
    for line in lines:
        assert len(line) <= 76
        words = shlex.split(re.split(r"   +| [|>] ", line)[0])
        assert words[: 1 + len(path.split())] == ["autotune", *path.split()]
        command = typer.main.get_command(application())
        for name in path.split():
            command = command.commands[name]  # type: ignore[attr-defined]
        command.make_context(path, words[1 + len(path.split()) :])


def test_examples_end_the_page_of_a_command(run) -> None:
    assert run("plan", "--help").out.rstrip().splitlines()[-3:] == [
        f"    {line}" for line in EXAMPLES["plan"]
    ]


def test_every_command_has_the_json_option() -> None:
    for path, info in commands_of(application()):
        assert "json" in inspect.signature(info.callback).parameters, path


def test_python_m_autotune_is_the_command_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.argv", ["autotune", "trainers", "--help"])
    with pytest.raises(SystemExit) as ended:
        runpy.run_module("autotune", run_name="__main__")
    assert ended.value.code == 0
    assert "Usage: autotune trainers" in capsys.readouterr().out
