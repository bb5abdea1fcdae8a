"""NeMo-RL's configuration read back, over the files that it starts from."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import PurePosixPath
from typing import Any

from autotune.errors import SpecError
from autotune.spec.texts.as_text import notes_of, number_of
from autotune.trainers.nemo_rl.bases import BASE, bases_of, beside, inherited, resolved
from autotune.trainers.nemo_rl.knobs import (
    DEFAULTS,
    DEGREES,
    DTENSOR,
    DYNAMIC,
    ENGINES,
    GENERATION,
    MEGATRON,
    PACKING,
    PENALTY,
    PRECISIONS,
    RATES,
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
    """What a document says, over the files that it starts from. `read_document`: what one says with
    the values of all."""
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
    enabled = {engine: keys.flag(f"{where}.enabled") for engine, where in ENGINES.items()}
    engine = "megatron" if enabled["megatron"] else "fsdp"
    nodes, per_node = keys.positive("cluster.num_nodes"), keys.count("cluster.gpus_per_node")
    generating = _generating(keys, per_node)
    ranks = None if per_node is None else nodes * per_node - generating
    if ranks is not None and ranks < 1:
        raise SpecError(
            f"the launch has {number_of(nodes * (per_node or 0), 'GPU')}, but the engines alone need {generating}, so no GPU is left for training",
            remedy="correct cluster.num_nodes, cluster.gpus_per_node or policy.generation.colocated.resources",
            field="FILE",
        )
    packing, length = _packing(keys), keys.count("policy.max_total_sequence_length")
    batch = keys.count("policy.train_global_batch_size")
    knobs = _knobs(keys, engine, has_limit=bool(packing.get("micro_batch_tokens")))
    prompts, responses = (
        keys.count("grpo.num_prompts_per_step"),
        keys.positive("grpo.num_generations_per_prompt"),
    )
    path = keys.text("policy.model_name")
    rl = {
        "algorithm": "grpo",
        "prompts": prompts,
        "responses": responses,
        "engine": engine,
        "placement": _placement(keys, ranks, generating),
        "mini_batches": mini_batches(prompts, responses, batch),
        "whole_experts": read_whole_experts(keys, MEGATRON, knobs["tp"])
        if engine == "megatron"
        else None,
        "reference": _reference(keys),
        **packing,
        "response_lengths": length,
    }
    rollout = {
        "tp": keys.count(f"{GENERATION}.vllm_cfg.tensor_parallel_size"),
        "memory_fraction": keys.number(f"{GENERATION}.vllm_cfg.gpu_memory_utilization"),
    }
    options = {
        "model": path,
        "seed": keys.count("grpo.seed"),
        "learning_rate": keys.number(RATES[engine]),
    }
    for key in ("grpo.seed", "grpo.max_num_steps"):  # what launches write otherwise
        keys.keep_unless(key, None)
    return Reading(
        # a rank alone has nothing to shard
        knobs=fitted(knobs, ranks, batch, alone={"zero_stage": 0}),
        model_file=path or "",
        seq_len=length,
        global_batch_size=batch,
        nodes=None if per_node is None else (nodes, per_node),
        options=options,
        rl=rl,
        rollout=rollout,
    )


def _generating(keys: KeyReader, per_node: int | None) -> int:
    """GPUs of engines of their own."""
    where = f"{GENERATION}.colocated"
    nodes, gpus = (keys.count(f"{where}.resources.{key}") for key in ("num_nodes", "gpus_per_node"))
    is_apart = keys.flag(f"{where}.enabled") is False
    return (nodes or 1) * (gpus or per_node or 0) if is_apart else 0


def _packing(keys: KeyReader) -> dict[str, Any]:
    """How sequences share micro-batches: packed, or padded in groups within a limit of tokens."""
    ways = {way: keys.flag(f"{way}.enabled") for way in (PACKING, DYNAMIC)}
    found: dict[str, Any] = {} if ways[PACKING] else {"padded": True}
    if way := next((way for way, is_on in ways.items() if is_on), None):
        found["micro_batch_tokens"] = keys.count(f"{way}.train_mb_tokens")
        found["log_prob_micro_batch_tokens"] = keys.count(f"{way}.logprob_mb_tokens")
    return found


def _knobs(keys: KeyReader, engine: str, *, has_limit: bool) -> dict[str, Any]:
    """Degrees, precision, micro-batch and memory. `has_limit`: whether micro-batches are counted in
    tokens."""
    where = ENGINES[engine]
    degrees = {knob: keys.positive(f"{where}.{path}") for knob, path in DEGREES[engine].items()}
    precision = keys.word("policy.precision", {word: knob for knob, word in PRECISIONS.items()})
    sequences = keys.positive("policy.train_micro_batch_size")
    recompute = keys.flag(f"{where}.activation_checkpointing")
    return {
        **degrees,
        "precision": precision or "bf16",
        "micro_batch_size": 1 if has_limit else sequences,
        "recompute": "full" if recompute else "none",
        "zero_stage": 1 if engine == "megatron" else 3,
        "sequence_parallel": keys.is_on(f"{where}.sequence_parallel") and degrees["tp"] > 1,
    }


def _placement(keys: KeyReader, ranks: int | None, generating: int) -> dict[str, Any] | None:
    """Where responses are generated, and how old their policy may be; None on the GPUs that
    train."""
    age = "grpo.async_grpo.max_trajectory_age_steps"
    stale, overlaps = keys.count(age), keys.flag("grpo.async_grpo.enabled")
    if overlaps:
        keys.drop(*WITH_ASYNC)
    else:
        keys.keep(age)
    if not generating or not ranks:
        return None
    both = [ranks, generating]
    return {"async": both, "staleness": stale or 1} if overlaps else {"split": both}


def _reference(keys: KeyReader) -> bool | None:
    """Whether there is a reference model, by the weight of its penalty, which stays a setting."""
    penalty = keys.number(PENALTY)
    keys.keep(PENALTY)
    return None if penalty is None else penalty > 0


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


def _uncounted(whole: Mapping[str, Any], backend: str) -> tuple[str, ...]:
    """What plans leave out, in words, also of the files that a configuration starts from."""
    switched = [switch for switch in UNCOUNTED if resolved(whole, switch) is True]
    experts, by_dtensor = resolved(whole, EXPERTS), resolved(whole, f"{DTENSOR}.enabled")
    return notes_of(
        *(
            (
                True,
                f"plans do not count what {switch} saves; launches pass this setting on unchanged",
            )
            for switch in switched
        ),
        (
            backend != "vllm",
            f"autotune does not read the engines' degree and memory with {GENERATION}.backend={backend}; set them under `rollout`",
        ),
        (
            resolved(whole, f"{TEACHERS}.enabled"),
            f"{TEACHERS}: the teachers' time and memory are not counted; launches pass these settings on unchanged",
        ),
        (
            experts and experts != 1 and by_dtensor,
            f"{EXPERTS}={experts}: plans shard experts like all other weights; launches pass the value on unchanged",
        ),
    )
