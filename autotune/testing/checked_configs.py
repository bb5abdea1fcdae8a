"""Workloads and configs for the contract tests of all trainers: two nodes of 8 GPUs, a Llama-like
model, a GPT and a model with experts."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import replace

from autotune.spec import ClusterSpec, GpuSpec, ModelSpec, ParallelConfig, Workload

GPU = GpuSpec(
    name="a100-80gb",
    memory_bytes=80 * 2.0**30,
    peak_flops_per_s={"bf16": 312e12, "fp32": 19.5e12},
    memory_bytes_per_s=2e12,
)
MODEL = ModelSpec(
    name="contract-llama",
    num_layers=16,
    hidden_size=1024,
    ffn_hidden_size=2816,
    num_attention_heads=16,
    num_kv_heads=8,
    vocab_size=32000,
    gated_mlp=True,
)
GPT = ModelSpec(
    name="contract-gpt",
    num_layers=16,
    hidden_size=1024,
    num_attention_heads=16,
    vocab_size=50304,
    tied_embeddings=True,
    max_positions=2048,
)
EXPERTS = replace(MODEL, name="contract-experts", num_experts=8, experts_per_token=2)
WORKLOAD = Workload(
    model=MODEL,
    cluster=ClusterSpec(name="contract-2x8", gpu=GPU, num_nodes=2, gpus_per_node=8),
    seq_len=2048,
    global_batch_size=64,
)


def configs() -> Iterator[ParallelConfig]:
    """A few hundred configs on 8 or 16 GPUs with a global batch of 64."""
    shapes = [
        (1, 1, 8, 1),
        (2, 2, 2, 1),
        (2, 1, 4, 2),
        (1, 4, 2, 1),
        (8, 1, 1, 1),
        (1, 2, 8, 1),
        (4, 1, 4, 1),
    ]
    schedules = [("1f1b", 1), ("gpipe", 1), ("interleaved_1f1b", 2), ("interleaved_zero_bubble", 2)]
    words = itertools.product(
        ("bf16", "fp32", "fp16", "fp8"), ("none", "selective", "full"), (0, 1, 2, 3)
    )
    for (tp, pp, dp, cp), (precision, recompute, zero) in itertools.product(shapes, words):
        for schedule, stages in schedules if pp > 1 else schedules[:1]:
            yield ParallelConfig(
                tp=tp,
                pp=pp,
                dp=dp,
                cp=cp,
                micro_batch_size=2,
                accumulation_steps=64 // (2 * dp),
                precision=precision,
                recompute=recompute,
                zero_stage=zero,
                sequence_parallel=tp > 1 and zero % 2 == 0,
                pp_schedule=schedule,
                virtual_stages=stages,
                compile=recompute == "none" and zero > 0,
            )


def one_node_configs() -> Iterator[ParallelConfig]:
    """A few configs on one node, down to a single rank."""
    for tp, pp, dp, cp in [
        (1, 1, 1, 1),
        (1, 1, 2, 1),
        (2, 1, 1, 1),
        (2, 2, 1, 1),
        (1, 1, 1, 2),
        (4, 1, 2, 1),
    ]:
        for precision, zero, micro in itertools.product(
            ("bf16", "fp32", "tf32"), (0, 1, 2, 3), (1, 4)
        ):
            yield ParallelConfig(
                tp=tp,
                pp=pp,
                dp=dp,
                cp=cp,
                micro_batch_size=micro,
                accumulation_steps=64 // (micro * dp),
                precision=precision,
                zero_stage=zero,
                sequence_parallel=tp > 1,
                recompute="full" if micro == 4 else "none",
                compile=micro == 1,
            )
