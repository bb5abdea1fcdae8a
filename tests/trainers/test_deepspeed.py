"""DeepSpeed: ds_config.json, the model's config, what it refuses, and its log."""

from __future__ import annotations

import json
from typing import Any, ClassVar

import pytest

from autotune.errors import ExportError
from autotune.spec import ParallelConfig
from autotune.testing.trainers import WORKLOAD, TrainerContract
from autotune.trainers import Launch, StepMetrics, trainer

SPEED = (
    "[2026-03-02 10:00:01,000] [INFO] [timer.py:264:stop] epoch=0/micro_step=24/global_step=12, RunningAvgSamplesPerSec=9.4, "
    "CurrSamplesPerSec=9.5, MemAllocated=4.5GB, MaxMemAllocated=11.25GB"
)


def settings(launch: Launch) -> dict[str, Any]:
    """ds_config.json."""
    return json.loads(launch.files["ds_config.json"])


class TestDeepspeed(TrainerContract):
    trainer = "deepspeed"
    settings_of_a_knob: ClassVar[dict[str, Any]] = {
        "zero_optimization": {"stage": 3, "cpu_offload": True}
    }
    log_lines: ClassVar[dict[str, StepMetrics | None]] = {
        SPEED: StepMetrics(step=12, samples_per_s=9.5, peak_memory_bytes=11.25 * 2**30),
        "steps: 10 loss: 2.3012 iter time (s): 0.412 samples/sec: 38.835": StepMetrics(
            step=10, loss=2.3012, step_time_s=0.412
        ),
        '{"step": 3, "step_time_s": 0.41, "loss": 2.31}': StepMetrics(
            step=3, step_time_s=0.41, loss=2.31
        ),
        "[2026-03-02 10:00:01,000] [INFO] [logging.py:96:log_dist] [Rank 0] step=10, skipped=0, lr=[0.0003]": None,
    }

    def test_batch_law(self) -> None:
        document = settings(self.launched(tp=2, dp=4, micro_batch_size=2, zero_stage=2))
        assert document["train_batch_size"] == 64
        assert (
            document["train_micro_batch_size_per_gpu"] * document["gradient_accumulation_steps"] * 4
            == 64
        )
        assert document["tensor_parallel"] == {"autotp_size": 2}
        assert document["zero_optimization"]["stage"] == 2
        assert document["bf16"] == {"enabled": True}

    def test_program_and_model_are_exported_too(self) -> None:
        launch = self.launched(dp=8, recompute="full", compile=True)
        assert set(launch.files) == {
            "ds_config.json",
            "model/config.json",
            "train.py",
            "batches.py",
        }
        assert "--compile" in launch.argv
        model = json.loads(launch.files["model/config.json"])
        assert (model["model_type"], model["num_key_value_heads"], model["intermediate_size"]) == (
            "llama",
            8,
            2816,
        )

    def test_pipelines_need_a_program_of_your_own(self) -> None:
        config = ParallelConfig(pp=2, dp=4, micro_batch_size=2, accumulation_steps=8)
        with pytest.raises(ExportError, match="use your own program with the `script` option"):
            trainer("deepspeed").launch(WORKLOAD, config)
        launch = trainer("deepspeed").launch(
            WORKLOAD, config, {"script": "mine.py", "script_args": ["--x", "1"]}
        )
        assert launch.argv[-5:] == ("mine.py", "--deepspeed_config", "ds_config.json", "--x", "1")
        assert set(launch.files) == {"ds_config.json"}

    def test_fp16_scales_its_loss(self) -> None:
        assert settings(self.launched(dp=8, precision="fp16"))["fp16"]["enabled"] is True


@pytest.mark.thorough
class TestDeepspeedWithYourOwnProgram(TrainerContract):
    trainer = "deepspeed"
    settings_of_a_knob: ClassVar[dict[str, Any]] = {
        "zero_optimization": {"stage": 3, "cpu_offload": True}
    }
    options: ClassVar[dict[str, Any]] = {"script": "mine.py"}
    notes_count = True
