"""GPT 7B to 206B on 16 to 256 V100 (BigScience), under Megatron and Megatron-DeepSpeed. The source warns of 40% between repeats."""

from __future__ import annotations

import math

from autotune.spec import LinkSpec, ParallelConfig
from tests.benchmarks.published.rows import GIB, Block, Run, blocks_of, number, printed_model, read, whole

HEAD_DIM = 128
"""heads are not printed"""


def bigscience() -> list[Block]:
    """The rows whose degrees are printed and multiply to the GPUs, without those that offload. fp16 with full recomputation."""
    runs = []
    for r in read("bigscience_v100_gpt2"):
        degrees = whole(r["tp"], 0) * whole(r["pp"], 0) * whole(r["dp"], 0)
        if degrees != whole(r["gpus"]) or "Offload" in r["notes"] or not r["hidden"] or not r["micro_batch"]:
            continue
        tp, dp, micro = whole(r["tp"]), whole(r["dp"]), whole(r["micro_batch"])
        batch = whole(r["global_batch"])
        if batch % (micro * dp):
            continue
        zero = r["zero_stage_or_fsdp"]
        config = ParallelConfig(
            tp=tp,
            pp=whole(r["pp"]),
            dp=dp,
            micro_batch_size=micro,
            accumulation_steps=batch // (micro * dp),
            precision="fp16",
            recompute="full",
            zero_stage=int(zero[-1]) if zero and dp > 1 else 0,
        )
        failed = r["status"] == "oom"
        model = printed_model(
            r,
            num_attention_heads=whole(r["hidden"]) // HEAD_DIM,
            vocab_size=50304,
            tied_embeddings=True,
            max_positions=whole(r["seq_len"]),
        )
        speed = math.nan
        if not failed:
            speed = batch * whole(r["seq_len"]) / float(r["step_time_s"]) / config.world_size
        section = r["notes"].partition("section=")[2].partition(";")[0]
        runs.append(
            Run(
                model=model,
                gpu=r["gpu"].lower(),
                gpus_per_node=whole(r["gpus_per_node"]),
                seq_len=whole(r["seq_len"]),
                trainer="megatron" if section == "Megatron" else "deepspeed",
                config=config,
                tokens_per_s_per_gpu=speed,
                peak_memory_bytes=number(r["peak_mem_gib"]) * GIB,
                failed=failed,
                cell=f"{r['model_name']} {r['gpus']}",
                where=f"V100, Jean Zay; {section} 2021",
                inter_node=LinkSpec(latency_s=10e-6, bytes_per_s=12.5e9),  # 4 ports of 100 Gb/s Omni-Path for 4 GPUs
            )
        )
    return blocks_of(runs)
