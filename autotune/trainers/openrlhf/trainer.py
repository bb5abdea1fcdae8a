"""OpenRLHF: the flags of `openrlhf.cli.train_ppo_ray`, which trains by DeepSpeed and generates by
vLLM.

Names and defaults are those of openrlhf 0.11.2 (cli/train_ppo_ray.py): `--train.micro_batch_size`,
`--vllm.num_engines` and the like. `micro_batch_tokens` is `--train.max_tokens_per_gpu` with
`--train.dynamic_batch_enable`. A launch has no file: its settings are further flags.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, ClassVar

from autotune.spec import ParallelConfig, Workload
from autotune.spec.post_training import PostTraining
from autotune.trainers.base.effective import effective, word_limit
from autotune.trainers.base.limit import Limit, Rule, broken
from autotune.trainers.base.not_offered import NOT_SET
from autotune.trainers.base.trainer import needs
from autotune.trainers.launch_files import Launch
from autotune.trainers.openrlhf import read
from autotune.trainers.openrlhf.knobs import DEFAULTS, ESTIMATORS, FLAGS, KL, names_of
from autotune.trainers.post_training.adapters import written_modules
from autotune.trainers.post_training.programs import USUAL
from autotune.trainers.post_training.trainer import (
    OPTIONS,
    PostTrainer,
    grid,
    memory_fraction,
    rl_value,
    start_ray,
)
from autotune.trainers.present_configuration import (
    SETTINGS,
    PresentConfiguration,
    Reading,
    flat,
    merged,
    nested,
)


class OpenRlhf(PostTrainer):
    """OpenRLHF."""

    name = "openrlhf"
    summary = "OpenRLHF, the flags of train_ppo_ray with DeepSpeed and vLLM"
    checked_against = "openrlhf 0.11.2"
    engines = frozenset({"deepspeed"})
    peft_methods = frozenset({"lora"})
    no_adapters = "plans for OpenRLHF do not support 4-bit weights"
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
        "offload=activations": "OpenRLHF's flags offload only the optimizer",
        "offload=all": "OpenRLHF's flags offload only the optimizer",
    }
    neutral: ClassVar = {
        "pp_schedule": "OpenRLHF has no pipeline, so pp above 1 is rejected",
        "virtual_stages": "OpenRLHF has no pipeline, so pp above 1 is rejected",
    }
    recognized_by = (read.PROGRAM,)
    defaults = DEFAULTS
    options = (*OPTIONS, FLAGS)
    step_marks = ("Global step",)
    settings_file = "flags.yaml"

    def engine_limits(
        self, workload: Workload, rl: PostTraining, c: ParallelConfig
    ) -> Sequence[Limit]:
        """Data and ring parallelism, AutoTP, and ZeRO."""
        none, stale = (
            "OpenRLHF's DeepSpeed engine has no such parallelism",
            rl_value(rl, c, "staleness"),
        )
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
                    "DeepSpeed's AutoTP has no sequence parallelism",
                    False,
                ),
            ),
            *word_limit(c, "precision", sixteen_bits, "--ds.param_dtype is bf16 or fp16"),
            *word_limit(
                c,
                "recompute",
                {"selective": "full"},
                "OpenRLHF recomputes either whole layers or nothing",
            ),
            *word_limit(c, "cp_style", rings, "OpenRLHF uses ring attention"),
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
        needs(options, "model", "OpenRLHF starts from existing weights")
        names = names_of(options[FLAGS.name])
        found = self.document(workload, workload.rl, c, options)
        renamed = {names.get(path, path): value for path, value in found.items()}
        renamed.pop("", None)
        document = merged(nested(renamed), options[SETTINGS.name])
        argv = (*self.started(workload, c, options), *_flags(document))
        return Launch(argv=argv, notes=start_ray(workload))

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
            KL: None if rl.reference else 0,
            "vllm.gpu_memory_utilization": memory_fraction(rl),
        }
        if workload.peft is not None:
            found |= {
                "ds.lora.rank": workload.peft.rank,
                "ds.lora.target_modules": written_modules(workload.peft),
            }
        if tokens:
            found |= {
                "train.max_tokens_per_gpu": tokens,
                "rollout.max_tokens_per_gpu": before or tokens,
            }
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
        return "command", read.document_of(self.words(present))

    def read_config(self, present: PresentConfiguration) -> Reading:
        """The flags, and whose names they have."""
        words = self.words(present)
        return read.with_names(super().read_config(replace(present, argv=words)), words)


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
