"""torchtitan 0.2: a TOML job file, and a module that registers a model of the exact sizes (torchtitan's own flavours have fixed sizes).

Facts of its code (0.2.2) that the mapping rests on:
  - dp is either replicated (DDP, only without other axes) or sharded (FSDP2). FSDP2 that keeps weights gathered after the forward pass is ZeRO 2;
    FSDP2 that reshards them is ZeRO 3; there is no ZeRO 1 (distributed/utils.py, models/llama3/infra/parallelize.py).
  - Mixed precision comes from FSDP or, on a mesh of one dimension, from autocast. With tp or pp and without FSDP there is none.
  - With a pipeline, local_batch_size is the batch of a whole step and pipeline_parallel_microbatch_size the micro-batch. Without one, the
    accumulation is global_batch_size / (local_batch_size * dp).
  - Tensor parallelism always shards activations along the sequence.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from typing import Any

from autotune.spec import ModelSpec, ParallelConfig, Workload
from autotune.spec.model_figures import figures_of
from autotune.trainers.effective import cpu_note, effective, word_limit
from autotune.trainers.file_formats import to_toml
from autotune.trainers.launch_files import Launch
from autotune.trainers.limit import Limit
from autotune.trainers.present import SETTINGS, Present, Reading
from autotune.trainers.readers import torchtitan_toml
from autotune.trainers.torchrun import place, tf32_environment, torchrun
from autotune.trainers.trainer import SHARED_OPTIONS, Option, StepMetrics, Trainer, clean, needs, number

SCHEDULES = {
    "gpipe": "GPipe",
    "1f1b": "1F1B",
    "interleaved_1f1b": "Interleaved1F1B",
    "interleaved_zero_bubble": "InterleavedZeroBubble",
}
"""names as in `torch.distributed.pipelining.schedules.get_schedule_class`"""
_LINE = re.compile(
    r"(?<!validate )step: *(\d+) +loss: *([-+0-9.eEnaif]+) +(?:grad_norm: *([-+0-9.eEnaif]+) +)?"
    r"memory: *([0-9.]+)GiB\([0-9.]+%\) +tps: *([0-9,]+)"
)


class TorchtitanTrainer(Trainer):
    """torchtitan's Llama pretraining."""

    name = "torchtitan"
    families = frozenset({"llama"})
    summary = "torchtitan 0.2.2, TOML job file and Llama model"
    checked_against = "torchtitan 0.2.2"
    reads = frozenset({
        "tp", "pp", "dp", "cp", "ep", "micro_batch_size", "accumulation_steps", "precision",
        "recompute", "zero_stage", "sequence_parallel", "pp_schedule", "virtual_stages", "compile",
    })  # fmt: skip
    imports = True
    settings_file = "torchtitan.toml"
    options = (
        *SHARED_OPTIONS,
        SETTINGS,
        Option(name="hf_assets_path", meaning="folder with the tokenizer's files (tokenizer.json)", default=""),
        Option(name="dataset", meaning="registered dataset: c4, c4_test", default="c4"),
        Option(name="dataset_path", meaning="path of the dataset, where it is not its usual place", default=""),
    )

    def find_limits(self, workload: Workload, config: ParallelConfig, options: Mapping[str, Any]) -> tuple[Limit, ...]:
        """Models other than Llama, fp16, ZeRO 1, DDP with another axis, tensor without sequence parallelism."""
        c = effective(config)
        limits = [
            *_model_limits(workload.model),
            *word_limit(
                c, "precision", {"fp16": "bf16"}, "torchtitan trains in fp32, bf16 or fp8, without loss scaling"
            ),
        ]

        def limit(knob: str, value: Any, message: str, nearest: Any = None) -> None:
            limits.append(Limit(knob=knob, value=value, message=message, nearest=nearest))

        sharded = c.zero_stage >= 2
        alone = c.tp * c.pp * c.cp == 1
        if c.zero_stage == 1:
            limit("zero_stage", 1, "FSDP2 shards gradients whenever it shards the optimizer", 2)
        elif c.zero_stage == 0 and c.dp * c.cp > 1 and not alone:
            limit("zero_stage", 0, "DDP works only without tensor, pipeline and context parallelism", 2)
        if not sharded and not alone and c.dp * c.cp == 1 and c.precision in ("bf16", "fp8"):
            limit(
                "precision",
                c.precision,
                "mixed precision with tp or pp needs FSDP, but with dp * cp = 1 there is nothing to shard",
                "fp32",
            )
        if c.tp > 1 and not c.sequence_parallel:
            limit("sequence_parallel", False, "its tensor parallelism always shards the sequence", True)
        if workload.seq_len % (c.tp * (2 * c.cp if c.cp > 1 else 1)):
            limit(
                "workload.seq_len",
                workload.seq_len,
                f"must be a multiple of tp={c.tp} times 2 * cp where cp={c.cp} is above 1",
            )
        if c.ep > 1:
            limit("ep", c.ep, "its Llama model has no experts", 1)
        if workload.optimizer != "adamw":
            limit("workload.optimizer", workload.optimizer, "its optimizers are Adam and AdamW", "adamw")
        limits += _stage_limits(workload.model, c)
        return tuple(limits)

    def build(self, workload: Workload, config: ParallelConfig, options: Mapping[str, Any]) -> Launch:
        """torchrun -m torchtitan.train with a job file and the model's module beside it."""
        c = effective(config)
        because = "torchtitan reads text through a tokenizer"
        assets = needs(options, "hf_assets_path", because)
        start = torchrun(
            place(workload.cluster, c), master_addr=options["master_addr"], master_port=options["master_port"]
        )
        sections = _sections(workload, c, options, assets)
        env = {"PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True", **tf32_environment(c.precision)}
        notes = [
            *cpu_note(workload, "torchtitan"),
            "needs torchtitan 0.2 (pip install 'torchtitan<0.3'): 0.3 has no TOML",
        ]
        if c.recompute == "selective":
            notes.append(
                "selective recomputation is torchtitan's per-operator policy, which recomputes more than attention"
            )
        return Launch(
            argv=(*start, "-m", "torchtitan.train", "--job.config_file", "torchtitan.toml"),
            env=env,
            files={"torchtitan.toml": to_toml(sections), "autotune_model.py": _model_module(workload.model)},
            notes=tuple(notes),
        )

    def read_config(self, present: Present) -> Reading:
        """The job file, and the module of the model."""
        return torchtitan_toml.read(present)

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


def _model_limits(model: ModelSpec) -> tuple[Limit, ...]:
    found = []
    if not model.gated_mlp:
        found.append(
            Limit(
                knob="model.gated_mlp",
                value=False,
                message="its dense language model is Llama's: gated MLP, RMSNorm, rotary positions",
            )
        )
    if model.num_experts:
        found.append(Limit(knob="model.num_experts", value=model.num_experts, message="it has no Mixtral model"))
    if model.tied_embeddings:
        found.append(
            Limit(
                knob="model.tied_embeddings",
                value=True,
                message="its Llama model has an output projection of its own",
                nearest=False,
            )
        )
    if model.head_dim * model.num_attention_heads != model.hidden_size:
        found.append(
            Limit(
                knob="model.attention_head_dim",
                value=model.head_dim,
                message="the width of its heads is hidden_size / num_attention_heads",
                nearest=0 if model.hidden_size % model.num_attention_heads == 0 else None,
            )
        )
    return tuple(found)


def _stage_limits(model: ModelSpec, c: ParallelConfig) -> tuple[Limit, ...]:
    if c.pp == 1:
        return ()
    stages = c.pp * c.virtual_stages
    interleaved = c.pp_schedule.startswith("interleaved")
    if interleaved and c.virtual_stages < 2:
        message = f"{SCHEDULES[c.pp_schedule]} needs at least two stages per rank"
        return (Limit(knob="virtual_stages", value=c.virtual_stages, message=message, nearest=2),)
    if stages > model.num_layers or _layers_per_stage(model, c) == 0:
        message = f"{model.num_layers} layers cannot be split into {stages} stages with equally many layers per stage"
        return (Limit(knob="virtual_stages", value=c.virtual_stages, message=message),)
    return ()


def _layers_per_stage(model: ModelSpec, c: ParallelConfig) -> int | None:
    """Layers per stage that give pp * virtual_stages stages. None: torchtitan's default (1 or 2 stages per rank); 0: impossible."""
    if c.virtual_stages <= 2:
        return None
    stages = c.pp * c.virtual_stages
    layers = math.ceil(model.num_layers / stages)
    return layers if math.ceil(model.num_layers / layers) == stages else 0


def _sections(
    workload: Workload, c: ParallelConfig, options: Mapping[str, Any], assets: str
) -> dict[str, dict[str, Any]]:
    local = c.micro_batch_size * (c.accumulation_steps if c.pp > 1 else 1)
    parallelism: dict[str, Any] = {
        "data_parallel_replicate_degree": 1 if c.zero_stage else c.dp,
        "data_parallel_shard_degree": c.dp if c.zero_stage else 1,
        "fsdp_reshard_after_forward": "always" if c.zero_stage == 3 else "never",
        "tensor_parallel_degree": c.tp,
        "pipeline_parallel_degree": c.pp,
        "context_parallel_degree": c.cp,
    }
    if c.pp > 1:
        parallelism |= {
            "pipeline_parallel_schedule": SCHEDULES[c.pp_schedule],
            "pipeline_parallel_microbatch_size": c.micro_batch_size,
            "pipeline_parallel_first_stage_less_layers": 0,
            "pipeline_parallel_last_stage_less_layers": 0,
        }
        if layers := _layers_per_stage(workload.model, c):
            parallelism["pipeline_parallel_layers_per_stage"] = layers
    training: dict[str, Any] = {
        "local_batch_size": local,
        "global_batch_size": c.global_batch_size,
        "seq_len": workload.seq_len,
        "steps": options["steps"],
        "max_norm": 1.0,
        "dtype": "float32",
        "mixed_precision_param": "float32" if c.precision in ("fp32", "tf32") else "bfloat16",
        "mixed_precision_reduce": "float32",
        "dataset": options["dataset"],
    }
    if options["dataset_path"]:
        training["dataset_path"] = options["dataset_path"]
    checkpointing = {"mode": c.recompute}
    if c.recompute == "selective":
        checkpointing["selective_ac_option"] = "op"
    sections: dict[str, dict[str, Any]] = {
        "job": {"description": f"{workload.model.name}, tuned by autotune", "dump_folder": "./outputs"},
        "experimental": {"custom_import": "autotune_model"},
        "model": {
            "name": "autotune_model",
            "flavor": "tuned",
            "hf_assets_path": assets,
            "converters": ["quantize.linear.float8"] if c.precision == "fp8" else [],
        },
        "optimizer": {"name": "AdamW", "lr": options["learning_rate"], "eps": 1e-8},
        "lr_scheduler": {"warmup_steps": max(1, options["steps"] // 10)},
        "training": training,
        "parallelism": parallelism,
        "activation_checkpoint": checkpointing,
        "compile": {"enable": c.compile, "components": ["model", "loss"]},
        "metrics": {"log_freq": 1, "disable_color_printing": True},
        "checkpoint": {"enable": False},
        "debug": {"seed": options["seed"]},
    }
    if c.precision == "fp8":
        sections["quantize"] = {"linear": {"float8": {"recipe_name": "tensorwise", "filter_fqns": ["output"]}}}
    return sections


def _model_module(model: ModelSpec) -> str:
    """Source of the module that registers the model.

    torchtitan computes the feed-forward width as int(ffn_dim_multiplier * int(8/3 * dim)), rounded up to `multiple_of`; both are chosen to give
    ffn_hidden_size exactly.
    """
    arguments = {
        "dim": model.hidden_size,
        "n_layers": model.num_layers,
        "n_heads": model.num_attention_heads,
        "n_kv_heads": model.num_kv_heads,
        "vocab_size": model.vocab_size,
        "multiple_of": model.ffn_hidden_size,
        "ffn_dim_multiplier": model.ffn_hidden_size / int(2 * (4 * model.hidden_size) / 3),
        "rope_theta": 500000,
    }
    if figures := figures_of(model):
        given = {"rope_theta": figures.rotary_base, "norm_eps": figures.norm_epsilon}
        arguments |= {name: value for name, value in given.items() if value is not None}
    body = "".join(f"    {name}={value!r},\n" for name, value in arguments.items())
    return (
        f'"""{_plain(model.name)} for torchtitan 0.2: imported by [experimental] custom_import of the job file."""\n\n'
        "from dataclasses import replace\n\n"
        "from torchtitan.models.llama3 import get_train_spec\n"
        "from torchtitan.models.llama3.model.args import TransformerModelArgs\n"
        "from torchtitan.protocols.train_spec import register_train_spec\n\n"
        f"TUNED = TransformerModelArgs(\n{body})\n\n"
        'register_train_spec("autotune_model", replace(get_train_spec(), model_args={"tuned": TUNED}))\n'
    )


def _plain(name: str) -> str:
    return re.sub(r"[^A-Za-z0-9_. -]", "_", name)[:80]


TRAINER = TorchtitanTrainer()
