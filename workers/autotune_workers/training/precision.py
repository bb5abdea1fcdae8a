"""Number formats of a trial: hardware support, dtype of the activations, and dynamic loss scaling
for fp16.

Weights, gradients and optimizer state are fp32 in every precision (Micikevicius et al. 2018,
arXiv:1710.03740, section 3.1); the precision sets the dtype of activations and matrix products. A
precision that the hardware lacks is refused, never replaced.
"""

from __future__ import annotations

import importlib.util
import math
from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import nn

from autotune.errors import ConfigError
from autotune.ports import TrialRequest
from autotune.spec import ModelSpec, ParallelConfig

DTYPES = {
    "fp32": torch.float32,
    "tf32": torch.float32,
    "bf16": torch.bfloat16,
    "fp16": torch.float16,
    "fp8": torch.bfloat16,
}
"""Dtype of the activations by precision; fp8 applies to matrix products only."""
FP8_MULTIPLE = 16
"""torch._scaled_mm needs matrix sizes that are multiples of this"""
LOSS_SCALE = 2.0**16
"""initial loss scale of fp16, the default of torch.amp.GradScaler"""


def check_precision(config: ParallelConfig, model: ModelSpec, device: torch.device) -> None:
    """Raises `ConfigError` if this device does not support the precision, or the rest of the config
    does not support fp8."""
    precision = config.precision
    capability = torch.cuda.get_device_capability(device) if device.type == "cuda" else (0, 0)
    where = f"this rank computes on {device.type}" + (
        f" of capability {capability[0]}.{capability[1]}" if any(capability) else ""
    )
    needed = {"tf32": (8, 0), "bf16": (8, 0), "fp8": (8, 9)}.get(precision)
    if precision == "bf16" and device.type == "cpu":
        return
    if needed is not None and capability < needed:
        raise ConfigError(
            f"precision {precision} needs a CUDA device of capability {needed[0]}.{needed[1]} or newer, but {where}",
            remedy="use fp32" if device.type == "cpu" else "use fp16 or fp32",
            field="precision",
        )
    if precision == "fp8" and importlib.util.find_spec("torchao") is None:
        raise ConfigError(
            "precision fp8 needs torchao, which is not installed",
            remedy="install torchao",
            field="precision",
        )
    if precision == "fp8" and (config.tp > 1 or config.zero_stage < 2):
        raise ConfigError(
            f"precision fp8 needs matrices that are not split and that FSDP gathers in bf16, but tp={config.tp} and "
            f"zero_stage={config.zero_stage}",
            remedy="use tp=1 and zero_stage 2 or 3",
            field="precision",
        )
    if precision == "fp8" and (model.hidden_size % 16 or model.ffn_hidden_size % 16):
        raise ConfigError(
            "precision fp8 needs matrix sizes that are multiples of 16, "
            f"but hidden_size={model.hidden_size} and ffn_hidden_size={model.ffn_hidden_size}",
            field="precision",
        )


@contextmanager
def matrix_products(precision: str) -> Iterator[None]:
    """Within the block, fp32 matrix products use tf32 if the precision is tf32, and full fp32
    otherwise."""
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("high" if precision == "tf32" else "highest")
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before)


def to_float8(module: nn.Module) -> None:
    """Replaces the linear layers that `takes_float8` selects by torchao's fp8 ones (tensor-wise
    dynamic scaling)."""
    from torchao.float8 import convert_to_float8_training

    convert_to_float8_training(module, module_filter_fn=takes_float8)


def takes_float8(module: nn.Module, name: str) -> bool:
    """Whether the module with this name computes in fp8: a linear layer within a decoder layer
    whose sizes are multiples of 16.

    Routers are excluded because their logits decide where tokens go (DeepSeek-V3, arXiv:2412.19437,
    section 3.3.1, excludes them too); experts because the number of tokens of an expert is seldom a
    multiple of 16.
    """
    if not isinstance(module, nn.Linear) or "layers." not in name:
        return False
    is_routed = any(part in ("router", "experts") for part in name.split("."))
    return (
        not is_routed
        and module.in_features % FP8_MULTIPLE == 0
        and module.out_features % FP8_MULTIPLE == 0
    )


def first_loss_scale(request: TrialRequest) -> float:
    """The trainer option `loss_scale`, the initial loss scale of fp16. Raises `ConfigError` for a
    scale below 1."""
    scale = request.trainer_options.get("loss_scale", LOSS_SCALE)
    if isinstance(scale, bool) or not isinstance(scale, int | float) or not 1 <= scale < math.inf:
        raise ConfigError(
            f"loss_scale must be a finite number of at least 1, but is {scale!r}",
            field="loss_scale",
        )
    return float(scale)


class LossScaler:
    """Dynamic loss scaling (Micikevicius et al. 2018, section 3.2): the scale is halved on overflow
    and doubled after `clean_steps` steps without one.

    All ranks have the same state because `finite` is agreed on by all ranks.
    """

    def __init__(self, precision: str, *, start: float, clean_steps: int = 2000) -> None:
        """`start`: the initial scale in fp16; with other precisions the scale is always 1."""
        self.enabled = precision == "fp16"
        self.scale = start if self.enabled else 1.0
        self._clean_steps = clean_steps
        self._clean = 0

    def update(self, finite: bool) -> bool:
        """Adapts the scale after a step. Returns whether the step must be skipped because loss
        scaling explains the overflow."""
        if not self.enabled:
            return False
        if not finite:
            explained = self.scale > 1.0
            self.scale, self._clean = max(1.0, self.scale / 2), 0
            return explained
        self._clean += 1
        if self._clean == self._clean_steps:
            self.scale, self._clean = self.scale * 2, 0
        return False
