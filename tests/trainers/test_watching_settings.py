"""Settings that watch a run (profiles, TensorBoard, wandb) are in exports and not in trials, whose
steps they would slow."""

from __future__ import annotations

import json
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import pytest

from autotune.onboarding.configuration_files import read_present
from autotune.onboarding.imported_spec import import_draft
from autotune.spec import ParallelConfig
from autotune.study.check.program_check import launch_of
from autotune.trainers import Launch, trainer
from autotune.trainers.present_configuration import PresentConfiguration, split_by_path
from autotune_workers.process.program.launch import prepare
from tests.trainers.released_names import released_names
from tests.workers.requests import request

WATCHED: dict[str, Any] = {
    "tensorboard": {"enabled": True, "output_path": "tb"},
    "steps_per_print": 100,
    "gradient_clipping": 0.5,
    "zero_optimization": {"overlap_comm": True},
}


def settings_of(launch: Launch) -> dict[str, Any]:
    return json.loads(launch.files["ds_config.json"])


def test_a_trial_goes_without_them_and_an_export_has_them() -> None:
    asked = request(
        dp=2,
        trainer="deepspeed",
        trainer_options={"settings": WATCHED},
        config={"zero_stage": 2, "precision": "bf16"},
    )
    export = settings_of(
        trainer("deepspeed").launch(asked.workload, asked.config, asked.trainer_options)
    )
    assert (export["tensorboard"], export["steps_per_print"]) == (WATCHED["tensorboard"], 100)
    for launch in (prepare(asked, is_local=False).launch, launch_of(asked)):
        settings = settings_of(launch)
        assert "tensorboard" not in settings
        assert settings["steps_per_print"] == 1, "a trial reads every step"
        assert (settings["gradient_clipping"], settings["zero_optimization"]["overlap_comm"]) == (
            0.5,
            True,
        )


def test_flags_of_megatron() -> None:
    settings = {
        "profile": True,
        "profile-step-end": 6,
        "tensorboard-dir": "tb",
        "wandb-project": "p",
        "min-lr": "1e-5",
    }
    asked = request(dp=2, config={"precision": "bf16"})
    subject = trainer("megatron")
    argv = subject.launch(
        asked.workload, ParallelConfig(dp=2), subject.in_trial({"settings": settings})
    ).argv
    assert [flag for flag in settings if f"--{flag}" in argv] == ["min-lr"]


@pytest.mark.parametrize(
    ("name", "releases"),
    [
        ("torchtitan", ("torchtitan-0.2.2", "torchtitan-0.3.0")),
        ("megatron_bridge", ("megatron-bridge-0.3.1",)),
        ("nanotron", ("nanotron-main",)),
    ],
)
def test_their_names_are_those_of_the_releases(name: str, releases: tuple[str, ...]) -> None:
    parts = {
        "MetricsProcessor.Config": "metrics",
        "Trainer.Config": "",
        "ConfigContainer": "",
        "Config": "",
    }
    known = {
        f"{parts.get(part, part)}.{key}".lstrip(".")
        for release in releases
        for part, keys in released_names(release).items()
        for key in keys
    }
    known |= {f"{section}.any" for section in known if "." not in section}
    for pattern in trainer(name).watching:
        assert any(fnmatchcase(path, pattern) for path in known), pattern


def test_an_import_says_what_trials_go_without(tmp_path: Path) -> None:
    file = tmp_path / "ds_config.json"
    file.write_text(
        json.dumps(
            {"train_micro_batch_size_per_gpu": 1, "gradient_accumulation_steps": 1, **WATCHED}
        )
    )
    draft = import_draft(read_present(file), "deepspeed", file, model="gpt2-small", folder=tmp_path)
    told = [note for note in draft.notes if "which exports keep and trials omit" in note]
    assert [note.partition(": ")[2] for note in told] == [
        "steps_per_print, tensorboard.enabled, tensorboard.output_path"
    ]


@pytest.mark.parametrize(
    ("name", "file", "text", "left_out"),
    [
        (
            "torchtitan",
            "config.py",
            "def mine():\n    return Trainer.Config(metrics=MetricsProcessor.Config(enable_wandb=True))\n",
            "metrics.enable_wandb",
        ),
        (
            "lightning",
            "lightning.yaml",
            "trainer: {devices: 2, logger: {class_path: WandbLogger}}\n",
            "trainer.logger",
        ),
    ],
)
def test_what_an_export_cannot_have_is_named(
    name: str, file: str, text: str, left_out: str
) -> None:
    (remark,) = trainer(name).read_config(PresentConfiguration(files={file: text})).remarks
    assert left_out in remark


OFF = {"trainer": {"logger": False, "profiler": None}, "wall_clock_breakdown": False}


@pytest.mark.parametrize(
    ("document", "paths", "kept", "left_out"),
    [
        (
            {
                "profiling": {"on": True},
                "metrics": {"enable_wandb": True, "log_freq": 1},
                "empty": {},
            },
            ("profiling.*", "metrics.enable_*"),
            {"metrics": {"log_freq": 1}, "empty": {}},
            ("metrics.enable_wandb", "profiling.on"),
        ),
        (OFF, ("trainer.*", "wall_clock_breakdown"), OFF, ()),
    ],
)
def test_inner_values_that_are_on_are_left_out_and_their_neighbours_stay(
    document: dict[str, Any],
    paths: tuple[str, ...],
    kept: dict[str, Any],
    left_out: tuple[str, ...],
) -> None:
    assert split_by_path(document, paths) == (kept, left_out)
