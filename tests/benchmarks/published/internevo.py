"""InternLM 7B and 20B on 3 to 1,024 A100 and A800 (InternEvo): throughput, and memory in a table of
its own."""

from __future__ import annotations

import math

from autotune.spec import LinkSpec, ModelSpec, ParallelConfig
from tests.benchmarks.published.rows import Block, Run, blocks_of, printed_config, read, whole

MODELS = {
    "internlm-7B": ModelSpec(
        name="internlm-7B",
        num_layers=32,
        hidden_size=4096,
        num_attention_heads=32,
        ffn_hidden_size=11008,
        vocab_size=103168,
        gated_mlp=True,
    ),
    "internlm-20B": ModelSpec(
        name="internlm-20B",
        num_layers=60,
        hidden_size=5120,
        num_attention_heads=40,
        ffn_hidden_size=13824,
        vocab_size=103168,
        gated_mlp=True,
    ),
}
"""shapes as the models' own config.json have them"""
MEMORY_SEQ_LEN = 2048
"""the table of memory prints no sequence length; the table of throughput of the same page has this
one"""


def internevo() -> list[Block]:
    """The rows that print throughput. Rows that shard over groups of 4 or 8 ranks only are left
    out."""
    runs = []
    for r in read("internevo_a100"):
        if r["source"] != "internevo" or r["zero_stage_or_fsdp"] != "zero1":
            continue
        config = printed_config(r, zero_stage=1, recompute=r["checkpointing"])
        runs.append(_run(r, config, speed=float(r["tokens_per_s_per_gpu"]), cell=r["model_name"]))
    return blocks_of(runs)


def internevo_memory() -> list[Block]:
    """The rows that print memory (as an integer of GB)."""
    runs = []
    for r in read("internevo_a100"):
        if r["source"] != "internevo-memory":
            continue
        sharded = 3 if r["zero_stage_or_fsdp"] == "fsdp" else 1
        config = printed_config(
            r, zero_stage=sharded if whole(r["dp"]) > 1 else 0, recompute=r["checkpointing"]
        )
        cell = f"{r['model_name']} {r['gpus']}"
        runs.append(_run(r, config, speed=math.nan, cell=cell, peak=float(r["peak_mem_gib"]) * 1e9))
    return blocks_of(runs)


def _run(
    r: dict[str, str], config: ParallelConfig, *, speed: float, cell: str, peak: float = math.nan
) -> Run:
    return Run(
        model=MODELS[r["model_name"]],
        gpu="a100-80gb",
        seq_len=whole(r["seq_len"], MEMORY_SEQ_LEN),
        trainer="internevo",
        config=config,
        tokens_per_s_per_gpu=speed,
        peak_memory_bytes=peak,
        cell=cell,
        where="A100, RoCE; InternEvo 2023",
        # 4 ports of 100 Gb/s for 8 GPUs
        inter_node=LinkSpec(latency_s=10e-6, bytes_per_s=6.25e9, fabric="roce"),
    )
