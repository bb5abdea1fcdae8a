"""Four GPT shapes of 3.6B to 175B on 64 to 512 A100 under Megatron-DeepSpeed with full
recomputation (vTrain's runs on several nodes)."""

from __future__ import annotations

from autotune.spec import LinkSpec
from tests.benchmarks.published.rows import (
    Block,
    Run,
    blocks_of,
    printed_config,
    printed_model,
    read,
    whole,
)

NETWORK = LinkSpec(latency_s=5e-6, bytes_per_s=12.5e9, fabric="infiniband-hdr")
"""800 Gbit/s per node (`inter_node_bandwidth` of the runs' own files), shared by its eight GPUs"""


def vtrain_multi() -> list[Block]:
    """All rows. Precision and vocabulary are not printed; they are taken as in the runs on one
    node."""
    runs = []
    for r in read("vtrain_multi_node_a100"):
        config = printed_config(r, precision="fp16", recompute="full")
        tokens = config.global_batch_size * whole(r["seq_len"])
        runs.append(
            Run(
                model=printed_model(
                    r, vocab_size=51200, tied_embeddings=True, max_positions=whole(r["seq_len"])
                ),
                gpu="a100-80gb",
                seq_len=whole(r["seq_len"]),
                trainer="megatron",
                unfused_attention=True,
                config=config,
                tokens_per_s_per_gpu=tokens / float(r["step_time_s"]) / config.world_size,
                cell=f"{r['model_name']} {r['gpus']} {r['global_batch']}",
                where="A100, InfiniBand; Megatron-DeepSpeed 2023",
                inter_node=NETWORK,
            )
        )
    return blocks_of(runs)
