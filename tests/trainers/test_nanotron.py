"""nanotron: its YAML, what it refuses, and its log with rounded numbers."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, ClassVar

import pytest
import yaml

from autotune.errors import ExportError
from autotune.spec import ParallelConfig, catalog
from autotune.testing.trainers import WORKLOAD, TrainerContract, configs
from autotune.trainers import Launch, StepMetrics, trainer
from autotune.trainers.present_configuration import PresentConfiguration
from tests.trainers.released_names import released_names

LINE = (
    "[0434:0]:11/01/2024 11:05:18 [INFO|DP=0|PP=0|TP=0|lrdn0434]: iteration: 12001 / 17500 | consumed_tokens: 25.2G | "
    "elapsed_time_per_iteration_ms: 28.2K | tokens_per_sec: 74.5K | tokens_per_sec_per_gpu: 2.33K | global_batch_size: 1.02K | "
    "lm_loss: 2.3 | lr: 0.000289 | model_tflops_per_gpu: 26.7 | hardware_tflops_per_gpu: 26.7 | grad_norm: 0.15 | "
    "cuda_memory_allocated: 8.86G | cuda_max_memory_reserved: 34.1G | hd_total_memory_tb: 9.25G"
)


def document(launch: Launch) -> Any:
    """config.yaml."""
    return yaml.safe_load(launch.files["config.yaml"])


class TestNanotron(TrainerContract):
    trainer = "nanotron"
    settings_of_a_knob: ClassVar[dict[str, Any]] = {"parallelism": {"tp": 2}}
    options: ClassVar[dict[str, Any]] = {"entrypoint": "/src/nanotron/run_train.py"}
    log_lines: ClassVar[dict[str, StepMetrics | None]] = {
        LINE: StepMetrics(
            step=12001,
            step_time_s=28.2,
            tokens_per_s_per_gpu=2330.0,
            loss=2.3,
            grad_norm=0.15,
            peak_memory_bytes=34.1e9,
        ),
        "11/01/2024 11:05:26 [INFO|DP=0|PP=0|TP=0|lrdn0434]: Learning rate scheduler state: {'base_lrs': [0.0003]}": None,
    }

    def test_degrees_and_batch(self) -> None:
        launch = self.launched(
            tp=2,
            pp=2,
            dp=2,
            micro_batch_size=2,
            zero_stage=1,
            sequence_parallel=True,
            recompute="full",
        )
        parallelism = document(launch)["parallelism"]
        assert {
            n: parallelism[n] for n in ("dp", "pp", "tp", "pp_engine", "tp_mode", "recompute_layer")
        } == {
            "dp": 2,
            "pp": 2,
            "tp": 2,
            "pp_engine": "1f1b",
            "tp_mode": "REDUCE_SCATTER",
            "recompute_layer": True,
        }
        tokens = document(launch)["tokens"]
        assert tokens["micro_batch_size"] * tokens["batch_accumulation_per_replica"] * 2 == 64
        assert document(launch)["optimizer"]["zero_stage"] == 1

    def test_gpipe_is_called_afab(self) -> None:
        launch = self.launched(pp=2, dp=4, micro_batch_size=2, pp_schedule="gpipe")
        assert document(launch)["parallelism"]["pp_engine"] == "afab"

    def test_generated_tokens_unless_a_dataset_is_set(self) -> None:
        assert document(self.launched(dp=8))["data_stages"][0]["data"]["dataset"] is None
        config = ParallelConfig(dp=8, micro_batch_size=8)
        options = {**self.options, "dataset": "some/text"}
        with pytest.raises(ExportError, match="tokenizer is not set"):
            trainer("nanotron").launch(WORKLOAD, config, options)
        launch = trainer("nanotron").launch(
            WORKLOAD, config, {**options, "tokenizer": "some/tokenizer"}
        )
        assert document(launch)["tokenizer"] == {"tokenizer_name_or_path": "some/tokenizer"}

    def test_a_missing_entrypoint_is_refused(self) -> None:
        with pytest.raises(ExportError, match="entrypoint is not set"):
            trainer("nanotron").launch(WORKLOAD, ParallelConfig(dp=8, micro_batch_size=8))


def config_of(model: str, **knobs: Any) -> dict[str, Any]:
    """`model_config` of a model of the catalog."""
    config = ParallelConfig(**{"dp": 8, "micro_batch_size": 8, **knobs})
    workload = replace(WORKLOAD, model=catalog.model(model))
    launch = trainer("nanotron").launch(workload, config, TestNanotron.options)
    return document(launch)["model"]["model_config"]


def test_a_qwen2_is_trained_with_its_biases_and_a_llama_without() -> None:
    qwen, llama = config_of("qwen2.5-1.5b"), config_of("llama-8b")
    assert (qwen["is_qwen2_config"], qwen["attention_bias"], qwen["rope_theta"]) == (
        True,
        True,
        1e6,
    )
    assert qwen["tie_word_embeddings"] is True
    assert "is_llama_config" not in qwen
    assert "attention_bias" not in llama
    assert llama["is_llama_config"] is True


def test_context_parallelism_is_told_to_attend_over_the_ranks() -> None:
    told = config_of("llama-8b", dp=4, cp=2, accumulation_steps=2)
    assert (told["_attn_implementation"], told["is_qwen2_config"], told["attention_bias"]) == (
        "ring_flash_triton",
        True,
        False,
    )
    config = ParallelConfig(dp=4, cp=2, micro_batch_size=8, accumulation_steps=2)
    with pytest.raises(
        ExportError,
        match="cp=2: nanotron's Llama attends only to a rank's own tokens; omit model_class",
    ):
        trainer("nanotron").launch(
            WORKLOAD, config, {**TestNanotron.options, "model_class": "llama"}
        )


def test_experts_and_latent_attention_are_refused_with_a_trainer_that_builds_them() -> None:
    workload = replace(WORKLOAD, model=catalog.model("deepseek-v2-lite"))
    with pytest.raises(
        ExportError,
        match=r"kv_lora_rank=512: .*builds no latent attention; use megatron, megatron_bridge, torchtitan, acc",
    ):
        trainer("nanotron").launch(
            workload, ParallelConfig(dp=8, micro_batch_size=8), TestNanotron.options
        )


def test_rotary_scaling_that_its_models_do_not_read_is_named_with_who_does() -> None:
    launch = trainer("nanotron").launch(
        replace(WORKLOAD, model=catalog.model("llama-8b")),
        ParallelConfig(dp=8, micro_batch_size=8),
        TestNanotron.options,
    )
    (note,) = (note for note in launch.notes if "rotary scaling 'llama3'" in note)
    assert note.endswith("they ignore rope_scaling); torchtitan and megatron scale positions")


def test_a_yaml_of_its_qwen2_stays_one() -> None:
    launch = trainer("nanotron").launch(
        WORKLOAD,
        ParallelConfig(dp=8, micro_batch_size=8),
        {**TestNanotron.options, "model_class": "qwen2"},
    )
    theirs = document(launch)
    theirs["model"]["model_config"] |= {
        "attention_bias": True,
        "moe_config": {"num_experts": 4, "top_k": 2},
    }
    reading = trainer("nanotron").read_config(
        PresentConfiguration(files={"config.yaml": yaml.safe_dump(theirs)})
    )
    assert reading.options["model_class"] == "qwen2"
    kept = reading.settings["model"]["model_config"]
    assert kept["attention_bias"] is True
    assert not {"is_qwen2_config", "is_llama_config"} & kept.keys()
    assert "the experts (model_config.moe_config) are ignored" in reading.remarks[0]


def test_every_key_is_one_that_its_main_branch_knows() -> None:
    known = released_names("nanotron-main")
    for config in configs():
        if trainer("nanotron").limits(WORKLOAD, config, TestNanotron.options):
            continue
        written = document(trainer("nanotron").launch(WORKLOAD, config, TestNanotron.options))
        assert written.keys() <= known["Config"]
        for section in (
            "general",
            "parallelism",
            "model",
            "tokens",
            "optimizer",
            "checkpoints",
            "logging",
        ):
            assert written[section].keys() <= known[section], section
        assert (
            written["optimizer"]["learning_rate_scheduler"].keys()
            <= known["optimizer.learning_rate_scheduler"]
        )
