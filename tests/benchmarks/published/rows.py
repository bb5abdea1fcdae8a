"""Published runs as rows, and rows as blocks that the cost model predicts at once.

A `Run` is one published row. A `Block` holds the rows of one data file with the same model,
sequence length, cluster and software. A *cell* is a set of configs that a search would choose from.
"""

from __future__ import annotations

import csv
import math
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from autotune.spec import (
    ClusterSpec,
    ConfigTable,
    LinkSpec,
    ModelSpec,
    ParallelConfig,
    Peft,
    Workload,
)

DATA = Path(__file__).parent.parent / "data"
GIB = 2.0**30
COLUMNS = (
    "tokens_per_s_per_gpu",
    "peak_memory_bytes",
    "allocated_bytes",
    "failed",
    "other_cause",
    "cell",
)
"""arrays of a `Block` beside its table"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """One published row."""

    model: ModelSpec
    gpu: str
    """catalog name"""
    seq_len: int
    trainer: str
    """name by which the cost model knows the training loop"""
    config: ParallelConfig
    tokens_per_s_per_gpu: float
    """measured; nan where it is not printed or the run failed"""
    cell: str
    """name of its search cell"""
    where: str
    """the cluster and its software, in words: rows with equal words were measured on the same"""
    gpus_per_node: int = 8
    peft: Peft | None = None
    """the adapters that are trained; None: all weights"""
    pure_bf16: bool = False
    """whether nothing is kept in fp32"""
    unfused_attention: bool = False
    """whether attention stores its scores"""
    attention_kernel: str = ""
    """the kernel that the source names, where the trainer leaves it to its user"""
    optimizer: str = "adamw"
    document_len: int = 0
    """tokens of the documents that are packed into a sequence; 0: a sequence is one document"""
    inter_node: LinkSpec | None = None
    """network between the nodes, where the source states it; None: the usual one of the GPU"""
    peak_memory_bytes: float = math.nan
    """what the allocator reserved on the fullest rank; nan where it is not printed"""
    allocated_bytes: float = math.nan
    """what was allocated at the peak of the fullest rank; nan where it is not printed"""
    failed: bool = False
    """whether it ran out of memory, or failed for a cause that is not printed"""
    other_cause: str = ""
    """why a failed run cannot have failed for memory; empty where it may have"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Block:
    """Rows of one model, sequence length, cluster and software; arrays of shape (N,)."""

    workload: Workload
    """its global batch is that of the first row; each config has its own"""
    where: str
    """the cluster and its software"""
    table: ConfigTable
    tokens_per_s_per_gpu: np.ndarray
    """measured; nan where it is not printed or the run failed"""
    peak_memory_bytes: np.ndarray
    """reserved on the fullest rank; nan where it is not known"""
    allocated_bytes: np.ndarray
    """allocated at the peak of the fullest rank; nan where it is not known"""
    failed: np.ndarray
    """whether the run failed"""
    other_cause: np.ndarray
    """why it cannot have failed for memory; empty where it may have, or ran"""
    cell: np.ndarray
    """name of the search cell of each row"""

    @property
    def out_of_memory(self) -> np.ndarray:
        """Whether a run failed, and memory may be the cause."""
        return self.failed & (self.other_cause == "")

    @property
    def step_time_s(self) -> np.ndarray:
        """Seconds per step of each row's own batch."""
        tokens = self.table.global_batch_size * float(self.workload.seq_len)
        return tokens / (self.tokens_per_s_per_gpu * self.table.world_size)

    def take(self, index: np.ndarray) -> Block:
        """The rows that `index` names."""
        return replace(
            self, table=self.table.take(index), **{n: getattr(self, n)[index] for n in COLUMNS}
        )


def read(name: str) -> list[dict[str, str]]:
    """The rows of a data file as text."""
    with (DATA / f"{name}.csv").open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def whole(text: str, default: int = 1) -> int:
    """The whole number of a cell; some are printed as 8.0, some are empty."""
    return int(float(text)) if text else default


def number(text: str) -> float:
    """The number of a cell; nan where it is empty."""
    return float(text) if text else math.nan


def printed_model(r: dict[str, str], **others: Any) -> ModelSpec:
    """The model of a row that prints layers, width and heads; `others`: the other fields, and those
    that its columns do not hold."""
    columns = {"num_layers": "layers", "hidden_size": "hidden", "num_attention_heads": "heads"}
    shape = {field: whole(r[column]) for field, column in columns.items()}
    return ModelSpec(name=r["model_name"], **{**shape, **others})


def printed_config(r: dict[str, str], **others: Any) -> ParallelConfig:
    """The config of a row that prints tp, pp, dp, micro-batch and accumulation; `others`: the other
    knobs."""
    return ParallelConfig(
        tp=whole(r["tp"]),
        pp=whole(r["pp"]),
        dp=whole(r["dp"]),
        micro_batch_size=whole(r["micro_batch"]),
        accumulation_steps=whole(r["accum"]),
        **others,
    )


def blocks_of(runs: Iterable[Run]) -> list[Block]:
    """The runs, grouped."""
    groups: Mapping[tuple[Any, ...], list[Run]] = defaultdict(list)
    for run in runs:
        key = (run.model.name, run.gpu, run.gpus_per_node, run.seq_len, run.where, run.trainer)
        attention = (run.unfused_attention, run.attention_kernel)
        groups[*key, *attention, run.peft, run.pure_bf16, run.optimizer, run.document_len].append(
            run
        )
    return [
        Block(
            workload=Workload(
                model=members[0].model,
                cluster=_cluster(members),
                seq_len=members[0].seq_len,
                global_batch_size=members[0].config.global_batch_size,
                trainer=members[0].trainer,
                peft=members[0].peft,
                pure_bf16=members[0].pure_bf16,
                unfused_attention=members[0].unfused_attention,
                attention_kernel=members[0].attention_kernel,
                optimizer=members[0].optimizer,
                document_len=members[0].document_len,
            ),
            where=members[0].where,
            table=ConfigTable.of([r.config for r in members]),
            **{n: np.array([getattr(r, n) for r in members]) for n in COLUMNS},
        )
        for members in groups.values()
    ]


def _cluster(members: list[Run]) -> ClusterSpec:
    first, most = members[0], max(r.config.world_size for r in members)
    nodes = max(1, math.ceil(most / first.gpus_per_node))
    cluster = ClusterSpec.of(first.gpu, num_nodes=nodes, gpus_per_node=first.gpus_per_node)
    return cluster if first.inter_node is None else replace(cluster, inter_node=first.inter_node)
