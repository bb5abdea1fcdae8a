"""Recipes published by experts on 8 to 1,024 H100 under Megatron (NeMo 24.07, Megatron-LM's llama
example); pretraining only."""

from __future__ import annotations

from autotune.spec import ModelSpec
from tests.benchmarks.published.rows import Block, Run, blocks_of, printed_config, read, whole

KNOWN = {
    "LLAMA2-7B": "llama2-7B",
    "LLAMA2-13B": "llama2-13B",
    "LLAMA2-70B": "llama2-70B",
    "LLAMA3-8B": "llama3-8B",
    "LLAMA3-70B": "llama3-70B",
    "LLAMA3-405B": "llama3.1-405B",
    "GPT3-175B": "gpt3-175B",
}
"""row of architectures.csv by the name that is printed"""


def nemo() -> list[Block]:
    """One best point per model and system. Recomputation is not printed, nor is the overlap of
    tensor parallelism's collectives with their matmuls, which these recipes switch on
    (`ub_tp_comm_overlap`)."""
    shapes = {r["model"]: r for r in read("architectures")}
    runs, seen = [], set()
    for r in read("nvidia_nemo_perf"):
        wanted = "; pretrain" in r["notes"] or r["source"] == "megatron-lm-llama-readme"
        if (
            r["model_name"] not in KNOWN
            or not wanted
            or not r["tokens_per_s_per_gpu"]
            or r["gpu"] != "H100"
        ):
            continue
        shape = shapes[KNOWN[r["model_name"]]]
        model = ModelSpec(
            name=r["model_name"],
            num_layers=whole(shape["layers"]),
            hidden_size=whole(shape["hidden"]),
            num_attention_heads=whole(shape["heads"]),
            num_kv_heads=whole(shape["kv_heads"]),
            ffn_hidden_size=whole(shape["ffn_hidden"]),
            vocab_size=whole(shape["vocab"], 51200),
            gated_mlp="swiglu" in shape["form"],
        )
        virtual, tp = whole(r["vpp"]), whole(r["tp"])
        config = printed_config(
            r,
            cp=whole(r["cp"]),
            zero_stage=1,
            precision="fp8",
            sequence_parallel=tp > 1,
            async_tp=tp > 1,
            virtual_stages=virtual,
            pp_schedule="interleaved_1f1b" if virtual > 1 else "1f1b",
        )
        key = (r["model_name"], str(config), r["notes"][:9], r["tokens_per_s_per_gpu"])
        if key in seen:
            continue
        seen.add(key)
        release = "NeMo 24" if r["source"].startswith("nemo") else "Megatron-LM 2024"
        runs.append(
            Run(
                model=model,
                gpu="h100-sxm",
                seq_len=whole(r["seq_len"]),
                trainer="nemo",
                config=config,
                tokens_per_s_per_gpu=float(r["tokens_per_s_per_gpu"]),
                cell=r["model_name"],
                where=f"H100, InfiniBand; {release}",
            )
        )
    return blocks_of(runs)
