"""accelerate and transformers.Trainer: their files, what they refuse, and their logs."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any, ClassVar

import pytest
import yaml

from autotune.errors import ExportError
from autotune.spec import ModelSpec, ParallelConfig, catalog
from autotune.testing.trainers import GPT, MODEL, WORKLOAD, TrainerContract
from autotune.trainers import Launch, StepMetrics, trainer
from autotune.trainers.base.bundled_program import program
from autotune.trainers.documents.file_formats import hf_config


def settings(launch: Launch) -> Any:
    """accelerate.yaml."""
    return yaml.safe_load(launch.files["accelerate.yaml"])


def arguments(launch: Launch) -> Any:
    """training_args.json."""
    return json.loads(launch.files["training_args.json"])


class TestAccelerate(TrainerContract):
    trainer = "accelerate"
    settings_of_a_knob: ClassVar[dict[str, Any]] = {"mixed_precision": "fp16"}
    log_lines: ClassVar[dict[str, StepMetrics | None]] = {
        '{"step": 3, "step_time_s": 0.41, "loss": 2.31, "peak_memory_bytes": 1024}': StepMetrics(
            step=3, step_time_s=0.41, loss=2.31, peak_memory_bytes=1024.0
        ),
    }

    @pytest.mark.parametrize(
        ("stage", "kind"), [(0, "MULTI_GPU"), (1, "DEEPSPEED"), (2, "FSDP"), (3, "FSDP")]
    )
    def test_zero_stages(self, stage: int, kind: str) -> None:
        document = settings(self.launched(dp=8, zero_stage=stage, recompute="full"))
        assert document["distributed_type"] == kind
        if kind == "FSDP":
            assert document["fsdp_config"]["fsdp_reshard_after_forward"] is (stage == 3)
            assert document["fsdp_config"]["fsdp_activation_checkpointing"] is True
            assert (
                document["fsdp_config"]["fsdp_transformer_layer_cls_to_wrap"] == "LlamaDecoderLayer"
            )

    def test_each_node_is_told_its_rank_by_arguments(self) -> None:
        launch = self.launched(dp=16, zero_stage=3)
        document = settings(launch)
        assert (document["num_machines"], document["num_processes"], document["same_network"]) == (
            2,
            16,
            True,
        )
        assert launch.argv[4:8] == ("--machine_rank", "@node-rank@", "--main_process_ip", "node0")

    def test_tensor_parallelism_needs_a_program_of_your_own(self) -> None:
        config = ParallelConfig(tp=2, dp=4, micro_batch_size=2, accumulation_steps=8, zero_stage=3)
        with pytest.raises(ExportError, match="use your own program with the `script` option"):
            trainer("accelerate").launch(WORKLOAD, config)
        document = settings(trainer("accelerate").launch(WORKLOAD, config, {"script": "mine.py"}))
        assert document["parallelism_config"]["parallelism_config_tp_size"] == 2
        assert document["parallelism_config"]["parallelism_config_dp_shard_size"] == 4

    def test_compile_is_dynamo(self) -> None:
        assert settings(self.launched(dp=8, compile=True))["dynamo_config"] == {
            "dynamo_backend": "INDUCTOR"
        }


@pytest.mark.thorough
class TestAccelerateWithYourOwnProgram(TrainerContract):
    trainer = "accelerate"
    settings_of_a_knob: ClassVar[dict[str, Any]] = {"mixed_precision": "fp16"}
    options: ClassVar[dict[str, Any]] = {"script": "mine.py"}
    notes_count = True


class TestHfTrainer(TrainerContract):
    trainer = "hf_trainer"
    settings_of_a_knob: ClassVar[dict[str, Any]] = {"gradient_accumulation_steps": 2}
    log_lines: ClassVar[dict[str, StepMetrics | None]] = {
        "{'loss': '2.31', 'grad_norm': '0.8', 'learning_rate': '5e-05', 'epoch': '0.01'}": StepMetrics(
            loss=2.31, grad_norm=0.8
        ),
        "{'loss': 2.31, 'learning_rate': 5e-05, 'epoch': 0.01}": StepMetrics(loss=2.31),
        "{'train_runtime': '10.1', 'train_samples_per_second': '6.3', 'train_steps_per_second': '0.1'}": StepMetrics(
            samples_per_s=6.3
        ),
        "{'eval_loss': 2.0}": None,
    }

    def test_batch_and_precision(self) -> None:
        document = arguments(
            self.launched(dp=8, micro_batch_size=2, precision="tf32", compile=True)
        )
        assert (
            document["per_device_train_batch_size"] * document["gradient_accumulation_steps"] * 8
            == 64
        )
        assert (document["bf16"], document["fp16"], document["tf32"]) == (False, False, True)
        assert document["torch_compile"] is True

    def test_zero_stages(self) -> None:
        assert "fsdp" not in arguments(self.launched(dp=8))
        assert (
            arguments(self.launched(dp=8, zero_stage=1))["deepspeed"]["zero_optimization"]["stage"]
            == 1
        )
        assert (
            arguments(self.launched(dp=8, zero_stage=2))["fsdp_config"]["reshard_after_forward"]
            is False
        )
        full = arguments(self.launched(dp=8, zero_stage=3, recompute="full"))
        assert full["fsdp_config"]["activation_checkpointing"] is True
        assert "activation_checkpointing" not in full


@pytest.mark.parametrize("name", ["accelerate", "hf_trainer"])
def test_on_cpu_ranks_weights_stay_whole(name: str) -> None:
    """accelerate takes the ranks for a GPU's unless it is told, and then shards nothing."""
    workload = replace(WORKLOAD, cluster=catalog.cluster("cpu-1x2"))
    config = ParallelConfig(dp=2, micro_batch_size=8, accumulation_steps=4, precision="fp32")
    launch = trainer(name).launch(workload, config)
    told = (
        launch.env.get("ACCELERATE_USE_CPU") == "true"
        if name == "accelerate"
        else arguments(launch)["use_cpu"]
    )
    assert told
    assert not any("needs a GPU" in note for note in launch.notes)
    for stage in (1, 2, 3):
        (limit,) = trainer(name).limits(workload, replace(config, zero_stage=stage))
        assert (limit.knob, limit.nearest) == ("zero_stage", 0)


@pytest.mark.parametrize(
    ("model", "kind"),
    [
        (GPT, "gpt2"),
        (MODEL, "llama"),
        (replace(MODEL, num_experts=8, experts_per_token=2), "mixtral"),
    ],
    ids=["gpt2", "llama", "mixtral"],
)
def test_a_model_survives_the_way_to_hugging_face_and_back(model: ModelSpec, kind: str) -> None:
    document = hf_config(model, 1024)
    assert document["model_type"] == kind
    back = ModelSpec.from_hf(document, name=model.name)
    head = (
        0
        if model.num_kv_heads == model.num_attention_heads and not model.gated_mlp
        else model.head_dim
    )
    assert back == replace(model, attention_head_dim=head)


@pytest.mark.parametrize(
    "name",
    [
        "base/batches.py",
        "deepspeed/train.py",
        "accelerate/train.py",
        "hf_trainer/train.py",
        "lightning/train.py",
    ],
)
def test_programs_are_python(name: str) -> None:
    compile(program(name), name, "exec")
