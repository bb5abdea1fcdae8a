"""What dry runs answer in place of a shape function of torch's that differs from its kernel."""

from __future__ import annotations

import torch
from torch import Tensor

from autotune_workers.dryrun.fake_answers import FakeAnswers
from autotune_workers.dryrun.torch_private import fake_tensors

BATCH_NORM = torch.ops.aten.native_batch_norm.default


def arguments() -> tuple[Tensor | bool | float, ...]:
    """bf16 inputs and fp32 weights, as under autocast."""
    x, ones, zeros = torch.ones(2, 8, 4, dtype=torch.bfloat16), torch.ones(8), torch.zeros(8)
    return x, ones, zeros, zeros, ones, True, 0.1, 1e-5


def test_batch_norm_keeps_its_statistics_in_the_format_of_the_kernel() -> None:
    real = BATCH_NORM(*arguments())
    with fake_tensors():
        dry = FakeAnswers()(BATCH_NORM, (torch.Tensor,), arguments(), {})
    assert [(x.dtype, x.shape) for x in dry] == [(x.dtype, x.shape) for x in real]
