"""torchtitan 0.3: the configuration as a Python function that returns a Trainer.Config, beside the
module that builds the model.

    torchrun -m torchtitan.train --module autotune_config --config tuned

Facts of its code (0.3.0) that the mapping rests on:
  - Weights are always wrapped by fully_shard, over a mesh of one rank too, so mixed precision works beside every axis (models/llama3/parallelize.py).
  - Context parallelism shards weights over dp_shard * cp, so replicas that are copies on all of their ranks exist without it only
    (distributed/full_dtensor.py).
  - Embedding and output projection may be one weight, but not with a pipeline (models/common/decoder.py).
  - CUDA graphs are on by default and refuse a pipeline and, beside expert parallelism, a dispatcher that asks the host (trainer.py). Float8's recipes are rowwise and rowwise_with_gw_hp; mxfp8
    needs a Blackwell GPU (components/quantization/mx.py).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from autotune.spec import ParallelConfig, Workload
from autotune.trainers.base.bundled_program import program
from autotune.trainers.documents.python_source import Source, call, indented, words
from autotune.trainers.torchtitan.knobs import (
    data_settings,
    parallelism_settings,
    training_settings,
)
from autotune.trainers.torchtitan.model import builder_of, model_arguments

COMMAND: tuple[str, ...] = (
    "-m",
    "torchtitan.train",
    "--module",
    "autotune_config",
    "--config",
    "tuned",
)
"""what torchrun starts"""
_RECOMPUTE = {
    "none": None,
    "selective": Source("SelectiveAC.Config()"),
    "full": Source("FullAC.Config()"),
}
_IMPORTS = """\
from autotune_model import {builder}
from torchtitan.components.loss import ChunkedLossWrapper, CrossEntropyLoss
from torchtitan.components.metrics import MetricsProcessor
from torchtitan.components.optimizer import LRSchedulersContainer, default_adamw
from torchtitan.components.quantization import Float8LinearConverter, MXFP8LinearConverter
from torchtitan.config import CompileConfig, ParallelismConfig, TrainingConfig
from torchtitan.config.configs import DebugConfig
from torchtitan.distributed.activation_checkpoint import FullAC, MemoryBudgetAC, SelectiveAC
from torchtitan.hf_datasets.text_datasets import HuggingFaceTextDataLoader
from torchtitan.trainer import Trainer
"""


def config_files(
    workload: Workload, c: ParallelConfig, options: Mapping[str, Any], assets: str
) -> dict[str, str]:
    """The configuration and the model's module; `assets`: folder with the tokenizer's files."""
    document = call("Trainer.Config", _settings(workload, c, options, assets))
    source = (
        f'"""{words(workload.model.name)} for torchtitan 0.3, tuned by autotune."""\n\n'
        f"{_IMPORTS.format(builder=builder_of(workload.model))}\n\n"
        f"def tuned() -> Trainer.Config:\n"
        '    """What `--config tuned` selects."""\n'
        f"    return {indented(document)}\n"
    )
    return {"autotune_config.py": source, "autotune_model.py": program("torchtitan/model.py")}


def _settings(
    workload: Workload, c: ParallelConfig, options: Mapping[str, Any], assets: str
) -> dict[str, Any]:
    model = workload.model
    training = training_settings(workload, c, options["steps"])
    no_graphs = {"disable_cuda_graphs": True} if c.pp > 1 or model.num_experts else {}
    loss = call("CrossEntropyLoss.Config", {"global_vocab_size": model.vocab_size})
    parallelism = {
        **parallelism_settings(model, c),
        "enable_sequence_parallel": c.tp == 1 or c.sequence_parallel,
        **({"expert_parallel_degree": c.ep} if model.num_experts else {}),
    }
    compiled = {
        "enable": c.compile,
        "components": ["model", "loss"],
        **({"enable_async_tensor_parallel": True} if c.async_tp else {}),
    }
    return {
        "model_spec": call(builder_of(model), model_arguments(model, c, workload.seq_len)),
        "hf_assets_path": assets,
        "training": call("TrainingConfig", {**training, **no_graphs}),
        "parallelism": call("ParallelismConfig", parallelism),
        "activation_checkpoint": _RECOMPUTE[c.recompute]
        if c.activation_budget == 100
        else call("MemoryBudgetAC.Config", {"memory_budget": c.activation_budget / 100}),
        "compile": call("CompileConfig", compiled),
        "loss": loss if c.loss == "full" else call("ChunkedLossWrapper.Config", {"loss_fn": loss}),
        "optimizer": call("default_adamw", {"lr": options["learning_rate"]}),
        "lr_scheduler": call(
            "LRSchedulersContainer.Config", {"warmup_steps": max(1, options["steps"] // 10)}
        ),
        "dataloader": call("HuggingFaceTextDataLoader.Config", data_settings(options)),
        "metrics": call("MetricsProcessor.Config", {"log_freq": 1, "disable_color_printing": True}),
        "debug": call("DebugConfig", {"seed": options["seed"]}),
    }


def settings_words(settings: Mapping[str, Any], path: str = "") -> tuple[str, ...]:
    """Further settings as options of the command: `--training.gc_freq=7`, and `--compile.enable` or
    `--compile.no-enable` for flags."""
    found: list[str] = []
    for name, value in settings.items():
        if isinstance(value, Mapping):
            found += settings_words(value, f"{path}{name}.")
        elif isinstance(value, bool):
            found.append(f"--{path}{name}" if value else f"--{path}no-{name}")
        else:
            found.append(
                f"--{path}{name}={','.join(map(str, value)) if isinstance(value, list | tuple) else value}"
            )
    return tuple(found)
