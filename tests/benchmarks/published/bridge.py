"""Recipes of Megatron-Bridge on 8 to 1,024 H100, B200, B300, GB200 and GB300, over several
releases; pretraining.

The notes name the container, which is the software of a row. Recomputation, offloading and CUDA
graphs are not printed, nor is how tokens reach their experts: `bridge_recipes.py` holds what the
recipes say of that for models with experts. Rows of fine-tuning (SFT, LoRA) are left out. Recipes
of dense models overlap the collectives of tensor parallelism with their matmuls
(`tp_comm_overlap`).
"""

from __future__ import annotations

from dataclasses import replace

from autotune.spec import GpuSpec, ModelSpec
from autotune.spec.catalog import model as catalog_model
from tests.benchmarks.published.bridge_recipes import release_of, unprinted_knobs
from tests.benchmarks.published.rows import Block, Run, blocks_of, printed_config, read, whole

MODELS = {"LLAMA3_70B": "llama-70b", "Qwen3_30B_a3B": "qwen3-30b-a3b", "DeepSeekV3": "deepseek-v3"}
"""catalog name by the first word that is printed"""
GPUS = {
    "H100": "h100-sxm",
    "B200": "b200-sxm",
    "B300": "b300-sxm",
    "GB200": "gb200-nvl72",
    "GB300": "gb300-nvl72",
}
PRECISIONS = {"fp8-cs": "fp8", "fp8-mx": "mxfp8", "fp8-mx/subchannel": "mxfp8"}
"""knob value by what is printed, where they differ: fp8-cs is fp8 with one scale of the current
tensor. On H100, which has no mxfp8, the last is TransformerEngine's blockwise recipe
(`bf16_with_fp8_subchannel_scaling_mixed`), which no knob expresses: the one such row, which prints
the figure of its neighbour in fp8-cs, is left out"""


def bridge() -> list[Block]:
    """All rows of pretraining in a precision that the GPU has by its datasheet."""
    runs = []
    for r in read("megatron_bridge_perf"):
        if "Pre-Training" not in r["notes"]:
            continue
        gpu, precision = GPUS[r["gpu"]], PRECISIONS.get(r["precision"], r["precision"])
        if precision not in GpuSpec.of(gpu).peak_flops_per_s:
            continue
        tp, pp, dp, virtual = whole(r["tp"]), whole(r["pp"]), whole(r["dp"]), whole(r["vpp"])
        config = printed_config(
            r,
            cp=whole(r["cp"]),
            ep=whole(r["ep"]),
            precision=precision,
            zero_stage=3 if r["zero_stage_or_fsdp"].startswith("fsdp") else 1 if dp > 1 else 0,
            sequence_parallel=tp > 1,
            async_tp=tp > 1 and r["model_name"].startswith("LLAMA"),
            virtual_stages=virtual if pp > 1 else 1,
            pp_schedule="interleaved_1f1b" if virtual > 1 and pp > 1 else "1f1b",
            **unprinted_knobs(r["model_name"], r["gpu"], release_of(r["notes"])),
        )
        release = r["notes"].partition(" ")[0]
        runs.append(
            Run(
                model=_model(r["model_name"]),
                gpu=gpu,
                gpus_per_node=whole(r["gpus_per_node"]),
                seq_len=whole(r["seq_len"]),
                trainer="nvidia_recipes",
                config=config,
                tokens_per_s_per_gpu=float(r["tokens_per_s_per_gpu"]),
                cell=f"{r['model_name']} {r['gpu']} {r['gpus']} {r['precision']}",
                where=f"{r['gpu']}; NeMo {release}",
            )
        )
    return blocks_of(runs)


def _model(printed: str) -> ModelSpec:
    model = catalog_model(MODELS[printed.partition(" ")[0]])
    predicts = model.is_latent and "w/o MTP" not in printed
    return replace(model, mtp_layers=1) if predicts else model
