"""Published runs that nothing was fitted to or chosen by: other clusters, trainers, models and
GPUs, to judge the cost model blind.

Each row has the address of its source and, in `assumed`, what the source does not print. Trainers
are named as a user of that program would name them here: a program that is not registered is a
`command`. Clusters are presets.

    model            catalog name, or a name with its shape in the next columns
    tflops_per_gpu   FLOPs of the model (arXiv 2104.04473, equation 3, without recomputation), or of the hardware with the repeated forward pass: four thirds of them
    mem_kind         allocated, reserved, device (nvidia-smi, with the CUDA context), or unknown
"""

from __future__ import annotations

import math
from collections import defaultdict
from dataclasses import replace

from autotune.spec import KNOBS, ClusterSpec, LinkSpec, ModelSpec, ParallelConfig, Peft
from autotune.spec.catalog import model as catalog_model
from tests.benchmarks.published.rows import (
    GIB,
    Block,
    Run,
    blocks_of,
    number,
    printed_model,
    read,
    whole,
)

UNITS = {"GiB": GIB, "GB": 1e9, "MiB": 2.0**20}
WHOLE = ("tp", "pp", "dp", "cp", "ep", "dp_replicas", "virtual_stages", "zero_stage")
WORDS = (
    "pp_schedule",
    "pp_split",
    "precision",
    "recompute",
    "loss",
    "cp_style",
    "dispatcher",
    "offload",
)
FLAGS = ("sequence_parallel", "async_tp", "compile")
HARDWARE_FLOPS = 4.0 / 3.0
BATCHES = {
    1: "published_unseen",
    2: "published_unseen_2",
    3: "published_unseen_3",
    4: "published_unseen_4",
    5: "published_open",
}
"""data file of each batch: each was collected after the ones before it had been read, and the code
mended because of them. Laws were made with two thirds of the fifth (`research.open_rows`)"""
READ = (1, 2, 3)
"""batches that have been read: widths and levels may count them; of the others only blind figures
are made"""

UNFUSED = (
    "bigscience_a100", "mt_nlg_paper", "glm_130b_paper", "flagperf_baichuan2", "lightning_gpt2_xl",
    "lambda_neox", "libai", "libai_megatron", "nanogpt_2022", "nemo_launcher_2023", "optimum_benchmark",
    "vertex_openllama",
)  # fmt: skip
"""sources whose attention stores its scores: Megatron-LM older than FlashAttention (May 2022),
transformers of 2022 and 2023, a model with no other attention"""
PEFT_PROGRAMS = ("universal_llm_trainer", "vectorlm", "llama_recipes_lora")
"""programs of their own whose code calls Hugging Face's PEFT"""
NOT_UPCAST = ("qwen_finetune",)
"""sources whose frozen weights are 4 bits by GPTQ, beside which PEFT casts nothing to fp32"""


def unseen(recompute: str = "none", batch: int = 1) -> dict[str, list[Block]]:
    """The rows of every source of a batch, by its name. `recompute`: of rows that do not print
    it."""
    runs: dict[str, list[Run]] = defaultdict(list)
    for r in read(BATCHES[batch]):
        runs[r["source"]].append(_run({**r, "recompute": r["recompute"] or recompute}))
    return {name: blocks_of(rows) for name, rows in runs.items()}


def _run(r: dict[str, str]) -> Run:
    model, config = _model(r), _config(r)
    seq_len = whole(r["seq_len"])
    peak = number(r["peak_mem"]) * UNITS.get(r["mem_unit"], math.nan)
    allocated = r["mem_kind"] == "allocated"
    library = "peft" if r["source"] in PEFT_PROGRAMS else ""
    adapters = (
        Peft(
            method=r["peft"],
            rank=whole(r["peft_rank"]),
            targets=r["peft_targets"],
            library=library,
            upcast=False if r["source"] in NOT_UPCAST else None,
        )
        if r["peft"]
        else None
    )
    return Run(
        model=model,
        gpu=r["gpu"],
        gpus_per_node=whole(r["gpus_per_node"]),
        inter_node=_network(r),
        seq_len=seq_len,
        trainer=r["trainer"],
        peft=adapters,
        pure_bf16=r["pure_bf16"] == "1",
        unfused_attention=r["source"] in UNFUSED,
        attention_kernel="flash3" if "FlashAttention 3" in r["software"] else "",
        optimizer=r["optimizer"] or "adamw",
        document_len=whole(r.get("document_len", ""), 0),
        config=config,
        tokens_per_s_per_gpu=_speed(r, model, config, seq_len),
        peak_memory_bytes=math.nan if allocated else peak,
        allocated_bytes=peak if allocated else math.nan,
        failed=r["oom"] == "1",
        cell=f"{r['model']} {r['peft']}",
        where=f"{r['gpu']}; {r['software']}",
    )


def _network(r: dict[str, str]) -> LinkSpec | None:
    """The network between the nodes where the source says its kind: with the bandwidth of the
    preset."""
    if not r.get("fabric"):
        return None
    preset = ClusterSpec.of(
        r["gpu"], num_nodes=2, gpus_per_node=whole(r["gpus_per_node"])
    ).inter_node
    return replace(preset, fabric=r["fabric"])


def _model(r: dict[str, str]) -> ModelSpec:
    if not r["layers"]:
        return catalog_model(r["model"])
    return printed_model(
        {**r, "model_name": r["model"]},
        vocab_size=whole(r["vocab"]),
        num_kv_heads=whole(r["kv_heads"], 0),
        ffn_hidden_size=whole(r["ffn_hidden"], 0),
        gated_mlp=r["gated"] == "1",
        tied_embeddings=r["tied"] == "1",
        num_experts=whole(r.get("experts", ""), 0),
        experts_per_token=whole(r.get("experts_per_token", ""), 0),
    )


def _config(r: dict[str, str]) -> ParallelConfig:
    values: dict[str, object] = {name: whole(r[name], KNOBS[name].default) for name in WHOLE}
    values |= {name: r[name] for name in WORDS if r.get(name)}
    values |= {name: r[name] == "1" for name in FLAGS}
    return ParallelConfig(
        micro_batch_size=whole(r["micro_batch"]), accumulation_steps=whole(r["accum"]), **values
    )  # type: ignore[arg-type]


def _speed(r: dict[str, str], model: ModelSpec, config: ParallelConfig, seq_len: int) -> float:
    """Tokens/s per GPU; nan where the source prints no time."""
    if r["step_time_s"]:
        return config.global_batch_size * seq_len / float(r["step_time_s"]) / config.world_size
    if not r["tflops_per_gpu"]:
        return number(r["tokens_per_s_per_gpu"])
    embedding = model.vocab_size * model.hidden_size * (0 if model.tied_embeddings else 1)
    multiplied = model.num_parameters - embedding
    per_token = (
        6.0 * multiplied
        + 12.0 * model.num_layers * model.num_attention_heads * model.head_dim * seq_len
    )
    return (
        float(r["tflops_per_gpu"])
        * 1e12
        / (per_token * (HARDWARE_FLOPS if r["flops_counted"] == "hardware" else 1.0))
    )
