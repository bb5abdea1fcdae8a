"""The optimizer of a trial on the fp32 tensors of this rank, with a learning rate that follows the
batch size.

    adamw, sgd   work on plain tensors, whatever cut the weights
    muon         makes the update of a matrix orthogonal (Jordan et al. 2024); embeddings, norms, biases and the output projection take AdamW
    adafactor    keeps the squares' sums over rows and columns (Shazeer and Stern 2018, arXiv:1804.04235)

The last two need whole matrices, so they go with weights and optimizer states that nothing cuts:
tp=1 and zero_stage=0.
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
"""usual ones; muon's updates are scaled to the size of AdamW's (Liu et al. 2025, arXiv:2502.16982,
section 2.2), so that it takes AdamW's, and adafactor's is relative to the size of the weights"""
WHOLE_MATRICES = ("muon", "adafactor")
"""optimizers whose update of an element depends on the whole matrix"""
CLIP_NORM = 1.0
"""largest global norm of a gradient that is applied as it is"""


def learning_rate(request: TrialRequest) -> float:
    """The trainer option `learning_rate` (or the usual one of the optimizer), scaled to the
    config's global batch.

    The option is meant for the smallest global batch of the workload. Larger ones take more, as the
    statistical efficiency of a batch presupposes (`autotune.reward.goodput`). Raises `ConfigError`
    for a rate that is no finite number of at least 0.
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
    """What updates the tensors of a rank by their gradients."""

    def step(self) -> object:
        """One update."""


def build_optimizer(request: TrialRequest, shards: Sequence[Shard]) -> Optimizer:
    """The optimizer of the workload over these tensors."""
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
    """Muon for the matrices of the layers, AdamW for all else."""

    def __init__(self, shards: Sequence[Shard], rate: float) -> None:
        matrices = [s.tensor for s in shards if _is_matrix_of_layer(s)]
        others = [s.tensor for s in shards if not _is_matrix_of_layer(s)]
        self._parts: list[Optimizer] = []
        if matrices:
            self._parts.append(torch.optim.Muon(matrices, lr=rate, adjust_lr_fn="match_rms_adamw"))
        if others:
            self._parts.append(_adamw(others, rate))

    def step(self) -> None:
        """One update."""
        for part in self._parts:
            part.step()


def _is_matrix_of_layer(shard: Shard) -> bool:
    return shard.in_layer and shard.tensor.ndim == 2


def _adamw(tensors: list[Tensor], rate: float) -> torch.optim.AdamW:
    return torch.optim.AdamW(tensors, lr=rate, betas=(0.9, 0.95), weight_decay=0.1, fused=True)


def clip(gradients: Sequence[Tensor | None], *, norm: float, loss_scale: float) -> None:
    """Divides the gradients by the loss scale, and shortens them to `CLIP_NORM` when their global
    norm is larger."""
    factor = min(1.0, CLIP_NORM / (norm + 1e-6)) / loss_scale
    if factor != 1.0:
        scale_all(gradients, factor)
