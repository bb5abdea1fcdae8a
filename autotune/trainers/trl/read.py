"""GRPOConfig read back: its file, over which the flags of `trl grpo` count."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from autotune.trainers.documents.fsdp_section import read_fsdp_section
from autotune.trainers.post_training.adapters import read_adapters
from autotune.trainers.post_training.programs import program_of
from autotune.trainers.post_training.trainer import whole_nodes
from autotune.trainers.present_configuration import (
    KeyReader,
    PresentConfiguration,
    Reading,
    completed,
    flags_of,
    merged,
    parse_document,
)
from autotune.trainers.trl.launchers import read_launched, with_launchers


def document_of(present: PresentConfiguration, words: Sequence[str]) -> tuple[str, dict[str, Any]]:
    """(name, contents) of its file, over which the flags of the command count."""
    program = program_of(words)
    flags = flags_of(words[program.end :] if program else words)
    named = flags.pop("config", "")
    launcher = os.path.normpath(str(flags.get("accelerate_config", "")))
    name = next(
        (name for name in present.files if name.endswith((".yaml", ".yml")) and name != launcher),
        "",
    )
    if not name and not flags:
        name, _ = present.named(".yaml", ".yml")
    document = parse_document(name, present.files[name]) if name else {}
    told = {
        key: {"true": True, "false": False}.get(str(value).lower(), value)
        for key, value in flags.items()
    }
    return name or named or "the command", with_launchers(merged(document, told), present.files)


def with_ranks(found: Reading, ranks_of_cluster: int | None) -> Reading:
    """The reading with its ranks, those of file or command, else all of a cluster, and with what
    follows from them."""
    knobs = completed(found.knobs, ranks=found.knobs.get("dp") or ranks_of_cluster)
    rl = {name: value for name, value in found.rl.items() if name not in ("steps", "sequences")}
    if not (ranks := knobs.get("dp")):
        return replace(found, knobs=knobs, global_batch_size=None, rl=rl)
    of_all = knobs["micro_batch_size"] * ranks
    batch = of_all * knobs["accumulation_steps"]
    # of a step; else so many micro-batches of each rank
    sequences = found.rl.get("sequences") or of_all * found.rl["steps"]
    rl |= {
        "prompts": max(sequences // rl["responses"], 1),
        "mini_batches": max(sequences // batch, 1),
    }
    return replace(found, knobs=knobs, global_batch_size=batch, rl=rl)


def read(keys: KeyReader) -> Reading:
    """GRPOConfig."""
    keys.drop("use_cpu", "fsdp_config.auto_wrap_policy")
    launched = read_launched(keys)
    processes = keys.count("num_processes") or launched.ranks  # those of all machines
    machines = keys.positive("num_machines")
    accumulation = keys.positive("gradient_accumulation_steps")
    knobs = {
        "dp": processes,
        "micro_batch_size": keys.positive("per_device_train_batch_size"),
        "accumulation_steps": accumulation,
        "precision": _precision(keys),
        "recompute": "full" if keys.flag("gradient_checkpointing") else "none",
        "compile": keys.is_on("torch_compile"),
        "zero_stage": _zero_stage(keys, launched.stage),
    }
    rl = {
        "algorithm": _algorithm(keys),
        "engine": launched.engine,
        "responses": keys.positive("num_generations"),
        "epochs": keys.count("num_iterations"),
        "reference": bool(keys.number("beta")),
        "response_lengths": keys.count("max_completion_length"),
        "steps": keys.count("steps_per_generation") or accumulation,
        "sequences": keys.count("generation_batch_size"),
    }
    rollout, path = _rollout(keys), keys.text("model_name_or_path")
    options = {
        "model": path,
        "learning_rate": keys.number("learning_rate"),
        "seed": keys.count("seed"),
    }
    _keep_what_launches_write_otherwise(keys)
    return Reading(
        knobs={name: value for name, value in knobs.items() if value is not None},
        model_file=path or "",
        nodes=whole_nodes(processes // machines if processes else None, processes),
        options=options,
        rl=rl,
        rollout=rollout,
        peft=_adapters(keys),
        missing=launched.missing,
        held=frozenset({"zero_stage"} if launched.is_held else ()),
    )


def _precision(keys: KeyReader) -> str:
    """The first that is on; bf16 is where fp16 is off."""
    flags = {word: keys.flag(word) for word in ("fp16", "bf16", "tf32")}
    flags["bf16"] = not flags["fp16"] if flags["bf16"] is None else flags["bf16"]
    return next((word for word, is_on in flags.items() if is_on), "fp32")


def _zero_stage(keys: KeyReader, launched: int) -> int:
    """ZeRO by GRPOConfig's own `fsdp`, else as Accelerate is told."""
    sharded = read_fsdp_section(keys, keys.find("fsdp"))
    keys.drop("fsdp")
    return sharded.zero_stage if sharded else launched


def _algorithm(keys: KeyReader) -> str:
    """DAPO or GRPO; other losses cost what GRPO costs, and stay what they are."""
    algorithm = "dapo" if keys.text("loss_type") == "dapo" else "grpo"
    keys.keep_unless("loss_type", algorithm)
    return algorithm


def _rollout(keys: KeyReader) -> dict[str, Any]:
    """vLLM on the GPUs of the launch; else what generates takes no memory of its own there."""
    by_vllm = keys.keep_unless("use_vllm", True)
    is_server = keys.keep_unless("vllm_mode", "colocate") == "server" and by_vllm
    if is_server:
        keys.remarks.append(
            f"{keys.name}: with vllm_mode=server, the vLLM server runs on GPUs outside this launch and must "
            "be running during trials; plans account only for its speed"
        )
    engine: dict[str, Any] = {
        "tp": keys.count("vllm_tensor_parallel_size"),
        "memory_fraction": keys.number("vllm_gpu_memory_utilization"),
    }
    if not keys.flag("vllm_enable_sleep_mode"):
        engine["sleeps"] = False
    return engine if by_vllm and not is_server else {"tp": 1}


def _adapters(keys: KeyReader) -> dict[str, Any]:
    """`peft` of the workload."""
    rank = keys.count("lora_r") if keys.flag("use_peft") else 0
    modules = keys.keep_unless("lora_target_modules", None) if rank else None
    if keys.find("load_in_4bit") or keys.find("load_in_8bit"):
        keys.remarks.append(
            "launches keep load_in_4bit and load_in_8bit, but plans assume 16-bit weights"
        )
    return read_adapters(rank, modules)


def _keep_what_launches_write_otherwise(keys: KeyReader) -> None:
    keys.keep("beta")
    for key in ("seed", "logging_steps", "max_steps", "output_dir", "save_strategy"):
        keys.keep_unless(key, None)
