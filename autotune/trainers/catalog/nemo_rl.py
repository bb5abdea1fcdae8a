"""NeMo-RL: `nemo_rl.yaml`, read by its examples/run_grpo.py, over one of its own configurations.

    engine fsdp        DTensor: `policy.dtensor_cfg`, tensor and context parallelism beside FSDP2
    engine megatron    `policy.megatron_cfg`, with pipeline and expert parallelism and the distributed optimizer

Names are those of NVIDIA-NeMo/RL at commit 7ea279a (examples/configs/grpo_math_1B.yaml), which has no release that could be imported on a CPU. `micro_batch_tokens` is
`policy.sequence_packing.train_mb_tokens`. The option `cwd` is the checkout, in which its program runs.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, ClassVar

from autotune.spec import ParallelConfig, Workload
from autotune.spec.post_training import PostTraining
from autotune.trainers.base.effective import word_limit
from autotune.trainers.base.limit import Limit, Rule, broken
from autotune.trainers.base.not_offered import NOT_SET
from autotune.trainers.base.own_program import CWD
from autotune.trainers.base.trainer_option import Option, Reach
from autotune.trainers.launch_files import FOLDER, Launch
from autotune.trainers.logs.step_metrics import MAX_LINE, StepMetrics
from autotune.trainers.post_training.trainer import OPTIONS, PostTrainer, fitted, grid, mini_batches, rl_value
from autotune.trainers.present_configuration import KeyReader, Reading

BASE = Option(
    name="base", meaning="base configuration that the launch overrides, from the folder `cwd`", default="examples/configs/grpo_math_1B.yaml", reach=Reach.FILE,
)  # fmt: skip
DTENSOR, MEGATRON, PACKING, GENERATION = (
    "policy.dtensor_cfg",
    "policy.megatron_cfg",
    "policy.sequence_packing",
    "policy.generation",
)
DEGREES = {
    "fsdp": {"tp": "tensor_parallel_size", "cp": "context_parallel_size"},
    "megatron": {"tp": "tensor_model_parallel_size", "pp": "pipeline_model_parallel_size", "cp": "context_parallel_size", "ep": "expert_model_parallel_size"},
}  # fmt: skip
_STEP_TIME = re.compile(r"Total step time: ([0-9]{1,9}(?:\.[0-9]{1,9})?)s")
WITH_ASYNC = (f"{GENERATION}.vllm_cfg.async_engine", "loss_fn.use_importance_sampling_correction")
"""without which `async_grpo_train` does not start"""
PRECISIONS = {"bf16": "bfloat16", "fp32": "float32"}


class NemoRl(PostTrainer):
    """NVIDIA's NeMo-RL."""

    name = "nemo_rl"
    summary = "NeMo-RL, nemo_rl.yaml for run_grpo.py with DTensor or Megatron and vLLM"
    checked_against = "NeMo-RL 0.6.0 at commit 7ea279a"
    engines = frozenset({"fsdp", "megatron"})
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
        }
    )
    cannot: ClassVar = {
        **NOT_SET,
        "compile": "a launch cannot switch compilation on for its policies",
        "virtual_stages": "its megatron_cfg has no virtual stages",
        "pp_schedule": "its pipelines run 1F1B",
    }
    recognized_by = ("grpo.num_prompts_per_step",)
    step_marks = ("Total step time",)
    resolves = True
    settings_file = "nemo_rl.yaml"
    options = (*OPTIONS, CWD, BASE)
    watching = (
        "grpo.max_num_steps",
        "grpo.max_num_epochs",
        "grpo.val_*",
        "checkpointing",
        "checkpointing.*",
        "logger",
        "logger.*",
    )

    def engine_limits(self, workload: Workload, rl: PostTraining, c: ParallelConfig) -> Sequence[Limit]:
        """DTensor cuts no layers and shards all; Megatron shards its optimizer."""
        fsdp, stage = rl.engine == "fsdp", 3 if rl.engine == "fsdp" else 1
        none = "DTensor policies have none; those of Megatron do (rl.engine: megatron)"
        generating, per_node = int(rl_value(rl, c, "rollout_gpus")), workload.cluster.gpus_per_node
        stale = float(rl_value(rl, c, "staleness"))
        return (
            *word_limit(c, "precision", dict.fromkeys(("fp8", "fp16", "tf32"), "bf16"), "policies are in bf16 or fp32"),
            *word_limit(c, "recompute", {"selective": "full"}, "activation_checkpointing covers whole layers"),
            *broken(
                workload,
                c,
                Rule(
                    rl.algorithm not in ("grpo", "dapo"),
                    "workload.rl.algorithm",
                    "run_grpo.py trains with GRPO and DAPO",
                    value=rl.algorithm,
                ),
                Rule(
                    c.dp * c.cp > 1 and c.zero_stage != stage,
                    "zero_stage",
                    "DTensor policies shard all" if fsdp else "its Megatron uses the distributed optimizer",
                    stage,
                ),
                Rule(fsdp and c.pp > 1, "pp", none),
                Rule(fsdp and c.ep > 1, "ep", none),
                Rule(
                    generating % per_node and workload.cluster.num_nodes > 1,
                    "rollout_gpus",
                    f"separate engines need whole nodes of {per_node} GPUs",
                    value=generating,
                ),
                Rule(
                    not stale.is_integer(),
                    "staleness",
                    "max_trajectory_age_steps counts whole steps",
                    value=stale,
                ),
            ),
        )

    def command(self, workload: Workload, rl: PostTraining, c: ParallelConfig) -> tuple[str, ...]:
        """The example's program with the file of the launch."""
        return ("python", "examples/run_grpo.py", "--config", f"{FOLDER}/{self.settings_file}")

    def build(self, workload: Workload, config: ParallelConfig, options: Mapping[str, Any]) -> Launch:
        """In the checkout."""
        launch = super().build(workload, config, options)
        if options[CWD.name]:
            return replace(launch, cwd=options[CWD.name])
        note = "start it in NeMo-RL's checkout, where examples/run_grpo.py and the file under `defaults` are; the option cwd names it"
        return replace(launch, notes=(*launch.notes, note))

    def document(
        self, workload: Workload, rl: PostTraining, c: ParallelConfig, options: Mapping[str, Any]
    ) -> dict[str, Any]:
        """By dotted paths."""
        generating = int(rl_value(rl, c, "rollout_gpus"))
        nodes, per_node = grid(workload, c.world_size + generating)
        tokens, before = int(rl_value(rl, c, "micro_batch_tokens")), int(rl_value(rl, c, "log_prob_micro_batch_tokens"))
        where = MEGATRON if rl.engine == "megatron" else DTENSOR
        found: dict[str, Any] = {
            "defaults": f"{options[CWD.name]}/{options[BASE.name]}" if options[CWD.name] else options[BASE.name],
            "grpo.num_prompts_per_step": rl.prompts,
            "grpo.num_generations_per_prompt": rl.responses,
            "grpo.max_num_steps": options["steps"],
            "grpo.seed": options["seed"],
            "loss_fn.reference_policy_kl_penalty": 0.01 if rl.reference else 0.0,
            "policy.model_name": options["model"],
            "policy.train_global_batch_size": rl.mini_batch,
            "policy.train_micro_batch_size": c.micro_batch_size,
            "policy.logprob_batch_size": c.micro_batch_size,
            "policy.max_total_sequence_length": workload.seq_len,
            "policy.precision": PRECISIONS[c.precision],
            f"{DTENSOR}.enabled": rl.engine == "fsdp",
            f"{MEGATRON}.enabled": rl.engine == "megatron",
            f"{where}.activation_checkpointing": c.recompute == "full",
            f"{where}.sequence_parallel": c.sequence_parallel,
            **{f"{where}.{path}": getattr(c, knob) for knob, path in DEGREES[rl.engine].items()},
            f"{PACKING}.enabled": tokens > 0,
            "policy.dynamic_batching.enabled": False,
            f"{GENERATION}.vllm_cfg.tensor_parallel_size": int(rl_value(rl, c, "rollout_tp")),
            f"{GENERATION}.colocated.enabled": generating == 0,
            "cluster.num_nodes": nodes,
            "cluster.gpus_per_node": per_node,
        }
        found["policy.optimizer.kwargs.lr" if rl.engine == "fsdp" else f"{MEGATRON}.optimizer.lr"] = options[
            "learning_rate"
        ]
        if tokens:
            found |= {f"{PACKING}.train_mb_tokens": tokens, f"{PACKING}.logprob_mb_tokens": before or tokens}
        if rl.rollout is not None and rl.rollout.memory_fraction:
            found[f"{GENERATION}.vllm_cfg.gpu_memory_utilization"] = rl.rollout.memory_fraction
        if generating:
            several = workload.cluster.num_nodes > 1
            engines = workload.cluster.gpus_per_node
            stale = int(rl_value(rl, c, "staleness"))
            found |= {
                f"{GENERATION}.colocated.resources.num_nodes": generating // engines if several else None,
                f"{GENERATION}.colocated.resources.gpus_per_node": engines if several else generating,
                "grpo.async_grpo.enabled": stale > 0, "grpo.async_grpo.max_trajectory_age_steps": max(stale, 1),
                **(dict.fromkeys(WITH_ASYNC, True) if stale else {}),
            }  # fmt: skip
        return found

    def read_keys(self, keys: KeyReader) -> Reading:
        """Both engines."""
        keys.drop("policy.dynamic_batching.enabled")
        base = keys.text("defaults")
        if base is not None and base != BASE.default:
            keys.remarks.append(f"{keys.name}: {base} (defaults) was not read, but launches still start from it")
        is_megatron = bool(keys.flag(f"{MEGATRON}.enabled"))
        keys.flag(f"{DTENSOR}.enabled")
        engine, where = ("megatron", MEGATRON) if is_megatron else ("fsdp", DTENSOR)
        nodes, per_node = keys.count("cluster.num_nodes") or 1, keys.count("cluster.gpus_per_node")
        apart = keys.flag(f"{GENERATION}.colocated.enabled") is False
        own_nodes, own_gpus = (
            keys.count(f"{GENERATION}.colocated.resources.{key}") for key in ("num_nodes", "gpus_per_node")
        )
        generating = ((own_nodes or 1) * (own_gpus or per_node or 0)) if apart else 0
        ranks = None if per_node is None else nodes * per_node - generating
        degrees = {knob: keys.count(f"{where}.{path}") or 1 for knob, path in DEGREES[engine].items()}
        recompute, sequence = keys.flag(f"{where}.activation_checkpointing"), keys.flag(f"{where}.sequence_parallel")
        micro, length = keys.count("policy.train_micro_batch_size") or 1, keys.count("policy.max_total_sequence_length")
        sizes = {"train": micro, "logprob": keys.count("policy.logprob_batch_size") or micro}
        packs = keys.flag(f"{PACKING}.enabled")
        tokens, before = (
            _tokens(keys, f"{PACKING}.{name}_mb_tokens", length, size) if packs else None
            for name, size in sizes.items()
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
        prompts, responses = keys.count("grpo.num_prompts_per_step"), keys.count("grpo.num_generations_per_prompt") or 1
        penalty = keys.number("loss_fn.reference_policy_kl_penalty")
        stale, overlaps = keys.count("grpo.async_grpo.max_trajectory_age_steps"), keys.flag("grpo.async_grpo.enabled")
        placement = None
        if overlaps:
            keys.drop(*WITH_ASYNC)
        if apart and ranks:
            placement = (
                {"async": [ranks, generating], "staleness": stale or 1} if overlaps else {"split": [ranks, generating]}
            )
        rl = {
            "algorithm": "grpo", "prompts": prompts, "responses": responses, "engine": engine, "placement": placement,
            "mini_batches": mini_batches(prompts, responses, batch),
            "reference": None if penalty is None else penalty > 0,
            "micro_batch_tokens": tokens,
            "log_prob_micro_batch_tokens": before,
            "response_lengths": length,
        }  # fmt: skip
        rollout = {
            "tp": keys.count(f"{GENERATION}.vllm_cfg.tensor_parallel_size"),
            "memory_fraction": keys.number(f"{GENERATION}.vllm_cfg.gpu_memory_utilization"),
        }
        path = keys.text("policy.model_name")
        rate = keys.number(f"{MEGATRON}.optimizer.lr") if is_megatron else keys.number("policy.optimizer.kwargs.lr")
        options = {"model": path, "seed": keys.count("grpo.seed"), "learning_rate": rate, BASE.name: base}
        keys.keep("loss_fn.reference_policy_kl_penalty", "grpo.seed")
        return Reading(
            knobs=knobs,
            model_file=path or "",
            seq_len=length,
            global_batch_size=batch,
            options=options,
            rl=rl,
            rollout=rollout,
        )

    def parse_line(self, line: str) -> StepMetrics | None:
        """`Total step time: 40.00s`; what else it prints of a step stands on lines of its own (`post_training.logs`)."""
        found = _STEP_TIME.search(line[:MAX_LINE])
        return StepMetrics(step_time_s=float(found[1])) if found else None


def _tokens(keys: KeyReader, path: str, length: int | None, sequences: int) -> int | None:
    """Tokens of a packed micro-batch: a number, or as its examples write it, the longest sequence times the micro-batch."""
    found = keys.find(path)
    if isinstance(found, str) and found.startswith("${mul:") and length:
        found = length * sequences
    if not isinstance(found, int):
        return None
    keys.drop(path)
    return found


TRAINER = NemoRl()
