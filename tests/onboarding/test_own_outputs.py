"""Options that say where a program writes, by what a run of it wrote: trials get their own folder,
an exported launch the user's."""

from __future__ import annotations

import shlex
import sys
from dataclasses import replace
from pathlib import Path
from textwrap import dedent
from typing import Any

import pytest

from autotune.onboarding.draft import Draft
from autotune.onboarding.first_spec import command_draft, first_draft
from autotune.onboarding.launch.own_outputs import with_own_outputs
from autotune.ports import ProgramSeen
from autotune.trainers import trainer
from tests.onboarding.test_said_options import PLACE
from tests.shortcuts import file_with
from tests.workers.probe.test_parsed_options import run_of

SCRIPT = """\
    import argparse, os
    from pathlib import Path
    parser = argparse.ArgumentParser()
    parser.add_argument("--batch_size", type=int, default=4)
    parser.add_argument("--ckpt_dir", default="ckpts")
    parser.add_argument("--output_dir", default="out")
    parser.add_argument("--keep-in", type=Path, default=Path("kept") / "mine")
    parser.add_argument("--data_dir", default="data")
    parser.add_argument("--model_file", default="model.pt")
    given = parser.parse_args()
    """


def after_run(folder: Path, wrote: list[str], words: str = "", env: str = "") -> tuple[Draft, Any]:
    """(the draft after a run that wrote these files, those that it left)"""
    seen = run_of(folder, SCRIPT, *shlex.split(words))
    assert seen.code == 0, seen.text
    said = tuple(option for report in seen.of("options") for option in report["options"])
    command = [*env.split(), sys.executable, str(folder / "train.py"), *shlex.split(words)]
    draft = command_draft(command, folder=folder, said=said, **PLACE)
    draft = replace(draft, entries=tuple(_here(entry) for entry in draft.entries))
    for name in wrote:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).touch()
    files = {str(folder / name): {"existed": False, "kept": False} for name in wrote}
    run = ProgramSeen(id=("init", 0, 0), facts={}, options=said, files=files)
    draft, rest = with_own_outputs(draft, run, folder)
    return draft, [str(Path(path).relative_to(folder)) for path in rest]


def _here(entry: Any) -> Any:
    parts = (replace(p, value=".") if p.key == "cwd" else p for p in entry.parts)
    return replace(entry, parts=tuple(parts))


def commands(draft: Draft) -> tuple[list[str], list[str]]:
    """The words behind the program in a trial's command, and in an exported one."""
    options = {key: value for key, value in draft.document["trainer"].items() if key != "kind"}
    own = trainer("command")
    checked = own.checked(options)
    return list(checked["argv"])[2:], list(own.in_training(checked)["argv"])[2:]


CASES: dict[str, tuple[str, list[str], list[str], list[str]]] = {
    # words, files written, what a trial is told, what an exported launch is told
    "a default": ("", ["ckpts/a.pt"], ["--ckpt_dir={trial_dir}"], []),
    "as launched": (
        "--ckpt_dir runs/7",
        ["runs/7/sub/a.pt"],
        ["--ckpt_dir={trial_dir}"],
        ["--ckpt_dir=runs/7"],
    ),
    "a usual name": ("", ["out/a.pt"], ["--output_dir={trial_dir}"], ["--output_dir=out"]),
    "a path": ("", ["kept/mine/a.pt"], ["--keep-in={trial_dir}"], []),
    "a file": ("", ["model.pt"], ["--model_file={trial_dir}/model.pt"], []),
    "two": (
        "--ckpt_dir=a",
        ["a/x.pt", "kept/mine/x.pt"],
        ["--ckpt_dir={trial_dir}", "--keep-in={trial_dir}/keep_in"],
        ["--ckpt_dir=a"],
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_a_trial_writes_into_its_own_folder(tmp_path: Path, case: str) -> None:
    words, wrote, in_trials, exported = CASES[case]
    draft, rest = after_run(tmp_path, wrote, words)
    assert rest == []
    of_trial, of_launch = commands(draft)
    told = [word for word in of_trial if "trial_dir" in word]
    assert told == in_trials
    left = [word for word in of_launch if word.startswith(("--ckpt", "--keep", "--model"))]
    left += [word for word in of_launch if word.startswith("--output") and told[0][2:5] == "out"]
    assert left == exported
    assert "each trial has its own folder" in " ".join(draft.text.replace("#", "").split())


OTHERS = {
    "what the code writes": ("", "fixed/a.pt"),
    "data": ("", "data/cached.bin"),
    "the folder in which it runs": ("--ckpt_dir .", "a.pt"),
    "a folder around it": ("--keep-in ..", "a.pt"),
}


@pytest.mark.parametrize("case", OTHERS)
def test_what_no_option_of_outputs_says_stays(tmp_path: Path, case: str) -> None:
    words, wrote = OTHERS[case]
    draft, rest = after_run(tmp_path, [wrote], words)
    assert rest == [wrote]
    assert "trial_dir" not in draft.text


def test_a_folder_that_holds_more_is_left_alone_where_its_name_is_that_of_no_output(
    tmp_path: Path,
) -> None:
    for folder in ("kept/mine", "ckpts"):
        (tmp_path / folder).mkdir(parents=True)
        file_with(tmp_path / folder / "weights.bin", "of the user")
    draft, rest = after_run(tmp_path, ["kept/mine/a.pt", "ckpts/a.pt"])
    assert rest == ["kept/mine/a.pt"]
    assert "--ckpt_dir={trial_dir}" in draft.text


def test_variables_and_rendered_files(tmp_path: Path) -> None:
    script = """\
        import argparse, os, yaml
        parser = argparse.ArgumentParser()
        parser.add_argument("--config", default="c.yaml")
        settings = yaml.safe_load(open(parser.parse_args().config))
        logs = os.environ["MY_LOGS"]
        """
    settings = "train: {batch_size: 4, lr: 0.1, seq_len: 64}\nckpt_dir: ckpts\n"
    file_with(tmp_path / "c.yaml", settings)
    file_with(tmp_path / "train.py", dedent(script))
    launch = file_with(
        tmp_path / "run.sh", "export MY_LOGS=logs\npython train.py --config c.yaml\n"
    )
    draft = first_draft(launch, folder=tmp_path, **PLACE)
    files = {str(tmp_path / name): {"existed": True} for name in ("ckpts/a.pt", "logs/b.txt")}
    run = ProgramSeen(id=("init", 0, 0), facts={}, files=files)
    draft, rest = with_own_outputs(draft, run, tmp_path)
    assert rest == []
    told = draft.document["trainer"]
    assert told["env"]["MY_LOGS"] == "{trial_dir}"
    assert told["files"]["c.yaml"]["ckpt_dir"] == "{trial_dir}/ckpt_dir"
    assert told["training"]["MY_LOGS"] == "logs"
    assert told["training"]["c.yaml"]["ckpt_dir"] == "ckpts"


def test_a_folder_whose_name_begins_that_of_the_programs_own_is_an_output(tmp_path: Path) -> None:
    folder, outputs = tmp_path / "experiment", tmp_path / "exp"
    folder.mkdir()
    draft, rest = after_run(folder, [str(outputs / "a.pt")], f"--ckpt_dir {outputs}")
    assert rest == []
    assert "--ckpt_dir={trial_dir}" in commands(draft)[0]
    assert f"--ckpt_dir={outputs}" in commands(draft)[1]
