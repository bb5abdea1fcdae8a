"""PyTorch Lightning 2.6: `lightning.yaml` in the form that LightningCLI reads, and a training
program.

    ZeRO 0   ddp                         ZeRO 2   FSDPStrategy, SHARD_GRAD_OP
    ZeRO 1   deepspeed_stage_1           ZeRO 3   FSDPStrategy, FULL_SHARD
    tp > 1   ModelParallelStrategy: `configure_model` of your own program shards the model over its mesh

Read back: `strategy` is a word, or FSDPStrategy by its sharding strategy, ModelParallelStrategy by
its two degrees; `devices` are the ranks of a node, times `num_nodes`.

The option `script` names a program of your own that is a LightningCLI: it is started as `script fit
--config lightning.yaml`, and gets the micro-batch under the key `batch_key`. Its progress bar
counts batches; the launch refreshes it once per optimizer step, which is how its steps are timed.

Lightning's progress bar as optimizer steps.

    Epoch 0:  67%|██████▋   | 4/6 [00:00<00:00, 44.31it/s]                              drawn when batch 4 is done,
    Epoch 0:  67%|██████▋   | 4/6 [00:00<00:00, 44.14it/s, v_num=0, train_loss=0.482]   and again with its metrics

The bar counts batches. A launch has it drawn once per optimizer step, so the first count that is
not 0 is the batches of a step. With `max_steps` the total is a number of optimizer steps, which the
count passes: the bar is drawn at that count too, and has no total from then on.
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
from autotune.trainers.base.not_offered import NOT_SET
from autotune.trainers.base.own_program import CWD
from autotune.trainers.base.torchrun import (
    Placement,
    place,
    ranks_started,
    tf32_environment,
)
from autotune.trainers.base.trainer import (
    SHARED_OPTIONS,
    LineReader,
    LineTest,
    Option,
    StepMetrics,
    needs,
)
from autotune.trainers.base.trainer_option import Reach
from autotune.trainers.documents.file_formats import hf_layer_class, to_yaml
from autotune.trainers.launch_files import Launch
from autotune.trainers.logs.patterns import MAX_SEARCHED
from autotune.trainers.logs.step_metrics import clean, number_in
from autotune.trainers.logs.steplines import parse_step_line
from autotune.trainers.present_configuration import (
    SETTINGS,
    merged,
    nested,
)

PRECISIONS = {"fp32": "32-true", "tf32": "32-true", "bf16": "bf16-mixed", "fp16": "16-mixed"}
"""values of Trainer's `precision`"""
PURE_BF16 = "bf16-true"
"""its value where weights, gradients and moments are all in bf16"""
SHARDING = {2: "SHARD_GRAD_OP", 3: "FULL_SHARD"}
"""sharding strategy of FSDPStrategy by ZeRO stage"""
BAR = "lightning.pytorch.callbacks.TQDMProgressBar"
_DRAWN = re.compile(r"^Epoch (\d{1,9}):[^|]{0,20}\|[^|]{0,300}\| *(\d{1,12})/(\d{1,12}|\?) \[")
_BAR_LOSS = re.compile(r"[ ,](?:train[_/])?loss(?:_step)?=([-+0-9.eEnaif]+)")


class LightningTrainer(BundledTrainer):
    """Lightning's Trainer."""

    name = "lightning"
    summary = "Lightning's Trainer, lightning.yaml for LightningCLI or a bundled program"
    checked_against = "lightning 2.6.6"
    watching = ("trainer.profiler", "trainer.profiler.*", "trainer.logger", "trainer.logger.*")
    recognized_by = (
        "seed_everything",
        "trainer.accumulate_grad_batches",
        "trainer.strategy.class_path",
        "model.class_path",
    )
    settings_file = "lightning.yaml"
    reads = frozenset({
        "tp", "pp", "dp", "cp", "ep", "micro_batch_size", "accumulation_steps", "precision",
        "recompute", "zero_stage", "sequence_parallel", "compile",
    })  # fmt: skip
    cannot = NOT_SET
    trains_pure_bf16 = True
    neutral: ClassVar = {
        "pp_schedule": "Lightning has no pipeline, so pp above 1 is rejected",
        "virtual_stages": "Lightning has no pipeline, so pp above 1 is rejected",
    }
    options = (
        *SHARED_OPTIONS,
        SETTINGS,
        Option(
            name="script",
            meaning="your own LightningCLI program; default: a program that trains a Hugging Face model",
            default="",
            reach=Reach.PROGRAM,
        ),
        Option(
            name="script_args",
            meaning="arguments of your own program, after `fit`",
            default=(),
            reach=Reach.ARGUMENT,
        ),
        CWD,
        Option(
            name="batch_key",
            meaning="your program's key for the micro-batch size",
            default="data.batch_size",
            reach=Reach.NOTHING,
        ),
        Option(
            name="layer_class",
            meaning="import path of the layer class that FSDP wraps",
            default="",
            reach=Reach.ARGUMENT,
        ),
        DATA,
    )

    def find_limits(
        self, workload: Workload, config: ParallelConfig, options: Mapping[str, Any]
    ) -> tuple[Limit, ...]:
        """Pipelines, experts, context parallelism; tensor parallelism without the option script;
        fp8; selective recomputation."""
        c = effective(config)
        fp16 = c.precision == "fp16"
        return (
            *word_limit(
                c,
                "precision",
                {"fp8": "bf16"},
                "Lightning supports fp8 only on one device, with layers from Transformer Engine",
            ),
            *word_limit(
                c,
                "recompute",
                {"selective": "full"},
                "Lightning recomputes either whole layers or nothing",
            ),
            *broken(
                workload,
                c,
                Rule(
                    fp16 and workload.cluster.gpu.is_cpu,
                    "precision",
                    "on a CPU, Lightning trains in bf16 instead",
                    "bf16",
                ),
                Rule(
                    c.zero_stage == 1 and workload.pure_bf16,
                    "zero_stage",
                    "DeepSpeed keeps weights in fp32 in addition to bf16",
                    2,
                ),
                Rule(c.pp > 1, "pp", "Lightning has no pipeline"),
                Rule(c.cp > 1, "cp", "Lightning has no context parallelism"),
                Rule(c.ep > 1, "ep", "Lightning has no expert parallelism", 1),
                Rule(
                    c.tp > 1 and not options["script"],
                    "tp",
                    "Lightning needs a program whose configure_model shards the model",
                    remedy="use your own program with the `script` option, or use tp=1",
                ),
                Rule(
                    c.tp > 1 and c.dp > 1 and c.zero_stage != 3,
                    "zero_stage",
                    "ModelParallelStrategy shards across its data-parallel ranks",
                    3,
                ),
                Rule(
                    c.tp > 1 and fp16,
                    "precision",
                    "ModelParallelStrategy does not scale losses",
                    "bf16",
                ),
                Rule(
                    c.tp > 1 and c.sequence_parallel,
                    "sequence_parallel",
                    "your program's configure_model sets this knob",
                    False,
                ),
            ),
        )

    def build(
        self, workload: Workload, config: ParallelConfig, options: Mapping[str, Any]
    ) -> Launch:
        """torchrun, the program and lightning.yaml."""
        c = effective(config)
        placement = place(workload.cluster, c)
        start = ranks_started(workload, c, options)
        trainer = _trainer(workload, c, placement, options)
        env = tf32_environment(c.precision)
        on_cpu = cpu_note(workload, "ZeRO of Lightning") if c.zero_stage else ()
        document: dict[str, Any] = {"seed_everything": options["seed"], "trainer": trainer}
        if options["script"]:
            document = merged(document, nested({options["batch_key"]: c.micro_batch_size}))
            notes = notes_of(
                (c.compile, "your program must call torch.compile, because lightning.yaml cannot"),
                (
                    c.recompute == "full" and (c.zero_stage < 2 or c.tp > 1),
                    "your program must recompute the layers, because lightning.yaml can enable recomputation only for FSDP",
                ),
            )
            command = (
                *(options["script"], "fit", *map(str, options["script_args"])),
                *("--config", "lightning.yaml"),
                f"--trainer.callbacks+={BAR}",
                f"--trainer.callbacks.refresh_rate={c.accumulation_steps}",
            )
            files = {"lightning.yaml": to_yaml(document)}
            return Launch(argv=(*start, *command), env=env, files=files, notes=(*on_cpu, *notes))
        trainer |= {
            "logger": False,
            "enable_checkpointing": False,
            "enable_progress_bar": False,
            "enable_model_summary": False,
            "use_distributed_sampler": False,
        }
        arguments = {
            "config": "lightning.yaml",
            "model": "model/config.json",
            "layer": hf_layer_class(workload.model),
            "seq-len": workload.seq_len,
            "micro-batch-size": c.micro_batch_size,
            "learning-rate": options["learning_rate"],
            "optimizer": workload.optimizer,
        }
        recompute = "--recompute" if c.zero_stage < 2 else "--recompute-layers"
        command = (
            *("train.py", *long_options(arguments), *data_arguments(options)),
            *((recompute,) if c.recompute == "full" else ()),
            *(("--compile",) if c.compile else ()),
        )
        return Launch(
            argv=(*start, *command),
            env=env,
            files={"lightning.yaml": to_yaml(document), **program_files(self.name, workload)},
            notes=(*on_cpu, *data_notes(options)),
        )

    def reader(self, options: Mapping[str, Any] | None = None) -> LineReader:
        """The JSON lines, or the progress bar of a program of your own."""
        return bar_reader() if (options or {}).get("script") else self.parse_line

    def step_line_test(self, options: Mapping[str, Any] | None = None) -> LineTest:
        """Steps are counted each time the bar is redrawn, so no redraw may be skipped."""
        if not (options or {}).get("script"):
            return super().step_line_test(options)
        return LineTest(
            may_tell=lambda line: is_bar_line(line) or parse_step_line(line) is not None,
            marks=("{", "|"),
        )


def _trainer(
    workload: Workload, c: ParallelConfig, placement: Placement, options: Mapping[str, Any]
) -> dict[str, Any]:
    """The arguments of Trainer."""
    return {
        "accelerator": "cpu" if workload.cluster.gpu.is_cpu else "gpu",
        "devices": placement.nproc_per_node,
        "num_nodes": placement.nnodes,
        "strategy": _strategy(c, options),
        "precision": PURE_BF16 if workload.pure_bf16 else PRECISIONS[c.precision],
        "accumulate_grad_batches": c.accumulation_steps,
        "max_steps": options["steps"],
    }


def _strategy(c: ParallelConfig, options: Mapping[str, Any]) -> str | dict[str, Any]:
    if c.tp > 1:
        sizes = {"data_parallel_size": c.dp, "tensor_parallel_size": c.tp}
        return {
            "class_path": "lightning.pytorch.strategies.ModelParallelStrategy",
            "init_args": sizes,
        }
    if c.zero_stage >= 2:
        arguments: dict[str, Any] = {"sharding_strategy": SHARDING[c.zero_stage]}
        if options["script"]:
            layers = [needs(options, "layer_class", "FSDP wraps your model's layers")]
            arguments["auto_wrap_policy"] = layers
            if c.recompute == "full":
                arguments["activation_checkpointing_policy"] = layers
        return {"class_path": "lightning.pytorch.strategies.FSDPStrategy", "init_args": arguments}
    if c.zero_stage == 1:
        return "deepspeed_stage_1"
    return "ddp" if c.world_size > 1 else "auto"


def is_bar_line(line: str) -> bool:
    """Whether `bar_reader` reads the line as a bar."""
    return _DRAWN.match(clean(line)[:MAX_SEARCHED]) is not None


def bar_reader() -> LineReader:
    """Reads one program's log: bars, and JSON objects of a program that prints them."""
    per_step, before, last = 0, 0, (0, 0)

    def read(line: str) -> StepMetrics | None:
        nonlocal per_step, before, last
        text = clean(line)[:MAX_SEARCHED]
        found = _DRAWN.match(text)
        if found is None:
            return parse_step_line(line)
        epoch, batches = here = (int(found[1]), int(found[2]))
        if epoch != last[0] and per_step:
            before += -(-last[1] // per_step)  # the last step of an epoch may have fewer batches
        is_drawn_again, last = here == last, here
        if not batches or (not per_step and found[2] == found[3]):
            return None
        per_step = per_step or batches
        if not is_drawn_again or batches % per_step:
            return None
        return StepMetrics(
            step=before + batches // per_step, loss=number_in(text, _BAR_LOSS), ends_step=True
        )

    return read


TRAINER = LightningTrainer()
