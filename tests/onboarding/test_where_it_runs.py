"""A launch script that changes its folder: the program, its settings and `cwd` are those of that
folder."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from autotune.onboarding.draft import Draft
from autotune.onboarding.first_spec import first_draft, launch_of_script
from autotune.onboarding.launch.launch_script import started_by
from tests.shortcuts import file_with, write

PROGRAM = """
import argparse, deepspeed
p = argparse.ArgumentParser()
p.add_argument("--batch-size", type=int, default=4)
p.add_argument("--deepspeed")
for step in range(9):
    print(f"step {step} loss {loss:.3f}")
"""
START = "deepspeed --num_gpus 2 train.py --batch-size 6 --deepspeed ds.json"


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    for name in ("repo/scripts", "repo/src", "repo/other"):
        (tmp_path / name).mkdir(parents=True)
    write(
        tmp_path,
        {
            "repo/src/train.py": PROGRAM,
            "repo/src/ds.json": json.dumps({"zero_optimization": {"stage": 2}}),
        },
    )
    return tmp_path / "repo"


def drafted(repository: Path, text: str) -> Draft:
    script = file_with(repository / "scripts/run.sh", text.replace("REPO", str(repository)))
    return first_draft(script, model="gpt2-small", folder=repository)


@pytest.mark.parametrize(
    "text",
    [
        f"cd ../src\n{START}\n",
        f"cd src\n{START}\n",
        f"cd src && {START}\n",
        f"cd src || exit 1\n{START} 2>&1 | tee log\n",
        f"(cd src && {START})\n",
        f"(cd other; ls); cd src; {START}\n",
        f"cd ..\ncd src\n{START}\n",
        f"pushd src\n{START}\npopd\n",
        f"pushd other\npopd\ncd src\n{START}\n",
        f"cd src; cd other; cd -\n{START}\n",
        f"cd REPO/src\n{START}\n",
        f"ROOT=REPO\ncd $ROOT/src\n{START}\n",
        f'ROOT=${{1:-REPO}}\ncd "${{ROOT}}/src"\n{START}\n',
        f'cd "$(dirname "$0")"/../src\n{START}\n',
        f"cd $(dirname $0)/../src\n{START}\n",
        f'cd "`dirname $0`/../src"\n{START}\n',
        f'cd "${{0%/*}}/../src"\n{START}\n',
        f'DIR="$( cd "$( dirname "${{BASH_SOURCE[0]}}" )" >/dev/null 2>&1 && pwd )"\ncd "$DIR/../src"\n{START}\n',
        f'ROOT=$(dirname "$(readlink -f "$0")")/..\ncd $ROOT/src\n{START}\n',
        f'bash -c "cd src && {START}"\n',
        f"#SBATCH --chdir=REPO/src\n{START}\n",
        "cd src\nDIR=$(dirname $0)\n" + START.replace("ds.json", "$DIR/../src/ds.json") + "\n",
    ],
)
def test_the_program_is_that_of_the_folder(repository: Path, text: str) -> None:
    draft = drafted(repository, text)
    assert draft.document["trainer"]["cwd"] == "src"
    assert (
        draft.document["baseline"]
        == "dp=2,micro_batch_size=6,precision=fp32,accumulation_steps=1,zero_stage=2"
    )
    assert "ds.json" in draft.document["trainer"]["files"]
    assert "trainer.cwd" not in draft.fill_in


def test_a_program_of_another_folder_is_not_taken(repository: Path) -> None:
    (repository / "scripts/train.py").write_text("print('of another folder')\n")
    draft = drafted(repository, f"cd ../src\n{START}\n")
    assert draft.document["trainer"]["cwd"] == "src"
    assert "micro_batch_size=6" in draft.document["baseline"]


def test_a_subshell_leaves_its_folder(repository: Path) -> None:
    started = started_by(f"(cd other && make)\n{START}\n")
    assert started.folder == ""


@pytest.mark.parametrize(
    "folder", ["$ROOT/src", "/nowhere/at/all", "$(git rev-parse --show-toplevel)/src"]
)
def test_a_folder_that_cannot_be_told_is_asked_for(repository: Path, folder: str) -> None:
    draft = drafted(repository, f"cd {folder}\n{START}\n")
    assert "trainer.cwd" in draft.fill_in
    assert "fill in: the folder where the program runs" in draft.text
    assert any(
        f"run.sh changes to {folder}" in note and "set trainer.cwd" in note for note in draft.notes
    )


def test_a_program_found_in_place_of_such_a_folder_is_said(repository: Path) -> None:
    (repository / "train.py").write_text(PROGRAM)
    draft = drafted(repository, f"cd /workspace/code\n{START}\n")
    assert draft.document["trainer"]["cwd"] == "."
    said = next(note for note in draft.notes if "/workspace/code" in note)
    assert f"train.py was found in {repository}" in said
    assert "correct trainer.cwd" in said


def test_paths_from_the_script_are_read_from_the_folder(repository: Path) -> None:
    text = 'HERE=$(cd "$(dirname "$0")" && pwd)\ncd $HERE/../other\npython $HERE/../src/train.py --batch-size 6\n'
    draft = drafted(repository, text)
    words = draft.document["trainer"]["argv"]
    assert (draft.document["trainer"]["cwd"], words[1]) == ("other", "../scripts/../src/train.py")
    assert "micro_batch_size=6" in draft.document["baseline"]


def test_the_script_itself_is_started_where_its_folder_begins(repository: Path) -> None:
    script = file_with(repository / "scripts/run.sh", "cd src\npython train.py --batch-size 6\n")
    assert launch_of_script(script).cwd == repository.resolve()
