"""Options that a library adds to a script's own: (name, kind, default). Those that a study sets,
not all that there are.

Names and defaults: transformers 5.23 (`training_args.py`), trl 1.16 (`trainer/base_config.py`,
`trainer/sft_config.py`), Lightning 2.6 (`pytorch/trainer/trainer.py`).
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
MICRO_BATCH, ACCUMULATION = "per_device_train_batch_size", "gradient_accumulation_steps"
"""of `TrainingArguments` and of the examples of transformers and accelerate whose loop is their
own; both accumulate nothing unless told"""
OWN_LOOP = frozenset(
    {"num_warmup_steps", "max_train_steps", "checkpointing_steps", "with_tracking", "zero_stage"}
)
"""of the examples `*_no_trainer.py` of transformers and accelerate and of DeepSpeed-Chat, whose
loop is their own and whose other options are called as `TrainingArguments`' are"""
OF_TRAINER = frozenset({
    "bf16", "fp16", "tf32", "deepspeed", "fsdp", "optim", "torch_compile", "gradient_checkpointing", "max_steps", "warmup_steps", "warmup_ratio", "max_grad_norm",
    "do_train", "do_eval", "logging_steps", "logging_strategy", "logging_dir", "save_steps", "save_strategy", "save_total_limit", "eval_steps", "eval_strategy",
    "evaluation_strategy", "overwrite_output_dir", "dataloader_num_workers", "remove_unused_columns", "group_by_length", "ddp_find_unused_parameters", "run_name",
    "auto_find_batch_size", "load_best_model_at_end",
})  # fmt: skip
"""of `TrainingArguments`, and of none of those examples"""
_TRL_DEFAULTS = {"bf16": True, "gradient_checkpointing": True}
_TRL_ARGUMENTS = tuple(
    (name, kind, _TRL_DEFAULTS.get(name, default)) for name, kind, default in TRAINING_ARGUMENTS
)
TRAINER_ARGUMENTS: tuple[tuple[str, tuple[tuple[str, str, Any], ...]], ...] = (
    ("SFTConfig", (*_TRL_ARGUMENTS, ("max_length", "int", 1024), ("packing", "flag", False))),
    ("GRPOConfig", _TRL_ARGUMENTS),
    ("DPOConfig", (*_TRL_ARGUMENTS, ("max_length", "int", 1024))),
    ("TrainingArguments", TRAINING_ARGUMENTS),
)
"""(how the class's name ends, its options); trl's classes derive from `TrainingArguments` with
other defaults"""
_SWIFT_ARGUMENTS: tuple[tuple[str, str, Any], ...] = (
    ("per_device_train_batch_size", "int", 1),
    ("gradient_checkpointing", "flag", True),
    ("tuner_type", "text", "lora"),
    ("lora_rank", "int", 8),
    ("target_modules", "text", "all-linear"),
    ("torch_dtype", "text", "bfloat16"),
    ("packing", "flag", False),
    ("max_steps", "int", -1),
    ("seed", "int", 42),
)
_TRL_MODEL = (("dtype", "text", "float32"),)
PROGRAMS: dict[str, tuple[str, tuple[tuple[str, str, Any], ...]]] = {
    "trl/scripts/sft.py": ("SFTConfig", (*dict(TRAINER_ARGUMENTS)["SFTConfig"], *_TRL_MODEL)),
    "trl/scripts/dpo.py": ("DPOConfig", (*dict(TRAINER_ARGUMENTS)["DPOConfig"], *_TRL_MODEL)),
    **dict.fromkeys(("swift/cli/sft.py", "swift/cli/pt.py"), ("TrainArguments", _SWIFT_ARGUMENTS)),
}
"""(class, options) of programs of libraries, which are known whether their text is there or not: it
may declare none of them. Of ms-swift 4 what needs no model or GPU to be known, and the type of most
checkpoints, in which it trains unless it is told"""
LORA_RANKS = ("lora_r", "lora_rank", "lora_dim", "use_llm_lora")
"""options by which programs are told the rank of their adapters"""
FOUR_BIT_SWITCHES = ("q_lora", "qlora", "use_qlora", "load_in_4bit", "use_4bit")
"""options by which programs are told to keep the frozen weights in 4 bits"""
BEYOND = {
    "GRPOConfig": "generation, rewards and a reference model",
    "DPOConfig": "the reference model and the second sequence of each pair",
}
"""what else a step of these classes does, which plans of a plain training do not have"""
_PAIR = "the other sequence of each pair"
GROUPED = (
    "train_group_size",
    "train_n_passages",
    "num_hard_negatives",
    "num_negatives",
    "infonce_hard_negatives",
)
"""options of programs that train on several sequences of each sample, as for embeddings and
rerankers"""
BEYOND_BY_METHOD = {
    **dict.fromkeys(
        ("ppo", "grpo", "rloo", "gspo", "online_dpo"), "generation, rewards and a reference model"
    ),
    **dict.fromkeys(("dpo", "ipo", "xpo", "bco", "gdpo"), f"the reference model and {_PAIR}"),
    **dict.fromkeys(("orpo", "simpo", "cpo", "rm", "reward_model", "reward_modeling"), _PAIR),
    **dict.fromkeys(("kto", "gkd"), "the reference model"),
}
"""the same by what post-training is called in settings, and in the names of programs"""
LIGHTNING_TRAINER: tuple[tuple[str, str, Any], ...] = (
    ("devices", "int", None),
    ("num_nodes", "int", 1),
    ("precision", "text", "32-true"),
    ("accumulate_grad_batches", "int", 1),
    ("max_steps", "int", -1),
)
"""of Lightning's `Trainer`, under `trainer.` with LightningCLI"""
