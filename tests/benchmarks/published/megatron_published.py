"""Megatron-LM's own published runs, 8 to 3,072 A100."""

from __future__ import annotations

from autotune.spec import ModelSpec, ParallelConfig
from tests.benchmarks.published.rows import Block, Run, blocks_of, read, whole


def megatron_published() -> list[Block]:
    """All rows. Where the micro-batch is not printed it is taken for 4 without a pipeline, 2 with
    up to eight stages, else 1: the pipeline wants many of them, the matmuls large ones.

    Checked: the configs of arXiv 2205.05198, table 5 (22B, 175B and 530B full, 530B and 1T
    selective), against Calculon's validation files. Not checked against a second source: the
    measured times, and table 1 of arXiv 2104.04473."""
    runs = []
    for r in read("megatron_published"):
        h, layers, seq, vocab = (
            whole(r["hidden"]),
            whole(r["layers"]),
            whole(r["seq_len"]),
            whole(r["vocab"]),
        )
        model = ModelSpec(
            name=f"gpt-h{h}-l{layers}",
            num_layers=layers,
            hidden_size=h,
            num_attention_heads=whole(r["heads"]),
            vocab_size=vocab,
            tied_embeddings=True,
            max_positions=seq,
        )
        batch, dp, pp = whole(r["global_batch"]), whole(r["dp"]), whole(r["pp"])
        micro = (
            whole(r["micro_batch"]) if r["micro_batch"] else (1 if pp > 8 else 2 if pp > 1 else 4)
        )
        virtual = whole(r["vpp"])
        config = ParallelConfig(
            tp=whole(r["tp"]),
            pp=pp,
            dp=dp,
            micro_batch_size=micro,
            accumulation_steps=batch // (dp * micro),
            precision="fp16",
            recompute=r["recompute"],
            sequence_parallel=r["seq_parallel"] == "1",
            virtual_stages=virtual,
            pp_schedule="interleaved_1f1b" if virtual > 1 else "1f1b",
        )
        if r["step_time_s"]:
            step = float(r["step_time_s"])
        else:  # the FLOPs of arXiv 2104.04473, equation 3, with full recomputation
            flops = (
                96.0 * batch * seq * layers * h**2 * (1 + seq / (6 * h) + vocab / (16 * layers * h))
            )
            step = flops / (float(r["tflops_per_gpu"]) * 1e12 * config.world_size)
        runs.append(
            Run(
                model=model,
                gpu="a100-80gb",
                seq_len=seq,
                trainer="megatron",
                unfused_attention=True,  # both papers are older than FlashAttention
                config=config,
                tokens_per_s_per_gpu=batch * seq / step / config.world_size,
                cell=r["source"].split()[0],
                where="A100 Selene, InfiniBand; Megatron-LM 2021 and 2022",
            )
        )
    return blocks_of(runs)
