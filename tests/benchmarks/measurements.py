"""The published measurements as workloads, configs and measured values, to fit the cost model and to replay searchers.

The files in `data/` hold facts from public sources, with the source in each row. A `Block` holds rows with the same model, sequence length and GPU
type. A *cell* is a set of configs that a search would choose from.
"""

from __future__ import annotations

import csv
import math
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from autotune.spec import ClusterSpec, ConfigTable, ModelSpec, ParallelConfig, Workload

DATA = Path(__file__).with_name("data")
GPUS = {
    "a100_40gb": "a100-40gb",
    "a100_80gb": "a100-80gb",
    "h100_80gb": "h100-sxm",
    "H100": "h100-sxm",
    "A100": "a100-80gb",
    "A100-80GB": "a100-80gb",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Block:
    """Rows of one model, sequence length and GPU type; arrays of shape (N,)."""

    workload: Workload
    """its global batch is that of the first row; each config has its own"""
    table: ConfigTable
    tokens_per_s_per_gpu: np.ndarray
    """measured; nan where the run failed"""
    peak_memory_bytes: np.ndarray
    """measured; nan where it is not known"""
    failed: np.ndarray
    """whether the run failed"""
    cell: np.ndarray
    """name of the search cell of each row"""

    @property
    def step_time_s(self) -> np.ndarray:
        """Seconds per step of each row's own batch."""
        tokens = self.table.global_batch_size * float(self.workload.seq_len)
        return tokens / (self.tokens_per_s_per_gpu * self.table.world_size)

    def take(self, index: np.ndarray) -> Block:
        """The rows that `index` names."""
        return Block(
            workload=self.workload,
            table=self.table.take(index),
            **{n: getattr(self, n)[index] for n in ("tokens_per_s_per_gpu", "peak_memory_bytes", "failed", "cell")},
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Row:
    model: ModelSpec
    gpu: str
    seq_len: int
    trainer: str
    config: ParallelConfig
    tokens_per_s_per_gpu: float
    cell: str
    peak_memory_bytes: float = math.nan
    failed: bool = False


def read(name: str) -> list[dict[str, str]]:
    """The rows of a data file as text."""
    with (DATA / f"{name}.csv").open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def _blocks(rows: Iterable[_Row]) -> list[Block]:
    groups: Mapping[tuple[str, str, int], list[_Row]] = defaultdict(list)
    for row in rows:
        groups[row.model.name, row.gpu, row.seq_len].append(row)
    return [
        Block(
            workload=Workload(
                model=members[0].model,
                cluster=ClusterSpec.of(gpu, num_nodes=max(1, max(r.config.world_size for r in members) // 8)),
                seq_len=seq_len,
                global_batch_size=members[0].config.global_batch_size,
                trainer=members[0].trainer,
            ),
            table=ConfigTable.of([r.config for r in members]),
            tokens_per_s_per_gpu=np.array([r.tokens_per_s_per_gpu for r in members]),
            peak_memory_bytes=np.array([r.peak_memory_bytes for r in members]),
            failed=np.array([r.failed for r in members]),
            cell=np.array([r.cell for r in members]),
        )
        for (_, gpu, seq_len), members in groups.items()
    ]


def _int(text: str, default: int = 1) -> int:
    return int(float(text)) if text else default


def nanotron() -> list[Block]:
    """Llama 1B and 8B on 8 to 128 H100 (Ultra-Scale Playbook): time, memory and failures."""
    rows = []
    for r in read("nanotron_h100"):
        if r["status"] not in ("ok", "failed"):
            continue
        model = ModelSpec(
            name=r["model_name"],
            num_layers=_int(r["layers"]),
            hidden_size=_int(r["hidden"]),
            num_attention_heads=_int(r["heads"]),
            num_kv_heads=_int(r["kv_heads"]),
            ffn_hidden_size=_int(r["ffn_hidden"]),
            vocab_size=_int(r["vocab"]),
            gated_mlp=True,
            tied_embeddings=r["model_name"].endswith("1B"),
        )
        failed = r["status"] == "failed"
        config = ParallelConfig(
            tp=_int(r["tp"]),
            pp=_int(r["pp"]),
            dp=_int(r["dp"]),
            micro_batch_size=_int(r["micro_batch"]),
            accumulation_steps=_int(r["accum"]),
            zero_stage=_int(r["zero_stage_or_fsdp"][-1]),
            sequence_parallel=_int(r["tp"]) > 1,
        )
        rows.append(
            _Row(
                model=model,
                gpu="h100-sxm",
                seq_len=_int(r["seq_len"]),
                trainer="nanotron",
                config=config,
                tokens_per_s_per_gpu=math.nan if failed else float(r["tokens_per_s_per_gpu"]),
                failed=failed,
                peak_memory_bytes=float(r["peak_mem_gib"]) * 2**30 if r["peak_mem_gib"] and not failed else math.nan,
                cell=f"{r['model_name']} {r['gpus']}",
            )
        )
    return _blocks(rows)


def vtrain() -> list[Block]:
    """Six GPT shapes on 2 to 8 A100 under Megatron-DeepSpeed with full recomputation (vTrain)."""
    rows = []
    for r in read("vtrain_single_node_a100"):
        model = ModelSpec(
            name=r["model_name"],
            num_layers=_int(r["layers"]),
            hidden_size=_int(r["hidden"]),
            num_attention_heads=_int(r["heads"]),
            vocab_size=51200,
            tied_embeddings=True,
            max_positions=_int(r["seq_len"]),
        )
        config = ParallelConfig(
            tp=_int(r["tp"]),
            pp=_int(r["pp"]),
            dp=_int(r["dp"]),
            micro_batch_size=_int(r["micro_batch"]),
            accumulation_steps=_int(r["accum"]),
            precision="fp16",
            recompute="full",
        )
        rows.append(
            _Row(
                model=model,
                gpu="a100-80gb",
                seq_len=_int(r["seq_len"]),
                trainer="megatron",
                config=config,
                tokens_per_s_per_gpu=config.global_batch_size
                * _int(r["seq_len"])
                / float(r["step_time_s"])
                / config.world_size,
                cell=f"{r['model_name']} {r['gpus']} {r['global_batch']}",
            )
        )
    return _blocks(rows)


def mosaic() -> list[Block]:
    """MPT 125M to 70B under FSDP on A100 and H100 (llm-foundry)."""
    rows = []
    for r in read("mosaic_llm_foundry"):
        model = ModelSpec(
            name=r["model_name"],
            num_layers=_int(r["layers"]),
            hidden_size=_int(r["hidden"]),
            num_attention_heads=_int(r["heads"]),
            vocab_size=_int(r["vocab"]),
            tied_embeddings=True,
        )
        gpus, micro = _int(r["gpus"]), _int(r["micro_batch"])
        config = ParallelConfig(
            dp=gpus,
            micro_batch_size=micro,
            accumulation_steps=max(1, math.ceil(_int(r["global_batch"]) / (micro * gpus))),
            precision="fp8" if r["precision"].endswith("fp8") else "bf16",
            recompute=r["checkpointing"],
            zero_stage=2 if "grad_op" in r["zero_stage_or_fsdp"] else 3,
        )
        rows.append(
            _Row(
                model=model,
                gpu=GPUS[r["gpu"]],
                seq_len=_int(r["seq_len"]),
                trainer="torchtitan",
                config=config,
                tokens_per_s_per_gpu=float(r["tokens_per_s_per_gpu"]),
                cell=f"{r['gpu']} {r['model_name']} {r['seq_len']}",
            )
        )
    return _blocks(rows)


def internevo() -> list[Block]:
    """InternLM 7B on 8 to 1,024 A100 (InternEvo), sharded over all ranks; rows with smaller ZeRO groups are left out."""
    model = ModelSpec(
        name="internlm-7B",
        num_layers=32,
        hidden_size=4096,
        num_attention_heads=32,
        ffn_hidden_size=11008,
        vocab_size=103168,
        gated_mlp=True,
    )
    rows = []
    for r in read("internevo_a100"):
        if r["source"] != "internevo" or r["zero_stage_or_fsdp"] != "zero1":
            continue
        config = ParallelConfig(
            tp=_int(r["tp"]),
            dp=_int(r["dp"]),
            micro_batch_size=_int(r["micro_batch"]),
            accumulation_steps=_int(r["accum"]),
            zero_stage=1,
            recompute=r["checkpointing"],
        )
        rows.append(
            _Row(
                model=model,
                gpu="a100-80gb",
                seq_len=2048,
                trainer="internevo",
                config=config,
                tokens_per_s_per_gpu=float(r["tokens_per_s_per_gpu"]),
                cell="internlm-7B",
            )
        )
    return _blocks(rows)


def nemo() -> list[Block]:
    """Recipes published by experts on 8 to 1,024 H100 under Megatron (NeMo 24.07, Megatron-LM's llama example); pretraining only."""
    shapes = {r["model"]: r for r in read("architectures")}
    known = {
        "LLAMA2-7B": "llama2-7B",
        "LLAMA2-13B": "llama2-13B",
        "LLAMA2-70B": "llama2-70B",
        "LLAMA3-8B": "llama3-8B",
        "LLAMA3-70B": "llama3-70B",
        "LLAMA3-405B": "llama3.1-405B",
        "GPT3-175B": "gpt3-175B",
    }
    rows, seen = [], set()
    for r in read("nvidia_nemo_perf"):
        wanted = "; pretrain" in r["notes"] or r["source"] == "megatron-lm-llama-readme"
        if r["model_name"] not in known or not wanted or not r["tokens_per_s_per_gpu"] or r["gpu"] != "H100":
            continue
        shape = shapes[known[r["model_name"]]]
        model = ModelSpec(
            name=r["model_name"],
            num_layers=_int(shape["layers"]),
            hidden_size=_int(shape["hidden"]),
            num_attention_heads=_int(shape["heads"]),
            num_kv_heads=_int(shape["kv_heads"]),
            ffn_hidden_size=_int(shape["ffn_hidden"]),
            vocab_size=_int(shape["vocab"], 51200),
            gated_mlp="swiglu" in shape["form"],
        )
        virtual, tp = _int(r["vpp"]), _int(r["tp"])
        config = ParallelConfig(
            tp=tp,
            pp=_int(r["pp"]),
            dp=_int(r["dp"]),
            cp=_int(r["cp"]),
            micro_batch_size=_int(r["micro_batch"]),
            accumulation_steps=_int(r["accum"]),
            zero_stage=1,
            precision="fp8",
            sequence_parallel=tp > 1,
            virtual_stages=virtual,
            pp_schedule="interleaved_1f1b" if virtual > 1 else "1f1b",
        )
        key = (r["model_name"], str(config), r["notes"][:9], r["tokens_per_s_per_gpu"])
        if key in seen:
            continue
        seen.add(key)
        rows.append(
            _Row(
                model=model,
                gpu="h100-sxm",
                seq_len=_int(r["seq_len"]),
                trainer="megatron",
                config=config,
                tokens_per_s_per_gpu=float(r["tokens_per_s_per_gpu"]),
                cell=r["model_name"],
            )
        )
    return _blocks(rows)


def megatron_published() -> list[Block]:
    """Megatron-LM's own published runs, 8 to 3,072 A100: never fitted. Where the micro-batch is not printed it is taken
    for 4 without a pipeline, 2 with up to eight stages, else 1: the pipeline wants many of them, the matmuls large ones.

    Checked: the configs of arXiv 2205.05198, table 5 (22B, 175B and 530B full, 530B and 1T selective), against Calculon's validation files.
    Not checked against a second source: the measured times, and table 1 of arXiv 2104.04473."""
    rows = []
    for r in read("megatron_published"):
        h, layers, seq, vocab = _int(r["hidden"]), _int(r["layers"]), _int(r["seq_len"]), _int(r["vocab"])
        model = ModelSpec(
            name=f"gpt-h{h}-l{layers}",
            num_layers=layers,
            hidden_size=h,
            num_attention_heads=_int(r["heads"]),
            vocab_size=vocab,
            tied_embeddings=True,
            max_positions=seq,
        )
        batch, dp, pp = _int(r["global_batch"]), _int(r["dp"]), _int(r["pp"])
        micro = _int(r["micro_batch"]) if r["micro_batch"] else (1 if pp > 8 else 2 if pp > 1 else 4)
        virtual = _int(r["vpp"])
        config = ParallelConfig(
            tp=_int(r["tp"]),
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
            flops = 96.0 * batch * seq * layers * h**2 * (1 + seq / (6 * h) + vocab / (16 * layers * h))
            step = flops / (float(r["tflops_per_gpu"]) * 1e12 * config.world_size)
        rows.append(
            _Row(
                model=model,
                gpu="a100-80gb",
                seq_len=seq,
                trainer="megatron",
                config=config,
                tokens_per_s_per_gpu=batch * seq / step / config.world_size,
                cell=r["source"].split()[0],
            )
        )
    return _blocks(rows)
