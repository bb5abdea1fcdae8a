"""Megatron-Bridge: the settings that are written, by the names of its release, what it refuses, and
its log."""

from __future__ import annotations

import itertools
import json
import types
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

import pytest
import yaml

from autotune import api
from autotune.errors import ExportError
from autotune.spec import ParallelConfig
from autotune.testing.knobs import varied_configs
from autotune.testing.trainers import GPT, WORKLOAD, TrainerContract, configs
from autotune.trainers import Launch, StepMetrics, trainer
from autotune.trainers.base.bundled_program import program
from tests.trainers.released_names import released_names

LINE = (
    " [2026-01-20 10:00:01] iteration        3/      50 | consumed samples:          192 | elapsed time per iteration (ms): 865.2 | "
    "throughput per GPU (TFLOP/s/GPU): 410.2 | learning rate: 3.000000E-04 | global batch size:    64 | lm loss: 1.042131E+01 | "
    "loss scale: 1.0 | grad norm: 2.150 | number of skipped iterations:   0 | number of nan iterations:   0 |"
)
RERUN = {"check_for_nan_in_loss"}
"""field of RerunStateMachineConfig that is written"""


def settings(launch: Launch) -> Any:
    """bridge.yaml."""
    return yaml.safe_load(launch.files["bridge.yaml"])


@pytest.mark.thorough
class TestMegatronBridge(TrainerContract):
    trainer = "megatron_bridge"
    settings_of_a_knob: ClassVar[dict[str, Any]] = {"model": {"tensor_model_parallel_size": 2}}
    log_lines: ClassVar[dict[str, StepMetrics | None]] = {
        LINE: StepMetrics(step=3, step_time_s=0.8652, loss=10.42131, grad_norm=2.15),
        "> building train, validation, and test datasets ...": None,
    }

    def test_degrees_and_batch(self) -> None:
        config = {
            "tp": 2,
            "pp": 2,
            "dp": 4,
            "micro_batch_size": 2,
            "virtual_stages": 2,
            "sequence_parallel": True,
        }
        written = settings(
            self.launched(**config, pp_schedule="interleaved_1f1b", zero_stage=1, recompute="full")
        )
        assert written["model"]["virtual_pipeline_model_parallel_size"] == 2
        assert written["model"]["recompute_num_layers"] == 1
        assert written["train"] == {
            "micro_batch_size": 2,
            "global_batch_size": 64,
            "train_iters": 50,
        }
        assert written["ddp"]["use_distributed_optimizer"] is True

    def test_every_setting_is_one_that_the_release_knows(self) -> None:
        known = released_names("megatron-bridge-0.3.1")
        seen: set[str] = set()
        for config in itertools.chain(configs(), varied_configs(WORKLOAD)):
            if trainer("megatron_bridge").limits(WORKLOAD, config):
                continue
            for section, values in settings(
                trainer("megatron_bridge").launch(WORKLOAD, config)
            ).items():
                assert section in known["ConfigContainer"]
                if section == "mixed_precision":
                    assert values is None or values in known["mixed_precision"]
                else:
                    assert values.keys() <= known.get(section, RERUN), section
                    seen.add(section)
        assert {"model", "train", "ddp", "optimizer"} <= seen

    def test_a_family_with_a_bridge_is_launched_by_its_own_file(self, tmp_path: Path) -> None:
        document = {
            "model_type": "qwen3",
            "architectures": ["Qwen3ForCausalLM"],
            "hidden_size": 1024,
            "intermediate_size": 3072,
            "num_hidden_layers": 28,
            "num_attention_heads": 16,
            "num_key_value_heads": 8,
            "head_dim": 128,
            "vocab_size": 151936,
        }
        for family, is_known in (("qwen3", True), ("phi3", False)):
            (tmp_path / "config.json").write_text(
                json.dumps({**document, "model_type": family}), encoding="utf-8"
            )
            spec = {"model": "./config.json", "cluster": "h100-sxm-1x8", "space": {"tp": [1]}}
            study = api.load_study(
                {**spec, "workload": {"seq_len": 4096, "global_batch_size": 64}}, base=tmp_path
            )
            config = ParallelConfig(dp=8, accumulation_steps=8)
            if is_known:
                launch = trainer("megatron_bridge").launch(study.workload, config)
                assert json.loads(launch.files["model/config.json"]) == document
            else:
                with pytest.raises(ExportError, match="no bridge for this family"):
                    trainer("megatron_bridge").launch(study.workload, config)

    def test_gpt_is_refused_but_for_a_recipe(self) -> None:
        workload, config = replace(WORKLOAD, model=GPT), ParallelConfig(dp=8, micro_batch_size=8)
        with pytest.raises(ExportError, match="no bridge for GPT-2"):
            trainer("megatron_bridge").launch(workload, config)
        launch = trainer("megatron_bridge").launch(
            workload, config, {"recipe": "mine.recipes.small"}
        )
        assert launch.argv[-2:] == ("--recipe", "mine.recipes.small")
        assert "model/config.json" not in launch.files

    def test_the_program_refuses_a_setting_that_the_installed_release_does_not_know(self) -> None:
        """The function that changes a configuration, taken out of the program, which needs GPUs to
        be imported."""
        source = program("megatron_bridge/train.py")
        start = source.index("def change(")
        names: dict[str, Any] = {}
        exec(source[start : source.index("\n\n\n", start)], names)
        config = types.SimpleNamespace(
            train=types.SimpleNamespace(train_iters=1), mixed_precision=None
        )
        names["change"](config, {"train": {"train_iters": 7}, "mixed_precision": "bf16_mixed"})
        assert (config.train.train_iters, config.mixed_precision) == (7, "bf16_mixed")
        with pytest.raises(SystemExit, match=r"has no setting train\.made_up"):
            names["change"](config, {"train": {"made_up": 7}})
