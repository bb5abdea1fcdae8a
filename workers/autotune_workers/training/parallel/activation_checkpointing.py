"""Activation checkpointing and compilation of the layers of a stage.

`full` keeps only each layer's input and runs the layer again in the backward pass (Chen et al.
2016, arXiv:1604.06174). The others do so for one kind of module alone: `selective` for attention,
whose activations are large for what they cost (Korthikanti et al. 2022, section 5), `mlp` for the
MLP or the experts, `norm` for the norms and the MLP's activation function, which cost next to
nothing.
"""

from __future__ import annotations

import functools
import importlib.util
import os
import shutil
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from autotune.errors import ConfigError
from autotune_workers.training.model.decoder import Activation, DecoderStage

_SWITCHED_OFF = ("TORCHDYNAMO_DISABLE", "TORCH_COMPILE_DISABLE")
"""variables with which torch compiles nothing, without a word"""


def apply_recompute(stage: DecoderStage, mode: str) -> None:
    """Checkpoints the modules of each layer that the mode names."""
    for block in stage.layers.values():
        modules = {
            "none": (),
            "norm": (
                *(block.attention_norm, block.mlp_norm),
                *(module for module in block.mlp.modules() if isinstance(module, Activation)),
            ),
            "mlp": (block.mlp,),
            "selective": (block.attention,),
            "full": (block,),
        }[mode]
        recompute(modules)


def recompute(modules: Iterable[nn.Module]) -> None:
    """Has each of the modules keep its inputs alone, and run again in the backward pass."""
    for module in modules:
        _replace_forward(module, functools.partial(checkpoint, module.forward, use_reentrant=False))


def check_compiler(device: torch.device) -> None:
    """Raises `ConfigError` when layers cannot be compiled here, or torch was told not to."""
    for name in _SWITCHED_OFF:
        if os.environ.get(name) == "1":
            raise ConfigError(
                f"compile is switched off by {name}=1",
                remedy="unset this variable, or use compile=false",
                field="compile",
            )
    if device.type == "cuda" and importlib.util.find_spec("triton") is None:
        raise ConfigError(
            "compile on a GPU needs triton, which is not installed",
            remedy="install triton",
            field="compile",
        )
    names = [name for name in (os.environ.get("CXX"), "g++", "clang++", "c++") if name]
    if device.type == "cpu" and not any(map(shutil.which, names)):
        raise ConfigError(
            "compile on a CPU needs a C++ compiler, but none is installed",
            remedy="install g++",
            field="compile",
        )


def apply_compile(layers: Iterable[nn.Module]) -> None:
    """Compiles each layer by itself: equal layers share one compilation."""
    for block in layers:
        _replace_forward(block, torch.compile(block.forward, dynamic=False))


def _replace_forward(module: nn.Module, forward: Callable[..., Any]) -> None:
    # on the instance, so that parameter names and the hooks of tensor and data parallelism stay as
    # they are
    module.forward = forward
