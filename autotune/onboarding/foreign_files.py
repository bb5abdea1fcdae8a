"""Whose a file is that autotune does not read: by the keys that it has and where they stand, never by a word in its text.

Facts: llm-foundry 0.22 (scripts/train/yamls), OLMo 0.6 (configs), Primus 26 (examples), NeMo 2 and its launcher (conf), NeMo-RL 0.4 (examples/configs),
verl 0.6 (trainer/config), GPT-NeoX 2 (configs), torchtune 0.6 (recipes/configs), litgpt 0.5 (config_hub), fairseq 0.12 (config), Megatron-LM
(tests/functional_tests), TRL 1 and the alignment handbook (recipes), levanter 1.2 (config).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple


class Foreign(NamedTuple):
    """A program that autotune does not know, and what its files have."""

    name: str
    marks: tuple[tuple[str, ...], ...]
    """paths of keys; all of one group are there"""


FOREIGN = (
    Foreign("OLMo", (("device_train_microbatch_size", "run_name", "evaluators"), ("device_train_microbatch_size", "model.d_model", "tokenizer.identifier"))),
    Foreign("llm-foundry (Composer)", (("device_train_microbatch_size",), ("global_train_batch_size",), ("train_loader", "max_duration"), ("variables", "train_loader"), ("max_duration", "eval_interval"))),
    Foreign("Primus", (("modules.pre_trainer",), ("modules.post_trainer",), ("modules.trainer.framework",), ("work_group", "exp_name", "modules"))),
    Foreign("NeMo 1", (("exp_manager", "trainer"), ("run", "exp_manager"), ("trainer.num_nodes", "model.encoder_seq_length"), ("model.megatron_amp_O2",))),
    Foreign("NeMo-RL", (("policy", "grpo"), ("policy", "dpo"), ("policy", "sft"), ("policy", "loss_fn"), ("policy.dtensor_cfg",), ("policy.megatron_cfg",))),
    Foreign("NeMo Automodel", (("step_scheduler", "model._target_"), ("recipe", "step_scheduler"))),
    Foreign("verl", (("actor_rollout_ref",), ("data.train_batch_size", "trainer.total_epochs"), ("actor", "rollout"), ("algorithm.adv_estimator",))),
    Foreign("GPT-NeoX", (("pipe_parallel_size",), ("pipe-parallel-size",), ("model_parallel_size", "train_micro_batch_size_per_gpu"), ("train-iters", "lr-decay-style"))),
    Foreign("torchtune", (("model._component_",), ("tokenizer._component_",), ("optimizer._component_",))),
    Foreign("litgpt", (("train.micro_batch_size", "train.log_interval"), ("train.global_batch_size", "out_dir"), ("checkpoint_dir", "train.global_batch_size"))),
    Foreign("fairseq", (("distributed_training", "optimization"), ("common", "optimization"), ("dataset.max_tokens", "optimization"))),
    Foreign("Megatron-LM's functional tests", (("MODEL_ARGS",), ("ENV_VARS", "TEST_TYPE"))),
    Foreign("levanter", (("trainer.train_batch_size", "trainer.num_train_steps"),)),
    Foreign("ms-swift", (("tuner_type",), ("train_type",), ("rlhf_type",), ("model", "dataset", "per_device_train_batch_size"))),
    Foreign("MaxText", (("per_device_batch_size", "base_emb_dim"), ("ici_fsdp_parallelism",), ("per_device_batch_size", "run_name", "dataset_path"))),
    Foreign("transformers' TrainingArguments in a file (TRL, alignment-handbook, ms-swift)", (("per_device_train_batch_size", "model_name_or_path"), ("per_device_train_batch_size", "output_dir"), ("per_device_train_batch_size", "learning_rate"))),
)  # fmt: skip


def foreign_program(document: Mapping[str, Any], *, is_json: bool = False) -> str:
    """The program that autotune does not know whose file it is; empty where none is recognised. `is_json`: TrainingArguments are read from JSON."""
    paths = frozenset(paths_of(document))
    candidates = FOREIGN[:-1] if is_json else FOREIGN
    return next((each.name for each in candidates if any(paths.issuperset(group) for group in each.marks)), "")


def paths_of(node: Any, before: str = "", depth: int = 3) -> Iterator[str]:
    """The paths of the keys of a document, from its top, joined by dots."""
    if isinstance(node, Mapping) and depth:
        for key, value in node.items():
            yield f"{before}{key}"
            yield from paths_of(value, f"{before}{key}.", depth - 1)
