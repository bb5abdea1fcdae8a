"""verl: `verl.yaml`, read by `verl.trainer.main_ppo`, over verl's own defaults.

    engine fsdp        ZeRO 3 (or 2: reshard_after_forward off), Ulysses over `ulysses_sequence_parallel_size` ranks, whole-layer recomputation
    engine megatron    tensor, pipeline, context and expert parallelism, the distributed optimizer (ZeRO 1)

Names and defaults are those of verl 0.9.1 (trainer/config/_generated_ppo_trainer.yaml,
_generated_ppo_megatron_trainer.yaml). `micro_batch_tokens` is `ppo_max_token_len_per_gpu` with
`use_dynamic_bsz`; `rollout_gpus` above 0 is the trainer of kind `separate_async`, whose engines
have nodes of their own: it wants data.train_batch_size = parameter_sync_step * ppo_mini_batch_size
and another way to send weights than `naive` (trainer/ppo/v1/trainer_separate_async.py), and leaves
the training GPUs without engines where `hybrid_engine` is off. A critic is cut, sharded, packed and
offloaded as the policy is.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, ClassVar

from autotune.errors import ExportError
from autotune.spec import ParallelConfig, Workload, number_of
from autotune.spec.post_training import PostTraining
from autotune.trainers.base.effective import word_limit
from autotune.trainers.base.limit import Limit, Rule, broken
from autotune.trainers.base.not_offered import NOT_SET
from autotune.trainers.launch_files import FOLDER
from autotune.trainers.post_training.adapters import written_modules
from autotune.trainers.post_training.trainer import PostTrainer, grid, memory_fraction, rl_value
from autotune.trainers.present_configuration import (
    SETTINGS,
    PresentConfiguration,
    Reading,
    at_path,
    dotted,
)
from autotune.trainers.verl import read
from autotune.trainers.verl.knobs import (
    ACTOR,
    ADAPTERS,
    BEFORE,
    CRITIC,
    DEFAULTS,
    ENGINE,
    EPOCHS,
    ESTIMATORS,
    FORWARD,
    KL_IN_REWARD,
    LOG_PROB_TOKENS,
    MODEL,
    OPTIMIZER_ON_HOST,
    REF,
    ROLLOUT,
    SENDS,
    SEQUENCES,
    TOKENS,
    fsdp_settings,
    megatron_settings,
)


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
            ("offload=activations", "offload=all"),
            "verl can run only the optimizer step on the host",
        ),
        "compile": "verl's own option use_torch_compile controls compilation",
        "pp_schedule=gpipe": "Megatron-Core runs 1F1B, or interleaves stages",
        "pp_schedule=interleaved_zero_bubble": "Megatron-Core runs 1F1B, or interleaves stages",
    }
    recognized_by = ("actor_rollout_ref", "actor_rollout_ref.actor", "verl.trainer.main_ppo")
    step_marks = ("step:",)
    resolves = True
    defaults = DEFAULTS
    peft_methods = frozenset({"lora"})
    no_adapters = "verl's launches do not load 4-bit weights"
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
                "verl's actors use bf16",
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
                    f"separate engines need whole nodes of {number_of(per_node, 'GPU')}",
                    value=generating,
                ),
                Rule(
                    generating and not float(stale).is_integer(),
                    "staleness",
                    "max_off_policy_threshold must be a whole number of versions",
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
        settings = options[SETTINGS.name]
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
            f"{ACTOR}.use_dynamic_bsz": rl_value(rl, c, "micro_batch_tokens") > 0,
            f"{ACTOR}.use_kl_loss": rl.reference and not at_path(settings, KL_IN_REWARD),
            f"{ACTOR}.optim.lr": options["learning_rate"],
            f"{ROLLOUT}.name": "vllm",
            f"{ROLLOUT}.n": rl.responses,
            f"{ROLLOUT}.tensor_model_parallel_size": int(rl_value(rl, c, "rollout_tp")),
            "trainer.nnodes": nodes,
            "trainer.n_gpus_per_node": per_node,
            "trainer.balance_batch": rl_value(rl, c, "balance") != "none",
            # a run that counts epochs has them among its settings, which trials leave out
            "trainer.total_training_steps": None if at_path(settings, EPOCHS) else options["steps"],
            f"{ROLLOUT}.gpu_memory_utilization": memory_fraction(rl),
            f"{ROLLOUT}.free_cache_engine": None
            if rl.rollout is None or rl.rollout.sleeps
            else False,
        }
        has_own_adapters = any(at_path(settings, key) for key in (f"{MODEL}.lora", ADAPTERS))
        if workload.peft is not None and not has_own_adapters:
            found |= {
                f"{MODEL}.lora_rank": workload.peft.rank,
                f"{MODEL}.target_modules": written_modules(workload.peft),
            }
        roles = (ACTOR,) if rl.critic is None else (ACTOR, CRITIC)
        if rl.critic is not None:
            found |= _critic(workload, rl, options)
        found |= _micro_batches(rl, c, settings, roles)
        if c.offload == "optimizer":
            found |= OPTIMIZER_ON_HOST
        is_reference_away = True if rl.reference and rl.reference_offload else None
        found[f"{REF}.{ENGINE[ACTOR][rl.engine]}.param_offload"] = is_reference_away
        if generating:
            found |= {
                "actor_rollout_ref.hybrid_engine": False, f"{ROLLOUT}.checkpoint_engine.backend": SENDS,
                "trainer.v1.trainer_mode": "separate_async", "trainer.v1.separate_async.parameter_sync_step": rl.mini_batches,
                "trainer.v1.sampler.max_off_policy_threshold": 1 + int(rl_value(rl, c, "staleness")),
                f"{ROLLOUT}.nnodes": generating // workload.cluster.gpus_per_node, f"{ROLLOUT}.n_gpus_per_node": workload.cluster.gpus_per_node,
            }  # fmt: skip
        offload = rl_value(rl, c, "phase_offload")
        for role in roles:
            where = f"{role}.{ENGINE[role][rl.engine]}"
            found[f"{where}.param_offload"] = offload == "all"
            found[f"{where}.optimizer_offload"] = offload != "none"
            found |= (
                megatron_settings(c, rl, role, workload.model)
                if rl.engine == "megatron"
                else fsdp_settings(c, role)
            )
        return found

    def present_document(self, present: PresentConfiguration) -> tuple[str, dict[str, Any]]:
        """Its file with the overrides of its command, and the groups of settings that the command
        chooses."""
        name, document = super().present_document(present)
        return name, read.with_groups(document, self.words(present))

    def read_config(self, present: PresentConfiguration) -> Reading:
        """Its file, and how long it trains."""
        return read.with_epochs(super().read_config(present))


def _critic(workload: Workload, rl: PostTraining, options: Mapping[str, Any]) -> dict[str, Any]:
    """The critic's weights, which are the policy's where nothing else is said."""
    is_other = rl.critic != workload.model
    if is_other and f"{CRITIC}.model.path" not in dotted(options[SETTINGS.name]):
        raise ExportError(
            "the critic's model differs from the policy's, but the critic's weights are not set",
            remedy="set the critic's weights in the trainer's settings, as {critic: {model: {path: ...}}}",
            field="settings",
        )
    return {
        f"{CRITIC}.model.path": options["model"],
        f"{CRITIC}.model.use_remove_padding": not rl.padded,
    }


def _micro_batches(
    rl: PostTraining, c: ParallelConfig, settings: Mapping[str, Any], roles: Sequence[str]
) -> dict[str, Any]:
    """How large micro-batches are: in tokens, or in sequences."""
    names = ("micro_batch_tokens", "log_prob_micro_batch_tokens")
    tokens, before = (int(rl_value(rl, c, name)) for name in names)
    if tokens:
        of_critic = {f"{CRITIC}.{BEFORE}": before or tokens} if CRITIC in roles else {}
        return {
            **{f"{role}.{TOKENS}": tokens for role in roles},
            **{f"{part}.{LOG_PROB_TOKENS}": before or tokens for part in (ROLLOUT, REF)},
            **of_critic,
        }
    forward = [part for part in (ROLLOUT, REF) if not at_path(settings, f"{part}.{FORWARD}")]
    return {
        **{f"{role}.{SEQUENCES}": c.micro_batch_size for role in roles},
        **{f"{part}.{FORWARD}_per_gpu": c.micro_batch_size for part in forward},
    }


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
            "only verl's Megatron engine runs the optimizer step on the host",
            "none",
        ),
    )
    yield from word_limit(
        c, "recompute", {"selective": "full"}, "verl recomputes either whole layers or nothing"
    )
    if workload.rl is not None:
        packed = "Ulysses splits only packed sequences (use_remove_padding)"
        yield from broken(workload, c, Rule(workload.rl.padded and c.cp > 1, "cp", packed))
    ulysses = {"ring": "heads", "gather": "heads"} if c.cp > 1 else {}
    yield from word_limit(c, "cp_style", ulysses, "verl splits sequences with Ulysses")
    yield from broken(
        workload,
        c,
        Rule(c.virtual_stages > 1, "virtual_stages", "verl's FSDP engine has no pipeline", 1),
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
        Rule(c.dp_replicas > 1, "dp_replicas", "only verl's FSDP engine has replicated shards", 1),
        Rule(
            c.virtual_stages > 1 and workload.model.num_layers % (c.pp * c.virtual_stages),
            "virtual_stages",
            f"Megatron-Core needs equal virtual stages, so pp * virtual_stages must divide {workload.model.num_layers} layers",
            1,
        ),
    )
    rings = {"heads": "ring", "gather": "ring"} if c.cp > 1 else {}
    yield from word_limit(
        c, "cp_style", rings, "verl's Megatron engine passes keys and values around"
    )


TRAINER = Verl()
