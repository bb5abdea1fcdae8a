"""The keys of GRPOConfig: their defaults, and the file of TRL's that shards as a ZeRO stage
says."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

SETTINGS_FILE = "grpo.yaml"
DEFAULTS: Mapping[str, Any] = {
    "beta": 0.0,
    "gradient_accumulation_steps": 1,
    "gradient_checkpointing": True,
    "learning_rate": 1e-6,
    "logging_steps": 10,
    "lora_r": 16,
    "lora_target_modules": ["q_proj", "v_proj"],  # PEFT's own, of Llama and Qwen
    "loss_type": "dapo",
    "max_completion_length": 512,
    "max_steps": -1,
    "num_generations": 8,
    "num_iterations": 1,
    "output_dir": "trainer_output",
    "per_device_train_batch_size": 8,
    "save_strategy": "steps",
    "seed": 42,
    "use_vllm": False,
    "vllm_enable_sleep_mode": False,
    "vllm_gpu_memory_utilization": 0.3,
    "vllm_mode": "colocate",
    "vllm_tensor_parallel_size": 1,
}


def accelerate_config(stage: int) -> str:
    """The file of TRL's accelerate_configs that has this ZeRO stage."""
    return f"zero{stage}" if stage else "multi_gpu"
