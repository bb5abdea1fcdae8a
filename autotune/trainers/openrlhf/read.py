"""OpenRLHF's flags read back."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from autotune.trainers.openrlhf.knobs import ESTIMATORS, FLAGS, KL, ROLES, names_of, release_of
from autotune.trainers.post_training.adapters import read_adapters
from autotune.trainers.post_training.trainer import fitted, mini_batches, whole_nodes
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
    whole, with_reference = (
        keys.flag("train.colocate_all"),
        keys.flag("train.colocate_actor_ref"),
    )
    estimator, penalty = keys.text("algo.advantage.estimator"), keys.number(KL)
    # rloo and reinforce cost what grpo costs, and stay what they are
    if estimator not in ESTIMATORS.values():
        keys.keep_unless("algo.advantage.estimator", None)
    gpus = {
        role: math.prod(
            keys.count(f"{role}.num_{what}") or 1 for what in ("nodes", "gpus_per_node")
        )
        for role in ROLES
    }
    beside = {"ref": bool(penalty) and not with_reference, "critic": estimator == "gae"}
    apart = {} if whole else {role: gpus[role] for role, has_own in beside.items() if has_own}
    keys.keep(*(f"{role}.num_{what}" for role in apart for what in ("nodes", "gpus_per_node")))
    keys.remarks.extend(
        f"the {role} model has its own {count} GPUs, which exports keep; plans place it on the policy's GPUs"
        for role, count in apart.items()
    )
    ranks, degree = gpus["actor"], keys.count("vllm.tensor_parallel_size")
    engines, cp = keys.count("vllm.num_engines") or 0, keys.count("ds.ring_attn_size")
    dynamic, sequences = (
        keys.flag("train.dynamic_batch_enable"),
        keys.count("train.micro_batch_size") or 1,
    )
    keys.keep_unless("rollout.micro_batch_size", 1 if dynamic else sequences)
    # the latter two switch it on
    packs = keys.flag("ds.packing_samples") or dynamic or (cp or 1) > 1
    knobs: dict[str, Any] = {
        "tp": keys.count("ds.tensor_parallel_size"), "cp": cp, "zero_stage": keys.count("ds.zero_stage"), "micro_batch_size": 1 if dynamic else sequences,
        "precision": keys.text("ds.param_dtype"), "recompute": "full" if keys.flag("actor.gradient_checkpointing_enable") else "none",
        "offload": "optimizer" if keys.flag("ds.adam_offload") else "none",
    }  # fmt: skip
    batch = keys.count("train.batch_size")
    knobs = fitted(knobs, ranks, batch)
    prompts, responses = (
        keys.count("rollout.batch_size"),
        keys.count("rollout.n_samples_per_prompt") or 1,
    )
    tokens, before = (
        keys.count("train.max_tokens_per_gpu"),
        keys.count("rollout.max_tokens_per_gpu"),
    )
    stale, overlaps = keys.count("train.async_queue_size"), keys.flag("train.async_enable")
    placement: dict[str, Any] | None = None
    gpus_in_all = ranks
    if (overlaps or not whole) and engines and ranks and degree:
        both = [ranks + sum(apart.values()), engines * degree]
        placement = {"async": both, "staleness": stale or 1} if overlaps else {"split": both}
        gpus_in_all = sum(both)
    sleeps = keys.flag("ds.enable_sleep")
    length, response = keys.count("data.max_len"), None
    # else a response may be as long as its prompt leaves room
    if keys.keep_unless("rollout.max_new_tokens", None):
        response = keys.count("rollout.max_new_tokens")
    prompt = length - response if length and response and length > response else None
    # before 0.10, which has no `max_len`
    if (older := keys.count("prompt_max_len")) is not None:
        keys.keep("prompt_max_len")
        prompt, length = older, older + (response or 0)
    rl = {
        "algorithm": "ppo" if estimator == "gae" else "grpo", "prompts": prompts, "responses": responses, "engine": "deepspeed", "placement": placement,
        "mini_batches": mini_batches(prompts, responses, batch),
        "epochs": keys.count("train.max_epochs"), "reference": bool(penalty), "phase_offload": "all" if sleeps else None,
        "padded": None if packs else True,
        "micro_batch_tokens": tokens if dynamic else None, "log_prob_micro_batch_tokens": before if dynamic else None,
        "prompt_lengths": prompt, "response_lengths": response,
    }  # fmt: skip
    rollout = {"tp": degree, "memory_fraction": keys.number("vllm.gpu_memory_utilization")}
    if not keys.flag("vllm.enable_sleep") and whole:
        rollout["sleeps"] = False
    path = keys.text("actor.model_name_or_path")
    options = {
        "model": path,
        "learning_rate": keys.number("actor.adam.lr"),
        "seed": keys.count("train.seed"),
    }
    keys.keep(KL)
    keys.keep_unless("train.seed", None)
    if keys.find("ds.load_in_4bit"):
        keys.remarks.append("ds.load_in_4bit: launches pass it on, but plans assume 16-bit weights")
    return Reading(
        knobs=knobs,
        model_file=path or "",
        seq_len=length,
        global_batch_size=batch,
        nodes=whole_nodes(keys.count("actor.num_gpus_per_node"), gpus_in_all),
        options=options,
        rl=rl,
        rollout=rollout,
        peft=read_adapters(keys.count("ds.lora.rank"), keys.find("ds.lora.target_modules")),
    )
