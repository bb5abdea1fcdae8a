"""Lightning: its YAML, what it refuses, its progress bar, and Lightning itself as the judge of what
is written."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any, ClassVar

import pytest
import yaml

from autotune.errors import ExportError
from autotune.spec import ClusterSpec, ParallelConfig
from autotune.testing.trainers import WORKLOAD, TrainerContract
from autotune.trainers import Launch, StepMetrics, trainer, write_launch

OWN = {"script": "/home/me/main.py", "layer_class": "mine.models.Block"}


def settings(launch: Launch) -> Any:
    """lightning.yaml."""
    return yaml.safe_load(launch.files["lightning.yaml"])


class TestLightning(TrainerContract):
    trainer = "lightning"
    settings_of_a_knob: ClassVar[dict[str, Any]] = {"trainer": {"accumulate_grad_batches": 2}}
    log_lines: ClassVar[dict[str, StepMetrics | None]] = {
        '{"step": 3, "step_time_s": 0.41, "loss": 2.31}': StepMetrics(
            step=3, step_time_s=0.41, loss=2.31
        ),
    }

    @pytest.mark.parametrize(("stage", "strategy"), [(0, "ddp"), (1, "deepspeed_stage_1")])
    def test_replicas_that_are_whole(self, stage: int, strategy: str) -> None:
        assert settings(self.launched(dp=8, zero_stage=stage))["trainer"]["strategy"] == strategy

    @pytest.mark.parametrize(("stage", "sharding"), [(2, "SHARD_GRAD_OP"), (3, "FULL_SHARD")])
    def test_replicas_that_are_sharded(self, stage: int, sharding: str) -> None:
        launch = self.launched(dp=16, zero_stage=stage, recompute="full", micro_batch_size=2)
        written = settings(launch)["trainer"]
        assert written["strategy"]["init_args"]["sharding_strategy"] == sharding
        assert (written["devices"], written["num_nodes"], written["accumulate_grad_batches"]) == (
            8,
            2,
            2,
        )
        assert launch.argv[-1] == "--recompute-layers"

    def test_weights_in_bf16_alone_are_refused_where_deepspeed_keeps_others(self) -> None:
        workload = replace(WORKLOAD, pure_bf16=True)
        config = ParallelConfig(dp=8, micro_batch_size=2, accumulation_steps=4, zero_stage=1)
        with pytest.raises(ExportError, match="DeepSpeed keeps weights in fp32"):
            trainer("lightning").launch(workload, config)
        moved = settings(trainer("lightning").launch(workload, config, {"nearest": True}))[
            "trainer"
        ]
        assert (moved["precision"], moved["strategy"]["init_args"]) == (
            "bf16-true",
            {"sharding_strategy": "SHARD_GRAD_OP"},
        )

    def test_tensor_parallelism_needs_a_program_of_your_own(self) -> None:
        config = ParallelConfig(tp=2, dp=4, micro_batch_size=2, accumulation_steps=8, zero_stage=3)
        with pytest.raises(ExportError, match="use your own program with the `script` option"):
            trainer("lightning").launch(WORKLOAD, config)
        written = settings(trainer("lightning").launch(WORKLOAD, config, OWN))["trainer"][
            "strategy"
        ]
        assert written["init_args"] == {"data_parallel_size": 4, "tensor_parallel_size": 2}

    def test_fp16_of_a_cpu_is_refused_because_lightning_takes_another_precision(self) -> None:
        workload = replace(WORKLOAD, cluster=ClusterSpec.of("cpu", num_nodes=1, gpus_per_node=8))
        with pytest.raises(
            ExportError, match=r"precision=fp16: on a CPU, Lightning trains in bf16 instead"
        ):
            trainer("lightning").launch(
                workload, ParallelConfig(dp=8, micro_batch_size=8, precision="fp16")
            )


@pytest.mark.thorough
class TestLightningWithYourOwnProgram(TrainerContract):
    trainer = "lightning"
    settings_of_a_knob: ClassVar[dict[str, Any]] = {"trainer": {"accumulate_grad_batches": 2}}
    options: ClassVar[dict[str, Any]] = OWN
    notes_count = True
    log_lines: ClassVar[dict[str, StepMetrics | None]] = {
        "Epoch 0:   0%|          | 0/6 [00:00<?, ?it/s]": None,
        "Epoch 0:  67%|██████▋   | 4/6 [00:00<00:00, 44.31it/s]": None,
        "Epoch 0:  67%|██████▋   | 4/6 [00:00<00:00, 44.14it/s, v_num=0, train_loss=0.482]": StepMetrics(
            step=1, loss=0.482, ends_step=True
        ),
        "Epoch 0: 100%|██████████| 6/6 [00:00<00:00, 57.29it/s, v_num=0, train_loss=0.482]": None,
        "Epoch 0: 100%|██████████| 6/6 [00:00<00:00, 57.16it/s, v_num=0, train_loss=0.348]": None,
        "Epoch 0: |          | 8/? [00:00<00:00, 64.22it/s, v_num=0, train_loss=0.348]    ": None,
        "Epoch 0: |          | 8/? [00:00<00:00, 64.09it/s, v_num=0, train_loss_step=0.324]": StepMetrics(
            step=2, loss=0.324, ends_step=True
        ),
        "Epoch 1: |          | 0/? [00:00<?, ?it/s, v_num=0, train_loss=0.324]": None,
        "Epoch 1: |          | 4/? [00:00<00:00, 69.19it/s, v_num=0, train_loss=0.324]": None,
        "Epoch 1: |          | 4/? [00:00<00:00, 69.09it/s, v_num=0, loss=0.531]": StepMetrics(
            step=3, loss=0.531, ends_step=True
        ),
        "Validation DataLoader 0:  50%|█████     | 1/2 [00:00<00:00, 15.9it/s]": None,
    }

    def test_the_micro_batch_goes_where_the_program_reads_it_and_the_bar_shows_whole_steps(
        self,
    ) -> None:
        config = ParallelConfig(dp=8, micro_batch_size=2, accumulation_steps=4)
        launch = trainer("lightning").launch(
            WORKLOAD, config, {**OWN, "batch_key": "model.data.size"}
        )
        assert settings(launch)["model"] == {"data": {"size": 2}}
        assert launch.argv[-5:] == (
            "fit",
            "--config",
            "lightning.yaml",
            "--trainer.callbacks+=lightning.pytorch.callbacks.TQDMProgressBar",
            "--trainer.callbacks.refresh_rate=4",
        )

    def test_fsdp_must_know_the_layers(self) -> None:
        config = ParallelConfig(dp=8, micro_batch_size=2, accumulation_steps=4, zero_stage=3)
        with pytest.raises(ExportError, match="layer_class is not set"):
            trainer("lightning").launch(WORKLOAD, config, {"script": "main.py"})

    def test_a_bar_that_ends_before_its_first_step_counts_no_steps(self) -> None:
        read = trainer("lightning").reader(OWN)
        lines = ["Epoch 0: 100%|███| 2/2 [00:00<00:00, 9it/s]"] * 2 + [
            "Epoch 0: |     | 4/? [00:00<00:00, 9it/s]"
        ] * 2
        assert [found.step for line in lines if (found := read(line))] == [1]


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:The .srun. command is available")  # on a machine with Slurm
@pytest.mark.parametrize("stage", [0, 2, 3])
@pytest.mark.parametrize(("precision", "pure"), [("bf16", False), ("bf16", True), ("fp32", False)])
def test_lightning_itself_takes_what_is_written(precision: str, pure: bool, stage: int) -> None:
    """On a machine without a GPU the trainer is made for CPU ranks, and the strategy by itself:
    FSDP asks for a GPU."""
    lightning = pytest.importorskip("lightning.pytorch", reason="lightning is not installed")
    config = ParallelConfig(
        dp=8, micro_batch_size=2, accumulation_steps=4, precision=precision, zero_stage=stage
    )
    written = settings(trainer("lightning").launch(replace(WORKLOAD, pure_bf16=pure), config))[
        "trainer"
    ]
    assert written["precision"].endswith("-true") == (pure or precision == "fp32")
    strategy = written.pop("strategy")
    made = lightning.Trainer(
        **{**written, "accelerator": "cpu"}, strategy="ddp" if config.zero_stage == 0 else "auto"
    )
    assert made.accumulate_grad_batches == config.accumulation_steps
    assert made.precision == written["precision"]
    if config.zero_stage:
        kind = getattr(lightning.strategies, strategy["class_path"].rpartition(".")[2])
        assert (
            kind(**strategy["init_args"]).sharding_strategy.name
            == strategy["init_args"]["sharding_strategy"]
        )


@pytest.mark.slow
@pytest.mark.skipif(
    find_spec("jsonargparse") is None,
    reason="LightningCLI needs jsonargparse, which is not installed",
)
def test_a_program_of_your_own_is_measured_by_its_bar(tmp_path: Path) -> None:
    pytest.importorskip("lightning.pytorch", reason="lightning is not installed")
    (tmp_path / "main.py").write_text(OWN_PROGRAM, encoding="utf-8")
    workload = replace(WORKLOAD, cluster=ClusterSpec.of("cpu", num_nodes=1, gpus_per_node=2))
    config = ParallelConfig(dp=2, micro_batch_size=2, accumulation_steps=4, precision="bf16")
    options = {
        "steps": 6,
        "script": str(tmp_path / "main.py"),
        "script_args": ["--model.width", "16"],
    }
    write_launch(trainer("lightning").launch(workload, config, options), tmp_path / "launch")
    done = subprocess.run(
        [sys.executable, "-m", "torch.distributed.run", *launch_words(tmp_path / "launch")],
        cwd=tmp_path / "launch",
        capture_output=True,
        text=True,
        timeout=900,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    read = trainer("lightning").reader(options)
    found = [
        metrics
        for line in re.split(r"[\r\n]", done.stdout + done.stderr)
        if (metrics := read(line))
    ]
    assert [metrics.step for metrics in found if metrics.ends_step][:6] == [1, 2, 3, 4, 5, 6]
    assert all(metrics.loss for metrics in found)


def launch_words(folder: Path) -> list[str]:
    """The command of a launch after `torchrun`."""
    return list(json.loads((folder / "launch.json").read_text(encoding="utf-8"))["argv"][1:])


OWN_PROGRAM = """
import lightning.pytorch as L
import torch
from lightning.pytorch.cli import LightningCLI
from torch.utils.data import DataLoader


class Data(L.LightningDataModule):
    def __init__(self, batch_size: int = 4):
        super().__init__()
        self.batch_size = batch_size

    def train_dataloader(self):
        return DataLoader(torch.randn(200, 8), batch_size=self.batch_size)


class Model(L.LightningModule):
    def __init__(self, width: int = 8):
        super().__init__()
        self.layer = torch.nn.Linear(8, width)

    def training_step(self, batch, index):
        loss = self.layer(batch).pow(2).mean()
        self.log("train_loss", loss, prog_bar=True)
        return loss

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=1e-2)


if __name__ == "__main__":
    LightningCLI(Model, Data)
"""
"""A LightningCLI program as its users write them, without a word about autotune."""
