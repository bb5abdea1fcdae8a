"""TRL's GRPO: `grpo.yaml`, read by `trl grpo --config`.

    per_device_train_batch_size     completions per rank and micro-batch, padded to the longest of them
    steps_per_generation            micro-batches per rank between two generations: accumulation times mini-batches
    num_iterations                  passes over them

Names and defaults are those of GRPOConfig in trl 1.16.0 (trainer/grpo_config.py, base_config.py)
and of TrainingArguments in transformers 5; a command's flags count over the file
(cli/commands/training.py). ZeRO 0 is DDP, ZeRO 3 FSDP2, ZeRO 2 FSDP2 that keeps weights gathered;
with the engine `deepspeed`, ZeRO 1 to 3 are the files of that name that TRL brings for Accelerate.
Without vLLM the ranks generate by transformers.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from autotune.spec import ParallelConfig, Workload
from autotune.spec.post_training import PostTraining
from autotune.trainers.base.effective import word_limit
from autotune.trainers.base.limit import Limit, Rule, broken
from autotune.trainers.base.not_offered import NOT_SET
from autotune.trainers.documents.file_formats import hf_layer_class
from autotune.trainers.launch_files import FOLDER
from autotune.trainers.logs.formats import parse_loss_dictionary
from autotune.trainers.logs.step_metrics import StepMetrics
from autotune.trainers.post_training.adapters import written_modules
from autotune.trainers.post_training.logs import step_metrics_of
from autotune.trainers.post_training.programs import USUAL
from autotune.trainers.post_training.trainer import PostTrainer, grid, memory_fraction, rl_value
from autotune.trainers.present_configuration import PresentConfiguration, Reading
from autotune.trainers.trl import read
from autotune.trainers.trl.knobs import DEFAULTS, SETTINGS_FILE, accelerate_config


class Trl(PostTrainer):
    """Hugging Face's TRL."""

    name = "trl"
    summary = "TRL's GRPO, grpo.yaml for `trl grpo`"
    checked_against = "trl 1.16.0, transformers 5.23.0"
    engines = frozenset({"fsdp", "deepspeed"})
    carried = frozenset({"rollout_tp"})
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
            "compile",
        }
    )
    cannot = NOT_SET
    neutral: ClassVar = {
        "pp_schedule": "TRL has no pipeline, so pp above 1 is rejected",
        "virtual_stages": "TRL has no pipeline, so pp above 1 is rejected",
        "sequence_parallel": "TRL has no tensor parallelism, so tp above 1 is rejected",
    }
    recognized_by = (
        "per_device_train_batch_size",
        "num_generations",
        "steps_per_generation",
        "max_completion_length",
    )
    defaults = DEFAULTS
    peft_methods = frozenset({"lora"})
    no_adapters = "TRL's launches do not load 4-bit weights"
    settings_file = SETTINGS_FILE
    watching = (
        "output_dir", "max_steps", "num_train_epochs", "logging_*", "save_*", "load_best_model_at_end", "eval_*", "do_eval", "report_to", "run_name", "push_to_hub", "hub_*",
    )  # fmt: skip

    def engine_limits(
        self, workload: Workload, rl: PostTraining, c: ParallelConfig
    ) -> Sequence[Limit]:
        """Data parallelism and sharding alone, and no engines of their own."""
        alone = "GRPOTrainer only uses data parallelism and sharding"
        generating, tokens = rl_value(rl, c, "rollout_gpus"), rl_value(rl, c, "micro_batch_tokens")
        return (
            *broken(
                workload,
                c,
                Rule(c.tp > 1, "tp", alone),
                Rule(c.pp > 1, "pp", alone),
                Rule(c.cp > 1, "cp", alone),
                Rule(c.ep > 1, "ep", alone, 1),
            ),
            *word_limit(
                c,
                "precision",
                {"fp8": "bf16"},
                "GRPOConfig supports bf16, fp16 and tf32, but not fp8",
            ),
            *word_limit(
                c,
                "recompute",
                {"selective": "full"},
                "TRL recomputes either whole layers or nothing",
            ),
            *broken(
                workload,
                c,
                Rule(
                    c.zero_stage == 1 and rl.engine == "fsdp",
                    "zero_stage",
                    "zero_stage 2 or 3 shards with FSDP2, and 0 does not shard",
                    2,
                ),
                Rule(
                    rl.algorithm not in ("grpo", "dapo"),
                    "workload.rl.algorithm",
                    "`trl grpo` trains with GRPO and DAPO",
                    value=rl.algorithm,
                ),
                Rule(
                    generating,
                    "rollout_gpus",
                    "a vLLM server must be started separately (`trl vllm-serve`), which a single-command launch cannot do",
                    value=generating,
                ),
                Rule(
                    tokens,
                    "micro_batch_tokens",
                    "TRL counts micro-batches in completions",
                    value=tokens,
                ),
            ),
        )

    def command(self, workload: Workload, rl: PostTraining, c: ParallelConfig) -> tuple[str, ...]:
        """`trl grpo`, which starts the ranks through Accelerate."""
        start = (
            *USUAL[self.name],
            "--config",
            f"{FOLDER}/{self.settings_file}",
            "--num_processes",
            str(c.world_size),
        )
        nodes, _ = grid(workload, c.world_size)
        return (*start, "--num_machines", str(nodes)) if nodes > 1 else start

    def document(
        self, workload: Workload, rl: PostTraining, c: ParallelConfig, options: Mapping[str, Any]
    ) -> dict[str, Any]:
        """By dotted paths."""
        found: dict[str, Any] = {
            "model_name_or_path": options["model"],
            "output_dir": "outputs",
            "max_steps": options["steps"] * rl.steps,
            "per_device_train_batch_size": c.micro_batch_size,
            "gradient_accumulation_steps": c.accumulation_steps,
            "steps_per_generation": c.accumulation_steps * rl.mini_batches,
            "num_generations": rl.responses,
            "num_iterations": rl.epochs,
            "max_completion_length": int(rl.response_lengths.longest),
            "beta": 0.04 if rl.reference else 0.0,
            "loss_type": "dapo" if rl.algorithm == "dapo" else "grpo",
            "learning_rate": options["learning_rate"],
            "seed": options["seed"],
            "bf16": c.precision == "bf16",
            "fp16": c.precision == "fp16",
            "gradient_checkpointing": c.recompute == "full",
            "torch_compile": c.compile,
            "logging_steps": 1,
            "save_strategy": "no",
            "report_to": "none",
        }
        if workload.peft is not None:
            found |= {
                "use_peft": True,
                "lora_r": workload.peft.rank,
                "lora_target_modules": written_modules(workload.peft),
            }
        if workload.cluster.gpu.is_cpu:
            found["use_cpu"] = True
        else:
            found["tf32"] = c.precision == "tf32"
            found |= {
                "use_vllm": True, "vllm_mode": "colocate", "vllm_enable_sleep_mode": rl.rollout is None or rl.rollout.sleeps, "vllm_tensor_parallel_size": int(rl_value(rl, c, "rollout_tp")),
                "vllm_gpu_memory_utilization": memory_fraction(rl),
            }  # fmt: skip
        if rl.engine == "deepspeed":
            found["accelerate_config"] = accelerate_config(c.zero_stage)
        elif c.zero_stage >= 2:
            found |= {
                "fsdp": True, "fsdp_config.version": 2, "fsdp_config.reshard_after_forward": c.zero_stage == 3,
                "fsdp_config.auto_wrap_policy": "TRANSFORMER_BASED_WRAP", "fsdp_config.transformer_layer_cls_to_wrap": [hf_layer_class(workload.model)],
            }  # fmt: skip
        return found

    def read_config(self, present: PresentConfiguration) -> Reading:
        """The file, and the ranks: of file or command, else all of a cluster."""
        return read.with_ranks(super().read_config(present), present.ranks_of_cluster)

    def present_document(self, present: PresentConfiguration) -> tuple[str, dict[str, Any]]:
        """The file, over which the flags of the command count."""
        return read.document_of(present, self.words(present))

    step_marks = ("{", "'train_samples")

    def parse_line(self, line: str) -> StepMetrics | None:
        """The dictionary of a logged step: its `step_time`, which is that of all micro-batches;
        else as of any trainer of transformers."""
        return (step_metrics_of(line) if "'step_time'" in line else None) or parse_loss_dictionary(
            line
        )


TRAINER = Trl()
