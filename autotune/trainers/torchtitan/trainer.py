"""torchtitan: a job file for release 0.2 (`job_file.py`), a Python configuration from 0.3 on
(`config.py`), with the model's exact sizes.

The releases differ in what they can express; the limits say it by release.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, ClassVar

from autotune.spec import ParallelConfig, Workload
from autotune.spec.hugging_face.figures import figures_of
from autotune.spec.texts.as_text import notes_of
from autotune.trainers.base.effective import cpu_note, effective, word_limit
from autotune.trainers.base.limit import Limit, Rule, broken, next_multiple
from autotune.trainers.base.torchrun import ranks_started, tf32_environment
from autotune.trainers.base.trained_families import TORCHTITAN, who_trains
from autotune.trainers.base.trainer import (
    SHARED_OPTIONS,
    Option,
    StepMetrics,
    Trainer,
    clean,
    needs,
    number,
)
from autotune.trainers.base.trainer_option import Reach
from autotune.trainers.launch_files import Launch
from autotune.trainers.present_configuration import SETTINGS, PresentConfiguration, Reading
from autotune.trainers.torchtitan import config as torchtitan_config
from autotune.trainers.torchtitan import job_file
from autotune.trainers.torchtitan.knobs import stage_limits
from autotune.trainers.torchtitan.model import model_limits

_LINE = re.compile(
    r"(?<!validate )step: *(\d+) +loss: *([-+0-9.eEnaif]+) +(?:grad_norm: *([-+0-9.eEnaif]+) +)?"
    r"memory: *([0-9.]+)GiB\([0-9.]+%\) +tps: *([0-9,]+)"
)


RECOMPUTED = "torchtitan recomputes either whole layers, or operators by its own policy (selective)"


class TorchtitanTrainer(Trainer):
    """torchtitan's pretraining."""

    name = "torchtitan"
    families = frozenset(TORCHTITAN)
    shapes = frozenset({"num_dense_layers", "shared_ffn_hidden_size", "kv_lora_rank"})
    summary = "torchtitan's Llama, Qwen3, DeepSeek or gpt-oss from a Python configuration (0.3), or its Llama from a TOML job file (0.2)"
    checked_against = "torchtitan 0.2.2, 0.3.0"
    rotary_scalings = frozenset({"llama3", "yarn"})
    no_adapters = "release 0.2 has no adapters, and 0.3 keeps frozen weights in fp32, which the memory estimate does not count"
    has_own_attention = True
    reads = frozenset({
        "tp", "pp", "dp", "cp", "ep", "micro_batch_size", "accumulation_steps", "precision",
        "recompute", "zero_stage", "sequence_parallel", "pp_schedule", "virtual_stages", "compile",
        "dp_replicas", "pp_split", "loss", "cp_style", "activation_budget", "async_tp",
    })  # fmt: skip
    cannot: ClassVar = {
        "recompute=norm": RECOMPUTED,
        "recompute=mlp": RECOMPUTED,
        "precision=nvfp4": "torchtitan's launches quantize to 8 bits",
        "loss=fused": "torchtitan computes the loss over all logits at once or in chunks",
        "cp_style=heads": "torchtitan's context parallelism passes keys and values around",
        "offload": "torchtitan's offloading also moves the weights to host memory, not only the optimizer or the activations",
        "cuda_graph": "release 0.2 has no CUDA graphs, and 0.3 captures the step by default if there is no pipeline",
        "dispatcher": "torchtitan's launches always use all-to-all for experts (dispatcher=alltoall)",
        "ep_overlap": "torchtitan does not hide the all-to-all behind another micro-batch; use ep_overlap=false",
    }
    optimizers = frozenset({"adamw"})
    trains_pure_bf16 = True
    can_import = True
    watching = (
        "profiling.*", "profiler.*", "metrics.enable_tensorboard", "metrics.enable_wandb", "metrics.save_tb_folder",
    )  # fmt: skip
    recognized_by = (
        "tensor_parallel_degree",
        "data_parallel_shard_degree",
        "parallelism.tensor_parallel_degree",
        "parallelism.data_parallel_shard_degree",
        "activation_checkpoint.mode",
        "training.local_batch_size",
    )
    settings_file = "torchtitan.toml"
    options = (
        *SHARED_OPTIONS,
        SETTINGS,
        Option(
            name="version",
            meaning="installed release: 0.2 or 0.3",
            default="0.3",
            choices=("0.2", "0.3"),
            reach=Reach.NOTHING,
        ),
        Option(
            name="hf_assets_path",
            meaning="folder with the tokenizer's files (tokenizer.json)",
            default="",
            is_path=True,
            reach=Reach.FILE,
        ),
        Option(
            name="dataset",
            meaning="registered dataset: c4, c4_test",
            default="c4",
            reach=Reach.NOTHING,
        ),
        Option(
            name="dataset_path",
            meaning="path of the dataset, if not in the default location",
            default="",
            is_path=True,
            reach=Reach.FILE,
        ),
    )

    def find_limits(
        self, workload: Workload, config: ParallelConfig, options: Mapping[str, Any]
    ) -> tuple[Limit, ...]:
        """Models that it has not, fp16, ZeRO 1, uneven stages; and what the release does not
        know."""
        c, model = effective(config), workload.model
        of_release = _limits_of_0_2 if options["version"] == "0.2" else _limits_of_0_3
        unscaled = "torchtitan trains in fp32, bf16, fp8 or mxfp8, without loss scaling"
        unit = c.tp * (2 * c.cp if c.cp > 1 else 1)
        return (
            *broken(
                workload,
                c,
                Rule(
                    not model.gated_mlp,
                    "model.gated_mlp",
                    "torchtitan's dense language models have Llama's layers (gated MLP, RMSNorm, rotary positions)",
                    remedy="use megatron, lightning or native",
                ),
            ),
            *word_limit(c, "precision", {"fp16": "bf16"}, unscaled),
            *of_release(workload, c),
            *broken(
                workload,
                c,
                Rule(
                    c.zero_stage == 1,
                    "zero_stage",
                    "FSDP2 shards gradients whenever it shards the optimizer",
                    2,
                ),
                Rule(
                    workload.seq_len % unit,
                    "workload.seq_len",
                    f"must be a multiple of tp={c.tp}, times 2 * cp if cp={c.cp} is above 1",
                    remedy=f"use {next_multiple(workload.seq_len, unit)}, or a smaller tp or cp",
                ),
                Rule(c.ep > 1 and not model.num_experts, "ep", "a dense model has no experts", 1),
                Rule(
                    c.async_tp and not c.compile,
                    "async_tp",
                    "the compiler splits the collectives, which needs compile=true",
                    False,
                ),
            ),
            *stage_limits(model, c),
        )

    def build(
        self, workload: Workload, config: ParallelConfig, options: Mapping[str, Any]
    ) -> Launch:
        """torchrun -m torchtitan.train with the configuration and the model's module beside it."""
        c = effective(config)
        because = "torchtitan reads text through a tokenizer"
        assets = needs(options, "hf_assets_path", because)
        start = ranks_started(workload, c, options)
        if options["version"] == "0.2":
            files = job_file.job_files(workload, c, options, assets)
            command, needed = (
                job_file.COMMAND,
                "this launch needs torchtitan 0.2 (pip install 'torchtitan<0.3')",
            )
        else:
            files = torchtitan_config.config_files(workload, c, options, assets)
            command, needed = (
                torchtitan_config.COMMAND,
                "this launch needs torchtitan 0.3 (pip install 'torchtitan>=0.3,<0.4')",
            )
        env = {
            "PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True",
            **tf32_environment(c.precision),
        }
        notes = notes_of(
            (True, f"{needed}; the `version` option selects a different release"),
            (
                options["version"] == "0.2",
                "estimates assume the loss function of release 0.3, which computes logits in chunks; 0.2 computes all logits at once and needs more memory",
            ),
            (
                c.recompute == "selective",
                "selective recomputation is torchtitan's per-operator policy, which recomputes more than attention",
            ),
        )
        return Launch(
            argv=(*start, *command),
            env=env,
            files=files,
            notes=(*cpu_note(workload, "torchtitan"), *notes),
        )

    def read_config(self, present: PresentConfiguration) -> Reading:
        """The job file or the Python configuration, and the module of the model."""
        is_python = any(
            name.endswith(".py") and "Trainer.Config(" in text
            for name, text in present.files.items()
        )
        if is_python:
            from autotune.trainers.torchtitan.read_python import read
        else:
            from autotune.trainers.torchtitan.read import read
        return read(present)

    def with_settings(self, launch: Launch, settings: Mapping[str, Any]) -> Launch:
        """The launch with further settings: in the job file of release 0.2, as options of the
        command from 0.3 on."""
        if self.settings_file in launch.files:
            return super().with_settings(launch, settings)
        return replace(launch, argv=(*launch.argv, *torchtitan_config.settings_words(settings)))

    step_marks = ("step:",)

    def parse_line(self, line: str) -> StepMetrics | None:
        """`step: 14  loss: 3.24405  grad_norm: 0.8319  memory: 9.46GiB(64.99%)  tps: 7,282  tflops: 0.52  mfu: 0.17%`."""
        found = _LINE.search(clean(line))
        if not found:
            return None
        gib, tps = number(found[4]), number(found[5])
        return StepMetrics(
            step=int(found[1]),
            loss=number(found[2]),
            grad_norm=number(found[3]),
            peak_memory_bytes=None if gib is None else gib * (1 << 30),
            tokens_per_s_per_gpu=tps,
        )


def _limits_of_0_2(workload: Workload, c: ParallelConfig) -> list[Limit]:
    model, figures = workload.model, figures_of(workload.model)
    is_other = figures is not None and figures.family != "llama"
    family, scaling = (figures.family, figures.rotary_scaling) if figures is not None else ("", "")
    who = (
        "use version=0.3, which trains this family"
        if family in TORCHTITAN
        else f"use {who_trains(family, but='torchtitan')}"
    )
    of_shape = (
        []
        if is_other or not (model.num_experts or model.kv_lora_rank)
        else model_limits(workload, c)
    )
    alone, replicas = c.tp * c.pp * c.cp == 1, c.dp * c.cp
    is_mixed = c.precision in ("bf16", "fp8", "mxfp8") and not workload.pure_bf16
    return [
        *broken(
            workload,
            c,
            Rule(
                is_other,
                "model.family",
                "torchtitan 0.2 launches build only torchtitan's Llama",
                remedy=who,
                value=family,
            ),
        ),
        *of_shape,
        *broken(
            workload,
            c,
            Rule(
                scaling == "yarn",
                "model.rope_scaling",
                "torchtitan 0.2 launches support only Llama 3.1's rotary scaling",
                remedy="version=0.3 supports YaRN",
                value="yarn",
            ),
            Rule(
                c.loss != "own",
                "loss",
                "torchtitan 0.2 computes the loss over all logits at once",
                "own",
            ),
            Rule(
                c.zero_stage == 0 and replicas > 1 and not alone,
                "zero_stage",
                "torchtitan 0.2's DDP works only without tensor, pipeline and context parallelism",
                2,
            ),
            Rule(
                c.zero_stage < 2 and not alone and replicas == 1 and is_mixed,
                "precision",
                "torchtitan 0.2's mixed precision with tp or pp needs FSDP, but with dp * cp = 1 there is nothing to shard",
                "fp32",
            ),
            Rule(
                c.precision == "mxfp8" and c.tp > 1 and c.compile,
                "compile",
                "torchtitan 0.2 does not compile tensor-parallel layers in mxfp8",
                False,
            ),
            Rule(
                c.tp > 1 and not c.sequence_parallel,
                "sequence_parallel",
                "torchtitan 0.2's tensor parallelism always shards the sequence",
                True,
            ),
            Rule(
                model.tied_embeddings,
                "model.tied_embeddings",
                "torchtitan 0.2's Llama model has a separate output projection",
                False,
            ),
            Rule(
                model.head_dim * model.num_attention_heads != model.hidden_size,
                "model.attention_head_dim",
                "torchtitan 0.2's head width is hidden_size / num_attention_heads",
                0 if model.hidden_size % model.num_attention_heads == 0 else None,
                "use version=0.3, which supports heads of any width",
                model.head_dim,
            ),
        ),
    ]


def _limits_of_0_3(workload: Workload, c: ParallelConfig) -> list[Limit]:
    return [
        *model_limits(workload, c),
        *broken(
            workload,
            c,
            Rule(c.loss == "chunked", "loss", "torchtitan 0.3 does this by default", "own"),
            Rule(
                c.cp_style == "gather",
                "cp_style",
                "torchtitan 0.3 has no setting for the style of context parallelism",
                "ring",
            ),
            Rule(
                c.zero_stage == 0 and c.cp > 1,
                "zero_stage",
                "torchtitan 0.3's context parallelism shards the weights across the cp ranks",
                2,
            ),
            Rule(
                workload.model.tied_embeddings and c.pp > 1,
                "model.tied_embeddings",
                "torchtitan 0.3 cannot share the embedding with the output projection across pipeline stages",
                False,
            ),
        ),
    ]


TRAINER = TorchtitanTrainer()
