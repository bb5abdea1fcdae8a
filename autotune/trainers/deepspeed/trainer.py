"""DeepSpeed 0.19: `ds_config.json`, the model as Hugging Face's config, and a training program.

The program that is exported with it (`train.py`) builds the model from its config and trains on
your tokens or on random ones; the option `script` names a program of your own. Pipeline stages
cannot be set in the JSON: they need a program that builds a `PipelineModule`. Tensor parallelism is
AutoTP (`tensor_parallel.autotp_size`), whose batch law is train_batch_size = micro * accumulation *
dp: read back, dp follows from it, and with the world size known the stages are what tp * dp leaves
of it.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, ClassVar

from autotune.spec import ParallelConfig, Workload
from autotune.spec.texts.as_text import notes_of
from autotune.trainers.base.bundled_program import (
    DATA,
    BundledTrainer,
    data_arguments,
    data_notes,
    long_options,
    program_files,
)
from autotune.trainers.base.effective import cpu_note, effective, word_limit
from autotune.trainers.base.limit import Limit, Rule, broken
from autotune.trainers.base.not_offered import without
from autotune.trainers.base.own_program import CWD, SCRIPT, SCRIPT_ARGS
from autotune.trainers.base.torchrun import ranks_started, tf32_environment
from autotune.trainers.base.trainer import SHARED_OPTIONS, StepMetrics, clean, number
from autotune.trainers.documents.file_formats import to_json
from autotune.trainers.launch_files import Launch
from autotune.trainers.logs.step_metrics import number_in
from autotune.trainers.logs.steplines import parse_step_line
from autotune.trainers.present_configuration import (
    SETTINGS,
    nested,
)

_SPEED = re.compile(
    r"global_step=(\d+), RunningAvgSamplesPerSec=[-0-9.einf]+, CurrSamplesPerSec=([0-9.]+)"
)
_MEMORY = re.compile(r"MaxMemAllocated=([0-9.]+)GB")
_PIPE = re.compile(
    r"\bsteps: (\d+) loss: *([-+0-9.eEnaif]+) iter time \(s\): *([0-9.]+) samples/sec: *([0-9.]+)"
)


class DeepspeedTrainer(BundledTrainer):
    """DeepSpeed's engine around a Hugging Face model."""

    name = "deepspeed"
    summary = "DeepSpeed 0.19, ds_config.json with ZeRO and AutoTP"
    checked_against = "DeepSpeed 0.19.8"
    reads = frozenset({
        "tp", "pp", "dp", "cp", "ep", "micro_batch_size", "accumulation_steps", "precision",
        "recompute", "zero_stage", "sequence_parallel", "pp_schedule", "virtual_stages", "compile",
        "offload",
    })  # fmt: skip
    cannot: ClassVar = {
        **without("offload"),
        "offload=activations": "ds_config.json offloads the optimizer, but activations need DeepSpeed's own checkpoint function",
        "offload=all": "ds_config.json offloads the optimizer, but activations need DeepSpeed's own checkpoint function",
    }
    watching = (
        "tensorboard.*", "wandb.*", "comet.*", "trackio.*", "csv_monitor.*", "flops_profiler.*", "comms_logger.*",
        "wall_clock_breakdown", "memory_breakdown", "dump_state", "steps_per_print",
    )  # fmt: skip
    recognized_by = ("train_micro_batch_size_per_gpu", "zero_optimization")
    settings_file = "ds_config.json"
    options = (
        *SHARED_OPTIONS,
        SETTINGS,
        SCRIPT,
        SCRIPT_ARGS,
        CWD,
        DATA,
    )

    def find_limits(
        self, workload: Workload, config: ParallelConfig, options: Mapping[str, Any]
    ) -> tuple[Limit, ...]:
        """Pipelines, context and expert parallelism, fp8, selective recomputation, ZeRO 3 beside
        tensor parallelism."""
        c = effective(config)
        own = bool(options["script"])
        whole_layers = {} if own else {"selective": "full"}
        return (
            *word_limit(
                c,
                "precision",
                {"fp8": "bf16"},
                "ds_config.json supports bf16 and fp16, but not fp8",
            ),
            *word_limit(
                c,
                "recompute",
                whole_layers,
                "the program recomputes either whole layers or nothing",
            ),
            *broken(
                workload,
                c,
                Rule(
                    c.pp > 1 and not own,
                    "pp",
                    "pipeline stages need a program that builds a PipelineModule",
                    remedy="use your own program with the `script` option, or use pp=1",
                ),
                Rule(
                    c.pp_schedule != "1f1b",
                    "pp_schedule",
                    "DeepSpeed's pipeline engine supports only 1f1b",
                    "1f1b",
                ),
                Rule(
                    c.virtual_stages > 1,
                    "virtual_stages",
                    "DeepSpeed's pipeline engine has one stage per rank",
                    1,
                ),
                Rule(
                    c.pp > 1 and c.zero_stage > 1,
                    "zero_stage",
                    "DeepSpeed's pipeline engine supports only ZeRO 0 and 1",
                    1,
                ),
                Rule(
                    c.tp > 1 and c.zero_stage == 3,
                    "zero_stage",
                    "AutoTP supports only ZeRO 0 to 2",
                    2,
                ),
                Rule(
                    c.tp > 1 and c.sequence_parallel,
                    "sequence_parallel",
                    "AutoTP keeps whole sequences on every rank",
                    False,
                ),
                Rule(
                    c.offload == "optimizer" and c.zero_stage == 0,
                    "offload",
                    "ZeRO offloads the optimizer, so zero_stage >= 1 is needed",
                    "none",
                ),
                Rule(
                    c.cp > 1,
                    "cp",
                    "DeepSpeed's sequence parallelism (Ulysses) needs a model that calls it",
                    remedy="use your own program with the `script` option, or use cp=1",
                ),
                Rule(
                    c.ep > 1,
                    "ep",
                    "expert parallelism needs a model built from deepspeed.moe layers",
                    1,
                ),
            ),
        )

    def build(
        self, workload: Workload, config: ParallelConfig, options: Mapping[str, Any]
    ) -> Launch:
        """torchrun, the program, ds_config.json and the model's config."""
        c = effective(config)
        start = ranks_started(workload, c, options)
        files = {"ds_config.json": to_json(_settings(workload, c, options))}
        env, on_cpu = tf32_environment(c.precision), cpu_note(workload, "DeepSpeed")
        own = ("--deepspeed_config", "ds_config.json")
        if options["script"]:
            notes = notes_of(
                (
                    c.recompute != "none",
                    f"your program must recompute activations (recompute={c.recompute}), because ds_config.json has no setting for this",
                ),
                (
                    c.compile,
                    "your program must call torch.compile, because ds_config.json has no setting for this",
                ),
            )
            argv = (*start, options["script"], *own, *map(str, options["script_args"]))
            return Launch(argv=argv, env=env, files=files, notes=(*on_cpu, *notes))
        arguments = {
            "model": "model/config.json",
            "seq-len": workload.seq_len,
            "steps": options["steps"],
            "seed": options["seed"],
        }
        command = (
            *("train.py", *own, *long_options(arguments)),
            *data_arguments(options),
            *("--recompute", c.recompute),
            *(("--compile",) if c.compile else ()),
        )
        return Launch(
            argv=(*start, *command),
            env=env,
            files={**files, **program_files(self.name, workload)},
            notes=(*on_cpu, *data_notes(options)),
        )

    step_marks = ("global_step=", "steps:", "{")

    def parse_line(self, line: str) -> StepMetrics | None:
        """`... global_step=12, RunningAvgSamplesPerSec=9.4, CurrSamplesPerSec=9.5, ...
        MaxMemAllocated=11.2GB`, the pipeline engine's `steps: 10 loss: 2.3 iter time (s): 0.41
        samples/sec: 39.0`, and the program's own JSON lines."""
        text = clean(line)
        if speed := _SPEED.search(text):
            gib = number_in(text, _MEMORY)
            return StepMetrics(
                step=int(speed[1]),
                samples_per_s=number(speed[2]),
                peak_memory_bytes=None if gib is None else gib * (1 << 30),
            )
        if pipe := _PIPE.search(text):
            return StepMetrics(step=int(pipe[1]), loss=number(pipe[2]), step_time_s=number(pipe[3]))
        return parse_step_line(line)


def _settings(workload: Workload, c: ParallelConfig, options: Mapping[str, Any]) -> dict[str, Any]:
    rate = options["learning_rate"]
    # in host memory it is DeepSpeed's own Adam
    here = {"torch_adam": True} if c.offload == "none" else {}
    optimizer = (
        {
            "type": "AdamW",
            "params": {"lr": rate, "betas": [0.9, 0.95], "eps": 1e-8, "weight_decay": 0.1, **here},
        }
        if workload.optimizer == "adamw"
        else {"type": "SGD", "params": {"lr": rate}}
    )
    sharding = {"overlap_comm": True, "contiguous_gradients": True, "reduce_scatter": True}
    scaling = {"loss_scale": 0, "initial_scale_power": 16, "loss_scale_window": 1000}
    on_host = {"device": "cpu", "pin_memory": True}
    return nested({
        "train_batch_size": c.global_batch_size,
        "train_micro_batch_size_per_gpu": c.micro_batch_size,
        "gradient_accumulation_steps": c.accumulation_steps,
        "gradient_clipping": 1.0,
        "steps_per_print": 1,
        "optimizer": optimizer,
        "zero_optimization": {"stage": c.zero_stage, **(sharding if c.zero_stage else {})},
        "zero_optimization.offload_optimizer": on_host if c.offload == "optimizer" else None,
        "zero_allow_untested_optimizer": True if workload.optimizer == "sgd" else None,
        "bf16": {"enabled": True} if c.precision == "bf16" else None,
        "fp16": {"enabled": True, **scaling} if c.precision == "fp16" else None,
        "tensor_parallel": {"autotp_size": c.tp} if c.tp > 1 else None,
    })  # fmt: skip


TRAINER = DeepspeedTrainer()
