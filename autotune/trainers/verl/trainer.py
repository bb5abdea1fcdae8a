"""verl: `verl.yaml`, read by `verl.trainer.main_ppo`, over verl's own defaults.

    engine fsdp        ZeRO 3 (or 2: reshard_after_forward off), Ulysses over `ulysses_sequence_parallel_size` ranks, whole-layer recomputation
    engine megatron    tensor, pipeline, context and expert parallelism, the distributed optimizer (ZeRO 1)

Names and defaults are those of verl 0.9.1 (trainer/config/_generated_ppo_trainer.yaml, _generated_ppo_megatron_trainer.yaml). `micro_batch_tokens` is `ppo_max_token_len_per_gpu` with
`use_dynamic_bsz`; `rollout_gpus` above 0 is the trainer of kind `separate_async`, whose engines have nodes of their own: it wants
data.train_batch_size = parameter_sync_step * ppo_mini_batch_size and another way to send weights than `naive` (trainer/ppo/v1/trainer_separate_async.py), and leaves the training GPUs without
engines where `hybrid_engine` is off. A critic is cut, sharded, packed and offloaded as the policy is.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import PurePosixPath
from typing import Any, ClassVar

from autotune.errors import ExportError, SpecError
from autotune.spec import ModelSpec, ParallelConfig, Workload
from autotune.spec.post_training import PostTraining
from autotune.trainers.base.effective import word_limit
from autotune.trainers.base.limit import Limit, Rule, broken
from autotune.trainers.base.not_offered import NOT_SET
from autotune.trainers.launch_files import FOLDER
from autotune.trainers.post_training.adapters import read_adapters, written_modules
from autotune.trainers.post_training.trainer import (
    EXPERT_TP,
    PostTrainer,
    fitted,
    grid,
    read_whole_experts,
    rl_value,
    whole_nodes,
)
from autotune.trainers.present_configuration import (
    SETTINGS,
    KeyReader,
    PresentConfiguration,
    Reading,
    at_path,
    dotted,
    merged,
)

ACTOR, ROLLOUT, REF, MODEL = (
    f"actor_rollout_ref.{part}" for part in ("actor", "rollout", "ref", "model")
)
MEGATRON = {
    "tp": "tensor_model_parallel_size", "pp": "pipeline_model_parallel_size", "cp": "context_parallel_size", "ep": "expert_model_parallel_size",
}  # fmt: skip
ESTIMATORS = {"grpo": "grpo", "dapo": "grpo", "ppo": "gae"}
CRITIC = "critic"
ENGINE = {
    ACTOR: {"fsdp": "fsdp_config", "megatron": "megatron"},
    CRITIC: {"fsdp": "fsdp", "megatron": "megatron"},
}
"""the key of what trains, by role and engine"""
TOKENS, BEFORE, SEQUENCES = (
    "ppo_max_token_len_per_gpu",
    "forward_max_token_len_per_gpu",
    "ppo_micro_batch_size_per_gpu",
)
RECOMPUTE = "override_transformer_config.recompute_"
COUNTED, FORWARD = "ppo_micro_batch_size", "log_prob_micro_batch_size"
"""sequences of all data-parallel ranks together, the older way to say them"""
CPU_OPTIMIZER = f"{ACTOR}.optim.override_optimizer_config"
EPOCHS, KL_IN_REWARD = "trainer.total_epochs", "algorithm.use_kl_in_reward"
DEFAULTS: Mapping[str, Any] = {
    "algorithm.adv_estimator": "gae",
    "data.train_batch_size": 1024,
    "data.max_prompt_length": 512,
    "data.max_response_length": 512,
    f"{ACTOR}.ppo_mini_batch_size": 256,
    f"{ACTOR}.{TOKENS}": 16384,
    f"{ACTOR}.optim.lr": 1e-6,
    f"{ROLLOUT}.tensor_model_parallel_size": 2,
    f"{ROLLOUT}.gpu_memory_utilization": 0.5,
    "trainer.n_gpus_per_node": 8,
}
ADAPTERS, RANK = f"{MODEL}.lora_adapter_path", 32
"""adapters that exist already, and the rank that plans take for theirs"""
OWN_GROUPS = ("ppo_trainer", "ppo_megatron_trainer", "_self_")
"""what its configurations start from, of which launches write the same"""
UNREAD_ENGINES = ("veomni", "torchtitan", "automodel", "mlite")
SENDS = "nccl"
"""the way by which weights go to engines of their own"""


class Verl(PostTrainer):
    """Volcano Engine's RL library."""

    name = "verl"
    summary = "verl, verl.yaml for main_ppo with FSDP or Megatron and vLLM"
    checked_against = "verl 0.9.1"
    engines = frozenset({"fsdp", "megatron"})
    carried = frozenset({
        "rollout_tp", "rollout_gpus", "micro_batch_tokens", "log_prob_micro_batch_tokens", "phase_offload", "staleness", "balance",
    })  # fmt: skip
    reads = frozenset({
        "tp", "pp", "dp", "cp", "ep", "micro_batch_size", "accumulation_steps", "precision", "recompute", "zero_stage", "sequence_parallel", "cp_style", "virtual_stages", "pp_schedule",
        "dp_replicas", "offload",
    })  # fmt: skip
    cannot: ClassVar = {
        **{
            name: why
            for name, why in NOT_SET.items()
            if name not in ("dp_replicas", "cp_style", "offload")
        },
        **dict.fromkeys(
            ("offload=activations", "offload=all"), "it can run only the optimizer step on the host"
        ),
        "compile": "its own option use_torch_compile controls compilation",
        "pp_schedule=gpipe": "Megatron-Core runs 1F1B, or interleaves stages",
        "pp_schedule=interleaved_zero_bubble": "Megatron-Core runs 1F1B, or interleaves stages",
    }
    recognized_by = ("actor_rollout_ref", "actor_rollout_ref.actor", "verl.trainer.main_ppo")
    step_marks = ("step:",)
    resolves = True
    defaults = DEFAULTS
    peft_methods = frozenset({"lora"})
    no_adapters = "it does not load 4-bit weights"
    settings_file = "verl.yaml"
    watching = (
        "trainer.total_training_steps", "trainer.total_epochs", "trainer.save_freq", "trainer.test_freq", "trainer.val_before_train", "trainer.logger", "trainer.default_local_dir",
        "trainer.project_name", "trainer.experiment_name",
    )  # fmt: skip

    def engine_limits(
        self, workload: Workload, rl: PostTraining, c: ParallelConfig
    ) -> Sequence[Limit]:
        """FSDP cuts no layers; Megatron is told its own optimizer sharding."""
        generating, per_node = int(rl_value(rl, c, "rollout_gpus")), workload.cluster.gpus_per_node
        stale = rl_value(rl, c, "staleness")
        return (
            *word_limit(
                c,
                "precision",
                dict.fromkeys(("fp8", "fp16", "fp32", "tf32"), "bf16"),
                "actors are in bf16",
            ),
            *broken(
                workload,
                c,
                Rule(
                    rl.algorithm == "dpo", "workload.rl.algorithm", "main_ppo has none", value="dpo"
                ),
            ),
            *(_fsdp_limits(workload, c) if rl.engine == "fsdp" else _megatron_limits(workload, c)),
            *broken(
                workload,
                c,
                Rule(
                    generating % per_node,
                    "rollout_gpus",
                    f"separate engines need whole nodes of {per_node} GPUs",
                    value=generating,
                ),
                Rule(
                    generating and not float(stale).is_integer(),
                    "staleness",
                    "max_off_policy_threshold counts whole versions",
                    value=stale,
                ),
                Rule(
                    rl_value(rl, c, "balance") == "mini_batch",
                    "balance",
                    "balance_batch balances the whole batch",
                    value="mini_batch",
                ),
            ),
        )

    def command(self, workload: Workload, rl: PostTraining, c: ParallelConfig) -> tuple[str, ...]:
        """main_ppo with the file of the launch."""
        return (
            "python3",
            "-m",
            "verl.trainer.main_ppo",
            f"--config-path={FOLDER}",
            "--config-name=verl",
        )

    def document(
        self, workload: Workload, rl: PostTraining, c: ParallelConfig, options: Mapping[str, Any]
    ) -> dict[str, Any]:
        """By dotted paths."""
        generating = int(rl_value(rl, c, "rollout_gpus"))
        nodes, per_node = grid(workload, c.world_size)
        tokens, before = (
            int(rl_value(rl, c, "micro_batch_tokens")),
            int(rl_value(rl, c, "log_prob_micro_batch_tokens")),
        )
        offload = rl_value(rl, c, "phase_offload")
        found: dict[str, Any] = {
            "hydra.searchpath": ["pkg://verl.trainer.config"],
            "defaults": [
                "ppo_megatron_trainer" if rl.engine == "megatron" else "ppo_trainer",
                "_self_",
            ],
            "algorithm.adv_estimator": ESTIMATORS[rl.algorithm],
            "data.train_batch_size": rl.prompts,
            "data.max_prompt_length": int(rl.prompt_lengths.longest),
            "data.max_response_length": int(rl.response_lengths.longest),
            f"{MODEL}.path": options["model"],
            f"{MODEL}.use_remove_padding": not rl.padded,
            f"{ACTOR}.strategy": rl.engine,
            f"{ACTOR}.ppo_mini_batch_size": rl.mini_batch // rl.responses,
            f"{ACTOR}.ppo_epochs": rl.epochs,
            f"{ACTOR}.use_dynamic_bsz": tokens > 0,
            f"{ACTOR}.use_kl_loss": rl.reference
            and not at_path(options[SETTINGS.name], KL_IN_REWARD),
            f"{ACTOR}.optim.lr": options["learning_rate"],
            f"{ROLLOUT}.name": "vllm",
            f"{ROLLOUT}.n": rl.responses,
            f"{ROLLOUT}.tensor_model_parallel_size": int(rl_value(rl, c, "rollout_tp")),
            "trainer.nnodes": nodes,
            "trainer.n_gpus_per_node": per_node,
            "trainer.balance_batch": rl_value(rl, c, "balance") != "none",
            # a run that counts epochs has them among its settings, which trials leave out
            "trainer.total_training_steps": None
            if at_path(options[SETTINGS.name], EPOCHS)
            else options["steps"],
        }
        if workload.peft is not None and not any(
            at_path(options[SETTINGS.name], key) for key in (f"{MODEL}.lora", ADAPTERS)
        ):
            found |= {
                f"{MODEL}.lora_rank": workload.peft.rank,
                f"{MODEL}.target_modules": written_modules(workload.peft),
            }
        if rl.rollout is not None and rl.rollout.memory_fraction:
            found[f"{ROLLOUT}.gpu_memory_utilization"] = rl.rollout.memory_fraction
        if rl.rollout is not None and not rl.rollout.sleeps:
            found[f"{ROLLOUT}.free_cache_engine"] = False
        if tokens:
            found[f"{ACTOR}.ppo_max_token_len_per_gpu"] = tokens
            found |= {
                f"{part}.log_prob_max_token_len_per_gpu": before or tokens
                for part in (ROLLOUT, REF)
            }
        else:
            found[f"{ACTOR}.ppo_micro_batch_size_per_gpu"] = c.micro_batch_size
            counted = [
                part
                for part in (ROLLOUT, REF)
                if at_path(options[SETTINGS.name], f"{part}.{FORWARD}")
            ]
            found |= {
                f"{part}.{FORWARD}_per_gpu": c.micro_batch_size
                for part in (ROLLOUT, REF)
                if part not in counted
            }
        if rl.critic is not None:
            if rl.critic != workload.model and f"{CRITIC}.model.path" not in dotted(
                options[SETTINGS.name]
            ):
                raise ExportError(
                    "the critic's model differs from the policy's, but its weights are not given",
                    remedy="specify them in the trainer's settings: {critic: {model: {path: ...}}}",
                    field="settings",
                )
            found[f"{CRITIC}.model.path"] = options["model"]
            packs = (
                {TOKENS: tokens, BEFORE: before or tokens}
                if tokens
                else {SEQUENCES: c.micro_batch_size}
            )
            found |= {f"{CRITIC}.{key}": value for key, value in packs.items()}
            found[f"{CRITIC}.model.use_remove_padding"] = not rl.padded
        if c.offload == "optimizer":
            found |= {f"{CPU_OPTIMIZER}.{key}": value for key, value in (
                ("optimizer_cpu_offload", True), ("optimizer_offload_fraction", 1.0), ("use_precision_aware_optimizer", True))}  # fmt: skip
        if rl.reference and rl.reference_offload:
            found[f"{REF}.{ENGINE[ACTOR][rl.engine]}.param_offload"] = True
        if generating:
            found |= {
                "actor_rollout_ref.hybrid_engine": False, f"{ROLLOUT}.checkpoint_engine.backend": SENDS,
                "trainer.v1.trainer_mode": "separate_async", "trainer.v1.separate_async.parameter_sync_step": rl.mini_batches,
                "trainer.v1.sampler.max_off_policy_threshold": 1 + int(rl_value(rl, c, "staleness")),
                f"{ROLLOUT}.nnodes": generating // workload.cluster.gpus_per_node, f"{ROLLOUT}.n_gpus_per_node": workload.cluster.gpus_per_node,
            }  # fmt: skip
        for role in (ACTOR,) if rl.critic is None else (ACTOR, CRITIC):
            where = f"{role}.{ENGINE[role][rl.engine]}"
            found[f"{where}.param_offload"] = offload == "all"
            found[f"{where}.optimizer_offload"] = offload != "none"
            found |= (
                _megatron(c, rl, role, workload.model)
                if rl.engine == "megatron"
                else _fsdp(c, role)
            )
        return found

    def present_document(self, present: PresentConfiguration) -> tuple[str, dict[str, Any]]:
        """Its file with the overrides of its command, and the groups of settings that the command chooses: `--config-name=ppo_megatron_trainer`, `actor@path=mlite_actor`."""
        name, document = super().present_document(present)
        words = self.words(present)
        named = PurePosixPath(PresentConfiguration(argv=words).option("config-name") or "").stem
        chosen = [named] if named in OWN_GROUPS else []
        chosen += [word for word in words if "@" in word.partition("=")[0] and "=" in word]
        return name, {
            **document,
            "defaults": [*(document.get("defaults") or []), *chosen],
        } if chosen else document

    def read_config(self, present: PresentConfiguration) -> Reading:
        """Its file, and how long it trains, of which a trial has its own."""
        found = super().read_config(present)
        if {"trainer.total_training_steps", EPOCHS} & set(dotted(found.settings)):
            return found
        return replace(found, settings=merged({"trainer": {"total_epochs": 30}}, found.settings))

    def read_keys(self, keys: KeyReader) -> Reading:
        """Both engines; what lengths there are, only the program's log knows."""
        is_megatron = _engine(keys) == "megatron"
        groups = (str(each).strip("{}").replace("'", "") for each in keys.find("defaults") or ())
        keys.remarks += [
            f"{each}: the content of these settings is not read, and exports omit it"
            for each in groups
            if each not in OWN_GROUPS
        ]
        keys.drop("hydra.searchpath", "defaults")
        nodes, per_node = keys.count("trainer.nnodes"), keys.count("trainer.n_gpus_per_node")
        ranks = None if per_node is None else per_node * (nodes or 1)
        knobs = _read_megatron(keys) if is_megatron else _read_fsdp(keys)
        is_dynamic, sequences = (
            keys.flag(f"{ACTOR}.use_dynamic_bsz"),
            keys.count(f"{ACTOR}.{SEQUENCES}"),
        )
        if (counted := keys.count(f"{ACTOR}.{COUNTED}")) and not sequences and ranks:
            sequences = max(counted // (ranks // knobs.get("cp", 1)), 1)
        knobs |= {"precision": "bf16", "micro_batch_size": 1 if is_dynamic else sequences or 1}
        prompts, responses = keys.count("data.train_batch_size"), keys.count(f"{ROLLOUT}.n") or 1
        mini = keys.count(f"{ACTOR}.ppo_mini_batch_size")
        keys.drop("trainer.v1.trainer_mode", "trainer.v1.separate_async.parameter_sync_step", "actor_rollout_ref.hybrid_engine")  # fmt: skip
        if keys.find(f"{ROLLOUT}.checkpoint_engine.backend") == SENDS:
            keys.drop(f"{ROLLOUT}.checkpoint_engine.backend")
        batch = None if mini is None else mini * responses
        knobs = fitted(knobs, ranks, batch, alone={"zero_stage": 0})  # there is nothing to shard
        shards = keys.find(f"{ACTOR}.fsdp_config.fsdp_size")
        keys.drop(f"{ACTOR}.fsdp_config.fsdp_size")
        if ranks and isinstance(shards, int) and 0 < shards < ranks and ranks % shards == 0:
            knobs["dp_replicas"] = ranks // shards
        tokens, before = (
            keys.count(f"{ACTOR}.ppo_max_token_len_per_gpu"),
            keys.count(f"{ROLLOUT}.log_prob_max_token_len_per_gpu"),
        )
        keys.drop(f"{REF}.log_prob_max_token_len_per_gpu")
        again = {  # what launches write themselves; another value is kept
            f"{ROLLOUT}.name": "vllm", f"{MODEL}.use_remove_padding": True, f"{ACTOR}.strategy": "megatron" if is_megatron else "fsdp",
            **{f"{part}.{FORWARD}_per_gpu": sequences for part in (ROLLOUT, REF)},
        }  # fmt: skip
        keys.keep(*again)
        keys.drop(*(path for path, value in again.items() if keys.written(path) == value))
        where = f"{ACTOR}.{'megatron' if is_megatron else 'fsdp_config'}"
        params, states = (
            keys.flag(f"{where}.param_offload"),
            keys.flag(f"{where}.optimizer_offload"),
        )
        estimator = keys.text("algorithm.adv_estimator")
        # rloo, gpg and others cost what grpo costs, and stay what they are
        if estimator not in ESTIMATORS.values():
            keys.keep_unless("algorithm.adv_estimator", None)
        in_loss, in_reward = keys.flag(f"{ACTOR}.use_kl_loss"), keys.flag(KL_IN_REWARD)
        keys.keep(KL_IN_REWARD)
        of_reference = f"{REF}.{'megatron' if is_megatron else 'fsdp_config'}.param_offload"
        packs = keys.find(f"{MODEL}.use_remove_padding")
        adapters = keys.count(f"{MODEL}.lora_rank") or keys.count(f"{MODEL}.lora.rank")
        keys.keep(f"{MODEL}.lora.rank")
        if not adapters and keys.find(ADAPTERS):
            adapters = RANK
            keys.remarks.append(
                f"{ADAPTERS}: the rank of its adapters is not read; plans assume rank {RANK}"
            )
        keys.remarks += _uncounted(keys)
        prompt, response = (
            keys.count("data.max_prompt_length"),
            keys.count("data.max_response_length"),
        )
        generating = (keys.count(f"{ROLLOUT}.nnodes") or 0) * (
            keys.count(f"{ROLLOUT}.n_gpus_per_node") or per_node or 0
        )
        stale = keys.count("trainer.v1.sampler.max_off_policy_threshold")
        phase_offload = "optimizer" if states else None
        if params:
            phase_offload = "all"
        rl: dict[str, Any] = {
            "algorithm": "ppo" if estimator == "gae" else "grpo",
            "prompts": prompts, "responses": responses, "mini_batch_prompts": mini, "epochs": keys.count(f"{ACTOR}.ppo_epochs"),
            "fused_rope": keys.flag(f"{ACTOR}.megatron.override_transformer_config.apply_rope_fusion"),
            "whole_experts": read_whole_experts(keys, f"{ACTOR}.megatron", knobs.get("tp", 1)) if is_megatron else None,
            "engine": "megatron" if is_megatron else "fsdp", "reference": bool(in_loss or in_reward),
            "reference_offload": keys.flag(of_reference), "padded": True if packs is False else None,
            "micro_batch_tokens": tokens if is_dynamic else None, "log_prob_micro_batch_tokens": before if is_dynamic else None,
            "phase_offload": phase_offload,
            "balance": "none" if keys.flag("trainer.balance_batch") is False else None,
            "prompt_lengths": prompt, "response_lengths": response,
            "placement": {"async": [ranks, generating], "staleness": max((stale or 1) - 1, 0)} if generating and ranks else None,
        }  # fmt: skip
        rollout: dict[str, Any] = {
            "tp": keys.count(f"{ROLLOUT}.tensor_model_parallel_size"),
            "memory_fraction": keys.number(f"{ROLLOUT}.gpu_memory_utilization"),
        }
        if keys.flag(f"{ROLLOUT}.free_cache_engine") is False:
            rollout["sleeps"] = False
        # what a log says of lengths cuts no prompt
        keys.keep("data.max_prompt_length", "data.max_response_length")
        path = keys.text(f"{MODEL}.path")
        if estimator == "gae":
            _read_critic(keys, "megatron" if is_megatron else "fsdp", path)
        options = {"model": path, "learning_rate": keys.number(f"{ACTOR}.optim.lr")}
        return Reading(
            knobs=knobs,
            model_file=path or "",
            seq_len=None if prompt is None or response is None else prompt + response,
            global_batch_size=batch,
            nodes=whole_nodes(per_node, (ranks or 0) + generating),
            options=options,
            rl=rl,
            rollout=rollout,
            peft=read_adapters(adapters, keys.find(f"{MODEL}.target_modules")),
        )


def _engine(keys: KeyReader) -> str:
    """What trains, by the groups of settings that a configuration takes. Raises `SpecError` for an engine that is not read."""
    groups = keys.find("defaults") or ()
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
            remedy="autotune supports verl's FSDP and Megatron engines",
            field="FILE",
        )
    return (
        "megatron" if "megatron" in told or keys.find(f"{ACTOR}.megatron") is not None else "fsdp"
    )


def _uncounted(keys: KeyReader) -> Iterator[str]:
    """What plans leave out, in words."""
    if keys.find("reward_model.enable") or keys.find("reward.reward_model.enable"):
        yield "the reward model's memory and time are not counted: give its time per step as rl.reward_s"
    if keys.find("algorithm.filter_groups.enable"):
        yield "algorithm.filter_groups: regenerated responses are not counted, unless `rollout: {log: run.log}` says how long generation takes"
    if keys.find("distillation.enabled"):
        gpus = (keys.find("distillation.nnodes") or 0) * (
            keys.find("distillation.n_gpus_per_node") or 8
        )
        yield f"distillation: the teacher's {gpus} GPUs and its time are not counted; launches pass these settings on unchanged"
    if keys.find(f"{ACTOR}.entropy_coeff"):
        yield f"{ACTOR}.entropy_coeff: an entropy term in the loss needs copies of the logits, whose memory is not counted"


def _fsdp_limits(workload: Workload, c: ParallelConfig) -> Iterator[Limit]:
    none = (
        "verl's FSDP engine does not support this; its Megatron engine does (rl.engine: megatron)"
    )
    yield from broken(
        workload,
        c,
        Rule(c.tp > 1, "tp", none),
        Rule(c.pp > 1, "pp", none),
        Rule(c.ep > 1, "ep", none),
        Rule(
            c.zero_stage < 2 and c.dp * c.cp > 1,
            "zero_stage",
            "verl's FSDP engine shards everything (zero_stage 3) or keeps the weights gathered (zero_stage 2)",
            3,
        ),
        Rule(
            c.offload != "none",
            "offload",
            "only its Megatron engine runs the optimizer step on the host",
            "none",
        ),
    )
    yield from word_limit(
        c, "recompute", {"selective": "full"}, "it recomputes either whole layers or nothing"
    )
    if workload.rl is not None:
        packed = "Ulysses only splits packed sequences (use_remove_padding)"
        yield from broken(workload, c, Rule(workload.rl.padded and c.cp > 1, "cp", packed))
    ulysses = {"ring": "heads", "gather": "heads"} if c.cp > 1 else {}
    yield from word_limit(c, "cp_style", ulysses, "it splits sequences with Ulysses")
    yield from broken(
        workload, c, Rule(c.virtual_stages > 1, "virtual_stages", "it has no pipeline", 1)
    )


def _megatron_limits(workload: Workload, c: ParallelConfig) -> Iterator[Limit]:
    stage = 1 if c.dp * c.cp > 1 else 0
    yield from broken(
        workload,
        c,
        Rule(
            c.zero_stage != stage,
            "zero_stage",
            "verl's Megatron engine uses the distributed optimizer",
            1,
        ),
        Rule(c.dp_replicas > 1, "dp_replicas", "only its FSDP engine has replicated shards", 1),
        Rule(
            c.virtual_stages > 1 and workload.model.num_layers % (c.pp * c.virtual_stages),
            "virtual_stages",
            f"Megatron-Core needs equal virtual stages: pp * virtual_stages must divide {workload.model.num_layers} layers",
            1,
        ),
    )
    rings = {"heads": "ring", "gather": "ring"} if c.cp > 1 else {}
    yield from word_limit(c, "cp_style", rings, "its Megatron engine passes keys and values around")


def _fsdp(c: ParallelConfig, role: str) -> dict[str, Any]:
    where = f"{role}.{ENGINE[role]['fsdp']}"
    return {
        f"{role}.ulysses_sequence_parallel_size": c.cp,
        f"{where}.reshard_after_forward": c.zero_stage == 3,
        f"{where}.fsdp_size": -1 if c.dp_replicas == 1 else c.dp * c.cp // c.dp_replicas,
        f"{MODEL if role == ACTOR else 'critic.model'}.enable_gradient_checkpointing": c.recompute
        == "full",
    }


def _read_fsdp(keys: KeyReader) -> dict[str, Any]:
    recompute = keys.flag(f"{MODEL}.enable_gradient_checkpointing")
    gathered = keys.flag(f"{ACTOR}.fsdp_config.reshard_after_forward")
    cp = (
        keys.count(f"{ACTOR}.ulysses_sequence_parallel_size")
        or keys.count(f"{ACTOR}.fsdp_config.ulysses_sequence_parallel_size")
        or 1
    )
    return {
        "cp": cp,
        **({"cp_style": "heads"} if cp > 1 else {}),
        "zero_stage": 2 if gathered is False else 3,
        "recompute": "none" if recompute is False else "full",
    }


def _megatron(c: ParallelConfig, rl: PostTraining, role: str, model: ModelSpec) -> dict[str, Any]:
    found: dict[str, Any] = {path: getattr(c, knob) for knob, path in MEGATRON.items()}
    found["sequence_parallel"] = c.sequence_parallel
    if rl.whole_experts and model.num_experts:
        found[EXPERT_TP] = 1
    if rl.fused_rope:
        found["override_transformer_config.apply_rope_fusion"] = True
    if c.virtual_stages > 1:
        found["virtual_pipeline_model_parallel_size"] = c.virtual_stages
    if c.recompute == "full":
        found |= {
            f"{RECOMPUTE}granularity": "full",
            f"{RECOMPUTE}method": "uniform",
            f"{RECOMPUTE}num_layers": 1,
        }
    elif c.recompute == "selective":
        found |= {f"{RECOMPUTE}granularity": "selective", f"{RECOMPUTE}modules": ["core_attn"]}
    reference = {
        f"{REF}.megatron.{path}": found[path]
        for path in (*MEGATRON.values(), EXPERT_TP)
        if path in found
    }
    return {
        **(reference if role == ACTOR else {}),
        **{f"{role}.megatron.{path}": v for path, v in found.items()},
    }


def _read_megatron(keys: KeyReader) -> dict[str, Any]:
    found = {knob: keys.count(f"{ACTOR}.megatron.{path}") or 1 for knob, path in MEGATRON.items()}
    keys.drop(*(f"{REF}.megatron.{path}" for path in (*MEGATRON.values(), EXPERT_TP)))
    recompute = f"{ACTOR}.megatron.{RECOMPUTE}"
    granularity = keys.text(f"{recompute}granularity")
    keys.drop(*(f"{recompute}{key}" for key in ("method", "num_layers", "modules")))
    on_host = any(
        (
            keys.flag(f"{CPU_OPTIMIZER}.optimizer_cpu_offload"),
            keys.number(f"{CPU_OPTIMIZER}.optimizer_offload_fraction"),
        )
    )
    if on_host:
        keys.drop(f"{CPU_OPTIMIZER}.use_precision_aware_optimizer")
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
    """What launches write of a critic again from the policy's; where it differs today, it is said."""
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
    alike[f"{CRITIC}.{BEFORE}"] = f"{ROLLOUT}.log_prob_max_token_len_per_gpu"
    for path, other in alike.items():
        value = keys.find(path)
        if value is not None and value != keys.find(other):
            keys.remarks.append(
                f"{path}={value} differs from the policy's: plans and launches treat the critic like the policy"
            )
        keys.drop(path)
    if keys.find(f"{CRITIC}.model.path") == policy:
        keys.drop(f"{CRITIC}.model.path")
    elif keys.find(f"{CRITIC}.model.path"):
        keys.remarks.append(
            "the critic has its own weights: if its shape differs from the policy's, describe it under rl.critic"
        )


TRAINER = Verl()
