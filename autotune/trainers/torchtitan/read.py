"""torchtitan's TOML job file (0.2), and the module beside it that registers a model of exact sizes.

dp                  data_parallel_replicate_degree * data_parallel_shard_degree; a shard degree of -1 is what the ranks leave
zero_stage          0 without shards, 3, or 2 where FSDP2 keeps weights gathered after the forward pass
micro_batch_size    local_batch_size without a pipeline, pipeline_parallel_microbatch_size with one
"""

from __future__ import annotations

import ast
import os
from collections.abc import Iterator, Mapping
from dataclasses import fields
from typing import Any

from autotune.spec import KNOBS, catalog
from autotune.trainers.present_configuration import (
    KeyReader,
    PresentConfiguration,
    Reading,
    batch_of,
    completed,
    flat,
    merged,
    nested,
    options_of,
    parse_document,
)
from autotune.trainers.torchtitan.job_file import CONVERTERS
from autotune.trainers.torchtitan.knobs import SCHEDULES

READ_SCHEDULES = {theirs: ours for ours, theirs in SCHEDULES.items()}
MODES = {"none": "none", "selective": "selective", "full": "full", "memory_budget": "none"}
"""knob value by the mode of activation_checkpoint; with a memory budget the compiler chooses"""
RENAMED = {
    "training.batch_size": "training.local_batch_size",
    "training.compile": "compile.enable",
    "training.data_parallel_degree": "parallelism.data_parallel_shard_degree",
    "training.data_parallel_shard_degree": "parallelism.data_parallel_shard_degree",
    "training.data_parallel_replicate_degree": "parallelism.data_parallel_replicate_degree",
    "training.tensor_parallel_degree": "parallelism.tensor_parallel_degree",
    "experimental.pipeline_parallel_degree": "parallelism.pipeline_parallel_degree",
    "experimental.pipeline_parallel_schedule": "parallelism.pipeline_parallel_schedule",
    "experimental.context_parallel_degree": "parallelism.context_parallel_degree",
    "experimental.enable_async_tensor_parallel": "parallelism.enable_async_tensor_parallel",
    "checkpoint.enable_checkpoint": "checkpoint.enable",
    "checkpoint.model_weights_only": "checkpoint.last_save_model_only",
}
"""keys of releases before 0.2, each with its name in 0.2"""
TOKENIZER, BY_ITSELF = "model.tokenizer_path", "training.enable_loss_parallel"
"""keys of these without one: a file in place of the folder, and what 0.2 does by itself"""
QUANTIZED = ("float8", "mx")
"""converters and sections that lie in quantize.linear since 0.2"""
FLAVORS = {
    ("llama3", "8B"): "llama-8b",
    ("llama3", "70B"): "llama-70b",
    ("llama3", "405B"): "llama-405b",
    ("deepseek_v3", "16B"): "deepseek-v2-lite",
    ("deepseek_v3", "236B"): "deepseek-v2",
    ("deepseek_v3", "671B"): "deepseek-v3",
}
"""models of the catalog, by name and flavor of torchtitan's own; those of Qwen3 are called
alike"""
MODULE = "autotune_model"
"""the model module that an export brings"""


def read(present: PresentConfiguration) -> Reading:
    """What the job file, the command and the model's module say."""
    name, text = present.named(".toml")
    document, renamed = _of_today(merged(parse_document(name, text), overrides(present)))
    keys = KeyReader(document, name)
    if renamed:
        keys.remarks.append(
            f"{name}: names from releases before 0.2 are read as their 0.2 equivalents ({', '.join(renamed)})"
        )
    return reading_of(keys, present, model=_registered_model(present), version="0.2")


def _of_today(document: Mapping[str, Any]) -> tuple[dict[str, Any], list[str]]:
    """(the document by the names of release 0.2, the older names that it had)"""
    values = dict(flat(document))
    renamed = [path for path in (*RENAMED, TOKENIZER, BY_ITSELF) if path in values]
    before = {path: values.pop(path) for path in renamed}
    for path, value in before.items():
        if path in RENAMED:
            values.setdefault(RENAMED[path], value)
    if isinstance(file := before.get(TOKENIZER), str):  # where 0.2 takes the folder
        values.setdefault(
            "model.hf_assets_path", os.path.dirname(file) if file.endswith(".model") else file
        )
    converters = values.get("model.converters")
    if isinstance(converters, str):
        converters = [word for word in converters.split(",") if word]
    if isinstance(converters, list) and any(word in QUANTIZED for word in converters):
        renamed.append("model.converters")
        values["model.converters"] = [
            f"quantize.linear.{word}" if word in QUANTIZED else word for word in converters
        ]
    sections = [section for section in QUANTIZED if isinstance(document.get(section), Mapping)]
    for path in [path for path in values if path.partition(".")[0] in sections]:
        value = values.pop(path)
        is_list = path.endswith(".filter_fqns") and isinstance(value, str)
        values[f"quantize.linear.{path}"] = value.split(",") if is_list else value
    return nested(values), [*renamed, *(f"[{section}]" for section in sections)]


def reading_of(
    keys: KeyReader,
    present: PresentConfiguration,
    *,
    model: Mapping[str, Any],
    version: str,
    loss: str = "own",
) -> Reading:
    """What a configuration says whose keys are named as in the job file."""
    name = keys.name
    flavor = (str(keys.find("model.name")), str(keys.find("model.flavor")))
    known = flavored(*flavor)
    model = model or known
    degrees = {
        "tp": keys.positive("parallelism.tensor_parallel_degree"),
        "pp": keys.positive("parallelism.pipeline_parallel_degree"),
        "cp": keys.positive("parallelism.context_parallel_degree"),
    }
    dp, stage, replicas = _data_parallel(keys, degrees["cp"], degrees["pp"])
    knobs: dict[str, Any] = {
        **degrees,
        "ep": keys.positive("parallelism.expert_parallel_degree"),
        "dp": dp,
        "precision": _precision(keys, tf32=present.tf32),
        "zero_stage": stage,
        "dp_replicas": replicas,
        "recompute": keys.word("activation_checkpoint.mode", MODES),
        "activation_budget": _budget(keys),
        # release 0.2 has the flag in [parallelism], 0.3 among those of the compiler
        "async_tp": any(
            (
                keys.flag("parallelism.enable_async_tensor_parallel"),
                keys.flag("compile.enable_async_tensor_parallel"),
            )
        ),
        "cp_style": _cp_style(keys, degrees["cp"], version),
        "loss": loss,
        "compile": keys.is_on("compile.enable"),
        "sequence_parallel": degrees["tp"] > 1
        and keys.flag("parallelism.enable_sequence_parallel") is not False,
        **_pipeline(keys, degrees["pp"], model.get("num_layers")),
    }
    if (
        knobs["recompute"] == "selective"
        and keys.find("activation_checkpoint.selective_ac_option") == "op"
    ):
        keys.drop("activation_checkpoint.selective_ac_option")
    batch = keys.count("training.global_batch_size")
    knobs = completed(knobs, ranks=present.ranks, batch=batch)
    if batch is None and "accumulation_steps" not in knobs:
        knobs["accumulation_steps"] = 1  # its default: the local batches are the global one
    keys.drop("metrics.log_freq")  # a launch logs every step
    optimizer = keys.word("optimizer.name", {"AdamW": "adamw", "Adam": "adamw"}, "")
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
    elif keys.find("model.flavor"):
        if not known:
            keys.remarks.append(
                f"{name}: model.name={flavor[0]!r}, model.flavor={flavor[1]!r} are ignored, because the export trains the spec's model; set the model there"
            )
        keys.drop("model.name", "model.flavor")
    return Reading(
        knobs=knobs,
        model=model,
        seq_len=keys.count("training.seq_len"),
        global_batch_size=batch or batch_of(knobs),
        optimizer=optimizer,
        pure_bf16=keys.word("training.dtype", {"bfloat16": True, "float32": False}, False),
        options=options,
        settings=keys.left,
        remarks=tuple(keys.remarks),
    )


def flavored(name: str, flavor: str) -> dict[str, Any]:
    """Sizes of a model of torchtitan's own that the catalog has; nothing for others."""
    found = FLAVORS.get((name, flavor), f"{name}-{flavor.lower()}" if name == "qwen3" else "")
    if found not in catalog.model_names():
        return {}
    model = catalog.model(found)
    return {
        f.name: getattr(model, f.name)
        for f in fields(model)
        if f.name not in ("name", "source", "code")
    }


def _data_parallel(keys: KeyReader, cp: int, pp: int) -> tuple[int | None, int, int]:
    """(dp, ZeRO stage, copies of the shards); dp is None where it is what the ranks leave. By
    default a pipeline keeps weights gathered between its micro-batches
    (`get_fsdp_reshard_after_forward_policy`)."""
    replicas = keys.positive("parallelism.data_parallel_replicate_degree")
    shards = keys.find("parallelism.data_parallel_shard_degree")
    keys.drop("parallelism.data_parallel_shard_degree")
    usual = 2 if pp > 1 else 3
    stages = {"always": 3, "never": 2, "default": usual}
    policy = keys.word("parallelism.fsdp_reshard_after_forward", stages, usual)
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
        keys.remarks.append(
            f"{keys.name}: memory_budget={share:g} is read as activation_budget={percent}"
        )
    return int(percent)


def _cp_style(keys: KeyReader, cp: int, version: str) -> str:
    """Release 0.2 gathers keys and values unless it is told to pass them on."""
    method = keys.word(
        "parallelism.context_parallel_rotate_method", {"alltoall": "ring", "allgather": "gather"}
    )
    return method or ("gather" if cp > 1 and version == "0.2" else "ring")


def _pipeline(keys: KeyReader, pp: int, num_layers: int | None) -> dict[str, Any]:
    local = keys.count("training.local_batch_size")
    if pp == 1:
        return {"micro_batch_size": local}
    schedule = keys.word("parallelism.pipeline_parallel_schedule", READ_SCHEDULES, "1f1b")
    micro = keys.positive("parallelism.pipeline_parallel_microbatch_size")
    per_stage = keys.count("parallelism.pipeline_parallel_layers_per_stage")
    stages = 2 if schedule.startswith("interleaved") else 1
    edges = [
        keys.count(f"parallelism.pipeline_parallel_{end}_stage_less_layers") or 0
        for end in ("first", "last")
    ]
    if per_stage and num_layers:
        stages = -(-(num_layers + sum(edges)) // per_stage) // pp
    split = "edges" if any(edges) else "layers"
    knobs = {
        "micro_batch_size": micro,
        "pp_schedule": schedule,
        "virtual_stages": stages,
        "pp_split": split,
    }
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
    kind = keys.word(
        "training.mixed_precision_param", {"bfloat16": "bf16", "float32": "fp32"}, "bf16"
    )
    return "tf32" if kind == "fp32" and tf32 else kind


def _registered_model(present: PresentConfiguration) -> Mapping[str, Any]:
    """Sizes in the module that an export brings; nothing where there is none."""
    text = present.files.get(f"{MODULE}.py", "")
    calls = [node for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Call)]
    for call in calls:
        if getattr(call.func, "id", "") != "TransformerModelArgs":
            continue
        given = {
            w.arg: ast.literal_eval(w.value)
            for w in call.keywords
            if w.arg and isinstance(w.value, ast.Constant)
        }
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
    """torchtitan's feed-forward width: int(ffn_dim_multiplier * int(8/3 * dim)), rounded up to
    `multiple_of`."""
    multiple = int(given["multiple_of"])
    width = int(given["ffn_dim_multiplier"] * int(2 * (4 * given["dim"]) / 3))
    return multiple * -(-width // multiple)


def overrides(present: PresentConfiguration) -> dict[str, Any]:
    """What options of the command such as `--training.steps=20` say, by section."""
    found: dict[str, Any] = {}
    for path, value in _program_options(present):
        section, dot, key = path.rpartition(".")
        is_off = not value and key.startswith("no-")
        name = key.removeprefix("no-") if is_off else key
        found[f"{section}{dot}{name}"] = _typed(value) if value else not is_off
    return nested(found)


def _program_options(present: PresentConfiguration) -> Iterator[tuple[str, str]]:
    """The options after the program that are not the configuration's own names."""
    argv = present.argv
    programs = ("torchtitan.train", *(word for word in argv if word.endswith("train.py")))
    start = next((argv.index(word) + 1 for word in programs if word in argv), len(argv))
    own = ("module", "config", "job.config_file")
    return ((name, value) for name, value in options_of(argv[start:]) if name not in own)


def _typed(word: str) -> Any:
    try:
        return ast.literal_eval(word)
    except (ValueError, SyntaxError):
        return word
