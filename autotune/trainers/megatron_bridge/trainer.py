"""Megatron-Bridge: `bridge.yaml` with the settings that change a ConfigContainer, and a program
that calls `pretrain()`.

What is changed is the configuration of the model in model/config.json on mock data, or a recipe of
yours (option `recipe`). The program refuses a setting that the installed release does not know.
Precision is a recipe of its mixed precision by name; without one the program sets fp32.

Read back is bridge.yaml, or the overrides that its own programs take: dp follows from the world
size, and accumulation from the global batch.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from autotune.spec import KNOBS, ModelSpec, ParallelConfig, Workload
from autotune.spec.hugging_face.figures import figures_of
from autotune.trainers.base.bundled_program import program
from autotune.trainers.base.effective import cpu_note, effective
from autotune.trainers.base.limit import Limit
from autotune.trainers.base.torchrun import ranks_started
from autotune.trainers.base.trained_families import MEGATRON_BRIDGE, who_trains
from autotune.trainers.base.trainer import SHARED_OPTIONS, Option, StepMetrics, Trainer
from autotune.trainers.base.trainer_option import Reach
from autotune.trainers.documents.file_formats import hf_config, to_json, to_yaml
from autotune.trainers.launch_files import Launch
from autotune.trainers.megatron.core import (
    ITERATION_MARKS,
    NOT_IN_CORE,
    OVERLAP,
    SHARDING,
    core_limits,
    parse_iteration,
)
from autotune.trainers.megatron.knobs import (
    environment,
    model_fields,
    optimizer_fields,
)
from autotune.trainers.present_configuration import (
    SETTINGS,
)

PRECISIONS = {
    "bf16": "bf16_mixed",
    "fp16": "fp16_mixed",
    "fp8": "bf16_with_fp8_current_scaling_mixed",
    "mxfp8": "bf16_with_mxfp8_mixed",
    "nvfp4": "bf16_with_nvfp4_mixed",
}
"""recipes of mixed precision (megatron/bridge/training/mixed_precision.py)"""


class MegatronBridgeTrainer(Trainer):
    """Megatron-Bridge's pretraining."""

    name = "megatron_bridge"
    reads_config_json = True
    shapes = frozenset({"mtp_layers"})
    summary = "Megatron-Bridge, a model's config.json or a recipe with bridge.yaml"
    checked_against = "Megatron-Bridge 0.3.1 with Megatron Core 0.16.1"
    # interleaving: accumulation_steps is a multiple of pp
    limited_by = frozenset(KNOBS) - {"micro_batch_size"}
    can_import = True
    watching = (
        "profiling.*", "logger.tensorboard_*", "logger.log_*_to_tensorboard", "logger.wandb_*", "logger.mlflow_*",
        "logger.timing_log_*",
    )  # fmt: skip
    recognized_by = (
        "model.tensor_model_parallel_size",
        "model.pipeline_model_parallel_size",
        "model.expert_model_parallel_size",
        "train.micro_batch_size",
        "train.global_batch_size",
    )
    settings_file = "bridge.yaml"
    no_adapters = (
        "adapters belong to Megatron-Bridge's fine-tuning recipes, which need a checkpoint"
    )
    has_own_attention = True
    reads = frozenset({
        "tp", "pp", "dp", "cp", "ep", "micro_batch_size", "accumulation_steps", "precision",
        "recompute", "zero_stage", "sequence_parallel", "pp_schedule", "virtual_stages", "compile",
        "dp_replicas", "pp_split", "loss", "cp_style", "offload", "async_tp", "cuda_graph", "dispatcher", "ep_overlap",
    })  # fmt: skip
    cannot = NOT_IN_CORE
    options = (
        *SHARED_OPTIONS,
        SETTINGS,
        Option(
            name="recipe",
            meaning="import path of a recipe; default: the spec's model on mock data",
            default="",
            reach=Reach.ARGUMENT,
        ),
        OVERLAP,
    )

    def find_limits(
        self, workload: Workload, config: ParallelConfig, options: Mapping[str, Any]
    ) -> tuple[Limit, ...]:
        """Megatron Core's rules (`megatron/core.py`), and models without a bridge."""
        c = effective(config)
        limits = core_limits(workload, c)
        return limits if options["recipe"] else (*limits, *_model_limits(workload.model, c))

    def build(
        self, workload: Workload, config: ParallelConfig, options: Mapping[str, Any]
    ) -> Launch:
        """torchrun, the program, bridge.yaml and the model's config."""
        c = effective(config)
        start = ranks_started(workload, c, options)
        files = {
            "bridge.yaml": to_yaml(_settings(workload, c, options)),
            "train.py": program("megatron_bridge/train.py"),
        }
        recipe = options["recipe"]
        if recipe:
            model, note = ("--recipe", recipe), f"model and data come from the recipe {recipe}"
        else:
            model = ("--model", "model/config.json")
            files[model[1]] = to_json(hf_config(workload.model, workload.seq_len))
            note = "the launch trains on mock data; set a recipe, or set `dataset` in the `settings` option"
        return Launch(
            argv=(*start, "train.py", "--settings", "bridge.yaml", *model),
            env=environment(c),
            files=files,
            notes=(*cpu_note(workload, "Megatron-Bridge"), note),
        )

    step_marks = ITERATION_MARKS

    def parse_line(self, line: str) -> StepMetrics | None:
        """Its line of each iteration, which is Megatron-LM's (`megatron/core.py`)."""
        return parse_iteration(line)


def _model_limits(model: ModelSpec, c: ParallelConfig) -> tuple[Limit, ...]:
    figures = figures_of(model)
    if figures is not None and figures.family not in MEGATRON_BRIDGE:
        message = f"Megatron-Bridge has no bridge for this family, but supports {', '.join(sorted(MEGATRON_BRIDGE))}"
        remedy = f"use {who_trains(figures.family)}"
        return (Limit(knob="model.family", value=figures.family, message=message, remedy=remedy),)
    if figures is None and not model.gated_mlp:
        message = (
            "Megatron-Bridge has no bridge for GPT-2; a model given only by its shape is a Llama"
        )
        return (
            Limit(
                knob="model.gated_mlp",
                value=False,
                message=message,
                remedy="use megatron, which trains this model",
            ),
        )
    if figures is None and model.num_experts:
        message = "Megatron-Bridge has no bridge for Mixtral"
        remedy = "use the config.json of a supported family with experts, or use megatron"
        found = {"model.num_experts": model.num_experts}
        knobs = ("ep", "dispatcher", "ep_overlap")
        found |= {
            name: getattr(c, name) for name in knobs if getattr(c, name) != KNOBS[name].default
        }
        return tuple(
            Limit(knob=name, value=value, message=message, remedy=remedy)
            for name, value in found.items()
        )
    return ()


def _settings(workload: Workload, c: ParallelConfig, options: Mapping[str, Any]) -> dict[str, Any]:
    """The fields of ConfigContainer that the config decides about."""
    rate, steps, sharded = options["learning_rate"], options["steps"], c.zero_stage >= 2
    model: dict[str, Any] = {
        "tensor_model_parallel_size": c.tp,
        "pipeline_model_parallel_size": c.pp,
        "virtual_pipeline_model_parallel_size": c.virtual_stages if c.virtual_stages > 1 else None,
        "context_parallel_size": c.cp,
        "expert_model_parallel_size": c.ep,
        "sequence_parallel": c.sequence_parallel,
        "seq_length": workload.seq_len,
        "recompute_granularity": {"none": None, "full": "full"}.get(c.recompute, "selective"),
        "recompute_method": "uniform" if c.recompute == "full" else None,
        "recompute_num_layers": 1 if c.recompute == "full" else None,
        **model_fields(workload, c),
    }
    if workload.model.num_experts:
        model["expert_tensor_parallel_size"] = 1  # experts stay whole, as in NVIDIA's recipes
    if workload.model.num_experts or workload.model.mtp_layers:
        # a config.json may name more than the study trains
        model["mtp_num_layers"] = workload.model.mtp_layers or None
    if sharded:
        model["gradient_accumulation_fusion"] = False
    overlap = options["overlap"] and c.dp * c.cp > 1
    settings: dict[str, Any] = {
        "model": model,
        "train": {
            "micro_batch_size": c.micro_batch_size,
            "global_batch_size": c.global_batch_size,
            "train_iters": steps,
        },
        "mixed_precision": PRECISIONS.get(c.precision),
        "optimizer": {
            "optimizer": "adam" if workload.optimizer == "adamw" else "sgd",
            "lr": rate,
            "min_lr": float(f"{rate / 10:g}"),
            "use_distributed_optimizer": c.zero_stage > 0,
            **optimizer_fields(c),
        },
        "scheduler": {"lr_warmup_iters": max(1, steps // 10)},
        "ddp": {
            "use_distributed_optimizer": c.zero_stage > 0,
            "num_distributed_optimizer_instances": c.dp_replicas,
            "check_for_nan_in_grad": c.cuda_graph != "step",
            "use_megatron_fsdp": sharded,
            "data_parallel_sharding_strategy": SHARDING[c.zero_stage] if sharded else "no_shard",
            "overlap_grad_reduce": overlap,
            "overlap_param_gather": overlap and c.zero_stage > 0,
        },
        "dist": {"use_megatron_fsdp": sharded},
        "dataset": {"seq_length": workload.seq_len, "random_seed": options["seed"]},
        "rng": {"seed": options["seed"], "te_rng_tracker": c.cuda_graph != "none"},
        "logger": {"log_interval": 1},
        "checkpoint": {"save": None, "load": None},
    }
    if c.cuda_graph == "step":
        settings["rerun_state_machine"] = {"check_for_nan_in_loss": False}
    if sharded:
        settings["ddp"]["average_in_collective"] = False
        settings["checkpoint"]["ckpt_format"] = "fsdp_dtensor"
    return settings


TRAINER = MegatronBridgeTrainer()
