"""Activation checkpointing and compilation of the layers of a stage.

`full` keeps only each layer's input and runs the layer again in the backward pass (Chen et al. 2016, arXiv:1604.06174); `selective`
does so for attention alone, the part whose activations are large for what they cost (Korthikanti et al. 2022, section 5).
"""

from __future__ import annotations

import functools
import importlib.util
import os
import shutil
from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from autotune.errors import ConfigError
from autotune_workers.training.decoder import DecoderStage

_SWITCHED_OFF = ("TORCHDYNAMO_DISABLE", "TORCH_COMPILE_DISABLE")
"""variables with which torch compiles nothing, without a word"""


def apply_recompute(stage: DecoderStage, mode: str) -> None:
    """Checkpoints nothing, the attention or the whole of each layer."""
    for block in stage.layers.values():
        if mode == "full":
            _replace_forward(block, functools.partial(checkpoint, block.forward, use_reentrant=False))
        elif mode == "selective":
            attention = block.attention
            _replace_forward(attention, functools.partial(checkpoint, attention.forward, use_reentrant=False))


def check_compiler(device: torch.device) -> None:
    """Raises `ConfigError` when layers cannot be compiled here, or torch was told not to."""
    for name in _SWITCHED_OFF:
        if os.environ.get(name) == "1":
            raise ConfigError(
                f"compile is switched off by {name}=1", remedy="unset it, or use compile=false", field="compile"
            )
    if device.type == "cuda" and importlib.util.find_spec("triton") is None:
        raise ConfigError(
            "compile on a GPU needs triton, which is not installed", remedy="install triton", field="compile"
        )
    names = [name for name in (os.environ.get("CXX"), "g++", "clang++", "c++") if name]
    if device.type == "cpu" and not any(map(shutil.which, names)):
        raise ConfigError(
            "compile on a CPU needs a C++ compiler, but none is installed", remedy="install g++", field="compile"
        )


def apply_compile(stage: DecoderStage) -> None:
    """Compiles each layer by itself: equal layers share one compilation."""
    for block in stage.layers.values():
        _replace_forward(block, torch.compile(block.forward, dynamic=False))


def _replace_forward(module: nn.Module, forward: Callable[..., Any]) -> None:
    # on the instance, so that parameter names and the hooks of tensor and data parallelism stay as they are
    module.forward = forward
