"""On Ampere a matmul whose rows do not begin with cache lines of 128 bytes takes longer."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from autotune.cost import Calibration
from autotune.cost.layout import layout_of
from autotune.cost.time.compute import UNALIGNED, layer_forward_s
from autotune.cost.traits import traits_of
from autotune.spec import ConfigTable, ModelSpec, ParallelConfig, Workload, catalog

BIGSCIENCE = ModelSpec(
    name="gpt",
    num_layers=80,
    hidden_size=14400,
    num_attention_heads=96,
    vocab_size=250880,
    ffn_hidden_size=57600,
)


def matmuls_per_flop(hidden: int, tp: int, gpu: str, precision: str = "bf16") -> float:
    """Seconds per multiply-add of one layer's matmuls when no matmul is small."""
    model = replace(BIGSCIENCE, hidden_size=hidden, ffn_hidden_size=4 * hidden)
    asked = Workload(
        model=model,
        cluster=catalog.cluster(f"{gpu}-1x8"),
        seq_len=2048,
        global_batch_size=8,
        trainer="deepspeed",
    )
    table = ConfigTable.of([ParallelConfig(tp=tp, dp=8 // tp, precision=precision)])
    constants = replace(Calibration(), half_size=0.0)
    seconds, _, _ = layer_forward_s(
        asked, table, layout_of(asked, table), constants, traits_of("deepspeed")
    )
    return float(np.asarray(seconds)[0]) * tp / hidden**2


def test_1800_columns_a_rank_are_slower_than_1728_on_a100_as_bigscience_measured() -> None:
    """chronicles-prequel.md: with tp=8 and pp=10 a width of 14,400 took about a third longer per
    FLOP than 13,824, whose eighth is 27 * 64."""
    slower = matmuls_per_flop(14400, 8, "a100-80gb") / matmuls_per_flop(13824, 8, "a100-80gb")
    assert slower == pytest.approx(UNALIGNED)
    assert 1.0 < UNALIGNED < 2.0  # at most twice the cache lines are read


@pytest.mark.parametrize(
    ("tp", "gpu", "precision"),
    [
        (1, "a100-80gb", "bf16"),
        (8, "h100-sxm", "bf16"),
        (8, "v100-32gb", "fp16"),
        (8, "a100-80gb", "tf32"),
    ],
)
def test_whole_lines_other_generations_and_wider_formats_lose_nothing(
    tp: int, gpu: str, precision: str
) -> None:
    """14,400 is 225 * 64; 1,800 elements of 4 bytes are read in lines of half as many, of which the
    law says nothing."""
    aligned = matmuls_per_flop(13824, tp, gpu, precision)
    assert matmuls_per_flop(14400, tp, gpu, precision) == pytest.approx(aligned)
