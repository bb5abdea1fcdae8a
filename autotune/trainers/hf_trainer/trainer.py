"""transformers.Trainer 5: `training_args.json` with the TrainingArguments, and a training program
that reads it.

ZeRO 0   DDP                      ZeRO 2   FSDP2 that keeps weights gathered (reshard_after_forward: false)
ZeRO 1   DeepSpeed, stage 1       ZeRO 3   FSDP2

Read back is that file, or `TrainingArguments.to_json_string()` of a program. The world size is
known from the launch command alone. A dictionary under `deepspeed` has its own stage; a file that
`deepspeed` names is not read, and a remark says so.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from autotune.spec import ParallelConfig, Workload
from autotune.trainers.base.bundled_program import (
    DATA,
    BundledTrainer,
    data_arguments,
    data_notes,
    program_files,
)
from autotune.trainers.base.effective import effective, whole_on_cpu, word_limit
from autotune.trainers.base.limit import Limit, Rule, broken
from autotune.trainers.base.not_offered import NOT_SET
from autotune.trainers.base.torchrun import ranks_started
from autotune.trainers.base.trainer import SHARED_OPTIONS, StepMetrics
from autotune.trainers.documents.file_formats import hf_layer_class, to_json
from autotune.trainers.launch_files import Launch
from autotune.trainers.logs.formats import parse_loss_dictionary
from autotune.trainers.logs.steplines import parse_step_line
from autotune.trainers.present_configuration import (
    SETTINGS,
    nested,
)

OPTIMIZERS = {
    "adamw": "adamw_torch",
    "sgd": "sgd",
    "adamw_8bit": "adamw_bnb_8bit",
    "adafactor": "adafactor",
}
"""values of TrainingArguments' `optim` (OptimizerNames)"""


class HfTrainer(BundledTrainer):
    """Hugging Face's Trainer."""

    name = "hf_trainer"
    summary = "transformers.Trainer 5, training_args.json with FSDP2 or DeepSpeed"
    checked_against = "transformers 5.23.0"
    reads = frozenset({
        "tp", "pp", "dp", "cp", "ep", "micro_batch_size", "accumulation_steps", "precision",
        "recompute", "zero_stage", "compile",
    })  # fmt: skip
    cannot = NOT_SET
    optimizers = frozenset(OPTIMIZERS)
    neutral: ClassVar = {
        "pp_schedule": "transformers' Trainer has no pipeline, so pp above 1 is rejected",
        "virtual_stages": "transformers' Trainer has no pipeline, so pp above 1 is rejected",
        "sequence_parallel": "transformers' Trainer has no tensor parallelism, so tp above 1 is rejected",
    }
    recognized_by = ("per_device_train_batch_size",)
    settings_file = "training_args.json"
    options = (
        *SHARED_OPTIONS,
        SETTINGS,
        DATA,
    )

    def find_limits(
        self, workload: Workload, config: ParallelConfig, options: Mapping[str, Any]
    ) -> tuple[Limit, ...]:
        """Everything but data parallelism, ZeRO, whole-layer recomputation, torch.compile and fp32,
        tf32, bf16 or fp16."""
        c = effective(config)
        alone = (
            "for a model trained from scratch, transformers' Trainer supports only data parallelism"
        )
        return (
            *word_limit(
                c,
                "precision",
                {"fp8": "bf16"},
                "TrainingArguments supports bf16, fp16 and tf32, but not fp8",
            ),
            *word_limit(
                c,
                "recompute",
                {"selective": "full"},
                "transformers' Trainer recomputes either whole layers or nothing",
            ),
            *broken(
                workload,
                c,
                Rule(c.tp > 1, "tp", alone),
                Rule(c.pp > 1, "pp", alone),
                Rule(c.cp > 1, "cp", alone),
                Rule(c.ep > 1, "ep", "the program has no expert parallelism", 1),
            ),
            *whole_on_cpu(workload, c),
        )

    def build(
        self, workload: Workload, config: ParallelConfig, options: Mapping[str, Any]
    ) -> Launch:
        """torchrun, the program, training_args.json and the model's config."""
        c = effective(config)
        start = ranks_started(workload, c, options)
        files = {
            "training_args.json": to_json(_arguments(workload, c, options)),
            **program_files(self.name, workload),
        }
        command = ("train.py", "--arguments", "training_args.json", "--model", "model/config.json")
        argv = (*start, *command, "--seq-len", str(workload.seq_len), *data_arguments(options))
        return Launch(argv=argv, files=files, notes=data_notes(options))

    step_marks = ("{", "'train_samples")

    def parse_line(self, line: str) -> StepMetrics | None:
        """`{'loss': '2.31', 'grad_norm': '0.8', ...}` per step (quoted from release 5 on), the last
        line's speed, and the program's own JSON lines, which know the time of a step."""
        return parse_loss_dictionary(line) or parse_step_line(line)


def _arguments(workload: Workload, c: ParallelConfig, options: Mapping[str, Any]) -> dict[str, Any]:
    is_full, is_cpu = c.recompute == "full", workload.cluster.gpu.is_cpu
    shards = c.zero_stage >= 2
    by_fsdp = {
        "version": 2,
        "reshard_after_forward": c.zero_stage == 3,
        "auto_wrap_policy": "TRANSFORMER_BASED_WRAP",
        "transformer_layer_cls_to_wrap": [hf_layer_class(workload.model)],
        "activation_checkpointing": is_full,
    }
    by_deepspeed = {
        "train_batch_size": c.global_batch_size,
        "train_micro_batch_size_per_gpu": c.micro_batch_size,
        "gradient_accumulation_steps": c.accumulation_steps,
        "gradient_clipping": 1.0,
        "zero_optimization": {"stage": 1, "overlap_comm": True},
        "bf16": {"enabled": c.precision == "bf16"},
        "fp16": {"enabled": c.precision == "fp16"},
    }
    return nested({
        "output_dir": "outputs",
        "max_steps": options["steps"],
        "per_device_train_batch_size": c.micro_batch_size,
        "gradient_accumulation_steps": c.accumulation_steps,
        "learning_rate": options["learning_rate"],
        "weight_decay": 0.1,
        "max_grad_norm": 1.0,
        "optim": OPTIMIZERS[workload.optimizer],
        "seed": options["seed"],
        "bf16": c.precision == "bf16",
        "fp16": c.precision == "fp16",
        "torch_compile": c.compile,
        "logging_steps": 1,
        "save_strategy": "no",
        "report_to": "none",
        "disable_tqdm": True,
        "dataloader_drop_last": True,
        "remove_unused_columns": False,
        "use_cpu": True if is_cpu else None,  # without it each rank would train alone
        "tf32": None if is_cpu else c.precision == "tf32",
        "fsdp": True if shards else None,
        "fsdp_config": by_fsdp if shards else None,
        "activation_checkpointing": None if shards else is_full,
        "deepspeed": by_deepspeed if c.zero_stage == 1 else None,
    })  # fmt: skip


TRAINER = HfTrainer()
