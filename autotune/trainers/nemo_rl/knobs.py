"""The keys of NeMo-RL's configuration: names, the values of its example, and how words of knobs are
spelled."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from autotune.trainers.post_training.trainer import EXPERT_TP

DTENSOR, MEGATRON, PACKING, DYNAMIC, GENERATION = (
    "policy.dtensor_cfg",
    "policy.megatron_cfg",
    "policy.sequence_packing",
    "policy.dynamic_batching",
    "policy.generation",
)
ENGINES = {"fsdp": DTENSOR, "megatron": MEGATRON}
RATES = {"fsdp": "policy.optimizer.kwargs.lr", "megatron": f"{MEGATRON}.optimizer.lr"}
"""the keys of what trains, and of its learning rate"""
PENALTY = "loss_fn.reference_policy_kl_penalty"
_LENGTH = "${mul:${policy.max_total_sequence_length}, ${policy.%s}}"
DEFAULTS: Mapping[str, Any] = {
    "cluster.gpus_per_node": 1,
    "cluster.num_nodes": 1,
    "grpo.async_grpo.enabled": False,
    "grpo.async_grpo.max_trajectory_age_steps": 1,
    "grpo.max_num_steps": 1000000,
    "grpo.num_generations_per_prompt": 16,
    "grpo.num_prompts_per_step": 32,
    "grpo.seed": 42,
    PENALTY: 0.01,
    f"{DTENSOR}.activation_checkpointing": False,
    f"{DTENSOR}.context_parallel_size": 1,
    f"{DTENSOR}.enabled": True,
    f"{DTENSOR}.sequence_parallel": False,
    f"{DTENSOR}.tensor_parallel_size": 1,
    f"{DYNAMIC}.enabled": False,
    f"{DYNAMIC}.logprob_mb_tokens": _LENGTH % "logprob_batch_size",
    f"{DYNAMIC}.train_mb_tokens": _LENGTH % "train_micro_batch_size",
    f"{GENERATION}.colocated.enabled": True,
    f"{GENERATION}.colocated.resources.gpus_per_node": None,
    f"{GENERATION}.colocated.resources.num_nodes": None,
    f"{GENERATION}.vllm_cfg.gpu_memory_utilization": 0.6,
    f"{GENERATION}.vllm_cfg.tensor_parallel_size": 1,
    "policy.logprob_batch_size": "${policy.train_micro_batch_size}",
    "policy.max_total_sequence_length": 512,
    f"{MEGATRON}.activation_checkpointing": False,
    f"{MEGATRON}.context_parallel_size": 1,
    f"{MEGATRON}.enabled": False,
    f"{MEGATRON}.expert_model_parallel_size": 1,
    f"{MEGATRON}.{EXPERT_TP}": 1,
    f"{MEGATRON}.optimizer.lr": 5e-6,
    f"{MEGATRON}.pipeline_model_parallel_size": 1,
    f"{MEGATRON}.sequence_parallel": False,
    f"{MEGATRON}.tensor_model_parallel_size": 1,
    "policy.model_name": "Qwen/Qwen2.5-1.5B",
    "policy.optimizer.kwargs.lr": 5e-6,
    "policy.precision": "bfloat16",
    f"{PACKING}.enabled": True,
    f"{PACKING}.logprob_mb_tokens": _LENGTH % "logprob_batch_size",
    f"{PACKING}.train_mb_tokens": _LENGTH % "train_micro_batch_size",
    "policy.train_global_batch_size": 512,
    "policy.train_micro_batch_size": 4,
}
"""what is read, as BASE has it"""
DEGREES = {
    "fsdp": {"tp": "tensor_parallel_size", "cp": "context_parallel_size"},
    "megatron": {"tp": "tensor_model_parallel_size", "pp": "pipeline_model_parallel_size", "cp": "context_parallel_size", "ep": "expert_model_parallel_size"},
}  # fmt: skip
WITH_ASYNC = (f"{GENERATION}.vllm_cfg.async_engine", "loss_fn.use_importance_sampling_correction")
"""without which `async_grpo_train` does not start"""
PRECISIONS = {"bf16": "bfloat16", "fp32": "float32"}
