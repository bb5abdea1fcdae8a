"""Llama 1B and 8B on 8 to 128 H100 (Ultra-Scale Playbook): time, memory and failures. EFA between
the nodes."""

from __future__ import annotations

import math
from dataclasses import replace

from autotune.spec import LinkSpec
from tests.benchmarks.published.nanotron_failures import cause_of
from tests.benchmarks.published.rows import (
    GIB,
    Block,
    Run,
    blocks_of,
    printed_config,
    printed_model,
    read,
    whole,
)


def nanotron() -> list[Block]:
    """All rows but those whose batch does not add up. A failure's cause is not printed;
    `nanotron_failures.py` finds those that memory cannot explain."""
    runs = []
    for r in read("nanotron_h100"):
        if r["status"] not in ("ok", "failed"):
            continue
        model = printed_model(
            r,
            num_kv_heads=whole(r["kv_heads"]),
            ffn_hidden_size=whole(r["ffn_hidden"]),
            vocab_size=whole(r["vocab"]),
            gated_mlp=True,
            tied_embeddings=r["model_name"].endswith("1B"),
        )
        failed = r["status"] == "failed"
        config = printed_config(
            r,
            zero_stage=whole(r["zero_stage_or_fsdp"][-1]),
            sequence_parallel=whole(r["tp"]) > 1,
        )
        runs.append(
            Run(
                model=model,
                gpu="h100-sxm",
                seq_len=whole(r["seq_len"]),
                trainer="nanotron",
                config=config,
                tokens_per_s_per_gpu=math.nan if failed else float(r["tokens_per_s_per_gpu"]),
                failed=failed,
                peak_memory_bytes=float(r["peak_mem_gib"]) * GIB
                if r["peak_mem_gib"] and not failed
                else math.nan,
                cell=f"{r['model_name']} {r['gpus']}",
                where="H100, EFA; nanotron 2024",
                inter_node=LinkSpec(latency_s=10e-6, bytes_per_s=50e9, fabric="efa"),
            )
        )
    return blocks_of(replace(run, other_cause=cause_of(run, runs)) for run in runs)
