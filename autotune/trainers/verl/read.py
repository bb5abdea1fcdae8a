"""verl's configuration read back: its file, over which the overrides of its command count."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import PurePosixPath
from typing import Any

from autotune.errors import SpecError
from autotune.spec.texts.as_text import notes_of, number_of
from autotune.trainers.post_training.adapters import read_adapters
from autotune.trainers.post_training.trainer import (
    EXPERT_TP,
    fitted,
    read_algorithm,
    read_whole_experts,
    whole_nodes,
)
from autotune.trainers.present_configuration import (
    KeyReader,
    PresentConfiguration,
    Reading,
    dotted,
    merged,
)
from autotune.trainers.verl.knobs import (
    ACTOR,
    ADAPTERS,
    BEFORE,
    CRITIC,
    ENGINE,
    EPOCHS,
    ESTIMATORS,
    FORWARD,
    KL_IN_REWARD,
    LOG_PROB_TOKENS,
    MEGATRON,
    MODEL,
    OPTIMIZER_ON_HOST,
    RECOMPUTE,
    REF,
    ROLLOUT,
    SENDS,
    SEQUENCES,
    TOKENS,
)

COUNTED = "ppo_micro_batch_size"
"""sequences of all data-parallel ranks together, the older way to say them"""
RANK = 32
"""the rank that plans take for adapters that exist already"""
OWN_GROUPS = ("ppo_trainer", "ppo_megatron_trainer", "_self_")
"""what its configurations start from, of which launches write the same"""
UNREAD_ENGINES = ("veomni", "torchtitan", "automodel", "mlite")


def with_groups(document: Mapping[str, Any], words: Sequence[str]) -> dict[str, Any]:
    """The document with the groups of settings that the words of its command choose:
    `--config-name=ppo_megatron_trainer`, `actor@path=mlite_actor`."""
    named = PurePosixPath(PresentConfiguration(argv=tuple(words)).option("config-name") or "").stem
    chosen = [named] if named in OWN_GROUPS else []
    chosen += [word for word in words if "@" in word.partition("=")[0] and "=" in word]
    if not chosen:
        return dict(document)
    return {**document, "defaults": [*_groups(document.get("defaults")), *chosen]}


def _groups(defaults: Any) -> Sequence[Any]:
    """The groups of settings that a configuration starts from; one that is no list names none."""
    return defaults if isinstance(defaults, list) else ()


def with_epochs(found: Reading) -> Reading:
    """The reading with how long it trains by default, of which a trial has its own."""
    if {"trainer.total_training_steps", EPOCHS} & set(dotted(found.settings)):
        return found
    return replace(found, settings=merged({"trainer": {"total_epochs": 30}}, found.settings))


def read(keys: KeyReader) -> Reading:
    """Both engines; what lengths there are, only the program's log knows."""
    engine = _engine(keys)
    keys.remarks += _unread_groups(keys)
    nodes, per_node = keys.count("trainer.nnodes"), keys.count("trainer.n_gpus_per_node")
    ranks = None if per_node is None else per_node * (nodes or 1)
    degrees = _read_megatron(keys) if engine == "megatron" else _read_fsdp(keys)
    is_dynamic, sequences = keys.flag(f"{ACTOR}.use_dynamic_bsz"), _sequences(keys, ranks, degrees)
    _drop_written_again(keys, engine, sequences)
    step = _step(keys)
    mini = step["mini_batch_prompts"]
    batch = None if mini is None else mini * step["responses"]
    degrees |= {"precision": "bf16", "micro_batch_size": 1 if is_dynamic else sequences or 1}
    knobs = fitted(degrees, ranks, batch, alone={"zero_stage": 0})  # there is nothing to shard
    knobs |= _replicas(keys, ranks)
    peft = _adapters(keys)
    keys.remarks += _uncounted(keys)
    generating = _generating(keys, per_node)
    prompt, response = _lengths(keys)
    rl: dict[str, Any] = {
        "algorithm": read_algorithm(keys, "algorithm.adv_estimator", ESTIMATORS),
        **step,
        **_of_megatron(keys, engine, knobs.get("tp", 1)),
        "engine": engine,
        **_reference(keys, engine),
        **_packing(keys, is_dynamic),
        "phase_offload": _phase_offload(keys, engine),
        "balance": "none" if keys.flag("trainer.balance_batch") is False else None,
        "prompt_lengths": prompt,
        "response_lengths": response,
        "placement": _placement(keys, ranks, generating),
    }
    rollout, path = _rollout(keys), keys.text(f"{MODEL}.path")
    if rl["algorithm"] == "ppo":
        _read_critic(keys, engine, path)
    return Reading(
        knobs=knobs,
        model_file=path or "",
        seq_len=None if prompt is None or response is None else prompt + response,
        global_batch_size=batch,
        nodes=whole_nodes(per_node, (ranks or 0) + generating),
        options={"model": path, "learning_rate": keys.number(f"{ACTOR}.optim.lr")},
        rl=rl,
        rollout=rollout,
        peft=peft,
    )


def _unread_groups(keys: KeyReader) -> Iterator[str]:
    """The groups of settings that are not verl's usual ones, in words."""
    keys.drop("hydra.searchpath", "defaults")
    for each in _groups(keys.find("defaults")):
        group = str(each).strip("{}").replace("'", "")
        if group not in OWN_GROUPS:
            yield f"{group}: the content of these settings is not read, and exports omit it"


def _sequences(keys: KeyReader, ranks: int | None, degrees: Mapping[str, Any]) -> int | None:
    """Sequences of a rank's micro-batch."""
    sequences, counted = keys.count(f"{ACTOR}.{SEQUENCES}"), keys.count(f"{ACTOR}.{COUNTED}")
    if counted and not sequences and ranks:
        sequences = max(counted // max(ranks // degrees.get("cp", 1), 1), 1)
    return sequences


def _drop_written_again(keys: KeyReader, engine: str, sequences: int | None) -> None:
    """What launches write themselves; another value is kept."""
    again = {
        f"{ROLLOUT}.name": "vllm",
        f"{MODEL}.use_remove_padding": True,
        f"{ACTOR}.strategy": engine,
        **{f"{part}.{FORWARD}_per_gpu": sequences for part in (ROLLOUT, REF)},
        f"{ROLLOUT}.checkpoint_engine.backend": SENDS,
    }
    keys.drop_equal(again)


def _step(keys: KeyReader) -> dict[str, Any]:
    """The sequences of a step, and how often it trains on them."""
    return {
        "prompts": keys.count("data.train_batch_size"),
        "responses": keys.positive(f"{ROLLOUT}.n"),
        "mini_batch_prompts": keys.count(f"{ACTOR}.ppo_mini_batch_size"),
        "epochs": keys.count(f"{ACTOR}.ppo_epochs"),
    }


def _replicas(keys: KeyReader, ranks: int | None) -> dict[str, int]:
    """Copies of the shards of FSDP."""
    shards = keys.find(f"{ACTOR}.fsdp_config.fsdp_size")
    keys.drop(f"{ACTOR}.fsdp_config.fsdp_size")
    is_part = isinstance(shards, int) and ranks and 0 < shards < ranks and ranks % shards == 0
    return {"dp_replicas": ranks // shards} if ranks and is_part else {}


def _adapters(keys: KeyReader) -> dict[str, Any]:
    """`peft` of the workload."""
    rank = keys.count(f"{MODEL}.lora_rank") or keys.count(f"{MODEL}.lora.rank")
    keys.keep(f"{MODEL}.lora.rank")
    if not rank and keys.find(ADAPTERS):
        rank = RANK
        keys.remarks.append(f"{ADAPTERS}: the adapters' rank is not read; plans assume rank {RANK}")
    return read_adapters(rank, keys.find(f"{MODEL}.target_modules"))


def _generating(keys: KeyReader, per_node: int | None) -> int:
    """GPUs of engines of their own."""
    nodes, gpus = keys.count(f"{ROLLOUT}.nnodes"), keys.count(f"{ROLLOUT}.n_gpus_per_node")
    return (nodes or 0) * (gpus or per_node or 0)


def _placement(keys: KeyReader, ranks: int | None, generating: int) -> dict[str, Any] | None:
    """Where responses are generated, and how old their policy may be; None on the GPUs that
    train."""
    keys.drop("trainer.v1.trainer_mode", "trainer.v1.separate_async.parameter_sync_step", "actor_rollout_ref.hybrid_engine")  # fmt: skip
    stale = keys.count("trainer.v1.sampler.max_off_policy_threshold")
    if not generating or not ranks:
        return None
    return {"async": [ranks, generating], "staleness": max((stale or 1) - 1, 0)}


def _lengths(keys: KeyReader) -> tuple[int | None, int | None]:
    """The longest prompt and response, which stay settings: what a log says of lengths cuts no
    prompt."""
    paths = ("data.max_prompt_length", "data.max_response_length")
    prompt, response = (keys.count(path) for path in paths)
    keys.keep(*paths)
    return prompt, response


def _of_megatron(keys: KeyReader, engine: str, tp: int) -> dict[str, Any]:
    """What only Megatron-Core's layers have."""
    where = f"{ACTOR}.megatron"
    return {
        "fused_rope": keys.flag(f"{where}.override_transformer_config.apply_rope_fusion"),
        "whole_experts": read_whole_experts(keys, where, tp) if engine == "megatron" else None,
    }


def _reference(keys: KeyReader, engine: str) -> dict[str, bool | None]:
    """Whether there is a reference model, and whether its weights wait on the host."""
    in_loss, in_reward = keys.flag(f"{ACTOR}.use_kl_loss"), keys.flag(KL_IN_REWARD)
    keys.keep(KL_IN_REWARD)
    return {
        "reference": bool(in_loss or in_reward),
        "reference_offload": keys.flag(f"{REF}.{ENGINE[ACTOR][engine]}.param_offload"),
    }


def _packing(keys: KeyReader, is_dynamic: bool | None) -> dict[str, Any]:
    """How sequences share micro-batches."""
    limits = {
        "micro_batch_tokens": keys.count(f"{ACTOR}.{TOKENS}"),
        "log_prob_micro_batch_tokens": keys.count(f"{ROLLOUT}.{LOG_PROB_TOKENS}"),
    }
    keys.drop(f"{REF}.{LOG_PROB_TOKENS}")
    is_padded = keys.find(f"{MODEL}.use_remove_padding") is False
    return {"padded": True if is_padded else None, **(limits if is_dynamic else {})}


def _phase_offload(keys: KeyReader, engine: str) -> str | None:
    """What the trainer keeps on the host while responses are generated."""
    where = f"{ACTOR}.{ENGINE[ACTOR][engine]}"
    weights, states = (keys.flag(f"{where}.{part}_offload") for part in ("param", "optimizer"))
    if weights:
        return "all"
    return "optimizer" if states else None


def _rollout(keys: KeyReader) -> dict[str, Any]:
    """The engine that generates."""
    rollout: dict[str, Any] = {
        "tp": keys.count(f"{ROLLOUT}.tensor_model_parallel_size"),
        "memory_fraction": keys.number(f"{ROLLOUT}.gpu_memory_utilization"),
    }
    is_awake = keys.flag(f"{ROLLOUT}.free_cache_engine") is False
    return {**rollout, "sleeps": False} if is_awake else rollout


def _engine(keys: KeyReader) -> str:
    """What trains, by the groups of settings that a configuration takes. Raises `SpecError` for an
    engine that is not read."""
    groups = _groups(keys.find("defaults"))
    named = (
        keys.find(path)
        for path in (
            f"{ACTOR}.strategy",
            "model_engine",
            f"{ACTOR}.model_engine",
            "actor@actor_rollout_ref.actor",
        )
    )
    told = " ".join(map(str, (*named, *groups)))
    if unread := next((engine for engine in UNREAD_ENGINES if engine in told), None):
        raise SpecError(
            f"the launch trains with verl's {unread} engine, which autotune does not support",
            remedy="use verl's FSDP or Megatron engine",
            field="FILE",
        )
    return (
        "megatron" if "megatron" in told or keys.find(f"{ACTOR}.megatron") is not None else "fsdp"
    )


def _uncounted(keys: KeyReader) -> tuple[str, ...]:
    """What plans leave out, in words."""
    per_node = keys.find("distillation.n_gpus_per_node") or 8
    gpus = (keys.find("distillation.nnodes") or 0) * per_node
    return notes_of(
        (
            keys.find("reward_model.enable") or keys.find("reward.reward_model.enable"),
            "the reward model's memory and time are not counted; set its time per step as rl.reward_s",
        ),
        (
            keys.find("algorithm.filter_groups.enable"),
            "responses that algorithm.filter_groups regenerates are not counted, unless generation is timed from a log (`rollout: {log: run.log}`)",
        ),
        (
            keys.find("distillation.enabled"),
            f"distillation: the teacher's {number_of(gpus, 'GPU')} and time are not counted; launches pass these settings on unchanged",
        ),
        (
            keys.find(f"{ACTOR}.entropy_coeff"),
            f"the entropy term from {ACTOR}.entropy_coeff needs copies of the logits, whose memory is not counted",
        ),
    )


def _read_fsdp(keys: KeyReader) -> dict[str, Any]:
    recompute = keys.flag(f"{MODEL}.enable_gradient_checkpointing")
    gathered = keys.flag(f"{ACTOR}.fsdp_config.reshard_after_forward")
    cp = keys.count(f"{ACTOR}.ulysses_sequence_parallel_size") or keys.positive(
        f"{ACTOR}.fsdp_config.ulysses_sequence_parallel_size"
    )
    return {
        "cp": cp,
        **({"cp_style": "heads"} if cp > 1 else {}),
        "zero_stage": 2 if gathered is False else 3,
        "recompute": "none" if recompute is False else "full",
    }


def _read_megatron(keys: KeyReader) -> dict[str, Any]:
    found = {knob: keys.positive(f"{ACTOR}.megatron.{path}") for knob, path in MEGATRON.items()}
    keys.drop(*(f"{REF}.megatron.{path}" for path in (*MEGATRON.values(), EXPERT_TP)))
    recompute = f"{ACTOR}.megatron.{RECOMPUTE}"
    granularity = keys.text(f"{recompute}granularity")
    keys.drop(*(f"{recompute}{key}" for key in ("method", "num_layers", "modules")))
    is_away, share, aware = OPTIMIZER_ON_HOST
    on_host = any((keys.flag(is_away), keys.number(share)))
    if on_host:
        keys.drop(aware)
    virtual = keys.count(f"{ACTOR}.megatron.virtual_pipeline_model_parallel_size")
    sequence = keys.flag(f"{ACTOR}.megatron.sequence_parallel")
    return {
        **found,
        "zero_stage": 1,
        "offload": "optimizer" if on_host else "none",
        "recompute": granularity if granularity in ("full", "selective") else "none",
        "sequence_parallel": found["tp"] > 1 and sequence is not False,
        **(
            {"virtual_stages": virtual, "pp_schedule": "interleaved_1f1b"}
            if virtual and virtual > 1
            else {}
        ),
    }


def _read_critic(keys: KeyReader, engine: str, policy: str | None) -> None:
    """What launches write of a critic again from the policy's; where it differs today, it is
    said."""
    own, of_policy = (f"{role}.{ENGINE[role][engine]}" for role in (CRITIC, ACTOR))
    alike = {
        f"{CRITIC}.model.{key}": f"{MODEL}.{key}"
        for key in ("use_remove_padding", "enable_gradient_checkpointing")
    } | {
        f"{CRITIC}.{key}": f"{ACTOR}.{key}"
        for key in (TOKENS, SEQUENCES, "ulysses_sequence_parallel_size")
    }
    inner = ("param_offload", "optimizer_offload", "reshard_after_forward", "fsdp_size", *MEGATRON.values(), "sequence_parallel",
             "virtual_pipeline_model_parallel_size", "override_transformer_config.apply_rope_fusion",
             *(f"{RECOMPUTE}{key}" for key in ("granularity", "method", "num_layers", "modules")))  # fmt: skip
    alike |= {f"{own}.{key}": f"{of_policy}.{key}" for key in inner}
    alike[f"{CRITIC}.{BEFORE}"] = f"{ROLLOUT}.{LOG_PROB_TOKENS}"
    for path, other in alike.items():
        value = keys.find(path)
        if value is not None and value != keys.find(other):
            keys.remarks.append(
                f"{path}={value} differs from the policy's value, but plans and launches treat the critic like the policy"
            )
        keys.drop(path)
    if keys.find(f"{CRITIC}.model.path") == policy:
        keys.drop(f"{CRITIC}.model.path")
    elif keys.find(f"{CRITIC}.model.path"):
        keys.remarks.append(
            "the critic has its own weights; if its shape differs from the policy's shape, describe the critic under rl.critic"
        )
