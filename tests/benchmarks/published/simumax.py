"""Truncated Llama-3 70B, DeepSeek-V2 and V3 on eight B200 under Megatron-LM (SimuMax): time,
allocated and reserved memory of every rank."""

from __future__ import annotations

import json
from dataclasses import replace

from autotune.spec import ModelSpec, ParallelConfig
from autotune.spec.catalog import model as catalog_model
from tests.benchmarks.published.rows import Block, Run, blocks_of, read, whole

MODELS = {"llama3-70b": "llama-70b", "deepseekv2": "deepseek-v2", "deepseekv3": "deepseek-v3"}
SEQ_LEN = 4096
"""unless the case says otherwise"""
MIB = 2.0**20


def simumax() -> list[Block]:
    """All rows."""
    return blocks_of(rows_of())


def rows_of() -> list[Run]:
    """The rows in the order of the file. The launch scripts beside them say what they do not print:
    bf16 with fp32 gradients, no recomputation, micro-batches of one sequence, the distributed
    optimizer, context parallelism by all-to-all, experts with a capacity factor of 1; `cef` is the
    fused cross-entropy."""
    runs = []
    for r in read("simumax_b200"):
        tp, dp, cp = whole(r["tp"]), whole(r["dp"]), whole(r["cp"])
        config = ParallelConfig(
            tp=tp,
            pp=whole(r["pp"]),
            dp=dp,
            cp=cp,
            ep=whole(r["ep"]),
            accumulation_steps=whole(r["micro_batches"]),
            zero_stage=1 if dp * cp > 1 else 0,
            sequence_parallel=tp > 1,
            loss="fused" if "_cef" in r["case"] else "own",
            cp_style="heads" if cp > 1 else "ring",
        )
        seq_len = whole(r["seq_len"], SEQ_LEN)
        ranks = json.loads(r["peak_by_rank_mb"]).values()
        runs.append(
            Run(
                model=_truncated(r["model"], whole(r["layers"])),
                gpu="b200-sxm",
                seq_len=seq_len,
                trainer="megatron",
                config=config,
                tokens_per_s_per_gpu=config.global_batch_size
                * seq_len
                / float(r["step_time_s"])
                / config.world_size,
                peak_memory_bytes=max(rank["max_reserved_mb"] for rank in ranks) * MIB,
                allocated_bytes=max(rank["max_allocated_mb"] for rank in ranks) * MIB,
                cell=f"{r['model']} {r['layers']} {seq_len} {r['micro_batches']}",
                where="B200, one node; Megatron-LM 2026",
            )
        )
    return runs


def _truncated(name: str, layers: int) -> ModelSpec:
    """The model with its first layers only; of those with experts the first is dense
    (`--moe-layer-freq` of SimuMax's launch scripts)."""
    short = replace(
        catalog_model(MODELS[name]), name=f"{name}-l{layers}", num_layers=layers, source=""
    )
    return replace(short, num_dense_layers=1) if short.num_experts else short
