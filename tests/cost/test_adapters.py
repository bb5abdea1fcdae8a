"""What adapters read and write: casts, scaling and sums beside their two narrow products, by the
library that has them."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from autotune.cost import Calibration, estimate
from autotune.cost.layout import layout_of
from autotune.cost.trainable import adapters_moved_s
from autotune.cost.traits import traits_of
from autotune.spec import ConfigTable, ParallelConfig, Peft
from tests.cost.examples import MODEL, workload

CONSTANTS = Calibration(
    layer_host_s=0.0, micro_batch_host_s=0.0, step_host_s=0.0, memory_efficiency=1.0
)
ATTENTION = Peft(targets="attention")


def bytes_per_token(trainer: str, config: str, peft: Peft) -> tuple[float, float]:
    """Bytes that one layer's adapters move per token, forward and backward."""
    asked = replace(workload(trainer=trainer), peft=peft)
    table = ConfigTable.of([ParallelConfig.parse(config)])
    layout = layout_of(asked, table)
    seconds = adapters_moved_s(asked, table, layout, CONSTANTS, traits_of(trainer))
    rate = asked.cluster.gpu.memory_bytes_per_s
    forward, backward = (float(np.asarray(s)[0] * rate / layout.tokens[0]) for s in seconds)
    return forward, backward


def test_bytes_are_those_of_the_kernels_that_peft_launches() -> None:
    """Kernel by kernel, of adapters beside queries, keys, values and output: bytes per element of
    the input and of the output of a matrix.

    forward     cast 2 + 4, dropout 4 + 4 + 1 (mask), cast back 4 + 2; scaling 2 + 2, sum 2 + 2 + 2
    backward    cast 2 + 4, dropout 4 + 1 + 4, cast back 4 + 2, sum with the frozen matrix's gradient 2 + 2 + 2; scaling 2 + 2
    """
    q = MODEL.num_attention_heads * MODEL.head_dim
    kv = MODEL.num_kv_heads * MODEL.head_dim
    inputs, outputs = 3 * MODEL.hidden_size + q, q + 2 * kv + MODEL.hidden_size
    found = bytes_per_token("hf_trainer", "dp=8", ATTENTION)
    assert found == pytest.approx((21 * inputs + 10 * outputs, 27 * inputs + 4 * outputs))


def test_adapters_cost_most_where_they_are_cast_and_least_compiled() -> None:
    config = "dp=8,micro_batch_size=1"
    by_library, by_program, compiled = (
        sum(bytes_per_token(trainer, f"{config}{more}", ATTENTION))
        for trainer, more in (("hf_trainer", ""), ("command", ""), ("command", ",compile=true"))
    )
    assert by_library > 2.0 * by_program > 2.0 * compiled > 0.0
    told = sum(bytes_per_token("command", config, replace(ATTENTION, library="peft")))
    assert 1.5 < told / by_program < by_library / by_program * 1.01
    fp32 = [
        bytes_per_token(t, f"{config},precision=fp32", ATTENTION) for t in ("hf_trainer", "command")
    ]
    assert fp32[0] == fp32[1], "nothing is cast"
    assert bytes_per_token("hf_trainer", config, Peft()) > bytes_per_token(
        "hf_trainer", config, ATTENTION
    )


def test_four_bits_under_peft_keep_what_flows_between_layers_in_fp32() -> None:
    def step_s(trainer: str, method: str) -> float:
        asked = replace(
            workload(trainer=trainer, seq_len=8192), peft=replace(ATTENTION, method=method)
        )
        found = estimate(asked, ParallelConfig(dp=32, micro_batch_size=1), calibration=CONSTANTS)
        return float(found.time_parts_s.compute)

    more = {t: step_s(t, "qlora") - step_s(t, "lora") for t in ("hf_trainer", "lightning")}
    assert more["hf_trainer"] > 3.0 * more["lightning"] > 0.0


@pytest.mark.parametrize(("method", "frozen_bytes"), [("lora", 2.0), ("qlora", 0.516)])
def test_zero_2_of_fsdp_keeps_frozen_layers_gathered(method: str, frozen_bytes: float) -> None:
    """Beside ZeRO-3 a rank has all layers as they are kept, and gathers them once per step."""
    asked = replace(workload(trainer="native"), peft=Peft(method=method, targets="attention"))
    two, three = (
        estimate(asked, ParallelConfig.parse(f"dp=8,micro_batch_size=1,zero_stage={stage}"))
        for stage in (2, 3)
    )
    more = float(two.memory_parts_bytes.weights - three.memory_parts_bytes.weights)
    assert more == pytest.approx(MODEL.num_parameters * frozen_bytes, rel=0.05)
    assert 0.0 < two.time_parts_s.dp_comm <= three.time_parts_s.dp_comm
