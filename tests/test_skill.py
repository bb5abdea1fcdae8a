"""Each task of the skill's eval is solved by its documented command, and its grader refuses careless answers."""

from __future__ import annotations

import json
import sys
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path

import pytest

from autotune import cli

EVALS = Path(__file__).resolve().parents[1] / "skills" / "autotune" / "evals.py"
loaded = spec_from_file_location("skill_evals", EVALS)
assert loaded is not None
assert loaded.loader is not None
evals = module_from_spec(loaded)
sys.modules[loaded.name] = evals
loaded.loader.exec_module(evals)
TASKS = evals.tasks()


def test_there_are_thirty_tasks() -> None:
    assert len(TASKS) >= 30
    assert len({task.id for task in TASKS}) == len(TASKS)


@pytest.mark.thorough
@pytest.mark.parametrize("task", TASKS, ids=lambda task: task.id)
def test_the_documented_command_solves_it_and_a_careless_answer_does_not(task, capsys) -> None:
    assert cli.run([*task.reference]) in (0, 1)
    answer = evals.solve(task, json.loads(capsys.readouterr().out))
    assert evals.is_right(task, answer), answer
    assert not evals.is_right(task, evals.careless(task))


@pytest.mark.thorough
def test_an_answer_that_is_missing_is_wrong(tmp_path, capsys) -> None:
    (tmp_path / "answers.json").write_text("{}")
    assert evals.main([str(tmp_path / "answers.json")]) == 1
    assert json.loads(capsys.readouterr().out)["right"] == 0
