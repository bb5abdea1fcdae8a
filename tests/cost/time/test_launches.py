"""Host time of a layer: adapters, torch's checkpoint and ZeRO-3's hooks count where kernels are
short, and not where they are long."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from autotune.cost import Calibration, estimate
from autotune.spec import ConfigTable, ParallelConfig, Peft
from tests.cost.examples import workload

CONSTANTS = Calibration(layer_host_s=20e-3, micro_batch_host_s=0.0, step_host_s=0.0, straggler=0.0)
LAYERS = 16
LORA = Peft(method="lora", rank=8, targets="all")


def step_s(
    config: str,
    *,
    trainer: str = "hf_trainer",
    seq_len: int = 128,
    peft: Peft | None = None,
    layer_host_s: float = CONSTANTS.layer_host_s,
) -> float:
    table = ConfigTable.of([ParallelConfig.parse(config)])
    asked = replace(workload(seq_len=seq_len, trainer=trainer, nodes=1), peft=peft)
    return float(
        np.asarray(
            estimate(
                asked, table, calibration=replace(CONSTANTS, layer_host_s=layer_host_s)
            ).step_time_s
        )[0]
    )


@pytest.mark.parametrize(
    ("trainer", "peft", "more", "layer_ms"),
    [
        ("hf_trainer", None, "", 20.0),
        ("hf_trainer", None, ",recompute=full", 20.0 * 1.9),
        ("native", None, ",recompute=full", 20.0 * 2.4),
        ("megatron", None, ",recompute=full", 20.0 * 4 / 3),
        ("hf_trainer", LORA, "", 20.0 * 1.63),
        ("hf_trainer", replace(LORA, targets="attention"), "", 20.0 * 1.36),
        ("hf_trainer", replace(LORA, method="qlora"), "", 20.0 * 2.96),
        ("deepspeed", None, ",zero_stage=3", 20.0 * 5.4),
        ("deepspeed", None, ",zero_stage=2", 20.0),
    ],
)
def test_the_host_takes_that_long_for_a_layer(
    trainer: str, peft: Peft | None, more: str, layer_ms: float
) -> None:
    """A layer of 128 tokens is the host's time; the output projection and the update are the
    rest."""
    found = step_s(f"dp=8,accumulation_steps=8{more}", trainer=trainer, peft=peft)
    host = 8 * LAYERS * layer_ms * 1e-3
    assert host < found < 1.05 * host


def test_long_kernels_hide_the_host() -> None:
    found = [step_s("dp=8", seq_len=65536, layer_host_s=host) for host in (2e-3, 20e-3)]
    assert found[0] == pytest.approx(found[1], rel=0.01)
    assert step_s("dp=8", seq_len=65536, peft=Peft(rank=1, targets="attention")) < found[1]
