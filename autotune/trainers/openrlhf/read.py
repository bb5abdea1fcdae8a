"""OpenRLHF's flags read back."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from autotune.spec.texts.as_text import number_of
from autotune.trainers.openrlhf.knobs import ESTIMATORS, FLAGS, KL, ROLES, names_of, release_of
from autotune.trainers.post_training.adapters import read_adapters
from autotune.trainers.post_training.trainer import (
    fitted,
    mini_batches,
    read_algorithm,
    whole_nodes,
)
from autotune.trainers.present_configuration import KeyReader, Reading, flags_of, flat, nested

PROGRAM = "openrlhf.cli.train_ppo_ray"


def document_of(words: Sequence[str]) -> dict[str, Any]:
    """The flags of a command, by the names of 0.11."""
    # those before are `ray job submit`'s
    own = words[words.index(PROGRAM) + 1 :] if PROGRAM in words else words
    flags = flags_of(own)
    new = {old: path for path, old in names_of(release_of(flags)).items() if old}
    return nested({new.get(name, name): value for name, value in flags.items()})


def with_names(found: Reading, words: Sequence[str]) -> Reading:
    """The reading by the names that the flags of a command have, and the release that has these."""
    release = release_of(flags_of(words))
    kept = {**found.options, FLAGS.name: release}
    if release == FLAGS.default:
        return replace(found, options=kept)
    names = names_of(release)
    settings = {names.get(path, path): value for path, value in flat(found.settings)}
    return replace(found, options=kept, settings=nested(settings))


def read(keys: KeyReader) -> Reading:
    """Its flags."""
    keys.drop("logger.logging_steps")
    algorithm = read_algorithm(keys, "algo.advantage.estimator", ESTIMATORS)
    has_reference, colocates = bool(keys.number(KL)), keys.flag("train.colocate_all")
    keys.keep(KL)
    ranks, apart = _gpus(keys, algorithm, has_reference=has_reference)
    if colocates:
        apart = {}
    _keep_apart(keys, apart)
    is_dynamic, batch = keys.flag("train.dynamic_batch_enable"), keys.count("train.batch_size")
    knobs = fitted(_knobs(keys, is_dynamic), ranks, batch)
    prompts, responses = (
        keys.count("rollout.batch_size"),
        keys.positive("rollout.n_samples_per_prompt"),
    )
    degree = keys.count("vllm.tensor_parallel_size")
    both = [
        ranks + sum(apart.values()),
        (keys.count("vllm.num_engines") or 0) * (degree or 0),
    ]
    placement = _placement(keys, both, colocates)
    prompt, response, length = _lengths(keys)
    rl = {
        "algorithm": algorithm,
        "prompts": prompts,
        "responses": responses,
        "engine": "deepspeed",
        "placement": placement,
        "mini_batches": mini_batches(prompts, responses, batch),
        "epochs": keys.count("train.max_epochs"),
        "reference": has_reference,
        "phase_offload": "all" if keys.flag("ds.enable_sleep") else None,
        **_packing(keys, is_dynamic, knobs.get("cp", 1)),
        "prompt_lengths": prompt,
        "response_lengths": response,
    }
    rollout = {"tp": degree, "memory_fraction": keys.number("vllm.gpu_memory_utilization")}
    if not keys.flag("vllm.enable_sleep") and colocates:
        rollout["sleeps"] = False
    path = keys.text("actor.model_name_or_path")
    options = {
        "model": path,
        "learning_rate": keys.number("actor.adam.lr"),
        "seed": keys.count("train.seed"),
    }
    keys.keep_unless("train.seed", None)
    if keys.find("ds.load_in_4bit"):
        keys.remarks.append("launches pass ds.load_in_4bit on, but plans assume 16-bit weights")
    return Reading(
        knobs=knobs,
        model_file=path or "",
        seq_len=length,
        global_batch_size=batch,
        nodes=whole_nodes(keys.count("actor.num_gpus_per_node"), sum(both) if placement else ranks),
        options=options,
        rl=rl,
        rollout=rollout,
        peft=read_adapters(keys.count("ds.lora.rank"), keys.find("ds.lora.target_modules")),
    )


def _gpus(keys: KeyReader, algorithm: str, *, has_reference: bool) -> tuple[int, dict[str, int]]:
    """(GPUs of the policy, those of each other model that does not share these)"""
    gpus = {role: math.prod(keys.positive(path) for path in _of_role(role)) for role in ROLES}
    shares = keys.flag("train.colocate_actor_ref")
    beside = {"ref": has_reference and not shares, "critic": algorithm == "ppo"}
    return gpus["actor"], {role: gpus[role] for role, has_own in beside.items() if has_own}


def _of_role(role: str) -> tuple[str, str]:
    """The flags of the GPUs of a model."""
    return f"{role}.num_nodes", f"{role}.num_gpus_per_node"


def _keep_apart(keys: KeyReader, apart: Mapping[str, int]) -> None:
    """The GPUs that other models than the policy have stay settings, and are said."""
    for role, count in apart.items():
        keys.keep(*_of_role(role))
        keys.remarks.append(
            f"the {role} model has its own {number_of(count, 'GPU')}, and exports keep this placement; plans place the model on the policy's GPUs"
        )


def _knobs(keys: KeyReader, is_dynamic: bool | None) -> dict[str, Any]:
    """Degrees, precision, micro-batch and memory. `is_dynamic`: whether micro-batches are counted
    in tokens."""
    sequences = keys.positive("train.micro_batch_size")
    micro = 1 if is_dynamic else sequences
    keys.keep_unless("rollout.micro_batch_size", micro)
    return {
        "tp": keys.count("ds.tensor_parallel_size"),
        "cp": keys.count("ds.ring_attn_size"),
        "zero_stage": keys.count("ds.zero_stage"),
        "micro_batch_size": micro,
        "precision": keys.text("ds.param_dtype"),
        "recompute": "full" if keys.flag("actor.gradient_checkpointing_enable") else "none",
        "offload": "optimizer" if keys.flag("ds.adam_offload") else "none",
    }


def _placement(
    keys: KeyReader, both: Sequence[int], colocates: bool | None
) -> dict[str, Any] | None:
    """Where responses are generated, and how old their policy may be; None on the GPUs that train.
    `both`: GPUs that train, and those that generate."""
    stale, overlaps = keys.count("train.async_queue_size"), keys.flag("train.async_enable")
    if not all(both) or (colocates and not overlaps):
        return None
    return {"async": both, "staleness": stale or 1} if overlaps else {"split": both}


def _lengths(keys: KeyReader) -> tuple[int | None, int | None, int | None]:
    """Tokens of the longest prompt, response and sequence. Without a limit, a response may be as
    long as its prompt leaves room."""
    length, response = keys.count("data.max_len"), None
    if keys.keep_unless("rollout.max_new_tokens", None):
        response = keys.count("rollout.max_new_tokens")
    if (older := keys.count("prompt_max_len")) is not None:  # before 0.10, without `max_len`
        keys.keep("prompt_max_len")
        return older, response, older + (response or 0)
    prompt = length - response if length and response and length > response else None
    return prompt, response, length


def _packing(keys: KeyReader, is_dynamic: bool | None, cp: int) -> dict[str, Any]:
    """How sequences share micro-batches. Limits of tokens and ring attention pack them, too."""
    packs = keys.flag("ds.packing_samples") or is_dynamic or cp > 1
    limits = {
        "micro_batch_tokens": keys.count("train.max_tokens_per_gpu"),
        "log_prob_micro_batch_tokens": keys.count("rollout.max_tokens_per_gpu"),
    }
    return {"padded": None if packs else True, **(limits if is_dynamic else {})}
