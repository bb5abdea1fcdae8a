"""GPT on 1 to 64 V100 16GB, and on eight A100 40GB under DeepSpeed (Alpa's benchmarks): time,
memory and failures."""

from __future__ import annotations

import math

from autotune.spec import LinkSpec, ModelSpec, ParallelConfig
from tests.benchmarks.published.rows import (
    GIB,
    Block,
    Run,
    blocks_of,
    number,
    printed_config,
    printed_model,
    read,
    whole,
)

SEQ_LEN, VOCAB = 1024, 51200
"""Megatron's and DeepSpeed's example of that time; the rows of DeepSpeed print neither"""


def alpa() -> list[Block]:
    """Data parallelism and ZeRO inside a node (XLA), and Megatron's and Alpa's layouts over nodes;
    only rows whose layout is printed.

    XLA's memory is that of the compiled program. Rows that print TFLOP/s alone: FLOPs by arXiv
    2104.04473, equation 3, as the benchmark does.
    """
    runs = []
    for r in read("alpa_osdi22_v100"):
        if not (r["tp"] and r["pp"] and r["dp"] and r["micro_batch"]):
            continue
        failed, config = r["status"] == "oom", _config(r, recompute="full", precision="fp16")
        model = _model(r, whole(r["vocab"]))
        speed = math.nan
        if r["step_time_s"]:
            speed = config.global_batch_size * SEQ_LEN / float(r["step_time_s"]) / config.world_size
        elif not failed:
            layers, h = model.num_layers, model.hidden_size
            per_token = (
                96.0
                * layers
                * h**2
                * (1 + SEQ_LEN / (6 * h) + model.vocab_size / (16 * layers * h))
            )
            speed = float(r["tflops_per_gpu"]) * 1e12 / per_token
        method = r["notes"].partition("method=")[2].partition(";")[0]
        runs.append(
            Run(
                model=model,
                gpu="v100-16gb",
                seq_len=SEQ_LEN,
                trainer="megatron" if method == "megatron" else "alpa",
                config=config,
                tokens_per_s_per_gpu=speed,
                peak_memory_bytes=number(r["peak_mem_gib"]) * GIB,
                failed=failed,
                cell=f"{r['model_name']} {r['gpus']}",
                where=f"V100 16GB, AWS; {'Megatron-LM' if method == 'megatron' else 'XLA'} 2022",
                inter_node=LinkSpec(
                    latency_s=50e-6, bytes_per_s=25e9 / 8 / 8, fabric="ethernet"
                ),  # p3.16xlarge: 25 Gb/s for 8 GPUs
            )
        )
    return blocks_of(runs)


def alpa_deepspeed() -> list[Block]:
    """ZeRO 0 to 3 and tensor parallelism under DeepSpeed on eight A100 40GB, with the largest batch
    that its authors found to fit; without the rows that offload. Memory is what nvidia-smi showed.
    Precision and recomputation are not printed: fp16 and full, as in DeepSpeed's example of that
    time."""
    runs = []
    for r in read("alpa_deepspeed_zero_and_3d"):
        if r["gpu"] != "A100-40GB" or "offload" in r["zero_stage_or_fsdp"]:
            continue
        failed = r["status"] == "oom"
        if whole(r["tp"]) * whole(r["dp"]) != whole(r["gpus"]):
            continue  # a model that does not fit on one GPU is called with dp=1 too
        config = _config(r, recompute="full", precision="fp16")
        speed = math.nan
        if not failed:
            speed = config.global_batch_size * SEQ_LEN / float(r["step_time_s"]) / config.world_size
        runs.append(
            Run(
                model=_model(r, VOCAB),
                gpu="a100-40gb",
                seq_len=SEQ_LEN,
                trainer="deepspeed",
                unfused_attention=True,  # Megatron's kernels, older than FlashAttention
                config=config,
                tokens_per_s_per_gpu=speed,
                peak_memory_bytes=number(r["peak_mem_gib"]) * GIB,
                failed=failed,
                cell=f"{r['model_name']} {r['gpus']}",
                where="A100 40GB, one node; DeepSpeed 2021",
            )
        )
    return blocks_of(runs)


def _model(r: dict[str, str], vocab: int) -> ModelSpec:
    return printed_model(r, vocab_size=vocab, tied_embeddings=True, max_positions=SEQ_LEN)


def _config(r: dict[str, str], *, recompute: str, precision: str) -> ParallelConfig:
    stage = r["zero_stage_or_fsdp"]
    sharded = whole(r["dp"]) > 1 and stage.startswith("zero")
    return printed_config(
        r, precision=precision, recompute=recompute, zero_stage=int(stage[-1]) if sharded else 0
    )
