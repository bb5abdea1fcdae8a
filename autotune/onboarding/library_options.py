"""Options that a library adds to a script's own: (name, kind, default). Those that a study sets, not all that there are.

Names and defaults: transformers 5.23 (`training_args.py`), trl 1.16 (`trainer/base_config.py`, `trainer/sft_config.py`),
Lightning 2.6 (`pytorch/trainer/trainer.py`).
"""

from __future__ import annotations

from typing import Any

TRAINING_ARGUMENTS: tuple[tuple[str, str, Any], ...] = (
    ("per_device_train_batch_size", "int", 8),
    ("gradient_accumulation_steps", "int", 1),
    ("bf16", "flag", False),
    ("fp16", "flag", False),
    ("gradient_checkpointing", "flag", False),
    ("torch_compile", "flag", False),
    ("max_steps", "int", -1),
    ("seed", "int", 42),
    ("dataloader_num_workers", "int", 0),
)
"""of `TrainingArguments`; they print a loss dictionary every `logging_steps`"""
_TRL_DEFAULTS = {"bf16": True, "gradient_checkpointing": True}
_TRL_ARGUMENTS = tuple((name, kind, _TRL_DEFAULTS.get(name, default)) for name, kind, default in TRAINING_ARGUMENTS)
TRAINER_ARGUMENTS: tuple[tuple[str, tuple[tuple[str, str, Any], ...]], ...] = (
    ("SFTConfig", (*_TRL_ARGUMENTS, ("max_length", "int", 1024), ("packing", "flag", False))),
    ("GRPOConfig", _TRL_ARGUMENTS),
    ("DPOConfig", (*_TRL_ARGUMENTS, ("max_length", "int", 1024))),
    ("TrainingArguments", TRAINING_ARGUMENTS),
)
"""(how the class's name ends, its options); trl's classes derive from `TrainingArguments` with other defaults"""
LIGHTNING_TRAINER: tuple[tuple[str, str, Any], ...] = (
    ("devices", "int", None),
    ("num_nodes", "int", 1),
    ("precision", "text", "32-true"),
    ("accumulate_grad_batches", "int", 1),
    ("max_steps", "int", -1),
)
"""of Lightning's `Trainer`, under `trainer.` with LightningCLI"""
