"""`bridge.yaml` read back: the settings that change a ConfigContainer."""

from __future__ import annotations

from typing import Any

from autotune.trainers.megatron.knobs import (
    STRATEGIES,
    read_knobs,
    read_recompute,
    stages_of_layout,
    with_optimizer,
)
from autotune.trainers.present_configuration import (
    KeyReader,
    PresentConfiguration,
    Reading,
    batch_of,
    completed,
)

WRITTEN_ANEW = (
    "model.recompute_method", "model.recompute_num_layers", "model.gradient_accumulation_fusion", "model.seq_length",
    "optimizer.use_distributed_optimizer", "optimizer.min_lr", "scheduler.lr_warmup_iters", "dist.use_megatron_fsdp",
    "dataset.random_seed", "dataset.seq_length", "logger.log_interval", "checkpoint.save", "checkpoint.load",
    "checkpoint.ckpt_format", "ddp.average_in_collective", "ddp.data_parallel_sharding_strategy", "ddp.use_megatron_fsdp",
    "model.virtual_pipeline_model_parallel_size", "model.recompute_granularity", "ddp.check_for_nan_in_grad", "rng.te_rng_tracker",
    "rerun_state_machine.check_for_nan_in_loss", "optimizer.optimizer_offload_fraction", "optimizer.overlap_cpu_optimizer_d2h_h2d",
    "optimizer.use_precision_aware_optimizer", "model.cp_comm_type",
)  # fmt: skip
"""keys that every launch writes by itself"""


def read(present: PresentConfiguration) -> Reading:
    """bridge.yaml, or the YAML of overrides that Megatron-Bridge's own programs take."""
    keys = present.keys(".yaml", ".yml")
    stages = keys.find("model.virtual_pipeline_model_parallel_size") or 1
    batch = keys.count("train.global_batch_size")
    if layout := keys.find("model.pipeline_model_parallel_layout"):
        stages = max(
            1, stages_of_layout(layout) // (keys.positive("model.pipeline_model_parallel_size"))
        )
    module = read_knobs(keys, _in_model)
    away = keys.is_on("optimizer.optimizer_cpu_offload")
    replicas = keys.positive("ddp.num_distributed_optimizer_instances")
    knobs: dict[str, Any] = {
        **with_optimizer(module, away=away),
        **({"dp_replicas": replicas} if replicas > 1 else {}),
        "tp": keys.positive("model.tensor_model_parallel_size"),
        "pp": keys.positive("model.pipeline_model_parallel_size"),
        "cp": keys.positive("model.context_parallel_size"),
        "ep": keys.positive("model.expert_model_parallel_size"),
        "micro_batch_size": keys.count("train.micro_batch_size"),
        "sequence_parallel": keys.is_on("model.sequence_parallel"),
        "virtual_stages": stages,
        "pp_schedule": "interleaved_1f1b" if stages > 1 else "1f1b",
        "precision": _precision(keys, tf32=present.tf32),
        "recompute": read_recompute(
            keys, _in_model, keys.find("model.recompute_granularity") or "none"
        ),
        "zero_stage": _zero(keys),
        "compile": False,
    }
    knobs = completed(knobs, ranks=present.ranks, batch=batch)
    overlaps = [
        keys.flag(f"ddp.{name}") for name in ("overlap_grad_reduce", "overlap_param_gather")
    ]
    options: dict[str, Any] = {
        "steps": keys.count("train.train_iters"),
        "learning_rate": keys.number("optimizer.lr"),
        "seed": keys.count("rng.seed"),
        "recipe": present.option("recipe"),
        "overlap": None
        if overlaps == [None, None] or knobs.get("dp", 2) * knobs["cp"] == 1
        else any(overlaps),
    }
    sequence = keys.count("model.seq_length") or keys.count("dataset.seq_length")
    optimizer = keys.word("optimizer.optimizer", {"adam": "adamw", "sgd": "sgd"}, "")
    keys.drop(*WRITTEN_ANEW)
    return Reading(
        knobs=knobs,
        model_file=present.option("model") or "",
        seq_len=sequence,
        global_batch_size=batch or batch_of(knobs),
        optimizer=optimizer,
        options=options,
        settings=keys.left,
        remarks=tuple(keys.remarks),
    )


def _in_model(field: str) -> str:
    return f"model.{field}"


def _precision(keys: KeyReader, *, tf32: bool) -> str:
    written = keys.text("mixed_precision")
    if written is None:
        keys.drop("mixed_precision")
        return "tf32" if tf32 else "fp32"
    for word in ("mxfp8", "nvfp4", "fp8"):
        if word in written:
            return word
    if written not in ("bf16_mixed", "fp16_mixed"):
        keys.remarks.append(
            f"{keys.name}: mixed_precision={written} has no knob and is read as {written[:4]}"
        )
    return written[:4]


def _zero(keys: KeyReader) -> int:
    sharded = keys.is_on("ddp.use_distributed_optimizer")
    if keys.find("ddp.use_megatron_fsdp") or keys.find("dist.use_megatron_fsdp"):
        return STRATEGIES.get(str(keys.find("ddp.data_parallel_sharding_strategy")), 3)
    return 1 if sharded else 0
