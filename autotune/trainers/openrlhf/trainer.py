"""OpenRLHF: the flags of `openrlhf.cli.train_ppo_ray`, which trains by DeepSpeed and generates by vLLM.

Names and defaults are those of openrlhf 0.11.2 (cli/train_ppo_ray.py): `--train.micro_batch_size`, `--vllm.num_engines` and the like. `micro_batch_tokens` is
`--train.max_tokens_per_gpu` with `--train.dynamic_batch_enable`. A launch has no file: its settings are further flags.

Releases before 0.11 have other names for the same (`OLD`: cli/train_ppo_ray.py of v0.10.4, and of v0.9.10 where that differs); a launch keeps to the names that it has today.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, ClassVar

from autotune.spec import ParallelConfig, Workload
from autotune.spec.post_training import PostTraining
from autotune.trainers.base.effective import effective, word_limit
from autotune.trainers.base.limit import Limit, Rule, broken
from autotune.trainers.base.not_offered import NOT_SET
from autotune.trainers.base.trainer import needs
from autotune.trainers.base.trainer_option import Option, Reach
from autotune.trainers.launch_files import Launch
from autotune.trainers.post_training.adapters import read_adapters, written_modules
from autotune.trainers.post_training.programs import USUAL
from autotune.trainers.post_training.trainer import (
    OPTIONS,
    PostTrainer,
    fitted,
    grid,
    mini_batches,
    rl_value,
    whole_nodes,
)
from autotune.trainers.present_configuration import (
    SETTINGS,
    KeyReader,
    PresentConfiguration,
    Reading,
    flags_of,
    flat,
    merged,
    nested,
)

PROGRAM = "openrlhf.cli.train_ppo_ray"
ESTIMATORS = {"ppo": "gae", "grpo": "group_norm", "dapo": "group_norm"}
KL = "algo.kl.init_coef"
ROLES = ("actor", "ref", "critic")
DEFAULTS: Mapping[str, Any] = {
    "actor.adam.lr": 1e-6,
    "actor.num_gpus_per_node": 8,
    "actor.num_nodes": 1,
    "algo.advantage.estimator": "gae",
    KL: 0.01,
    "critic.num_gpus_per_node": 8,
    "critic.num_nodes": 1,
    "data.max_len": 2048,
    "ds.param_dtype": "bf16",
    "ds.ring_attn_size": 1,
    "ds.tensor_parallel_size": 1,
    "ds.zero_stage": 2,
    "ref.num_gpus_per_node": 8,
    "ref.num_nodes": 1,
    "rollout.batch_size": 1024,
    "rollout.max_new_tokens": False,
    "rollout.micro_batch_size": 1,
    "rollout.n_samples_per_prompt": 1,
    "train.async_queue_size": 1,
    "train.batch_size": 128,
    "train.max_epochs": 1,
    "train.max_tokens_per_gpu": 16192,
    "train.micro_batch_size": 1,
    "train.seed": 42,
    "vllm.gpu_memory_utilization": 0.95,
    "vllm.tensor_parallel_size": 1,
}
"""what is read; false: no flag, and the program decides for each sample"""
FLAGS = Option(
    name="flags",
    meaning="release that determines the flag names; 0.9 means any release before 0.10",
    default="0.11",
    choices=("0.11", "0.10", "0.9"),
    reach=Reach.NOTHING,
)
OLD: Mapping[str, str] = {
    **{f"{role}.{key}": f"{role}_{key}" for role in ROLES for key in ("num_nodes", "num_gpus_per_node")},
    **{f"vllm.{key}": f"vllm_{key}" for key in ("num_engines", "tensor_parallel_size", "enable_sleep", "gpu_memory_utilization")},
    "train.colocate_all": "colocate_all_models", "train.colocate_actor_ref": "colocate_actor_ref", "ds.enable_sleep": "deepspeed_enable_sleep",
    "ds.zero_stage": "zero_stage", "ds.tensor_parallel_size": "ds_tensor_parallel_size", "ds.ring_attn_size": "ring_attn_size", "ds.adam_offload": "adam_offload",
    "ds.param_dtype": "param_dtype", "ds.packing_samples": "packing_samples", "ds.lora.rank": "lora_rank", "ds.lora.target_modules": "target_modules",
    "ds.load_in_4bit": "load_in_4bit", "actor.gradient_checkpointing_enable": "gradient_checkpointing",
    "actor.model_name_or_path": "pretrain", "actor.adam.lr": "actor_learning_rate", "algo.advantage.estimator": "advantage_estimator", KL: "init_kl_coef",
    "rollout.batch_size": "rollout_batch_size", "rollout.n_samples_per_prompt": "n_samples_per_prompt", "rollout.micro_batch_size": "micro_rollout_batch_size",
    "rollout.max_new_tokens": "max_new_tokens", "rollout.max_tokens_per_gpu": "rollout_max_tokens_per_gpu", "data.max_len": "max_len",
    "train.batch_size": "train_batch_size", "train.micro_batch_size": "micro_train_batch_size", "train.max_epochs": "max_epochs", "train.seed": "seed",
    "train.dynamic_batch_enable": "use_dynamic_batch", "train.max_tokens_per_gpu": "train_max_tokens_per_gpu", "train.async_enable": "async_train",
    "train.async_queue_size": "async_queue_size", "logger.logging_steps": "logging_steps",
}  # fmt: skip
"""the names of 0.10 for those of 0.11, of the flags that are read or written"""
OLDER: Mapping[str, str] = {
    "rollout.max_new_tokens": "generate_max_len",
    "ds.param_dtype": "",
    "data.max_len": "",
}
"""what was otherwise before 0.10; empty: no flag that a launch writes"""
OF_OLDER = frozenset({"generate_max_len", "prompt_max_len", "bf16", "flash_attn"})


class OpenRlhf(PostTrainer):
    """OpenRLHF."""

    name = "openrlhf"
    summary = "OpenRLHF, the flags of train_ppo_ray with DeepSpeed and vLLM"
    checked_against = "openrlhf 0.11.2"
    engines = frozenset({"deepspeed"})
    peft_methods = frozenset({"lora"})
    no_adapters = "its plans do not support 4-bit weights"
    carried = frozenset(
        {
            "rollout_tp",
            "rollout_gpus",
            "micro_batch_tokens",
            "log_prob_micro_batch_tokens",
            "staleness",
        }
    )
    reads = frozenset(
        {
            "tp",
            "pp",
            "dp",
            "cp",
            "ep",
            "micro_batch_size",
            "accumulation_steps",
            "precision",
            "recompute",
            "zero_stage",
            "sequence_parallel",
            "cp_style",
            "offload",
        }
    )
    cannot: ClassVar = {
        **{name: why for name, why in NOT_SET.items() if name not in ("cp_style", "offload")},
        "compile": "DeepCompile is not torch.compile of the layers",
        "offload=activations": "its flags only offload the optimizer",
        "offload=all": "its flags only offload the optimizer",
    }
    neutral: ClassVar = {
        "pp_schedule": "it has no pipeline: pp above 1 is rejected",
        "virtual_stages": "it has no pipeline: pp above 1 is rejected",
    }
    recognized_by = (PROGRAM,)
    defaults = DEFAULTS
    options = (*OPTIONS, FLAGS)
    step_marks = ("Global step",)
    settings_file = "flags.yaml"

    def engine_limits(
        self, workload: Workload, rl: PostTraining, c: ParallelConfig
    ) -> Sequence[Limit]:
        """Data and ring parallelism, AutoTP, and ZeRO."""
        none, stale = "its DeepSpeed engine has none", rl_value(rl, c, "staleness")
        sixteen_bits = {"fp8": "bf16", "fp32": "bf16", "tf32": "bf16"}
        rings = {"heads": "ring", "gather": "ring"} if c.cp > 1 else {}
        return (
            *broken(
                workload,
                c,
                Rule(c.pp > 1, "pp", none),
                Rule(c.ep > 1, "ep", none, 1),
                Rule(
                    c.sequence_parallel and c.tp > 1,
                    "sequence_parallel",
                    "DeepSpeed's AutoTP has none",
                    False,
                ),
            ),
            *word_limit(c, "precision", sixteen_bits, "--ds.param_dtype is bf16 or fp16"),
            *word_limit(
                c,
                "recompute",
                {"selective": "full"},
                "it recomputes either whole layers or nothing",
            ),
            *word_limit(c, "cp_style", rings, "it uses ring attention"),
            *broken(
                workload,
                c,
                Rule(
                    rl.algorithm == "dpo",
                    "workload.rl.algorithm",
                    "train_ppo_ray has none",
                    value="dpo",
                ),
                Rule(
                    c.tp > 1 and c.zero_stage == 3,
                    "zero_stage",
                    "DeepSpeed's AutoTP does not train with ZeRO 3",
                    2,
                ),
                Rule(
                    float(stale) % 1,
                    "staleness",
                    "--train.async_queue_size counts whole batches",
                    value=stale,
                ),
            ),
        )

    def command(self, workload: Workload, rl: PostTraining, c: ParallelConfig) -> tuple[str, ...]:
        """The program; its flags follow."""
        return USUAL[self.name]

    def build(
        self, workload: Workload, config: ParallelConfig, options: Mapping[str, Any]
    ) -> Launch:
        """One command, flags by flags."""
        assert workload.rl is not None  # refused by find_limits
        c = effective(config)
        needs(options, "model", "it starts from existing weights")
        names = names_of(options[FLAGS.name])
        document = {
            names.get(path, path): value
            for path, value in self.document(workload, workload.rl, c, options).items()
        }
        document.pop("", None)
        document = merged(nested(document), options[SETTINGS.name])
        notes = (
            ("start Ray on all nodes first (`ray start`), then this command on the head node only",)
            if workload.cluster.num_nodes > 1
            else ()
        )
        return Launch(argv=(*self.started(workload, c, options), *_flags(document)), notes=notes)

    def document(
        self, workload: Workload, rl: PostTraining, c: ParallelConfig, options: Mapping[str, Any]
    ) -> dict[str, Any]:
        """By the names of flags."""
        generating, degree = (
            int(rl_value(rl, c, "rollout_gpus")),
            int(rl_value(rl, c, "rollout_tp")),
        )
        nodes, per_node = grid(workload, c.world_size)
        tokens, before = (
            int(rl_value(rl, c, "micro_batch_tokens")),
            int(rl_value(rl, c, "log_prob_micro_batch_tokens")),
        )
        roles = ("actor", "ref", *(("critic",) if rl.critic is not None else ()))
        found: dict[str, Any] = {
            **{f"{role}.num_nodes": nodes for role in roles},
            **{f"{role}.num_gpus_per_node": per_node for role in roles},
            "train.colocate_all": generating == 0,
            "train.colocate_actor_ref": generating > 0,
            "vllm.num_engines": (generating or c.world_size) // degree,
            "vllm.tensor_parallel_size": degree,
            "vllm.enable_sleep": generating == 0 and (rl.rollout is None or rl.rollout.sleeps),
            "ds.enable_sleep": generating == 0 and rl_value(rl, c, "phase_offload") != "none",
            "ds.zero_stage": c.zero_stage,
            "ds.tensor_parallel_size": c.tp,
            "ds.ring_attn_size": c.cp,
            "ds.adam_offload": c.offload == "optimizer",
            "ds.param_dtype": c.precision,
            "ds.packing_samples": not rl.padded,
            "actor.gradient_checkpointing_enable": c.recompute == "full",
            "actor.model_name_or_path": options["model"],
            "actor.adam.lr": options["learning_rate"],
            "algo.advantage.estimator": ESTIMATORS[rl.algorithm],
            "rollout.batch_size": rl.prompts,
            "rollout.n_samples_per_prompt": rl.responses,
            "rollout.micro_batch_size": c.micro_batch_size,
            "rollout.max_new_tokens": int(rl.response_lengths.longest),
            "data.max_len": workload.seq_len,
            "train.batch_size": rl.mini_batch,
            "train.micro_batch_size": c.micro_batch_size,
            "train.max_epochs": rl.epochs,
            "train.seed": options["seed"],
            "train.dynamic_batch_enable": tokens > 0,
            "logger.logging_steps": 1,
        }
        if workload.peft is not None:
            found |= {
                "ds.lora.rank": workload.peft.rank,
                "ds.lora.target_modules": written_modules(workload.peft),
            }
        if not rl.reference:
            found[KL] = 0
        if tokens:
            found |= {
                "train.max_tokens_per_gpu": tokens,
                "rollout.max_tokens_per_gpu": before or tokens,
            }
        if rl.rollout is not None and rl.rollout.memory_fraction:
            found["vllm.gpu_memory_utilization"] = rl.rollout.memory_fraction
        if stale := int(rl_value(rl, c, "staleness")):
            found |= {"train.async_enable": True, "train.async_queue_size": stale}
        return found

    def with_settings(self, launch: Launch, settings: Mapping[str, Any]) -> Launch:
        """They are among its flags already, in the place of others of their name."""
        return launch

    def present_of(self, settings: Mapping[str, Any]) -> PresentConfiguration:
        """Flags alone."""
        return PresentConfiguration(argv=_flags(settings))

    def present_document(self, present: PresentConfiguration) -> tuple[str, dict[str, Any]]:
        """The flags of its command, by the names of 0.11."""
        words = self.words(present)
        # those before are `ray job submit`'s
        own = words[words.index(PROGRAM) + 1 :] if PROGRAM in words else words
        flags = flags_of(own)
        new = {old: path for path, old in names_of(_release(flags)).items() if old}
        return "command", nested({new.get(name, name): value for name, value in flags.items()})

    def read_config(self, present: PresentConfiguration) -> Reading:
        """The flags, and whose names they have."""
        words = self.words(present)
        release = _release(flags_of(words))
        found = super().read_config(replace(present, argv=words))
        kept = {**found.options, FLAGS.name: release}
        if release == FLAGS.default:
            return replace(found, options=kept)
        names = names_of(release)
        settings = {names.get(path, path): value for path, value in flat(found.settings)}
        return replace(found, options=kept, settings=nested(settings))

    def read_keys(self, keys: KeyReader) -> Reading:
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
            keys.remarks.append(
                "ds.load_in_4bit: launches pass it on, but plans assume 16-bit weights"
            )
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


def names_of(release: str) -> Mapping[str, str]:
    """The names of a release for those of 0.11."""
    if release == FLAGS.default:
        return {}
    return OLD if release == "0.10" else {**OLD, **OLDER}


def _release(flags: Iterable[str]) -> str:
    """Whose names the flags have, by those that another release has not."""
    given = set(flags)
    if given & OF_OLDER:
        return "0.9"
    return "0.10" if given & set(OLD.values()) else FLAGS.default


def _flags(document: Mapping[str, Any]) -> tuple[str, ...]:
    """`--a.b value` for each value; true is a flag without one, false none."""
    found: list[str] = []
    for path, value in flat(document):
        if value is False:
            continue
        found.append(f"--{path}")
        if value is not True:
            found += map(str, value if isinstance(value, list) else [value])
    return tuple(found)


TRAINER = OpenRlhf()
