"""Activation checkpointing and compilation of the layers of a stage.

`full` stores only each layer's input and runs the layer again in the backward pass (Chen et al.
2016, arXiv:1604.06174). The other modes do so for one kind of module: `selective` for attention,
whose activations are large relative to their cost (Korthikanti et al. 2022, section 5), `mlp` for
the MLP or the experts, `norm` for the norms and the MLP's activation function, which are cheap to
recompute.
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
"""variables that silently disable torch's compiler"""


def apply_recompute(stage: DecoderStage, mode: str) -> None:
    """Recompute the modules of each layer that belong to the mode."""
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
    """Store only the inputs of these modules, and run them again in the backward pass."""
    for module in modules:
        _replace_forward(module, functools.partial(checkpoint, module.forward, use_reentrant=False))


def check_compiler(device: torch.device) -> None:
    """Raise `ConfigError` if layers cannot be compiled here, or a variable disables the compiler."""
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
    """Compile each layer separately, so that equal layers share one compilation."""
    for block in layers:
        _replace_forward(block, torch.compile(block.forward, dynamic=False))


def _replace_forward(module: nn.Module, forward: Callable[..., Any]) -> None:
    # set on the instance, which keeps parameter names and the hooks of tensor and data parallelism
    module.forward = forward
