"""The optimizer of a trial on this rank's fp32 tensors, with a learning rate that is scaled with the
batch size.

    adamw, sgd   work on plain tensors, for any sharding of the weights
    muon         orthogonalizes the update of a matrix (Jordan et al. 2024); embeddings, norms, biases and the output projection use AdamW
    adafactor    stores sums of squares over rows and columns (Shazeer and Stern 2018, arXiv:1804.04235)

The last two need whole matrices, so they require tp=1 and zero_stage=0.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Protocol

import torch
from torch import Tensor

from autotune.errors import ConfigError
from autotune.ports import TrialRequest
from autotune.reward import learning_rate_factor
from autotune_workers.training.parallel.gradient_sync import Shard
from autotune_workers.training.torch_internals import scale_all

LEARNING_RATES = {"adamw": 3e-4, "sgd": 1e-2, "muon": 3e-4, "adafactor": 1e-2}
"""default learning rates. Muon uses AdamW's, because its updates are scaled to the size of AdamW's
(Liu et al. 2025, arXiv:2502.16982, section 2.2); adafactor's is relative to the size of the
weights"""
WHOLE_MATRICES = ("muon", "adafactor")
"""optimizers whose update of an element depends on the whole matrix"""
CLIP_NORM = 1.0
"""global gradient norm above which gradients are clipped"""


def learning_rate(request: TrialRequest) -> float:
    """The trainer option `learning_rate`, or the optimizer's default, scaled to the config's global
    batch.

    The option applies to the workload's smallest global batch. It is increased for larger ones, as
    the statistical efficiency of a batch assumes (`autotune.reward.goodput`). Raises `ConfigError`
    unless it is a finite number of at least 0.
    """
    workload = request.workload
    rate = request.trainer_options.get("learning_rate", LEARNING_RATES[workload.optimizer])
    if isinstance(rate, bool) or not isinstance(rate, int | float) or not 0 <= rate < math.inf:
        raise ConfigError(
            f"learning_rate must be a finite number of at least 0, but is {rate!r}",
            field="learning_rate",
        )
    smallest = min(workload.global_batch_sizes)
    return float(rate) * learning_rate_factor(
        request.config.global_batch_size, smallest, workload.optimizer
    )


class Optimizer(Protocol):
    """Updates the tensors of a rank with their gradients."""

    def step(self) -> object:
        """Perform one update."""


def build_optimizer(request: TrialRequest, shards: Sequence[Shard]) -> Optimizer:
    """Create the workload's optimizer for these tensors."""
    name, rate = request.workload.optimizer, learning_rate(request)
    tensors = [shard.tensor for shard in shards]
    if not tensors:
        raise ConfigError(
            "a model must have trainable weights, but no weight on this rank requires a gradient",
            remedy="leave weights unfrozen (`requires_grad`), or let `workload: {peft: ...}` freeze them and add adapters",
            field="model",
        )
    if name == "sgd":
        return torch.optim.SGD(tensors, lr=rate, foreach=True)
    if name == "adafactor":
        return torch.optim.Adafactor(tensors, lr=rate, foreach=True)
    if name == "muon":
        return Muon(shards, rate)
    return _adamw(tensors, rate)


class Muon:
    """Muon for the matrices of the layers, AdamW for everything else."""

    def __init__(self, shards: Sequence[Shard], rate: float) -> None:
        matrices = [s.tensor for s in shards if _is_matrix_of_layer(s)]
        others = [s.tensor for s in shards if not _is_matrix_of_layer(s)]
        self._parts: list[Optimizer] = []
        if matrices:
            self._parts.append(torch.optim.Muon(matrices, lr=rate, adjust_lr_fn="match_rms_adamw"))
        if others:
            self._parts.append(_adamw(others, rate))

    def step(self) -> None:
        """Perform one update."""
        for part in self._parts:
            part.step()


def _is_matrix_of_layer(shard: Shard) -> bool:
    return shard.in_layer and shard.tensor.ndim == 2


def _adamw(tensors: list[Tensor], rate: float) -> torch.optim.AdamW:
    return torch.optim.AdamW(tensors, lr=rate, betas=(0.9, 0.95), weight_decay=0.1, fused=True)


def clip(gradients: Sequence[Tensor | None], *, norm: float, loss_scale: float) -> None:
    """Divide the gradients by the loss scale, and clip them to a global norm of `CLIP_NORM`."""
    factor = min(1.0, CLIP_NORM / (norm + 1e-6)) / loss_scale
    if factor != 1.0:
        scale_all(gradients, factor)
