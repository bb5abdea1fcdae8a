"""MPT 125M to 70B under FSDP on A100 and H100 (llm-foundry)."""

from __future__ import annotations

import math

from autotune.spec import LinkSpec, ParallelConfig
from tests.benchmarks.published.rows import Block, Run, blocks_of, printed_model, read, whole

GPUS = {"a100_40gb": "a100-40gb", "a100_80gb": "a100-80gb", "h100_80gb": "h100-sxm"}
ROCE = LinkSpec(latency_s=10e-6, bytes_per_s=25e9, fabric="roce")
"""what the page states of its A100: 1,600 Gb/s between nodes; of its H100 it states nothing"""


def mosaic() -> list[Block]:
    """All rows. The micro-batch need not divide the batch of a rank: the last one is then
    smaller."""
    runs = []
    for r in read("mosaic_llm_foundry"):
        model = printed_model(
            r,
            vocab_size=whole(r["vocab"]),
            tied_embeddings=True,
        )
        gpus, micro = whole(r["gpus"]), whole(r["micro_batch"])
        config = ParallelConfig(
            dp=gpus,
            micro_batch_size=micro,
            accumulation_steps=max(1, math.ceil(whole(r["global_batch"]) / (micro * gpus))),
            precision="fp8" if r["precision"].endswith("fp8") else "bf16",
            recompute=r["checkpointing"],
            zero_stage=2 if "grad_op" in r["zero_stage_or_fsdp"] else 3,
        )
        runs.append(
            Run(
                model=model,
                gpu=GPUS[r["gpu"]],
                seq_len=whole(r["seq_len"]),
                trainer="composer",
                config=config,
                tokens_per_s_per_gpu=float(r["tokens_per_s_per_gpu"]),
                cell=f"{r['gpu']} {r['model_name']} {r['seq_len']}",
                where=f"{r['gpu']}, RoCE; composer FSDP",
                inter_node=ROCE if GPUS[r["gpu"]].startswith("a100") else None,
            )
        )
    return blocks_of(runs)
