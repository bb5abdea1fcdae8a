"""Options that libraries add to a script's own: (name, kind, default). Only those that a study
sets.

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
"""options of `TrainingArguments`; Trainer logs a loss dictionary every `logging_steps`"""
MICRO_BATCH, ACCUMULATION = "per_device_train_batch_size", "gradient_accumulation_steps"
"""options of `TrainingArguments`, and of examples of transformers and accelerate with their own
loop; neither accumulates by default"""
OWN_LOOP = frozenset(
    {"num_warmup_steps", "max_train_steps", "checkpointing_steps", "with_tracking", "zero_stage"}
)
"""options of DeepSpeed-Chat and of the examples `*_no_trainer.py` of transformers and accelerate,
which have their own loop, but other options with the names of `TrainingArguments`"""
OF_TRAINER = frozenset({
    "bf16", "fp16", "tf32", "deepspeed", "fsdp", "optim", "torch_compile", "gradient_checkpointing", "max_steps", "warmup_steps", "warmup_ratio", "max_grad_norm",
    "do_train", "do_eval", "logging_steps", "logging_strategy", "logging_dir", "save_steps", "save_strategy", "save_total_limit", "eval_steps", "eval_strategy",
    "evaluation_strategy", "overwrite_output_dir", "dataloader_num_workers", "remove_unused_columns", "group_by_length", "ddp_find_unused_parameters", "run_name",
    "auto_find_batch_size", "load_best_model_at_end",
})  # fmt: skip
"""options of `TrainingArguments` that none of those examples has"""
_TRL_DEFAULTS = {"bf16": True, "gradient_checkpointing": True}
_TRL_ARGUMENTS = tuple(
    (name, kind, _TRL_DEFAULTS.get(name, default)) for name, kind, default in TRAINING_ARGUMENTS
)
TRAINER_ARGUMENTS: tuple[tuple[str, tuple[tuple[str, str, Any], ...]], ...] = (
    ("SFTConfig", (*_TRL_ARGUMENTS, ("max_length", "int", 1024), ("packing", "flag", False))),
    ("GRPOConfig", _TRL_ARGUMENTS),
    *(
        (name, (*_TRL_ARGUMENTS, ("max_length", "int", 1024)))
        for name in ("RewardConfig", "KTOConfig", "ORPOConfig", "CPOConfig")
    ),
    (
        "DPOConfig",
        (*_TRL_ARGUMENTS, ("max_length", "int", 1024), ("precompute_ref_log_probs", "flag", False)),
    ),
    ("RLOOConfig", _TRL_ARGUMENTS),
    ("TrainingArguments", TRAINING_ARGUMENTS),
)
"""(end of the class's name, its options); trl's classes derive from `TrainingArguments` with other
defaults"""
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
"""(class, options) of libraries' programs, by file; used whether or not their code is found,
because it may declare none of the options. For ms-swift 4: options that are known without model or
GPU, and the dtype of most checkpoints, in which it trains by default"""
LORA_RANKS = ("lora_r", "lora_rank", "lora_dim", "use_llm_lora")
"""options for the rank of adapters"""
FOUR_BIT_SWITCHES = ("q_lora", "qlora", "use_qlora", "load_in_4bit", "use_4bit")
"""options that keep the frozen weights in 4 bits"""
OF_PAIRS = {"DPOConfig": True, "ORPOConfig": False, "CPOConfig": False, "RewardConfig": False}
"""classes of arguments of trl's trainings on pairs of sequences: whether a reference model scores
them"""
METHODS_OF_PAIRS = {
    **dict.fromkeys(("dpo", "ipo"), True),
    **dict.fromkeys(("orpo", "simpo", "cpo", "rm", "reward_model"), False),
}
"""the same by the method's name in settings"""


def left_out_of_pairs(has_reference: bool) -> str:
    """The work of a training on pairs that plans of a plain training do not include, as text."""
    pair = "the other sequence of each pair"
    return f"the reference model and {pair}" if has_reference else pair


BEYOND = {
    **dict.fromkeys(("GRPOConfig", "RLOOConfig"), "generation, rewards and a reference model"),
    "KTOConfig": "the reference model",
    **{name: left_out_of_pairs(has_reference) for name, has_reference in OF_PAIRS.items()},
}
"""work of a step with these classes that plans of a plain training do not include"""
GROUPED = (
    "train_group_size",
    "train_n_passages",
    "num_hard_negatives",
    "num_negatives",
    "infonce_hard_negatives",
)
"""options of programs that train on several sequences per sample, for embeddings and rerankers"""
BEYOND_BY_METHOD = {
    **dict.fromkeys(
        ("ppo", "grpo", "rloo", "gspo", "online_dpo"), "generation, rewards and a reference model"
    ),
    **{name: left_out_of_pairs(has_reference) for name, has_reference in METHODS_OF_PAIRS.items()},
    **dict.fromkeys(("xpo", "bco", "gdpo"), left_out_of_pairs(has_reference=True)),
    "reward_modeling": left_out_of_pairs(has_reference=False),
    **dict.fromkeys(("kto", "gkd"), "the reference model"),
}
"""the same, by the method's name in settings and in names of programs"""
LIGHTNING_TRAINER: tuple[tuple[str, str, Any], ...] = (
    ("devices", "int", None),
    ("num_nodes", "int", 1),
    ("precision", "text", "32-true"),
    ("accumulate_grad_batches", "int", 1),
    ("max_steps", "int", -1),
)
"""options of Lightning's `Trainer`; with LightningCLI they begin with `trainer.`"""
