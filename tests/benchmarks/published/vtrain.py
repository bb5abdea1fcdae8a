"""Six GPT shapes on 2 to 8 A100 under Megatron-DeepSpeed with full recomputation (vTrain)."""

from __future__ import annotations

from tests.benchmarks.published.rows import (
    Block,
    Run,
    blocks_of,
    printed_config,
    printed_model,
    read,
    whole,
)


def vtrain() -> list[Block]:
    """All rows. Precision and vocabulary are not printed: fp16 and GPT-2's padded vocabulary, as
    Megatron had it then, with attention that stores its scores."""
    runs = []
    for r in read("vtrain_single_node_a100"):
        model = printed_model(
            r,
            vocab_size=51200,
            tied_embeddings=True,
            max_positions=whole(r["seq_len"]),
        )
        config = printed_config(
            r,
            precision="fp16",
            recompute="full",
        )
        tokens = config.global_batch_size * whole(r["seq_len"])
        runs.append(
            Run(
                model=model,
                gpu="a100-80gb",
                seq_len=whole(r["seq_len"]),
                trainer="megatron",
                unfused_attention=True,
                config=config,
                tokens_per_s_per_gpu=tokens / float(r["step_time_s"]) / config.world_size,
                cell=f"{r['model_name']} {r['gpus']} {r['global_batch']}",
                where="A100, one node; Megatron-DeepSpeed 2023",
            )
        )
    return blocks_of(runs)
