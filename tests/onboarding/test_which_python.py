"""Trials of a launch that chooses its Python use that Python, or the draft says that they do
not."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.onboarding.drafting import drafted
from tests.shortcuts import write

PROGRAM = 'import argparse\np = argparse.ArgumentParser()\np.add_argument("--batch-size", type=int, default=4)\n'


@pytest.mark.parametrize(
    ("launch", "chosen"),
    [
        ("venv/bin/python train.py\n", "venv/bin/python"),
        ("{folder}/venv/bin/python train.py\n", "venv/bin/python"),
        ("./venv/bin/torchrun --nproc_per_node=2 train.py\n", "venv"),
        ("source venv/bin/activate\ntorchrun --nproc_per_node=2 train.py\n", "venv"),
        ("set -e; . {folder}/venv/bin/activate && python train.py\n", "venv"),
        ("export PATH={folder}/venv/bin:$PATH\npython train.py\n", "venv"),
    ],
)
def test_an_environment_that_a_launch_chooses_is_that_of_trials(
    tmp_path: Path, launch: str, chosen: str
) -> None:
    write(tmp_path, {"venv/bin/python": "", "venv/bin/torchrun": ""})
    draft = drafted(
        tmp_path, {"run.sh": launch.replace("{folder}", str(tmp_path)), "train.py": PROGRAM}
    )
    assert draft.document["trainer"]["python"] == str(tmp_path / chosen)
    assert draft.document["trainer"]["argv"][0] in ("python", "torchrun")


@pytest.mark.parametrize(
    ("launch", "said"),
    [
        (
            "source ~/conda.sh\nconda activate train\npython train.py\n",
            "run.sh runs `conda activate train`",
        ),
        (
            "source /opt/conda/bin/activate train\npython train.py\n",
            "run.sh runs `source /opt/conda/bin/activate train`",
        ),
        (
            "source nowhere/bin/activate\npython train.py\n",
            "run.sh uses nowhere, where no `python` was found",
        ),
        (
            "~nobody-here/envs/train/bin/python train.py\n",
            "run.sh uses ~nobody-here/envs/train/bin/python, where no `python` was found",
        ),
    ],
)
def test_one_that_cannot_be_found_is_named(tmp_path: Path, launch: str, said: str) -> None:
    draft = drafted(tmp_path, {"run.sh": launch, "train.py": PROGRAM})
    assert "python" not in draft.document["trainer"]
    (note,) = [note for note in draft.notes if note.startswith(said)]
    assert "set trainer.python" in note


@pytest.mark.parametrize(
    "launch", ["python train.py\n", "export PATH=/opt/cuda/bin:$PATH\npython train.py\n"]
)
def test_a_launch_that_chooses_none_says_nothing(tmp_path: Path, launch: str) -> None:
    draft = drafted(tmp_path, {"run.sh": launch, "train.py": PROGRAM})
    assert "python" not in draft.document["trainer"]
    assert not any("PATH" in note for note in draft.notes)


@pytest.mark.parametrize(
    ("launch", "chosen", "first"),
    [
        ("python3 train.py\n", None, "python3"),
        ("env X=1 python3.12 -u train.py\n", None, "python3.12"),
        ("env3/bin/python3 train.py\n", "env3/bin/python3", "python3"),
        ("source env3/bin/activate\npython3 train.py\n", "env3", "python3"),
        ("torchrun --nproc_per_node=2 train.py\n", None, "torchrun"),
    ],
)
def test_an_interpreter_keeps_its_name_because_python_may_be_another_or_none(
    tmp_path: Path, launch: str, chosen: str | None, first: str
) -> None:
    write(tmp_path, {"env3/bin/python3": ""})
    draft = drafted(tmp_path, {"run.sh": launch, "train.py": PROGRAM})
    assert draft.document["trainer"].get("python") == (chosen and str(tmp_path / chosen))
    assert draft.document["trainer"]["argv"][0] == first
    assert not any("PATH" in note for note in draft.notes)
