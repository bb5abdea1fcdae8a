"""The optimizer of a trial: AdamW or SGD on the fp32 tensors of this rank, with a learning rate that follows the batch size.

The optimizer works on plain tensors, whatever cut the weights.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from autotune.errors import ConfigError
from autotune.ports import TrialRequest
from autotune.reward import learning_rate_factor
from autotune_workers.training.torch_internals import scale_all

LEARNING_RATES = {"adamw": 3e-4, "sgd": 1e-2}
CLIP_NORM = 1.0
"""largest global norm of a gradient that is applied as it is"""


def learning_rate(request: TrialRequest) -> float:
    """The trainer option `learning_rate` (or the usual one of the optimizer), scaled to the config's global batch.

    The option is meant for the smallest global batch of the workload. Larger ones take more, as the statistical efficiency of a batch
    presupposes (`autotune.reward.goodput`). Raises `ConfigError` for a rate that is no finite number of at least 0.
    """
    workload = request.workload
    rate = request.trainer_options.get("learning_rate", LEARNING_RATES[workload.optimizer])
    if isinstance(rate, bool) or not isinstance(rate, int | float) or not 0 <= rate < math.inf:
        raise ConfigError(
            f"learning_rate must be a finite number of at least 0, but is {rate!r}", field="learning_rate"
        )
    smallest = min(workload.global_batch_sizes)
    return float(rate) * learning_rate_factor(request.config.global_batch_size, smallest, workload.optimizer)


def build_optimizer(request: TrialRequest, tensors: list[Tensor]) -> torch.optim.Optimizer:
    """The optimizer of the workload over these tensors."""
    rate = learning_rate(request)
    if request.workload.optimizer == "sgd":
        return torch.optim.SGD(tensors, lr=rate, foreach=True)
    return torch.optim.AdamW(tensors, lr=rate, betas=(0.9, 0.95), weight_decay=0.1, fused=True)


def clip(gradients: Sequence[Tensor | None], *, norm: float, loss_scale: float) -> None:
    """Divides the gradients by the loss scale, and shortens them to `CLIP_NORM` when their global norm is larger."""
    factor = min(1.0, CLIP_NORM / (norm + 1e-6)) / loss_scale
    if factor != 1.0:
        scale_all(gradients, factor)
