"""Activations of layers with adapters against live tensors of transformers 5.24 with PEFT 0.21 and
bitsandbytes 0.50 (`python -m research.live_memory adapters`, 2026-11-30)."""

from __future__ import annotations

from dataclasses import replace

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
    ("", "none"): (9880, 24753),
    ("", "full"): (384, 16402),
    ("lora", "none"): (12742, 33290),
    ("lora", "full"): (384, 22664),
    ("qlora", "none"): (16966, 40906),
    ("qlora", "full"): (768, 26440),
    ("lora on fp32", "none"): (12742, 33194),
    ("lora on fp32", "full"): (768, 23624),
}
"""bytes per token of a step of transformers' Trainer: what a layer kept until the loss, and what two
layers had in the backward pass (without adapters with gradients of the weights; on fp32 less 2,016 bytes a
layer for 16-bit casts of the weights, which `states.py` counts)"""


def kept_and_running(
    peft: Peft | None, recompute: str = "none", trainer: str = "hf_trainer"
) -> tuple[float, float]:
    """The same by the formulas."""
    where = replace(workload(trainer=trainer, model=NARROW), peft=peft, pure_bf16=peft is None)
    table = ConfigTable.of([ParallelConfig(recompute=recompute)])
    layout, traits = layout_of(where, table), traits_of(trainer)
    layer = layer_activations(where, table, layout, calibration_for(where), traits, experts=False)
    kept, once = kept_bytes(where, table, layout, traits, layer, experts=False)
    return float(kept[0]), float((NARROW.num_layers * kept + once)[0])


@pytest.mark.parametrize(("case", "seen"), SEEN.items(), ids=lambda case: str(case))
def test_layers_keep_and_have_what_those_of_a_real_step_had(
    case: tuple[str, str], seen: tuple[int, int]
) -> None:
    method, recompute = case
    word, *in_fp32 = method.split() or [""]
    peft = Peft(method=word, rank=8, frozen_fp32=bool(in_fp32)) if word else None
    found = kept_and_running(peft, recompute)
    assert found[0] == pytest.approx(seen[0], rel=0.025), "without statistics and narrow outputs"
    assert found[1] == pytest.approx(seen[1], rel=0.08)


def test_frozen_weights_keep_no_input_that_no_adapter_reads() -> None:
    every, attention = (
        kept_and_running(Peft(targets=targets), trainer="lightning")[0]
        for targets in ("all", "attention")
    )
    h, f = NARROW.hidden_size, NARROW.ffn_hidden_size
    assert every - attention == pytest.approx(2 * h + 2 * f), "the second norm's output, the MLP's"
    assert every == kept_and_running(None, trainer="lightning")[0], (
        "adapters share what trained weights keep"
    )


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
