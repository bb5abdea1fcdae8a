"""The flags of OpenRLHF: names and defaults of release 0.11, and the names that earlier releases
have for the same.

Releases before 0.11: `OLD` (cli/train_ppo_ray.py of v0.10.4) and `OLDER` (of v0.9.10, where that
differs); a launch keeps to the names that it has today.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from autotune.trainers.base.trainer_option import Option, Reach

ESTIMATORS = {"ppo": "gae", "grpo": "group_norm", "dapo": "group_norm"}
KL = "algo.kl.init_coef"
ROLES = ("actor", "ref", "critic")
DEFAULTS: Mapping[str, Any] = {
    "actor.adam.lr": 1e-6,
    "actor.num_gpus_per_node": 8,
    "actor.num_nodes": 1,
    "algo.advantage.estimator": "gae",
    KL: 0.01,
    "critic.num_gpus_per_node": 8,
    "critic.num_nodes": 1,
    "data.max_len": 2048,
    "ds.param_dtype": "bf16",
    "ds.ring_attn_size": 1,
    "ds.tensor_parallel_size": 1,
    "ds.zero_stage": 2,
    "ref.num_gpus_per_node": 8,
    "ref.num_nodes": 1,
    "rollout.batch_size": 1024,
    "rollout.max_new_tokens": False,
    "rollout.micro_batch_size": 1,
    "rollout.n_samples_per_prompt": 1,
    "train.async_queue_size": 1,
    "train.batch_size": 128,
    "train.max_epochs": 1,
    "train.max_tokens_per_gpu": 16192,
    "train.micro_batch_size": 1,
    "train.seed": 42,
    "vllm.gpu_memory_utilization": 0.95,
    "vllm.tensor_parallel_size": 1,
}
"""what is read; false: no flag, and the program decides for each sample"""
FLAGS = Option(
    name="flags",
    meaning="release that determines the flag names; 0.9 means any release before 0.10",
    default="0.11",
    choices=("0.11", "0.10", "0.9"),
    reach=Reach.NOTHING,
)
OLD: Mapping[str, str] = {
    **{f"{role}.{key}": f"{role}_{key}" for role in ROLES for key in ("num_nodes", "num_gpus_per_node")},
    **{f"vllm.{key}": f"vllm_{key}" for key in ("num_engines", "tensor_parallel_size", "enable_sleep", "gpu_memory_utilization")},
    "train.colocate_all": "colocate_all_models", "train.colocate_actor_ref": "colocate_actor_ref", "ds.enable_sleep": "deepspeed_enable_sleep",
    "ds.zero_stage": "zero_stage", "ds.tensor_parallel_size": "ds_tensor_parallel_size", "ds.ring_attn_size": "ring_attn_size", "ds.adam_offload": "adam_offload",
    "ds.param_dtype": "param_dtype", "ds.packing_samples": "packing_samples", "ds.lora.rank": "lora_rank", "ds.lora.target_modules": "target_modules",
    "ds.load_in_4bit": "load_in_4bit", "actor.gradient_checkpointing_enable": "gradient_checkpointing",
    "actor.model_name_or_path": "pretrain", "actor.adam.lr": "actor_learning_rate", "algo.advantage.estimator": "advantage_estimator", KL: "init_kl_coef",
    "rollout.batch_size": "rollout_batch_size", "rollout.n_samples_per_prompt": "n_samples_per_prompt", "rollout.micro_batch_size": "micro_rollout_batch_size",
    "rollout.max_new_tokens": "max_new_tokens", "rollout.max_tokens_per_gpu": "rollout_max_tokens_per_gpu", "data.max_len": "max_len",
    "train.batch_size": "train_batch_size", "train.micro_batch_size": "micro_train_batch_size", "train.max_epochs": "max_epochs", "train.seed": "seed",
    "train.dynamic_batch_enable": "use_dynamic_batch", "train.max_tokens_per_gpu": "train_max_tokens_per_gpu", "train.async_enable": "async_train",
    "train.async_queue_size": "async_queue_size", "logger.logging_steps": "logging_steps",
}  # fmt: skip
"""the names of 0.10 for those of 0.11, of the flags that are read or written"""
OLDER: Mapping[str, str] = {
    "rollout.max_new_tokens": "generate_max_len",
    "ds.param_dtype": "",
    "data.max_len": "",
}
"""what was otherwise before 0.10; empty: no flag that a launch writes"""
OF_OLDER = frozenset({"generate_max_len", "prompt_max_len", "bf16", "flash_attn"})


def names_of(release: str) -> Mapping[str, str]:
    """The names of a release for those of 0.11."""
    if release == FLAGS.default:
        return {}
    return OLD if release == "0.10" else {**OLD, **OLDER}


def release_of(flags: Iterable[str]) -> str:
    """Whose names the flags have, by those that another release has not."""
    given = set(flags)
    if given & OF_OLDER:
        return "0.9"
    return "0.10" if given & set(OLD.values()) else FLAGS.default
