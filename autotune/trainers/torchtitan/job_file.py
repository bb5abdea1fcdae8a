"""torchtitan 0.2: the TOML job file, and a module that registers a model of the exact sizes
(torchtitan's own flavors have fixed sizes).

Facts of its code (0.2.2) that the mapping rests on:
  - Mixed precision comes from FSDP or, on a mesh of one dimension, from autocast. With tp or pp and without FSDP there is none.
  - DDP works only without other axes; tensor parallelism always shards activations along the sequence.
  - Float8's recipes are tensorwise, rowwise and rowwise_with_gw_hp; mxfp8 needs a Blackwell GPU (components/quantization/mx.py).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from autotune.spec import ModelSpec, ParallelConfig, Workload
from autotune.spec.hugging_face.figures import figures_of
from autotune.trainers.documents.file_formats import to_toml
from autotune.trainers.documents.python_source import call, words
from autotune.trainers.torchtitan.knobs import (
    data_settings,
    parallelism_settings,
    rotary_scaling,
    training_settings,
)

COMMAND: tuple[str, ...] = ("-m", "torchtitan.train", "--job.config_file", "torchtitan.toml")
"""what torchrun starts"""
ROTATE_METHODS = {"ring": "alltoall", "gather": "allgather"}
"""values of context_parallel_rotate_method: alltoall passes keys and values on to the next rank"""

CONVERTERS = {"fp8": "float8", "mxfp8": "mx"}
"""section of quantize.linear, by precision"""
RECIPES = {"float8": "tensorwise", "mx": "mxfp8_cublas"}


def job_files(
    workload: Workload, c: ParallelConfig, options: Mapping[str, Any], assets: str
) -> dict[str, str]:
    """The job file and the model's module; `assets`: folder with the tokenizer's files."""
    return {
        "torchtitan.toml": to_toml(_sections(workload, c, options, assets)),
        "autotune_model.py": _model_module(workload.model),
    }


def _sections(
    workload: Workload, c: ParallelConfig, options: Mapping[str, Any], assets: str
) -> dict[str, dict[str, Any]]:
    checkpointing: dict[str, Any] = {
        "mode": c.recompute,
        "selective_ac_option": "op" if c.recompute == "selective" else None,
    }
    if c.activation_budget < 100:
        checkpointing = {"mode": "memory_budget", "memory_budget": c.activation_budget / 100}
    converter = CONVERTERS.get(c.precision)
    return {
        "job": {
            "description": f"{workload.model.name}, tuned by autotune",
            "dump_folder": "./outputs",
        },
        "experimental": {"custom_import": "autotune_model"},
        "model": {
            "name": "autotune_model",
            "flavor": "tuned",
            "hf_assets_path": assets,
            "converters": [f"quantize.linear.{converter}"] if converter else [],
        },
        "optimizer": {"name": "AdamW", "lr": options["learning_rate"], "eps": 1e-8},
        "lr_scheduler": {"warmup_steps": max(1, options["steps"] // 10)},
        "training": {**training_settings(workload, c, options["steps"]), **data_settings(options)},
        "parallelism": {
            **parallelism_settings(workload.model, c),
            "context_parallel_rotate_method": ROTATE_METHODS[c.cp_style] if c.cp > 1 else None,
            "enable_async_tensor_parallel": True if c.async_tp else None,
        },
        "activation_checkpoint": checkpointing,
        "compile": {"enable": c.compile, "components": ["model", "loss"]},
        "metrics": {"log_freq": 1, "disable_color_printing": True},
        "checkpoint": {"enable": False},
        "debug": {"seed": options["seed"]},
        **(_quantization(converter) if converter else {}),
    }


def _quantization(converter: str) -> dict[str, dict[str, Any]]:
    recipe = {"recipe_name": RECIPES[converter], "filter_fqns": ["output"]}
    return {"quantize": {"linear": {converter: recipe}}}


def _model_module(model: ModelSpec) -> str:
    """Source of the module that registers the model.

    torchtitan computes the feed-forward width as int(ffn_dim_multiplier * int(8/3 * dim)), rounded
    up to `multiple_of`; both are chosen to give ffn_hidden_size exactly.
    """
    arguments: dict[str, Any] = {
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
        # release 0.2 scales every model as Llama 3.1 is scaled, unless it is told otherwise; a
        # factor of 1 changes nothing
        scaling = rotary_scaling(model) or {"scaling_factor": 1.0}
        arguments["rope_scaling_args"] = call("RoPEScalingArgs", scaling)
    return (
        f'"""{words(model.name)} for torchtitan 0.2: imported by [experimental] custom_import of the job file."""\n\n'
        "from dataclasses import replace\n\n"
        "from torchtitan.models.llama3 import get_train_spec\n"
        "from torchtitan.models.llama3.model.args import RoPEScalingArgs, TransformerModelArgs\n"
        "from torchtitan.protocols.train_spec import register_train_spec\n\n"
        f"TUNED = {call('TransformerModelArgs', arguments)}\n\n"
        'register_train_spec("autotune_model", replace(get_train_spec(), model_args={"tuned": TUNED}))\n'
    )
