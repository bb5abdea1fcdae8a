"""transformers.Trainer 5: `training_args.json` with the TrainingArguments, and a training program that reads it.

ZeRO 0   DDP                      ZeRO 2   FSDP2 that keeps weights gathered (reshard_after_forward: false)
ZeRO 1   DeepSpeed, stage 1       ZeRO 3   FSDP2

Read back is that file, or `TrainingArguments.to_json_string()` of a program. The world size is known from the launch command alone. A dictionary under
`deepspeed` has its own stage; a file that `deepspeed` names is not read, and a remark says so.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, ClassVar

from autotune.spec import ParallelConfig, Workload
from autotune.trainers.base.bundled_program import DATA, data_arguments, data_notes, program_files
from autotune.trainers.base.effective import effective, whole_on_cpu, word_limit
from autotune.trainers.base.limit import Limit, Rule, broken
from autotune.trainers.base.not_offered import NOT_SET
from autotune.trainers.base.torchrun import place, torchrun
from autotune.trainers.base.trainer import SHARED_OPTIONS, StepMetrics, Trainer
from autotune.trainers.documents.file_formats import hf_layer_class, to_json
from autotune.trainers.documents.program_arguments import exported_program
from autotune.trainers.launch_files import Launch
from autotune.trainers.logs.formats import parse_loss_dictionary
from autotune.trainers.logs.steplines import parse_step_line
from autotune.trainers.present_configuration import (
    SETTINGS,
    KeyReader,
    PresentConfiguration,
    Reading,
    batch_of,
    completed,
    parse_document,
)

OPTIMIZERS = {"adamw": "adamw_torch", "sgd": "sgd", "adamw_8bit": "adamw_bnb_8bit", "adafactor": "adafactor"}
"""values of TrainingArguments' `optim` (OptimizerNames)"""
BY_OPTIM = {
    "adamw_torch": "adamw", "sgd": "sgd", "adamw_bnb_8bit": "adamw_8bit", "adamw_8bit": "adamw_8bit", "adafactor": "adafactor",
}  # fmt: skip
"""ours, by `optim`"""
OF_THE_RUN = (
    *("save_strategy", "save_steps", "save_total_limit", "save_only_model", "load_best_model_at_end", "push_to_hub"),
    *("eval_strategy", "evaluation_strategy", "eval_steps", "do_eval", "eval_on_start", "report_to", "run_name"),
    *("resume_from_checkpoint", "num_train_epochs"),
)
"""arguments about what a run keeps and tells, not about how it trains"""
REPEATED = ("train_batch_size", "train_micro_batch_size_per_gpu", "gradient_accumulation_steps", "bf16", "fp16")
"""keys of the dictionary `deepspeed` that repeat what TrainingArguments say"""


class HfTrainer(Trainer):
    """Hugging Face's Trainer."""

    name = "hf_trainer"
    reads_config_json = True
    summary = "transformers.Trainer 5, training_args.json with FSDP2 or DeepSpeed"
    checked_against = "transformers 5.23.0"
    no_adapters = "the bundled program starts from random weights, so adapters alone would learn nothing"
    reads = frozenset({
        "tp", "pp", "dp", "cp", "ep", "micro_batch_size", "accumulation_steps", "precision",
        "recompute", "zero_stage", "compile",
    })  # fmt: skip
    cannot = NOT_SET
    optimizers = frozenset(OPTIMIZERS)
    neutral: ClassVar = {
        "pp_schedule": "it has no pipeline: pp above 1 is rejected",
        "virtual_stages": "it has no pipeline: pp above 1 is rejected",
        "sequence_parallel": "it has no tensor parallelism: tp above 1 is rejected",
    }
    can_import = True
    recognized_by = ("per_device_train_batch_size",)
    settings_file = "training_args.json"
    options = (
        *SHARED_OPTIONS,
        SETTINGS,
        DATA,
    )

    def find_limits(self, workload: Workload, config: ParallelConfig, options: Mapping[str, Any]) -> tuple[Limit, ...]:
        """Everything but data parallelism, ZeRO, whole-layer recomputation, torch.compile and fp32, tf32, bf16 or fp16."""
        c = effective(config)
        alone = "Trainer trains a model from scratch with data parallelism only"
        return (
            *word_limit(c, "precision", {"fp8": "bf16"}, "TrainingArguments has bf16, fp16 and tf32"),
            *word_limit(c, "recompute", {"selective": "full"}, "it recomputes either whole layers or nothing"),
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

    def build(self, workload: Workload, config: ParallelConfig, options: Mapping[str, Any]) -> Launch:
        """torchrun, the program, training_args.json and the model's config."""
        c = effective(config)
        start = torchrun(
            place(workload.cluster, c), master_addr=options["master_addr"], master_port=options["master_port"]
        )
        files = {
            "training_args.json": to_json(_arguments(workload, c, options)),
            **program_files(self.name, workload),
        }
        command = ("train.py", "--arguments", "training_args.json", "--model", "model/config.json")
        argv = (*start, *command, "--seq-len", str(workload.seq_len), *data_arguments(options))
        return Launch(argv=argv, files=files, notes=tuple(data_notes(options)))

    def read_config(self, present: PresentConfiguration) -> Reading:
        """TrainingArguments, and the arguments of the program."""
        name = next((name for name in present.files if name.endswith("training_args.json")), "")
        name, text = (name, present.files[name]) if name else present.named(".json")
        keys = KeyReader(parse_document(name, text), name)
        program = exported_program(present)
        keys.drop("use_cpu", "logging_steps", "logging_strategy")  # the cluster says it; a launch logs every step
        keys.drop(*OF_THE_RUN)
        if of_run := [key for key in OF_THE_RUN if keys.find(key) not in (None, False, "no", "none", [])]:
            keys.remarks.append(
                f"{name}: {', '.join(of_run)} are left out, because a launch saves, evaluates and reports nothing"
            )
        stage, recompute = _sharding(keys)
        flags = {word: keys.flag(word) for word in ("bf16", "fp16", "tf32")}
        knobs: dict[str, Any] = {
            "micro_batch_size": keys.count("per_device_train_batch_size"),
            "accumulation_steps": keys.count("gradient_accumulation_steps"),
            "precision": next((word for word, on in flags.items() if on), "fp32"),
            "recompute": "full" if recompute else "none",
            "zero_stage": stage,
            "compile": keys.flag("torch_compile") or False,
        }
        knobs = completed(knobs, ranks=present.ranks)
        optim = keys.text("optim") or ""
        options: dict[str, Any] = {
            "steps": keys.count("max_steps"),
            "learning_rate": keys.number("learning_rate"),
            "seed": keys.count("seed"),
            **program.options,
        }
        optimizer = BY_OPTIM.get(optim, "adamw" if optim.startswith("adamw") else "")
        left = {key: value for key, value in keys.left.items() if value is not None}  # null: its default
        if optim and optim not in BY_OPTIM:
            left["optim"] = optim
        return Reading(
            knobs=knobs,
            model_file=program.model_file,
            seq_len=program.seq_len,
            global_batch_size=batch_of(knobs),
            optimizer=optimizer,
            options=options,
            settings=left,
            remarks=tuple(keys.remarks),
        )

    step_marks = ("{", "'train_samples")

    def parse_line(self, line: str) -> StepMetrics | None:
        """`{'loss': '2.31', 'grad_norm': '0.8', ...}` per step (quoted from release 5 on), the last line's speed, and the program's
        own JSON lines, which know the time of a step."""
        return parse_loss_dictionary(line) or parse_step_line(line)


def _arguments(workload: Workload, c: ParallelConfig, options: Mapping[str, Any]) -> dict[str, Any]:
    arguments: dict[str, Any] = {
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
    }
    if workload.cluster.gpu.is_cpu:
        arguments["use_cpu"] = True  # without it each rank would train alone
    else:
        arguments["tf32"] = c.precision == "tf32"
    full = c.recompute == "full"
    if c.zero_stage >= 2:
        arguments |= {
            "fsdp": True,
            "fsdp_config": {
                "version": 2,
                "reshard_after_forward": c.zero_stage == 3,
                "auto_wrap_policy": "TRANSFORMER_BASED_WRAP",
                "transformer_layer_cls_to_wrap": [hf_layer_class(workload.model)],
                "activation_checkpointing": full,
            },
        }
    else:
        arguments["activation_checkpointing"] = full
    if c.zero_stage == 1:
        arguments["deepspeed"] = {
            "train_batch_size": c.global_batch_size,
            "train_micro_batch_size_per_gpu": c.micro_batch_size,
            "gradient_accumulation_steps": c.accumulation_steps,
            "gradient_clipping": 1.0,
            "zero_optimization": {"stage": 1, "overlap_comm": True},
            "bf16": {"enabled": c.precision == "bf16"},
            "fp16": {"enabled": c.precision == "fp16"},
        }
    return arguments


def _sharding(keys: KeyReader) -> tuple[int, bool]:
    """(ZeRO stage, whether every layer is recomputed)"""
    recompute = bool(keys.flag("activation_checkpointing")) | bool(keys.flag("gradient_checkpointing"))
    given = keys.find("deepspeed")
    if isinstance(given, Mapping):
        keys.drop(*(f"deepspeed.{key}" for key in REPEATED))
        return keys.count("deepspeed.zero_optimization.stage") or 0, recompute
    if given:
        keys.drop("deepspeed")
        if found := re.search(r"z(?:ero)?_?([0-3])", str(given).rpartition("/")[2]):
            keys.remarks.append(
                f"deepspeed={given!r}: read as zero_stage={found[1]} from its name; autotune ignores "
                f"the rest of that file"
            )
            return int(found[1]), recompute
        keys.remarks.append(
            f"deepspeed={given!r}: the ZeRO stage is in that file, which was not imported; import it too"
        )
    shards = keys.find("fsdp")
    keys.drop("fsdp")
    if not shards:
        return 0, recompute
    inner = bool(keys.flag("fsdp_config.activation_checkpointing"))
    keys.drop("fsdp_config.version", "fsdp_config.transformer_layer_cls_to_wrap")
    gathered = keys.flag("fsdp_config.reshard_after_forward") is False or "shard_grad_op" in str(shards)
    return 2 if gathered else 3, recompute or inner


TRAINER = HfTrainer()
