"""The exported launch of a program is the user's training, not a trial: steps, seed, saving,
logging and trackers are theirs again."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
import yaml

import autotune
from autotune.errors import SpecError
from autotune.onboarding.first_spec import first_draft
from autotune.results.answers import export_document
from autotune.store import open_store
from autotune.trainers import trainer
from autotune.trainers.command.training import check_training

SCRIPT = """
import argparse
p = argparse.ArgumentParser()
p.add_argument("--batch-size", type=int, default=4)
p.add_argument("--grad-accum", type=int, default=2)
p.add_argument("--max-steps", type=int, default=1000)
p.add_argument("--log-interval", type=int, default=10)
p.add_argument("--seed", type=int, default=0)
p.add_argument("--seq-len", type=int, default=128)
p.add_argument("--wandb", action="store_true")
a = p.parse_args()
import torch.distributed as dist
dist.init_process_group("gloo")
for step in range(a.max_steps):
    print(f"step {step} loss {1.0}")
"""
COMMAND = "torchrun --nproc-per-node 2 train.py --batch-size 2 --grad-accum 4 --max-steps 100 --log-interval 25 --wandb"
ARGV = [
    "python",
    "train.py",
    "--steps={steps}",
    "--seed={seed}",
    "--log=1",
    "--save=no",
    "--mb={micro_batch_size}",
]


def argv_of(training: dict[str, Any]) -> list[str]:
    command = trainer("command")
    options = command.in_training({"argv": ARGV, "training": training})
    study = autotune.load_study({
        "name": "t", "model": "nano-gpt", "cluster": "cpu-1x1", "workload": {"seq_len": 64, "global_batch_size": 4},
        "space": {"micro_batch_size": [4]}, "trainer": {"kind": "command", "argv": ARGV}, "runner": "simulated",
    })  # fmt: skip
    config = autotune.ParallelConfig(micro_batch_size=4)
    return list(command.launch(study.workload, config, options).argv)


def test_words_of_trials_are_replaced_left_out_and_appended() -> None:
    found = argv_of(
        {
            "steps": 100,
            "seed": 7,
            "--log=1": "--log=25",
            "--save=no": None,
            "append": ["--wandb", "on"],
        }
    )
    assert found == [
        "python",
        "train.py",
        "--steps=100",
        "--seed=7",
        "--log=25",
        "--mb=4",
        "--wandb",
        "on",
    ]
    assert argv_of({"steps": None, "seed": None}) == [
        "python",
        "train.py",
        "--log=1",
        "--save=no",
        "--mb=4",
    ]
    assert argv_of({"--save=no": ["--save", "10"]})[-3:] == ["--save", "10", "--mb=4"]


def test_values_in_files_are_the_trainings_again() -> None:
    """OpenNMT's settings: trials log each step, the training as often as it did."""
    options: dict[str, Any] = {
        "argv": ["python", "train.py", "-config", "{files}/config.yaml"],
        "files": {"config.yaml": {"report_every": 1, "batch_size": "{micro_batch_size}", "valid": {"steps": 1, "by": 2}}},
        "training": {"config.yaml": {"report_every": 50, "valid": {"steps": 500}}},
    }  # fmt: skip
    files = trainer("command").in_training(options)["files"]
    assert files == {
        "config.yaml": {
            "report_every": 50,
            "batch_size": "{micro_batch_size}",
            "valid": {"steps": 500, "by": 2},
        }
    }
    check_training(options["training"], options["argv"], options["files"], {})
    with pytest.raises(SpecError, match="mapping of keys to values"):
        check_training({"config.yaml": 50}, options["argv"], options["files"], {})


@pytest.mark.parametrize(
    ("training", "env"),
    [
        (
            {"steps": 60, "OUT_DIR": "runs/mine"},
            {"OUT_DIR": "runs/mine", "MAX_STEPS": "{steps}", "MB": "{micro_batch_size}"},
        ),
        (
            {"steps": None, "OUT_DIR": None},
            {"MB": "{micro_batch_size}"},
        ),
    ],
)
def test_variables_are_the_trainings_again(training: dict[str, Any], env: dict[str, str]) -> None:
    variables = {"OUT_DIR": "{trial_dir}", "MAX_STEPS": "{steps}", "MB": "{micro_batch_size}"}
    options = {"argv": ["python", "train.py"], "env": variables, "training": training}
    command = trainer("command")
    command.check_options(command.checked(options), ())
    assert command.in_training(options)["env"] == env


def test_the_folder_of_a_trial_in_a_file_has_one_of_the_users_own_in_the_launch() -> None:
    command = trainer("command")
    options: dict[str, Any] = {
        "argv": ["python", "train.py", "--config={files}/c.yaml"],
        "files": {"c.yaml": {"train": {"ckpt_dir": "{trial_dir}", "mb": "{micro_batch_size}"}}},
    }
    with pytest.raises(
        SpecError, match="does not set the folder into which the exported launch writes"
    ):
        command.check_options(command.checked(options), ())
    options["training"] = {"c.yaml": {"train": {"ckpt_dir": "ckpts"}}}
    command.check_options(command.checked(options), ())
    study = autotune.load_study({
        "name": "t", "model": "nano-gpt", "cluster": "cpu-1x1", "workload": {"seq_len": 64, "global_batch_size": 4},
        "space": {"micro_batch_size": [4]}, "trainer": {"kind": "command", **options}, "runner": "simulated",
    })  # fmt: skip
    config = autotune.ParallelConfig(micro_batch_size=4)
    of_trial = command.launch(study.workload, config, options).placed("/trial").files["c.yaml"]
    assert yaml.safe_load(of_trial) == {"train": {"ckpt_dir": "/trial/outputs", "mb": 4}}
    of_launch = command.launch(study.workload, config, command.in_training(options))
    assert yaml.safe_load(of_launch.files["c.yaml"]) == {"train": {"ckpt_dir": "ckpts", "mb": 4}}


@pytest.mark.parametrize(
    ("training", "words"),
    [
        (
            {"--log=2": None},
            "must be steps, seed, append, or the name of an argument in argv, a variable in env or a file in files, but is '--log=2'",
        ),
        ({"steps": "many"}, "steps must be a whole number or null, but is 'many'"),
        ({"seed": True}, "seed must be a whole number or null"),
        ({"--log=1": {"a": 1}}, "must be text, a list of texts or null"),
    ],
)
def test_what_cannot_take_a_place_is_refused(training: dict[str, Any], words: str) -> None:
    with pytest.raises(SpecError, match=words):
        trainer("command").check_options(
            trainer("command").checked({"argv": ARGV, "training": training}), ()
        )


@pytest.mark.thorough
def test_a_drafts_launch_differs_from_the_users_own_in_the_tuned_knobs_alone(
    tmp_path: Path,
) -> None:
    (tmp_path / "train.py").write_text(SCRIPT)
    (tmp_path / "run.sh").write_text(COMMAND + "\n")
    draft = first_draft(tmp_path / "run.sh", folder=tmp_path, cluster="cpu-1x2", model="nano-gpt")
    spec = {**draft.document, "runner": "simulated", "budget": {"max_trials": 3}}
    spec["trainer"] = {**spec["trainer"], "cwd": str(tmp_path), "env": {"OUT": "{trial_dir}"}}
    with closing(open_store(f"sqlite:///{tmp_path / 'r.db'}")) as store:
        result = autotune.tune(autotune.load_study(spec), store=store)
        found = export_document(store, result.record.id, "command", {})
        same = export_document(store, result.record.id, "command", {}, trial=result.baseline.number)
    config = result.best.config
    tuned = [f"--batch-size={config.micro_batch_size}", f"--grad-accum={config.accumulation_steps}"]
    assert found["argv"][found["argv"].index("train.py") + 1 :] == [
        *tuned, "--max-steps=100", "--seq-len=128", "--log-interval=25", "--wandb",
    ]  # fmt: skip
    assert any("the launch is identical to the baseline's launch" in note for note in same["notes"])
    if config != result.baseline.config:
        assert any("--batch-size=2" in note and f"-> {tuned[0]}" in note for note in found["notes"])
    assert any(
        "writes to the folder `outputs` next to launch.sh" in note for note in found["notes"]
    )
    assert not any("trains on" in note for note in found["notes"])
