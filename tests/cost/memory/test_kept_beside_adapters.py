"""Activations of layers with adapters against live tensors of transformers 5.24 with PEFT 0.21 and
bitsandbytes 0.50 (`python -m research.adapter_memory`, 2026-11-30)."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from autotune.cost import calibration_for, estimate
from autotune.cost.layout import layout_of
from autotune.cost.memory.activations import kept_bytes, layer_activations
from autotune.cost.traits import traits_of
from autotune.spec import ConfigTable, ModelSpec, ParallelConfig, Peft, catalog
from tests.cost.examples import workload

NARROW = ModelSpec(
    name="narrow", num_layers=2, hidden_size=192, num_attention_heads=4, num_kv_heads=2,
    ffn_hidden_size=704, vocab_size=8192, gated_mlp=True, tied_embeddings=False,
)  # fmt: skip
SEEN = {
    ("", "none"): 9880,
    ("", "full"): 384,
    ("lora", "none"): 12742,
    ("lora", "full"): 384,
    ("qlora", "none"): 16966,
    ("qlora", "full"): 768,
}
"""bytes per token and layer that a step of transformers' Trainer kept until its loss"""


def kept(peft: Peft | None, recompute: str = "none", trainer: str = "hf_trainer") -> float:
    """Bytes per token that a layer keeps by the formulas."""
    where = replace(workload(trainer=trainer, model=NARROW), peft=peft)
    table = ConfigTable.of([ParallelConfig(recompute=recompute)])
    layout, traits = layout_of(where, table), traits_of(trainer)
    layer = layer_activations(where, table, layout, calibration_for(where), traits, experts=False)
    return float(np.asarray(kept_bytes(where, table, layout, traits, layer, experts=False)[0])[0])


@pytest.mark.parametrize(("case", "seen"), SEEN.items(), ids=lambda case: str(case))
def test_a_layer_keeps_what_a_real_step_kept(case: tuple[str, str], seen: int) -> None:
    method, recompute = case
    found = kept(Peft(method=method, rank=8) if method else None, recompute)
    assert found == pytest.approx(seen, rel=0.025), "without statistics, and outputs of rank 8"


def test_frozen_weights_keep_no_input_that_no_adapter_reads() -> None:
    every, attention = (
        kept(Peft(targets=targets), trainer="lightning") for targets in ("all", "attention")
    )
    h, f = NARROW.hidden_size, NARROW.ffn_hidden_size
    assert every - attention == pytest.approx(2 * h + 2 * f), "the second norm's output, the MLP's"
    assert every == kept(None, trainer="lightning"), "adapters share what trained weights keep"


@pytest.mark.parametrize(
    ("gpu", "fits", "model"),
    [
        ("rtx-4080", 2551, "llama-8b"),
        ("rtx-4090", 5789, "llama-8b"),
        ("a100-40gb", 12264, "llama-8b"),
        ("a100-80gb", 28454, "llama-8b"),
        ("a100-80gb", 6916, "llama-70b"),
    ],
)
def test_the_longest_sequence_that_fits_fills_the_gpu(gpu: str, fits: int, model: str) -> None:
    """Longest sequences under QLoRA with transformers, rank 32 on all projections
    (https://unsloth.ai/docs/basics/unsloth-benchmarks)."""
    where = replace(
        workload(catalog.model(model), trainer="hf_trainer", seq_len=fits, batch=1),
        cluster=catalog.cluster(f"{gpu}-1x1"),
        peft=Peft(method="qlora", rank=32),
    )
    found = estimate(where, ParallelConfig(recompute="full"))
    memory = where.cluster.gpu.memory_bytes
    assert float(found.peak_memory_bytes) == pytest.approx(memory, rel=0.14)
    assert 0.15 < float(found.oom_probability) < 0.85
