"""Each task of the skill's eval is solved by the documented commands, whose proposals are all valid
and fit, and its grader refuses careless answers."""

from __future__ import annotations

import json
import sys
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path

import pytest

from autotune import cli
from tests.matrix import sampled

SKILL = Path(__file__).resolve().parents[2] / "skills" / "autotune"
loaded = spec_from_file_location("skill_evals", SKILL / "evals.py")
evals = module_from_spec(loaded)
sys.modules[loaded.name] = evals
loaded.loader.exec_module(evals)
TASKS = {task.id: task for task in evals.tasks()}
EVERY_TIME = ("fits-1", "launch-without-model", "unknown-key", "tie")


def test_there_are_thirty_tasks() -> None:
    assert len(evals.tasks()) == len(TASKS) == 30


def test_transcripts_use_the_documented_commands() -> None:
    documented = (SKILL / "SKILL.md").read_text()
    commands = {words[0] for task in TASKS.values() for words in task.transcript}
    assert {command for command in commands if f"autotune {command}" not in documented} == set()


@pytest.mark.parametrize("name", sampled(TASKS, EVERY_TIME))
def test_the_documented_commands_solve_it_and_a_careless_answer_does_not(
    name, tmp_path, monkeypatch, capsys
) -> None:
    task = TASKS[name]
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("AUTOTUNE_STORE", str(tmp_path / "results.db"))
    for file, text in task.files.items():
        Path(file).write_text(text)
    document = {}
    for number, command in enumerate(task.transcript, start=1):
        code = cli.run([*command])
        assert code == (task.exit_code if number == len(task.transcript) else 0), (
            capsys.readouterr().err
        )
        document = json.loads(capsys.readouterr().out)
        for study, config in evals.proposed(task, document):
            assert evals.fits(study, config), config
    answer = evals.solve(task, document)
    assert evals.is_right(task, answer), answer
    assert not evals.is_right(task, evals.careless(task))
    assert not evals.is_right(task, "")


def test_a_config_that_breaks_a_rule_or_does_not_fit_is_found() -> None:
    study = evals.study_of(evals.JOBS[3])
    assert evals.fits(study, "tp=1,pp=1,micro_batch_size=16")
    assert not evals.fits(study, "tp=3,pp=1,micro_batch_size=1"), "breaks a rule"
    large = evals.study_of(("llama-70b", "h100-sxm-1x8", 4096, 64))
    assert not evals.fits(large, "tp=1,pp=1,micro_batch_size=1"), "does not fit"


@pytest.mark.thorough
def test_an_answer_that_is_missing_is_wrong(tmp_path, capsys) -> None:
    (tmp_path / "answers.json").write_text("{}")
    assert evals.main([str(tmp_path / "answers.json")]) == 1
    assert json.loads(capsys.readouterr().out)["right"] == 0
