"""Options that name where a program writes name a folder of the trial's own in trials."""

from __future__ import annotations

import pytest

from autotune.trainers import Launch
from autotune.trainers.documents.output_options import TRIAL_DIR, with_own_outputs
from autotune.trainers.present_configuration import parse_document


@pytest.mark.parametrize(
    ("argv", "expected"),
    [
        (["t.py", "--output_dir", "out"], ["t.py", "--output_dir", f"{TRIAL_DIR}/output_dir"]),
        (
            ["t.py", "--out-dir=/abs/out", "--lr=1"],
            ["t.py", f"--out-dir={TRIAL_DIR}/out_dir", "--lr=1"],
        ),
        (["t.py", "--save", "ckpt/7b"], ["t.py", "--save", f"{TRIAL_DIR}/save"]),
        (["t.py", "--save", "--lr", "1"], ["t.py", "--save", "--lr", "1"]),  # a flag
        (["t.py", "--save"], ["t.py", "--save"]),
        (["t.py", "hydra.run.dir=runs/a"], ["t.py", f"hydra.run.dir={TRIAL_DIR}/hydra.run.dir"]),
        (
            ["t.py", "--trainer.default_root_dir=logs"],
            ["t.py", f"--trainer.default_root_dir={TRIAL_DIR}/trainer.default_root_dir"],
        ),
        (
            ["t.py", "training.output_dir=x"],
            ["t.py", f"training.output_dir={TRIAL_DIR}/training.output_dir"],
        ),
        (
            ["t.py", "--output", "./out", "--logs=None"],
            ["t.py", "--output", f"{TRIAL_DIR}/output", "--logs=None"],
        ),
        (["t.py", "--output", "json"], ["t.py", "--output", "json"]),  # a format
        (["t.py", "--logs", "runs/clip"], ["t.py", "--logs", f"{TRIAL_DIR}/logs"]),
        (
            ["t.py", "-save_model", "run/model", "--save_model=true"],
            ["t.py", "-save_model", f"{TRIAL_DIR}/save_model", "--save_model=true"],
        ),
        (
            ["t.py", "--checkpoint-save-path=c"],
            ["t.py", f"--checkpoint-save-path={TRIAL_DIR}/checkpoint_save_path"],
        ),
        # whether, and when
        (
            ["t.py", "--save", "1", "--output=false"],
            ["t.py", "--save", "1", "--output=false"],
        ),
        (["t.py", "OUTPUT_DIR=out"], ["t.py", f"OUTPUT_DIR={TRIAL_DIR}/OUTPUT_DIR"]),
        # may be what is loaded
        (
            ["t.py", "--checkpoint_dir", "old"],
            ["t.py", "--checkpoint_dir", "old"],
        ),
        (
            ["t.py", "fit", "--trainer.max_steps=9"],
            ["t.py", "fit", "--trainer.max_steps=9", f"--trainer.default_root_dir={TRIAL_DIR}"],
        ),
        (["t.py", "--trainer.max_steps=9"], ["t.py", "--trainer.max_steps=9"]),
        (["t.py", "output_dir", "x"], ["t.py", "output_dir", "x"]),  # no option
        (["t.py", f"--out_dir={TRIAL_DIR}"], ["t.py", f"--out_dir={TRIAL_DIR}"]),
    ],
)
def test_each_form(argv: list[str], expected: list[str]) -> None:
    found = with_own_outputs(Launch(argv=tuple(argv)))
    assert list(found.argv) == expected
    assert bool(found.notes) == (argv != expected)


SETTINGS = {
    "train.yaml": "output_dir: runs/a\nlr: 0.1\ntrainer:\n  callbacks:\n  - init_args: {dirpath: /home/me/ckpt, monitor: loss}\n",
    "train.json": '{"hydra": {"run": {"dir": "outputs"}}, "logging": {"log_dir": "tb"}, "data_dir": "data"}',
    "job.toml": '[job]\ndump_folder = "./outputs"\n[checkpoint]\nfolder = "old"\n',
}


def test_settings_in_rendered_files_are_told_too_at_any_depth() -> None:
    found = with_own_outputs(Launch(argv=("t.py",), files=SETTINGS))
    documents = {name: parse_document(name, text) for name, text in found.files.items()}
    assert documents["train.yaml"] == {
        "output_dir": f"{TRIAL_DIR}/output_dir",
        "lr": 0.1,
        "trainer": {
            "callbacks": [
                {
                    "init_args": {
                        "dirpath": f"{TRIAL_DIR}/trainer.callbacks.init_args.dirpath",
                        "monitor": "loss",
                    }
                }
            ]
        },
    }
    assert documents["train.json"] == {
        "hydra": {"run": {"dir": f"{TRIAL_DIR}/hydra.run.dir"}},
        "logging": {"log_dir": f"{TRIAL_DIR}/logging.log_dir"},
        "data_dir": "data",  # what is read
    }
    assert documents["job.toml"] == {
        "job": {"dump_folder": f"{TRIAL_DIR}/job.dump_folder"},
        "checkpoint": {"folder": "old"},
    }
    (note,) = found.notes
    assert "output_dir in train.yaml" in note
    shown = found.placed("/files")
    assert "@launch-folder@" not in "".join(shown.files.values())


@pytest.mark.parametrize(
    "files",
    [
        {"a.yaml": "save: steps\noutput_dir: null\nsave_dir: ''\nwork_dir: 3\n"},
        {"a.yaml": "not: [closed"},
        {"a.txt": "output_dir: out"},
    ],
)
def test_files_that_name_no_output_stay_as_they_are_written(files: dict[str, str]) -> None:
    assert with_own_outputs(Launch(argv=("t.py",), files=files)).files == files


def test_variables_that_name_an_output() -> None:
    found = with_own_outputs(
        Launch(argv=("t.py",), env={"OUTPUT_DIR": "out", "DATA_DIR": "data", "WANDB_DIR": "w"})
    )
    assert found.env == {
        "OUTPUT_DIR": f"{TRIAL_DIR}/OUTPUT_DIR",
        "DATA_DIR": "data",
        "WANDB_DIR": f"{TRIAL_DIR}/WANDB_DIR",
    }
