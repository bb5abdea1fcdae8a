"""Kernels that a GPU has and a CPU has not, where they keep other tensors than what a CPU runs in their place.

attention   under a causal bias: flash or memory-efficient attention, where a CPU would make the mask as a tensor
RMS norm    one kernel that keeps its input and one statistic per row (`aten::_fused_rms_norm`, torch >= 2.9); a CPU runs products and means one after the
            other and keeps the normalized rows too. Layer norm's kernel, which both have, stands in: it keeps one statistic per row more
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from autotune_workers.dryrun import torch_patches


@contextlib.contextmanager
def kernels_of_gpus() -> Iterator[None]:
    """A block on CPU tensors that keeps what a GPU would keep."""
    has_fused_norm = hasattr(torch.ops.aten, "_fused_rms_norm_backward")
    norm = torch_patches.replaced(F, "rms_norm", _rms_norm) if has_fused_norm else contextlib.nullcontext()
    with torch_patches.attention_of_gpus(), norm:
        yield


def _rms_norm(original: Any) -> Any:
    def rms_norm(
        input: Tensor,  # noqa: A002 - torch's name
        normalized_shape: Sequence[int],
        weight: Tensor | None = None,
        eps: float | None = None,
    ) -> Tensor:
        if weight is not None and weight.dtype != input.dtype:  # torch has no fused kernel for this
            result: Tensor = original(input, normalized_shape, weight, eps)
            return result
        return F.layer_norm(input, list(normalized_shape), weight, None, eps or torch.finfo(input.dtype).eps)

    return rms_norm
