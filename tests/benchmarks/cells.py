"""Search cells: measured configs of one model on one set of GPUs, read from a CSV file with the
common header (see `data/`).

A cell holds the rows with the same source, model, GPU type, number of GPUs, sequence length and
global batch, if there are at least `MIN_CONFIGS` of them. Repeats of a config count as their
median. What the header does not say is set to the sweep's default: the padded vocabulary of GPT-2
(51200), the precision of that time, the form of MLP and embeddings that matches the printed
parameter count best, and sequence parallelism wherever nanotron shards tensors.
"""

from __future__ import annotations

import csv
import math
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median

from autotune.spec import (
    ClusterSpec,
    Failure,
    FailureKind,
    Measurement,
    ModelSpec,
    ParallelConfig,
    Trial,
    TrialStatus,
    Workload,
)

MIN_CONFIGS = 15
GPUS = {
    "H100": "h100-sxm",
    "A100": "a100-80gb",
    "V100": "v100-32gb",
    "H200": "h200-sxm",
    "B200": "b200-sxm",
}
TRAINERS = {
    "nanotron": "nanotron",
    "vtrain": "megatron",
    "mosaic": "torchtitan",
    "alpa": "megatron",
    "nemo": "megatron",
}
"""Trainer by the first word of the source."""
PRECISIONS = {"vtrain": "fp16"}
"""Precision where the source does not print it, by the same word; the fit reads these rows alike
(`published/vtrain.py`)."""
UNFUSED = ("vtrain",)
"""sources whose attention stores its scores"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """What became of a config."""

    config: ParallelConfig
    step_time_s: float = math.nan
    peak_memory_bytes: float | None = None
    failure: FailureKind | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """Measured configs to search among."""

    name: str
    workload: Workload
    rows: Mapping[ParallelConfig, Row]

    @property
    def best_step_time_s(self) -> float:
        """Fastest measured step."""
        return min(r.step_time_s for r in self.rows.values() if r.failure is None)

    def regret(self, config: ParallelConfig) -> float:
        """Throughput lost against the best config, 0 to 1; 1 for a config that failed."""
        row = self.rows[config]
        return 1.0 if row.failure else 1.0 - self.best_step_time_s / row.step_time_s

    def trial(self, config: ParallelConfig, number: int) -> Trial:
        """The trial of a config as it was measured."""
        row = self.rows[config]
        if row.failure:
            failure = Failure(kind=row.failure, message="failed in the published sweep")
            return Trial(config=config, number=number, status=TrialStatus.FAILED, failure=failure)
        return Trial(
            config=config,
            number=number,
            status=TrialStatus.COMPLETED,
            measurement=Measurement(
                step_times_s=(row.step_time_s,) * 5,
                peak_memory_bytes=row.peak_memory_bytes,
                tokens_per_step=config.global_batch_size * self.workload.seq_len,
                num_ranks=config.world_size,
            ),
        )


def read_cells(
    path: Path, *, unknown_cause: FailureKind = FailureKind.OUT_OF_MEMORY, least: int = MIN_CONFIGS
) -> list[Cell]:
    """The cells of a CSV of at least that many configs; `unknown_cause` is what a failure counts as
    whose cause the source does not say."""
    groups: defaultdict[tuple[str, ...], list[dict[str, str]]] = defaultdict(list)
    with path.open(encoding="utf-8", newline="") as file:
        for record in csv.DictReader(file):
            if (
                not record["status"].endswith("-inconsistent")
                and record["micro_batch"]
                and record["accum"]
            ):
                groups[
                    tuple(
                        record[k]
                        for k in ("source", "model_name", "gpu", "gpus", "seq_len", "global_batch")
                    )
                ].append(record)
    cells = [_cell(records, unknown_cause) for records in groups.values()]
    return [
        c for c in cells if len(c.rows) >= least and any(r.failure is None for r in c.rows.values())
    ]


def _cell(records: list[dict[str, str]], unknown_cause: FailureKind) -> Cell:
    first = records[0]
    trainer = TRAINERS.get(first["source"].split("-")[0], "native")
    per_node = min(_int(first["gpus_per_node"], 8), _int(first["gpus"]))
    gpu = first["gpu"] if "-" in first["gpu"] else GPUS[first["gpu"].split("_")[0]]
    workload = Workload(
        model=_model(first),
        cluster=ClusterSpec.of(
            gpu, num_nodes=max(1, _int(first["gpus"]) // per_node), gpus_per_node=per_node
        ),
        seq_len=_int(first["seq_len"]),
        global_batch_size=_int(first["global_batch"]),
        trainer=trainer,
        unfused_attention=first["source"].split("-")[0] in UNFUSED,
    )
    repeats: defaultdict[ParallelConfig, list[Row]] = defaultdict(list)
    for record in records:
        row = _row(record, trainer, workload.seq_len, unknown_cause)
        repeats[row.config].append(row)
    batch = _int(first["global_batch"])
    name = f"{first['model_name']}, {first['gpus']} GPUs, batch {batch}"
    return Cell(
        name=name,
        workload=workload,
        rows={config: _merged(rows) for config, rows in repeats.items()},
    )


def _merged(rows: list[Row]) -> Row:
    measured = [r for r in rows if r.failure is None]
    if not measured:
        return rows[0]
    return replace(measured[0], step_time_s=median(r.step_time_s for r in measured))


def _row(record: dict[str, str], trainer: str, seq_len: int, unknown_cause: FailureKind) -> Row:
    tp, vpp = _int(record["tp"]), _int(record["vpp"])
    zero = record["zero_stage_or_fsdp"]
    unprinted = PRECISIONS.get(record["source"].split("-")[0], "bf16")
    config = ParallelConfig(
        tp=tp,
        pp=_int(record["pp"]),
        dp=_int(record["dp"]),
        cp=_int(record["cp"]),
        ep=_int(record["ep"]),
        micro_batch_size=_int(record["micro_batch"]),
        accumulation_steps=_int(record["accum"]),
        precision=record["precision"]
        if record["precision"] in ("bf16", "fp16", "fp32", "fp8")
        else unprinted,
        recompute=record["checkpointing"]
        if record["checkpointing"] in ("selective", "full")
        else "none",
        zero_stage=int(zero[-1]) if zero[-1:].isdigit() else 0,
        sequence_parallel=tp > 1
        and (
            trainer == "nanotron" if not record["seq_parallel"] else record["seq_parallel"] == "1"
        ),
        virtual_stages=vpp,
        pp_schedule="interleaved_1f1b" if vpp > 1 else "1f1b",
    )
    if record["status"] != "ok":
        out_of_memory = record["status"] == "oom" or record["oom"].startswith("1")
        return Row(
            config=config, failure=FailureKind.OUT_OF_MEMORY if out_of_memory else unknown_cause
        )
    rate = record["tokens_per_s_per_gpu"]
    step_time_s = (
        config.global_batch_size * seq_len / (float(rate) * config.world_size) if rate else math.nan
    )
    peak = record["peak_mem_gib"]
    return Row(
        config=config,
        step_time_s=float(record["step_time_s"]) if record["step_time_s"] else step_time_s,
        peak_memory_bytes=float(peak) * 2**30 if peak else None,
    )


def _model(record: dict[str, str]) -> ModelSpec:
    printed = float(record["params_b"] or 0) * 1e9
    plain = ModelSpec(
        name=record["model_name"],
        num_layers=_int(record["layers"]),
        hidden_size=_int(record["hidden"]),
        ffn_hidden_size=_int(record["ffn_hidden"], 0),
        num_attention_heads=_int(record["heads"]),
        num_kv_heads=_int(record["kv_heads"], 0),
        vocab_size=_int(record["vocab"], 51200),
    )
    forms = [
        replace(
            plain,
            gated_mlp=gated,
            tied_embeddings=tied,
            max_positions=0 if gated else _int(record["seq_len"]),
        )
        for gated in (False, True)
        for tied in (True, False)
    ]
    return (
        min(forms, key=lambda model: abs(model.num_parameters - printed)) if printed else forms[0]
    )


def _int(text: str, default: int = 1) -> int:
    return int(float(text)) if text else default
