"""nanotron's YAML file read back."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from autotune.trainers.documents.program_arguments import program_of
from autotune.trainers.present_configuration import (
    PresentConfiguration,
    Reading,
    batch_of,
)

DEFAULT_ENTRYPOINT = "run_train.py"
RING = "ring_flash_triton"
"""its attention over the ranks of context parallelism; the usual one attends to a rank's own part
of the sequence alone"""
MODEL = {
    "num_layers": "num_hidden_layers",
    "hidden_size": "hidden_size",
    "ffn_hidden_size": "intermediate_size",
    "num_attention_heads": "num_attention_heads",
    "num_kv_heads": "num_key_value_heads",
    "vocab_size": "vocab_size",
}
"""the keys of `model.model_config`, by our fields"""
_MODEL = "model.model_config"
OTHER_SIZES = (
    "is_moe",
    "moe_num_experts",
    "num_kv_heads",
    "grouped_query",
    "multi_query",
    "sinusoidal_position_embedding",
)
"""keys of models that have other layers than Llama"""


def read(present: PresentConfiguration) -> Reading:
    """The YAML."""
    keys = present.keys(".yaml", ".yml")
    schedule = keys.word("parallelism.pp_engine", {"1f1b": "1f1b", "afab": "gpipe"}, "1f1b")
    mode = keys.word("parallelism.tp_mode", {"REDUCE_SCATTER": True, "ALL_REDUCE": False}, False)
    dtype = keys.word(
        "model.dtype", {"bfloat16": "bf16", "float32": "fp32", "float16": "fp16"}, "bf16"
    )
    knobs: dict[str, Any] = {
        **{knob: keys.positive(f"parallelism.{knob}") for knob in ("dp", "pp", "tp")},
        "cp": keys.positive("parallelism.context_parallel_size"),
        "ep": keys.positive("parallelism.expert_parallel_size"),
        "micro_batch_size": keys.positive("tokens.micro_batch_size"),
        "accumulation_steps": keys.positive("tokens.batch_accumulation_per_replica"),
        "precision": "tf32" if dtype == "fp32" and present.tf32 else dtype,
        "recompute": "full" if keys.is_on("parallelism.recompute_layer") else "none",
        "zero_stage": keys.count("optimizer.zero_stage") or 0,
        "sequence_parallel": mode,
        "pp_schedule": schedule,
    }
    section = keys.find("model.model_config")
    model_config = section if isinstance(section, Mapping) else {}
    others = [
        key
        for key, is_on in model_config.items()
        if is_on is True and re.fullmatch(r"is_(?!llama|qwen2)\w+_config", key)
    ][:1] or [key for key in OTHER_SIZES if model_config.get(key)]
    sizes = {field: keys.count(f"{_MODEL}.{key}") for field, key in MODEL.items()}
    model: dict[str, Any] = {field: size for field, size in sizes.items() if size is not None}
    if others:
        model = {}
        keys.remarks.append(
            f"{keys.name}: the sizes in model_config are not read, because model_config has {', '.join(others)}, and exports support only Llama and Qwen2; set `model` in the spec"
        )
    if model:
        tied = keys.is_on(f"{_MODEL}.tie_word_embeddings")
        model |= {"gated_mlp": True, "tied_embeddings": tied}
        if model_config.get("moe_config"):
            keys.remarks.append(
                f"{keys.name}: the experts (model_config.moe_config) are ignored, and plans use a dense model with these sizes"
            )
    # a launch logs every step, and writes no checkpoints
    keys.drop("logging.iteration_step_info_interval", "checkpoints", f"{_MODEL}.is_llama_config")
    is_qwen = keys.is_on(f"{_MODEL}.is_qwen2_config")
    seq_len = keys.count("tokens.sequence_length")
    keys.drop_equal(
        {
            "parallelism.tp_linear_async_communication": mode,
            "optimizer.accumulate_grad_in_fp32": dtype == "bf16",
            f"{_MODEL}.max_position_embeddings": seq_len,
            **({f"{_MODEL}._attn_implementation": RING} if knobs["cp"] > 1 else {}),
            **({f"{_MODEL}.attention_bias": False} if is_qwen else {}),
        }
    )
    optimizer = keys.word("optimizer.optimizer_factory.name", {"adamW": "adamw", "sgd": "sgd"}, "")
    options: dict[str, Any] = {
        "steps": keys.count("tokens.train_steps"),
        "seed": keys.count("general.seed"),
        "learning_rate": keys.number("optimizer.learning_rate_scheduler.learning_rate"),
        "tokenizer": keys.text("tokenizer.tokenizer_name_or_path"),
        "model_class": "qwen2" if is_qwen and knobs["cp"] == 1 else None,
        "entrypoint": next(iter(program_of(present.argv)), DEFAULT_ENTRYPOINT),
    }
    return Reading(
        knobs=knobs,
        model=model,
        seq_len=seq_len,
        global_batch_size=batch_of(knobs),
        optimizer=optimizer,
        options=options,
        settings=keys.left,
        remarks=tuple(keys.remarks),
    )
