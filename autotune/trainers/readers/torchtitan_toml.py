"""torchtitan's TOML job file (0.2), and the module beside it that registers a model of exact sizes.

dp                  data_parallel_replicate_degree * data_parallel_shard_degree; a shard degree of -1 is what the ranks leave
zero_stage          0 without shards, 3, or 2 where FSDP2 keeps weights gathered after the forward pass
micro_batch_size    local_batch_size without a pipeline, pipeline_parallel_microbatch_size with one
"""

from __future__ import annotations

import ast
from collections.abc import Mapping
from typing import Any

from autotune.spec import KNOBS
from autotune.trainers.key_reader import KeyReader
from autotune.trainers.nested_documents import parse_document
from autotune.trainers.present_configuration import PresentConfiguration, Reading
from autotune.trainers.readers.batch_law import batch_of, completed
from autotune.trainers.torchtitan_job import CONVERTERS

SCHEDULES = {
    "GPipe": "gpipe",
    "1F1B": "1f1b",
    "Interleaved1F1B": "interleaved_1f1b",
    "InterleavedZeroBubble": "interleaved_zero_bubble",
}
MODES = {"none": "none", "selective": "selective", "full": "full", "memory_budget": "none"}
"""knob value by the mode of activation_checkpoint; with a memory budget the compiler chooses"""
MODULE = "autotune_model"
"""the model module that an export brings"""


def read(present: PresentConfiguration) -> Reading:
    """What the job file, the command and the model's module say."""
    name, text = present.named(".toml")
    keys = KeyReader(parse_document(name, text), name)
    return reading_of(keys, present, model=_registered_model(present), version="0.2")


def reading_of(
    keys: KeyReader, present: PresentConfiguration, *, model: Mapping[str, Any], version: str, loss: str = "own"
) -> Reading:
    """What a configuration says whose keys are named as in the job file."""
    name = keys.name
    degrees = {
        "tp": keys.count("parallelism.tensor_parallel_degree") or 1,
        "pp": keys.count("parallelism.pipeline_parallel_degree") or 1,
        "cp": keys.count("parallelism.context_parallel_degree") or 1,
    }
    dp, stage, replicas = _data_parallel(keys, degrees["cp"], degrees["pp"])
    knobs: dict[str, Any] = {
        **degrees,
        "ep": keys.count("parallelism.expert_parallel_degree") or 1,
        "dp": dp,
        "precision": _precision(keys, tf32=present.tf32),
        "zero_stage": stage,
        "dp_replicas": replicas,
        "recompute": keys.word("activation_checkpoint.mode", MODES),
        "activation_budget": _budget(keys),
        "async_tp": _is_async(keys),
        "cp_style": _cp_style(keys, degrees["cp"], version),
        "loss": loss,
        "compile": keys.flag("compile.enable") or False,
        "sequence_parallel": degrees["tp"] > 1 and keys.flag("parallelism.enable_sequence_parallel") is not False,
        **_pipeline(keys, degrees["pp"], model.get("num_layers")),
    }
    if knobs["recompute"] == "selective" and keys.find("activation_checkpoint.selective_ac_option") == "op":
        keys.drop("activation_checkpoint.selective_ac_option")
    batch = keys.count("training.global_batch_size")
    knobs = completed(knobs, ranks=present.ranks, batch=batch)
    if batch is None and "accumulation_steps" not in knobs:
        knobs["accumulation_steps"] = 1  # its default: the local batches are the global one
    optimizer = keys.word("optimizer.name", {"AdamW": "adamw", "Adam": "adamw"}) or ""
    options: dict[str, Any] = {
        "version": version,
        "steps": keys.count("training.steps"),
        "learning_rate": keys.number("optimizer.lr"),
        "seed": keys.count("debug.seed"),
        "hf_assets_path": keys.text("model.hf_assets_path"),
        "dataset": keys.text("training.dataset"),
        "dataset_path": keys.text("training.dataset_path"),
    }
    if keys.find("experimental.custom_import") == MODULE:
        keys.drop("experimental.custom_import", "model.name", "model.flavor")
    elif flavor := keys.find("model.flavor"):
        keys.remarks.append(
            f"{name}: model.name={keys.find('model.name')!r}, model.flavor={flavor!r}: the export trains the model of the spec instead; "
            "name that one there"
        )
        keys.drop("model.name", "model.flavor")
    return Reading(
        knobs=knobs,
        model=model,
        seq_len=keys.count("training.seq_len"),
        global_batch_size=batch or batch_of(knobs),
        optimizer=optimizer,
        pure_bf16=keys.word("training.dtype", {"bfloat16": True, "float32": False}) or False,
        options={option: value for option, value in options.items() if value is not None},
        settings=keys.left,
        remarks=tuple(keys.remarks),
    )


def _data_parallel(keys: KeyReader, cp: int, pp: int) -> tuple[int | None, int, int]:
    """(dp, ZeRO stage, copies of the shards); dp is None where it is what the ranks leave. By default a pipeline keeps weights gathered between its
    micro-batches (`get_fsdp_reshard_after_forward_policy`)."""
    replicas = keys.count("parallelism.data_parallel_replicate_degree") or 1
    shards = keys.find("parallelism.data_parallel_shard_degree")
    keys.drop("parallelism.data_parallel_shard_degree")
    usual = 2 if pp > 1 else 3
    stages = {"always": 3, "never": 2, "default": usual}
    policy = keys.word("parallelism.fsdp_reshard_after_forward", stages) or usual
    if shards in (None, -1):
        return None, policy, replicas
    sharded = shards * cp > 1 or replicas == 1
    return replicas * shards, policy if sharded else 0, replicas if sharded else 1


def _budget(keys: KeyReader) -> int:
    """Percent of the saved activations that the compiler keeps."""
    share = keys.number("activation_checkpoint.memory_budget")
    keys.drop("activation_checkpoint.visualize_memory_budget_pareto")
    if share is None:
        return 100
    percent = min(KNOBS["activation_budget"].values, key=lambda value: abs(value - 100 * share))
    if abs(percent - 100 * share) > 1e-6:
        keys.remarks.append(f"{keys.name}: memory_budget={share:g} is read as activation_budget={percent}")
    return int(percent)


def _is_async(keys: KeyReader) -> bool:
    """Release 0.2 has the flag in [parallelism], 0.3 among those of the compiler."""
    flags = [keys.flag(f"{section}.enable_async_tensor_parallel") for section in ("parallelism", "compile")]
    return any(flags)


def _cp_style(keys: KeyReader, cp: int, version: str) -> str:
    """Release 0.2 gathers keys and values unless it is told to pass them on."""
    method = keys.word("parallelism.context_parallel_rotate_method", {"alltoall": "ring", "allgather": "gather"})
    return method or ("gather" if cp > 1 and version == "0.2" else "ring")


def _pipeline(keys: KeyReader, pp: int, num_layers: int | None) -> dict[str, Any]:
    local = keys.count("training.local_batch_size")
    if pp == 1:
        return {"micro_batch_size": local}
    schedule = keys.word("parallelism.pipeline_parallel_schedule", SCHEDULES) or "1f1b"
    micro = keys.count("parallelism.pipeline_parallel_microbatch_size") or 1
    per_stage = keys.count("parallelism.pipeline_parallel_layers_per_stage")
    stages = 2 if schedule.startswith("interleaved") else 1
    edges = [keys.count(f"parallelism.pipeline_parallel_{end}_stage_less_layers") or 0 for end in ("first", "last")]
    if per_stage and num_layers:
        stages = -(-(num_layers + sum(edges)) // per_stage) // pp
    split = "edges" if any(edges) else "layers"
    knobs = {"micro_batch_size": micro, "pp_schedule": schedule, "virtual_stages": stages, "pp_split": split}
    # without a global batch, the local one is that of a whole step
    return {**knobs, "accumulation_steps": local // micro} if local else knobs


def _precision(keys: KeyReader, *, tf32: bool) -> str:
    converters = keys.find("model.converters")
    for precision, section in CONVERTERS.items():
        if isinstance(converters, list) and f"quantize.linear.{section}" in converters:
            if len(converters) == 1:
                keys.drop("model.converters")
            keys.word("training.mixed_precision_param", {"bfloat16": "bf16", "float32": "fp32"})
            return precision
    if converters == []:
        keys.drop("model.converters")
    kind = keys.word("training.mixed_precision_param", {"bfloat16": "bf16", "float32": "fp32"}) or "bf16"
    return "tf32" if kind == "fp32" and tf32 else kind


def _registered_model(present: PresentConfiguration) -> Mapping[str, Any]:
    """Sizes in the module that an export brings; nothing where there is none."""
    text = present.files.get(f"{MODULE}.py", "")
    calls = [node for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Call)]
    for call in calls:
        if getattr(call.func, "id", "") != "TransformerModelArgs":
            continue
        given = {word.arg: ast.literal_eval(word.value) for word in call.keywords if word.arg}
        return {
            "num_layers": given["n_layers"],
            "hidden_size": given["dim"],
            "ffn_hidden_size": _width(given),
            "num_attention_heads": given["n_heads"],
            "num_kv_heads": given["n_kv_heads"],
            "vocab_size": given["vocab_size"],
            "gated_mlp": True,
        }
    return {}


def _width(given: Mapping[str, Any]) -> int:
    """torchtitan's feed-forward width: int(ffn_dim_multiplier * int(8/3 * dim)), rounded up to `multiple_of`."""
    multiple = int(given["multiple_of"])
    width = int(given["ffn_dim_multiplier"] * int(2 * (4 * given["dim"]) / 3))
    return multiple * -(-width // multiple)
