"""NeMo-RL: `nemo_rl.yaml`, read by its examples/run_grpo.py, over one of its own configurations.

    engine fsdp        DTensor: `policy.dtensor_cfg`, tensor and context parallelism beside FSDP2
    engine megatron    `policy.megatron_cfg`, with pipeline and expert parallelism and the distributed optimizer

Names and values (`DEFAULTS`) are those of NVIDIA-NeMo/RL at commit 7ea279a
(examples/configs/grpo_math_1B.yaml), which has no release that could be imported on a CPU.
`micro_batch_tokens` is `policy.sequence_packing.train_mb_tokens`, or with padding
`policy.dynamic_batching.train_mb_tokens`. The option `cwd` is the checkout, in which its program
runs.

A configuration starts from others, by its key `defaults` (nemo_rl/utils/config.py): those files
decide what it does not say. A command `run_grpo.py --config FILE key=value` is a configuration that
starts from FILE.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, ClassVar

from autotune.spec import ParallelConfig, Workload, number_of
from autotune.spec.post_training import PostTraining
from autotune.trainers.base.effective import word_limit
from autotune.trainers.base.limit import Limit, Rule, broken
from autotune.trainers.base.not_offered import NOT_SET
from autotune.trainers.base.own_program import CWD
from autotune.trainers.launch_files import FOLDER, Launch
from autotune.trainers.logs.step_metrics import MAX_LINE, StepMetrics
from autotune.trainers.nemo_rl import read
from autotune.trainers.nemo_rl.bases import BASE
from autotune.trainers.nemo_rl.knobs import (
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
from autotune.trainers.post_training.programs import USUAL
from autotune.trainers.post_training.trainer import (
    EXPERT_TP,
    LEARNING_RATE,
    OPTIONS,
    START,
    PostTrainer,
    grid,
    memory_fraction,
    overrides,
    rl_value,
)
from autotune.trainers.present_configuration import (
    PresentConfiguration,
    Reading,
    nested,
)

RATE = replace(LEARNING_RATE, default=5e-6)
_STEP_TIME = re.compile(r"Total step time: ([0-9]{1,9}(?:\.[0-9]{1,9})?)s")


class NemoRl(PostTrainer):
    """NVIDIA's NeMo-RL."""

    name = "nemo_rl"
    summary = "NeMo-RL, nemo_rl.yaml for run_grpo.py with DTensor or Megatron and vLLM"
    checked_against = "NeMo-RL 0.6.0 at commit 7ea279a"
    engines = frozenset({"fsdp", "megatron"})
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
        }
    )
    cannot: ClassVar = {
        **NOT_SET,
        "compile": "a launch cannot switch compilation on for its policies",
        "virtual_stages": "NeMo-RL's megatron_cfg has no virtual stages",
        "pp_schedule": "NeMo-RL's pipelines run 1F1B",
    }
    recognized_by = (
        "grpo.num_prompts_per_step",
        "grpo.num_generations_per_prompt",
        "grpo.max_num_steps",
        "grpo.async_grpo",
    )
    step_marks = ("Total step time",)
    resolves = True
    settings_file = "nemo_rl.yaml"
    options = (*(option for option in OPTIONS if option is not LEARNING_RATE), RATE, CWD, BASE)
    watching = (
        "grpo.max_num_steps",
        "grpo.max_num_epochs",
        "grpo.val_*",
        "checkpointing",
        "checkpointing.*",
        "logger",
        "logger.*",
    )

    def engine_limits(
        self, workload: Workload, rl: PostTraining, c: ParallelConfig
    ) -> Sequence[Limit]:
        """DTensor splits no layers and shards everything; Megatron shards its optimizer."""
        fsdp, stage = rl.engine == "fsdp", 3 if rl.engine == "fsdp" else 1
        none = "DTensor policies do not support this; Megatron policies do (rl.engine: megatron)"
        generating, per_node = int(rl_value(rl, c, "rollout_gpus")), workload.cluster.gpus_per_node
        stale = float(rl_value(rl, c, "staleness"))
        return (
            *word_limit(
                c,
                "precision",
                dict.fromkeys(("fp8", "fp16", "tf32"), "bf16"),
                "NeMo-RL's policies use bf16 or fp32",
            ),
            *word_limit(
                c,
                "recompute",
                {"selective": "full"},
                "activation_checkpointing covers whole layers",
            ),
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
                    "DTensor policies always shard all states"
                    if fsdp
                    else "NeMo-RL's Megatron uses the distributed optimizer",
                    stage,
                ),
                Rule(
                    fsdp and c.cp > 1 and rl_value(rl, c, "micro_batch_tokens") and not rl.padded,
                    "cp",
                    "DTensor policies do not split packed sequences",
                    1,
                ),
                Rule(
                    fsdp and c.cp > 1 and c.tp > 1 and c.sequence_parallel,
                    "sequence_parallel",
                    "DTensor policies have no sequence parallelism with context parallelism",
                    False,
                ),
                Rule(fsdp and c.pp > 1, "pp", none),
                Rule(fsdp and c.ep > 1, "ep", none),
                Rule(
                    generating % per_node and workload.cluster.num_nodes > 1,
                    "rollout_gpus",
                    f"separate engines need whole nodes of {number_of(per_node, 'GPU')}",
                    value=generating,
                ),
                Rule(
                    not stale.is_integer(),
                    "staleness",
                    "max_trajectory_age_steps must be a whole number of steps",
                    value=stale,
                ),
            ),
        )

    def command(self, workload: Workload, rl: PostTraining, c: ParallelConfig) -> tuple[str, ...]:
        """The example's program with the file of the launch."""
        return (*USUAL[self.name], "--config", f"{FOLDER}/{self.settings_file}")

    def build(
        self, workload: Workload, config: ParallelConfig, options: Mapping[str, Any]
    ) -> Launch:
        """In the checkout."""
        launch = super().build(workload, config, options)
        if options[CWD.name]:
            return replace(launch, cwd=options[CWD.name])
        note = "start this command in a NeMo-RL checkout with examples/run_grpo.py and the file under `defaults`; set the checkout's folder with the `cwd` option"
        return replace(launch, notes=(*launch.notes, note))

    def document(
        self, workload: Workload, rl: PostTraining, c: ParallelConfig, options: Mapping[str, Any]
    ) -> dict[str, Any]:
        """By dotted paths."""
        generating = int(rl_value(rl, c, "rollout_gpus"))
        nodes, per_node = grid(workload, c.world_size + generating)
        tokens, before = (
            int(rl_value(rl, c, "micro_batch_tokens")),
            int(rl_value(rl, c, "log_prob_micro_batch_tokens")),
        )
        where = ENGINES[rl.engine]
        stale = int(rl_value(rl, c, "staleness"))
        base = options[BASE.name]
        found: dict[str, Any] = {
            # a base is looked for beside the file itself, which lies in the folder of the launch;
            # `PWD`: where it is started
            "defaults": os.path.join(options[CWD.name] or "${oc.env:PWD}", base) if base else None,
            "grpo.num_prompts_per_step": rl.prompts,
            "grpo.num_generations_per_prompt": rl.responses,
            "grpo.max_num_steps": options["steps"],
            "grpo.seed": options["seed"],
            PENALTY: None if rl.reference else 0.0,
            "policy.model_name": options["model"],
            "policy.train_global_batch_size": rl.mini_batch,
            "policy.train_micro_batch_size": c.micro_batch_size,
            "policy.max_total_sequence_length": workload.seq_len,
            "policy.precision": PRECISIONS[c.precision],
            f"{DTENSOR}.enabled": rl.engine == "fsdp",
            f"{MEGATRON}.enabled": rl.engine == "megatron",
            f"{where}.activation_checkpointing": c.recompute == "full",
            f"{where}.sequence_parallel": c.sequence_parallel,
            **{f"{where}.{path}": getattr(c, knob) for knob, path in DEGREES[rl.engine].items()},
            f"{PACKING}.enabled": tokens > 0 and not rl.padded,
            f"{DYNAMIC}.enabled": tokens > 0 and rl.padded,
            "grpo.async_grpo.enabled": stale > 0,
            f"{GENERATION}.vllm_cfg.tensor_parallel_size": int(rl_value(rl, c, "rollout_tp")),
            f"{GENERATION}.colocated.enabled": generating == 0,
            "cluster.num_nodes": nodes,
            "cluster.gpus_per_node": per_node,
            RATES[rl.engine]: options["learning_rate"],
            f"{GENERATION}.vllm_cfg.gpu_memory_utilization": memory_fraction(rl),
        }
        if workload.model.num_experts and rl.engine == "megatron":
            found[f"{MEGATRON}.{EXPERT_TP}"] = 1 if rl.whole_experts else c.tp
        if tokens:
            way = DYNAMIC if rl.padded else PACKING
            found |= {
                f"{way}.train_mb_tokens": tokens,
                f"{way}.logprob_mb_tokens": before or tokens,
            }
        if generating:
            several = workload.cluster.num_nodes > 1
            engines = workload.cluster.gpus_per_node
            found |= {
                f"{GENERATION}.colocated.resources.num_nodes": generating // engines if several else None,
                f"{GENERATION}.colocated.resources.gpus_per_node": engines if several else generating,
                "grpo.async_grpo.max_trajectory_age_steps": max(stale, 1),
                **(dict.fromkeys(WITH_ASYNC, True) if stale else {}),
            }  # fmt: skip
        return found

    def present_document(self, present: PresentConfiguration) -> tuple[str, dict[str, Any]]:
        """Its file; of a command, one that starts from the file that it names."""
        words = self.words(present)
        told = PresentConfiguration(argv=words).option("config") or ""
        if not words or told.endswith(self.settings_file):
            return super().present_document(present)
        return "the command", {"defaults": told or BASE.default, **nested(overrides(words))}

    def read_config(self, present: PresentConfiguration) -> Reading:
        """Its file, over those that it starts from."""
        name, document = self.present_document(present)
        found = read.read_over_bases(name, document, present.files, self.read_document)
        options = {**found.options, START.name: self.start_of(present.argv)}
        return replace(found, options=options)

    def parse_line(self, line: str) -> StepMetrics | None:
        """`Total step time: 40.00s`; what else it prints of a step stands on lines of its own
        (`post_training.logs`)."""
        found = _STEP_TIME.search(line[:MAX_LINE])
        return StepMetrics(step_time_s=float(found[1])) if found else None


TRAINER = NemoRl()
