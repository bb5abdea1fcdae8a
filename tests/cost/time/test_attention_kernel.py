"""What attention takes by its kernel: head dimensions are padded to 32, and FlashAttention in
Triton is slower than FlashAttention-2."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from autotune.cost import Calibration
from autotune.cost.layout import layout_of
from autotune.cost.time.compute import layer_forward_s, padded_head
from autotune.cost.traits import TRITON_ATTENTION, traits_of
from autotune.spec import ConfigTable, ModelSpec, ParallelConfig
from tests.cost.examples import MODEL, workload


def attention_s(model: ModelSpec, trainer: str, *, speed: float = 0.0) -> float:
    asked, table = workload(model, trainer=trainer), ConfigTable.of([ParallelConfig.parse("dp=8")])
    traits = traits_of(trainer)
    traits = replace(traits, attention_speed=speed or traits.attention_speed)
    _, seconds, _ = layer_forward_s(asked, table, layout_of(asked, table), Calibration(), traits)
    return float(np.asarray(seconds).reshape(-1)[0])


@pytest.mark.parametrize(
    ("head_dim", "kernels"), [(64, 64), (80, 96), (112, 128), (128, 128), (150, 160)]
)
def test_a_head_takes_the_next_multiple_of_32(head_dim: int, kernels: int) -> None:
    model = replace(MODEL, attention_head_dim=head_dim)
    assert padded_head(model) * head_dim == pytest.approx(kernels)
    wide = replace(MODEL, attention_head_dim=kernels)
    assert attention_s(model, "torchtitan") == pytest.approx(attention_s(wide, "torchtitan"))


def test_llm_foundry_has_the_slower_kernel() -> None:
    plain = attention_s(MODEL, "composer", speed=1.0)
    assert attention_s(MODEL, "composer") == pytest.approx(plain / TRITON_ATTENTION)
