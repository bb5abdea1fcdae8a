"""OpenRLHF: the flags of `openrlhf.cli.train_ppo_ray`, which trains by DeepSpeed and generates by vLLM.

Names are those of openrlhf 0.11.2 (cli/train_ppo_ray.py): `--train.micro_batch_size`, `--vllm.num_engines` and the like. `micro_batch_tokens` is `--train.max_tokens_per_gpu` with
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
from autotune.trainers.post_training.trainer import PostTrainer, fitted, grid, mini_batches, nested, rl_value
from autotune.trainers.present_configuration import (
    SETTINGS,
    KeyReader,
    PresentConfiguration,
    Reading,
    dotted,
    merged,
    options_of,
)

PROGRAM = "openrlhf.cli.train_ppo_ray"
ESTIMATORS = {"ppo": "gae", "grpo": "group_norm", "dapo": "group_norm"}


class OpenRlhf(PostTrainer):
    """OpenRLHF."""

    name = "openrlhf"
    summary = "OpenRLHF, the flags of train_ppo_ray with DeepSpeed and vLLM"
    checked_against = "openrlhf 0.11.2"
    engines = frozenset({"deepspeed"})
    carried = frozenset(
        {"rollout_tp", "rollout_gpus", "micro_batch_tokens", "log_prob_micro_batch_tokens", "staleness"}
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
        "pp_schedule": "it has no pipeline: pp above 1 is refused",
        "virtual_stages": "it has no pipeline: pp above 1 is refused",
    }
    recognized_by = (PROGRAM,)
    step_marks = ("Global step",)
    settings_file = "flags.yaml"

    def engine_limits(self, workload: Workload, rl: PostTraining, c: ParallelConfig) -> Sequence[Limit]:
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
                Rule(c.sequence_parallel and c.tp > 1, "sequence_parallel", "DeepSpeed's AutoTP has none", False),
            ),
            *word_limit(c, "precision", sixteen_bits, "--ds.param_dtype is bf16 or fp16"),
            *word_limit(c, "recompute", {"selective": "full"}, "it recomputes whole layers or none"),
            *word_limit(c, "cp_style", rings, "it uses ring attention"),
            *broken(
                workload,
                c,
                Rule(rl.algorithm == "dpo", "workload.rl.algorithm", "train_ppo_ray has none", value="dpo"),
                Rule(
                    c.tp > 1 and c.zero_stage == 3,
                    "zero_stage",
                    "DeepSpeed's AutoTP does not train with ZeRO 3",
                    2,
                ),
                Rule(float(stale) % 1, "staleness", "--train.async_queue_size counts whole batches", value=stale),
            ),
        )

    def command(self, workload: Workload, rl: PostTraining, c: ParallelConfig) -> tuple[str, ...]:
        """The program; its flags follow."""
        return ("python3", "-m", PROGRAM)

    def build(self, workload: Workload, config: ParallelConfig, options: Mapping[str, Any]) -> Launch:
        """One command, flags by flags."""
        assert workload.rl is not None  # refused by find_limits
        c = effective(config)
        needs(options, "model", "it starts from existing weights")
        document = merged(nested(self.document(workload, workload.rl, c, options)), options[SETTINGS.name])
        notes = (
            ("start Ray on all nodes first (`ray start`), then this command on the head node only",)
            if workload.cluster.num_nodes > 1
            else ()
        )
        return Launch(argv=(*self.command(workload, workload.rl, c), *_flags(document)), notes=notes)

    def document(
        self, workload: Workload, rl: PostTraining, c: ParallelConfig, options: Mapping[str, Any]
    ) -> dict[str, Any]:
        """By the names of flags."""
        generating, degree = int(rl_value(rl, c, "rollout_gpus")), int(rl_value(rl, c, "rollout_tp"))
        nodes, per_node = grid(workload, c.world_size)
        tokens, before = int(rl_value(rl, c, "micro_batch_tokens")), int(rl_value(rl, c, "log_prob_micro_batch_tokens"))
        roles = ("actor", "ref", *(("critic",) if rl.critic is not None else ()))
        found: dict[str, Any] = {
            **{f"{role}.num_nodes": nodes for role in roles},
            **{f"{role}.num_gpus_per_node": per_node for role in roles},
            "train.colocate_all": generating == 0,
            "train.colocate_actor_ref": generating > 0,
            "vllm.num_engines": (generating or c.world_size) // degree,
            "vllm.tensor_parallel_size": degree,
            "vllm.enable_sleep": generating == 0,
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
            "algo.kl.use_loss": rl.reference,
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
        if not rl.reference:
            found["algo.kl.init_coef"] = 0
        if tokens:
            found |= {"train.max_tokens_per_gpu": tokens, "rollout.max_tokens_per_gpu": before or tokens}
        if rl.rollout is not None and rl.rollout.memory_fraction:
            found["vllm.gpu_memory_utilization"] = rl.rollout.memory_fraction
        if stale := int(rl_value(rl, c, "staleness")):
            found |= {"train.async_enable": True, "train.async_queue_size": stale}
        return found

    def with_settings(self, launch: Launch, settings: Mapping[str, Any]) -> Launch:
        """More flags."""
        return replace(launch, argv=(*launch.argv, *_flags(settings)))

    def present_of(self, settings: Mapping[str, Any]) -> PresentConfiguration:
        """Flags alone."""
        return PresentConfiguration(argv=_flags(settings))

    def present_document(self, present: PresentConfiguration) -> tuple[str, dict[str, Any]]:
        """The flags of its command."""
        words = self.words(present)
        own = words[words.index(PROGRAM) + 1 :] if PROGRAM in words else words  # those before are `ray job submit`'s
        flags = {name: _typed(value) for name, value in options_of(own)}
        return "command", nested(flags)

    def read_keys(self, keys: KeyReader) -> Reading:
        """Its flags."""
        keys.drop("logger.logging_steps", "train.colocate_all", "train.colocate_actor_ref", "vllm.enable_sleep", "ds.packing_samples", "rollout.micro_batch_size",
                  *(f"{role}.num_{what}" for role in ("ref", "critic") for what in ("nodes", "gpus_per_node")))  # fmt: skip
        nodes, per_node = keys.count("actor.num_nodes") or 1, keys.count("actor.num_gpus_per_node")
        ranks = None if per_node is None else nodes * per_node
        whole = bool(keys.find("train.colocate_all"))
        engines, degree = keys.count("vllm.num_engines") or 0, keys.count("vllm.tensor_parallel_size") or 1
        cp = keys.count("ds.ring_attn_size") or 1
        stage = keys.count("ds.zero_stage")
        dynamic, sequences = keys.flag("train.dynamic_batch_enable"), keys.count("train.micro_batch_size") or 1
        knobs: dict[str, Any] = {
            "tp": keys.count("ds.tensor_parallel_size") or 1, "cp": cp, "zero_stage": 2 if stage is None else stage, "micro_batch_size": 1 if dynamic else sequences,
            "precision": keys.text("ds.param_dtype") or "bf16", "recompute": "full" if keys.flag("actor.gradient_checkpointing_enable") else "none",
            "offload": "optimizer" if keys.flag("ds.adam_offload") else "none",
        }  # fmt: skip
        batch = keys.count("train.batch_size")
        knobs = fitted(knobs, ranks, batch)
        prompts, responses = keys.count("rollout.batch_size"), keys.count("rollout.n_samples_per_prompt") or 1
        tokens, before = keys.count("train.max_tokens_per_gpu"), keys.count("rollout.max_tokens_per_gpu")
        stale, overlaps = keys.count("train.async_queue_size"), keys.flag("train.async_enable")
        placement = None
        if not whole and engines and ranks:
            placement = (
                {"async": [ranks, engines * degree], "staleness": stale or 1}
                if overlaps
                else {"split": [ranks, engines * degree]}
            )
        estimator = keys.text("algo.advantage.estimator") or "gae"
        sleeps = keys.flag("ds.enable_sleep")
        length, response = keys.count("data.max_len"), keys.count("rollout.max_new_tokens")
        rl = {
            "algorithm": "ppo" if estimator == "gae" else "grpo", "prompts": prompts, "responses": responses, "engine": "deepspeed", "placement": placement,
            "mini_batches": mini_batches(prompts, responses, batch),
            "epochs": keys.count("train.max_epochs"), "reference": keys.flag("algo.kl.use_loss"), "phase_offload": "all" if sleeps else None,
            "micro_batch_tokens": tokens if dynamic else None, "log_prob_micro_batch_tokens": before if dynamic else None,
            "prompt_lengths": length - response if length and response and length > response else None, "response_lengths": response,
        }  # fmt: skip
        rollout = {"tp": degree, "memory_fraction": keys.number("vllm.gpu_memory_utilization")}
        path = keys.text("actor.model_name_or_path")
        options = {"model": path, "learning_rate": keys.number("actor.adam.lr"), "seed": keys.count("train.seed")}
        keys.keep("train.seed")
        return Reading(
            knobs=knobs,
            model_file=path or "",
            seq_len=length,
            global_batch_size=batch,
            options=options,
            rl=rl,
            rollout=rollout,
        )


def _flags(document: Mapping[str, Any]) -> tuple[str, ...]:
    """`--a.b value` for each value; true is a flag without one, false none."""
    found: list[str] = []
    for path in dotted(document):
        value: Any = document
        for key in path.split("."):
            value = value[key]
        if value is not False:
            found += [f"--{path}"] if value is True else [f"--{path}", str(value)]
    return tuple(found)


def _typed(text: str) -> Any:
    """A flag's value as a number where it is one; a flag without a value is on."""
    if not text:
        return True
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return text


TRAINER = OpenRlhf()
