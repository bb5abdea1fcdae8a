"""GPT 7B to 206B on 16 to 256 V100 (BigScience), under Megatron and Megatron-DeepSpeed. The source
warns of 40% between repeats.

What the tables leave out stands beside them in bigscience-workshop/bigscience, experiments/:

    heads           32 in every script
    ZeRO            rows with a bucket size and DeepSpeed ran ZeRO 1 (gpt2.md, headings above the tables)
    checkpoints     rows of Megatron-DeepSpeed's ZeRO branch ran --partition-activations --checkpoint-in-cpu (gpt2-meg-ds-zero/*.slurm, "PA" and "PA_CPU"), without the
                    latter where gpt2.md says so. No knob cuts the checkpoints alone along tensor parallelism: sequence parallelism, which cuts them, stands for it
    network         6.8 GB/s per node in an all-reduce over 16 nodes, 4 ports of 12.5 GB/s ("an issue with nccl that doesn't fully utilize Intel OPA",
                    bandwidth/n16_32gb_all_reduce_bench.txt)
    peaks           of the fullest rank, in four logs
"""

from __future__ import annotations

import math
from typing import Any

from autotune.spec import LinkSpec, ParallelConfig
from tests.benchmarks.published.rows import Block, Run, blocks_of, printed_model, read, whole

HEADS = 32
ZERO_BRANCH = "Megatron + Deepspeed ZeRO (old branch)"
ON_DEVICE = frozenset(("12", "13", "14", "16"))
"""runs without --checkpoint-in-cpu, by their ID"""
MIB = 2.0**20
PEAKS = {180: (19961, 23288), 186: (math.nan, 24460), 371: (26118, 28234), 372: (26118, 28560)}
"""MiB (allocated, reserved) on the fullest rank, by the line of the table:
gpt2-meg-ds-3d/*ds-on.out and *ds-off.out, gpt2-meg-ds-zero/*ms48.out and *1999616.out. What
Megatron alone had allocated was printed before its optimizer had states"""
NETWORK = LinkSpec(latency_s=10e-6, bytes_per_s=2.2e9)
"""per GPU, with which a ring over the 4 GPUs of 16 nodes moves 6.8 GB/s
(`autotune.cost.calibration`: 0.96 of it, a quarter slower on 16 nodes than on two)"""


def bigscience() -> list[Block]:
    """The rows whose degrees are printed and multiply to the GPUs, without those that offload
    weights. fp16 with full recomputation."""
    runs = []
    for r in read("bigscience_v100_gpt2"):
        notes = _notes(r["notes"])
        degrees = whole(r["tp"], 0) * whole(r["pp"], 0) * whole(r["dp"], 0)
        if (
            degrees != whole(r["gpus"])
            or "offload" in r["notes"].lower()
            or not r["hidden"]
            or not r["micro_batch"]
        ):
            continue
        dp, micro = whole(r["dp"]), whole(r["micro_batch"])
        batch = whole(r["global_batch"])
        if batch % (micro * dp):
            continue
        config = ParallelConfig(
            tp=whole(r["tp"]),
            pp=whole(r["pp"]),
            dp=dp,
            micro_batch_size=micro,
            accumulation_steps=batch // (micro * dp),
            precision="fp16",
            recompute="full",
            **_unprinted(r, notes),
        )
        failed = r["status"] == "oom"
        model = printed_model(
            {**r, "heads": str(HEADS)},
            vocab_size=50304,
            tied_embeddings=True,
            max_positions=whole(r["seq_len"]),
        )
        speed = math.nan
        if not failed:
            speed = batch * whole(r["seq_len"]) / float(r["step_time_s"]) / config.world_size
        allocated, reserved = PEAKS.get(whole(notes["line"]), (math.nan, math.nan))
        runs.append(
            Run(
                model=model,
                gpu=r["gpu"].lower(),
                gpus_per_node=whole(r["gpus_per_node"]),
                seq_len=whole(r["seq_len"]),
                trainer="megatron"
                if notes["section"] == "Megatron" or notes.get("DS") == "N"
                else "deepspeed",
                unfused_attention=True,
                config=config,
                tokens_per_s_per_gpu=speed,
                peak_memory_bytes=reserved * MIB,
                allocated_bytes=allocated * MIB,
                failed=failed,
                cell=f"{r['model_name']} {r['gpus']}",
                where=f"V100, Jean Zay; {notes['section']} 2021",
                inter_node=NETWORK,
            )
        )
    return blocks_of(runs)


def _notes(text: str) -> dict[str, str]:
    """The words `name=value` of a row's notes."""
    return {
        name.strip(): value
        for name, is_word, value in (part.partition("=") for part in text.split(";"))
        if is_word
    }


def _unprinted(r: dict[str, str], notes: dict[str, str]) -> dict[str, Any]:
    """The knobs that stand in headings and scripts."""
    zero = r["zero_stage_or_fsdp"]
    stage = int(zero[-1]) if zero else int("bucket" in notes and notes["DS"] == "Y")
    if notes["section"] != ZERO_BRANCH:
        return {"zero_stage": stage if whole(r["dp"]) > 1 else 0}
    away = notes.get("ID") not in ON_DEVICE
    return {
        "zero_stage": stage,
        "sequence_parallel": whole(r["tp"]) > 1 and not away,
        "offload": "activations" if away else "none",
    }
