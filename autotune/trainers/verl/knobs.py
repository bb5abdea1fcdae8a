"""The keys of verl's configuration: names, defaults, and what the knobs of its two engines
become."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from autotune.spec import ModelSpec, ParallelConfig
from autotune.spec.post_training import PostTraining
from autotune.trainers.post_training.trainer import EXPERT_TP

ACTOR, ROLLOUT, REF, MODEL = (
    f"actor_rollout_ref.{part}" for part in ("actor", "rollout", "ref", "model")
)
MEGATRON = {
    "tp": "tensor_model_parallel_size", "pp": "pipeline_model_parallel_size", "cp": "context_parallel_size", "ep": "expert_model_parallel_size",
}  # fmt: skip
ESTIMATORS = {"grpo": "grpo", "dapo": "grpo", "ppo": "gae"}
CRITIC = "critic"
ENGINE = {
    ACTOR: {"fsdp": "fsdp_config", "megatron": "megatron"},
    CRITIC: {"fsdp": "fsdp", "megatron": "megatron"},
}
"""the key of what trains, by role and engine"""
TOKENS, BEFORE, SEQUENCES = (
    "ppo_max_token_len_per_gpu",
    "forward_max_token_len_per_gpu",
    "ppo_micro_batch_size_per_gpu",
)
RECOMPUTE = "override_transformer_config.recompute_"
FORWARD = "log_prob_micro_batch_size"
"""sequences of all data-parallel ranks together, the older way to say them"""
LOG_PROB_TOKENS = "log_prob_max_token_len_per_gpu"
_OPTIMIZER = f"{ACTOR}.optim.override_optimizer_config"
OPTIMIZER_ON_HOST = {
    f"{_OPTIMIZER}.optimizer_cpu_offload": True,
    f"{_OPTIMIZER}.optimizer_offload_fraction": 1.0,
    f"{_OPTIMIZER}.use_precision_aware_optimizer": True,
}
"""Megatron's optimizer step on the host; the first two say it"""
EPOCHS, KL_IN_REWARD = "trainer.total_epochs", "algorithm.use_kl_in_reward"
DEFAULTS: Mapping[str, Any] = {
    "algorithm.adv_estimator": "gae",
    "data.train_batch_size": 1024,
    "data.max_prompt_length": 512,
    "data.max_response_length": 512,
    f"{ACTOR}.ppo_mini_batch_size": 256,
    f"{ACTOR}.{TOKENS}": 16384,
    f"{ACTOR}.optim.lr": 1e-6,
    f"{ROLLOUT}.tensor_model_parallel_size": 2,
    f"{ROLLOUT}.gpu_memory_utilization": 0.5,
    "trainer.n_gpus_per_node": 8,
}
ADAPTERS = f"{MODEL}.lora_adapter_path"
"""adapters that exist already"""
SENDS = "nccl"
"""the way by which weights go to engines of their own"""


def fsdp_settings(c: ParallelConfig, role: str) -> dict[str, Any]:
    """What FSDP is told of the policy or the critic (`role`), by dotted paths."""
    where = f"{role}.{ENGINE[role]['fsdp']}"
    return {
        f"{role}.ulysses_sequence_parallel_size": c.cp,
        f"{where}.reshard_after_forward": c.zero_stage == 3,
        f"{where}.fsdp_size": -1 if c.dp_replicas == 1 else c.dp * c.cp // c.dp_replicas,
        f"{MODEL if role == ACTOR else 'critic.model'}.enable_gradient_checkpointing": c.recompute
        == "full",
    }


def megatron_settings(
    c: ParallelConfig, rl: PostTraining, role: str, model: ModelSpec
) -> dict[str, Any]:
    """What Megatron is told of the policy, with its reference, or of the critic (`role`), by dotted
    paths."""
    found: dict[str, Any] = {path: getattr(c, knob) for knob, path in MEGATRON.items()}
    is_full, is_selective = c.recompute == "full", c.recompute == "selective"
    found |= {
        "sequence_parallel": c.sequence_parallel,
        EXPERT_TP: 1 if rl.whole_experts and model.num_experts else None,
        "override_transformer_config.apply_rope_fusion": rl.fused_rope or None,
        "virtual_pipeline_model_parallel_size": c.virtual_stages if c.virtual_stages > 1 else None,
        f"{RECOMPUTE}granularity": c.recompute if is_full or is_selective else None,
        f"{RECOMPUTE}method": "uniform" if is_full else None,
        f"{RECOMPUTE}num_layers": 1 if is_full else None,
        f"{RECOMPUTE}modules": ["core_attn"] if is_selective else None,
    }
    reference = {f"{REF}.megatron.{path}": found[path] for path in (*MEGATRON.values(), EXPERT_TP)}
    return {
        **(reference if role == ACTOR else {}),
        **{f"{role}.megatron.{path}": v for path, v in found.items()},
    }
