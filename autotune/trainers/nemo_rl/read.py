"""NeMo-RL's configuration read back, over the files that it starts from."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import PurePosixPath
from typing import Any

from autotune.errors import SpecError
from autotune.trainers.nemo_rl.bases import BASE, bases_of, beside, inherited, resolved
from autotune.trainers.nemo_rl.knobs import (
    DEFAULTS,
    DEGREES,
    DTENSOR,
    DYNAMIC,
    GENERATION,
    MEGATRON,
    PACKING,
    PENALTY,
    PRECISIONS,
    WITH_ASYNC,
)
from autotune.trainers.post_training.trainer import fitted, mini_batches, read_whole_experts
from autotune.trainers.present_configuration import KeyReader, Reading, flat, merged, nested

UNCOUNTED = tuple(
    f"{engine}.{name}.enabled"
    for engine in (MEGATRON, DTENSOR)
    for name in ("lora_cfg", "peft", "fp8_cfg")
)
TEACHERS, EXPERTS = "on_policy_distillation", f"{DTENSOR}.expert_parallel_size"


def read_over_bases(
    name: str,
    document: Mapping[str, Any],
    files: Mapping[str, str],
    read_document: Callable[[str, Mapping[str, Any], Mapping[str, Any]], Reading],
) -> Reading:
    """What a document says, over the files that it starts from. `read_document`: what one says with the values of all."""
    below, missing = inherited(document, name, files)
    whole = merged(below, document)
    _refuse_others(name, whole)
    values = {path: resolved(whole, path) for path in DEFAULTS}
    written = {path: value for path, value in values.items() if path in dict(flat(document))}
    found = read_document(name, merged(document, nested(written)), values)
    base = next(iter(bases_of(document)), "")
    if (
        base
        and PurePosixPath(base).name == PurePosixPath(BASE.default).name
        and beside(name, base) not in files
    ):
        base = BASE.default
    backend = resolved(whole, f"{GENERATION}.backend") or "vllm"
    return replace(
        found,
        options={**found.options, BASE.name: base},
        missing=missing,
        rollout=found.rollout if backend == "vllm" else {},
        remarks=(*found.remarks, *_uncounted(whole, backend)),
    )


def read(keys: KeyReader) -> Reading:
    """Both engines."""
    keys.drop("defaults")
    is_megatron = bool(keys.flag(f"{MEGATRON}.enabled"))
    keys.flag(f"{DTENSOR}.enabled")
    engine, where = ("megatron", MEGATRON) if is_megatron else ("fsdp", DTENSOR)
    nodes, per_node = keys.count("cluster.num_nodes") or 1, keys.count("cluster.gpus_per_node")
    apart = keys.flag(f"{GENERATION}.colocated.enabled") is False
    own_nodes, own_gpus = (
        keys.count(f"{GENERATION}.colocated.resources.{key}")
        for key in ("num_nodes", "gpus_per_node")
    )
    generating = ((own_nodes or 1) * (own_gpus or per_node or 0)) if apart else 0
    ranks = None if per_node is None else nodes * per_node - generating
    degrees = {knob: keys.count(f"{where}.{path}") or 1 for knob, path in DEGREES[engine].items()}
    recompute, sequence = (
        keys.flag(f"{where}.activation_checkpointing"),
        keys.flag(f"{where}.sequence_parallel"),
    )
    micro, length = (
        keys.count("policy.train_micro_batch_size") or 1,
        keys.count("policy.max_total_sequence_length"),
    )
    packs, groups = keys.flag(f"{PACKING}.enabled"), keys.flag(f"{DYNAMIC}.enabled")
    if packs:
        way = PACKING
    else:
        way = DYNAMIC if groups else ""
    tokens, before = (
        keys.count(f"{way}.{name}_mb_tokens") if way else None for name in ("train", "logprob")
    )
    knobs: dict[str, Any] = {
        **degrees,
        "precision": keys.word("policy.precision", {v: k for k, v in PRECISIONS.items()}) or "bf16",
        "micro_batch_size": 1 if tokens else micro,
        "recompute": "full" if recompute else "none",
        "zero_stage": 1 if is_megatron else 3,
        "sequence_parallel": bool(sequence) and degrees["tp"] > 1,
    }
    batch = keys.count("policy.train_global_batch_size")
    knobs = fitted(knobs, ranks, batch, alone={"zero_stage": 0})  # there is nothing to shard
    prompts, responses = (
        keys.count("grpo.num_prompts_per_step"),
        keys.count("grpo.num_generations_per_prompt") or 1,
    )
    penalty = keys.number(PENALTY)
    stale, overlaps = (
        keys.count("grpo.async_grpo.max_trajectory_age_steps"),
        keys.flag("grpo.async_grpo.enabled"),
    )
    placement = None
    if overlaps:
        keys.drop(*WITH_ASYNC)
    else:
        keys.keep("grpo.async_grpo.max_trajectory_age_steps")
    if apart and ranks:
        placement = (
            {"async": [ranks, generating], "staleness": stale or 1}
            if overlaps
            else {"split": [ranks, generating]}
        )
    whole = read_whole_experts(keys, MEGATRON, degrees["tp"]) if is_megatron else None
    rl = {
        "algorithm": "grpo", "prompts": prompts, "responses": responses, "engine": engine, "placement": placement,
        "mini_batches": mini_batches(prompts, responses, batch),
        "whole_experts": whole,
        "reference": None if penalty is None else penalty > 0, "padded": None if packs else True,
        "micro_batch_tokens": tokens,
        "log_prob_micro_batch_tokens": before,
        "response_lengths": length,
    }  # fmt: skip
    rollout = {
        "tp": keys.count(f"{GENERATION}.vllm_cfg.tensor_parallel_size"),
        "memory_fraction": keys.number(f"{GENERATION}.vllm_cfg.gpu_memory_utilization"),
    }
    path = keys.text("policy.model_name")
    rate = (
        keys.number(f"{MEGATRON}.optimizer.lr")
        if is_megatron
        else keys.number("policy.optimizer.kwargs.lr")
    )
    options = {"model": path, "seed": keys.count("grpo.seed"), "learning_rate": rate}
    keys.keep(PENALTY)
    for key in ("grpo.seed", "grpo.max_num_steps"):  # what launches write otherwise
        keys.keep_unless(key, None)
    return Reading(
        knobs=knobs,
        model_file=path or "",
        seq_len=length,
        global_batch_size=batch,
        nodes=None if per_node is None else (nodes, per_node),
        options=options,
        rl=rl,
        rollout=rollout,
    )


def _refuse_others(name: str, whole: Mapping[str, Any]) -> None:
    """Raises `SpecError` for a configuration whose training GPUs are counted otherwise."""
    at_rewards = _mentions(whole.get("data"), "reward_model") and resolved(
        whole, "env.reward_model.resources.gpus_per_node"
    )
    kinds = {
        "belongs to NeMo-RL's single controller (async_rl)": whole.get("async_rl"),
        "has teachers on their own GPUs (on_policy_distillation.non_colocated_teachers)": resolved(
            whole, f"{TEACHERS}.non_colocated_teachers.enabled"
        ),
        "has a reward model on its own GPUs (env.reward_model.resources)": at_rewards,
    }
    if found := next((what for what, has in kinds.items() if has), None):
        raise SpecError(
            f"{name} {found}, which autotune does not support",
            remedy="describe the step under `rl` in your own spec",
            field="FILE",
        )


def _mentions(node: Any, word: str) -> bool:
    """Whether a value somewhere in it is that word."""
    if isinstance(node, Mapping):
        return any(_mentions(each, word) for each in node.values())
    if isinstance(node, list):
        return any(_mentions(each, word) for each in node)
    return bool(node == word)


def _uncounted(whole: Mapping[str, Any], backend: str) -> Iterator[str]:
    """What plans leave out, in words, also of the files that a configuration starts from."""
    for switch in UNCOUNTED:
        if resolved(whole, switch) is True:
            yield f"{switch}: plans do not count what it saves; launches pass it on unchanged"
    if backend != "vllm":
        yield f"{GENERATION}.backend={backend}: autotune does not read the degree and memory of its engines; give them under `rollout`"
    if resolved(whole, f"{TEACHERS}.enabled"):
        yield f"{TEACHERS}: the time and memory of its teachers are not counted; launches pass these settings on unchanged"
    if (
        (experts := resolved(whole, EXPERTS))
        and experts != 1
        and resolved(whole, f"{DTENSOR}.enabled")
    ):
        yield f"{EXPERTS}={experts}: plans shard experts like all other weights; launches pass the value on unchanged"
