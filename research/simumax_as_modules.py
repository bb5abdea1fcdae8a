"""Allocated memory of Megatron-LM's ranks on eight B200, as measured (SimuMax) and as dry runs of a
module with the same tensors say.

    python -m research.simumax_as_modules            every published config, its first and its last pipeline rank
    python -m research.simumax_as_modules tp=8       those whose config holds this

Measured is `torch.cuda.max_memory_allocated` of that rank. Rows that differ in the number of
micro-batches alone were published with one measurement of memory, and are one row here. Nothing is
fitted.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from autotune.ports import DryRunLimits
from autotune.spec import ModelCode, ModelSpec, ParallelConfig, Workload, catalog
from autotune_workers.dryrun.local import LocalDryRunner
from tests.benchmarks.published.rows import read
from tests.benchmarks.published.simumax import MIB, rows_of

GIB = 2.0**30
LIMITS = DryRunLimits(wall_s=240)


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """One pipeline rank of a published run."""

    model: ModelSpec
    config: ParallelConfig
    seq_len: int
    pp_rank: int
    bytes: float
    """allocated at the peak of its fullest rank"""

    @property
    def degrees(self) -> str:
        """Of parallelism, as text."""
        return " ".join(
            f"{name}={getattr(self.config, name)}" for name in ("tp", "pp", "dp", "cp", "ep")
        )

    def __str__(self) -> str:
        return f"{self.model.name} {self.seq_len} {self.degrees} rank {self.pp_rank}"


def measured() -> Iterator[Measured]:
    """The published runs, each config once."""
    seen: set[tuple[object, ...]] = set()
    for r, run in zip(read("simumax_b200"), rows_of(), strict=True):
        config, ranks = run.config, list(json.loads(r["peak_by_rank_mb"]).values())
        place = (run.model.name, run.seq_len, config.tp, config.pp, config.cp, config.ep)
        if place in seen:
            continue
        seen.add(place)
        for pp_rank in range(config.pp):
            mine = ranks[
                pp_rank * len(ranks) // config.pp : (pp_rank + 1) * len(ranks) // config.pp
            ]
            most = max(rank["max_allocated_mb"] for rank in mine) * MIB
            yield Measured(
                model=run.model, config=config, seq_len=run.seq_len, pp_rank=pp_rank, bytes=most
            )


def sizes_of(row: Measured) -> dict[str, int]:
    """The fields of `megatron_blocks.MegatronShape`."""
    m, c = row.model, row.config
    sizes = {
        "num_layers": m.num_layers,
        "hidden_size": m.hidden_size,
        "num_attention_heads": m.num_attention_heads,
        "num_kv_heads": m.num_kv_heads,
        "head_dim": m.head_dim,
        "vocab_size": m.vocab_size,
        "ffn_hidden_size": m.dense_ffn_hidden_size or m.ffn_hidden_size,
        **{name: getattr(c, name) for name in ("tp", "cp", "ep", "dp")},
    }
    if m.kv_lora_rank:
        latent = ("v_head_dim", "qk_rope_head_dim", "q_lora_rank", "kv_lora_rank")
        sizes |= {name: getattr(m, name) for name in latent}
    if m.num_experts:
        routed = ("num_experts", "num_dense_layers", "experts_per_token", "shared_ffn_hidden_size")
        sizes |= {
            "expert_ffn_hidden_size": m.ffn_hidden_size,
            **{name: getattr(m, name) for name in routed},
        }
    return sizes


def training_of(
    row: Measured, inspect: Callable[[ModelSpec], ModelSpec]
) -> tuple[Workload, ParallelConfig]:
    """What is run dry: tensor, context, data and expert parallelism are in the module's sizes, and
    the pipeline is the trainer's.

    `inspect`: completes a model by what its code tells.
    """
    folder = str(Path(__file__).parents[1])
    code = ModelCode(
        module="research.megatron_blocks:build", args=json.dumps(sizes_of(row)), folder=folder
    )
    unknown = ModelSpec(
        name=row.model.name,
        num_layers=1,
        hidden_size=1,
        num_attention_heads=1,
        vocab_size=1,
        code=code,
    )
    c = row.config
    config = ParallelConfig(pp=c.pp, accumulation_steps=c.accumulation_steps, precision="bf16")
    workload = Workload(
        model=inspect(unknown),
        cluster=catalog.cluster(f"cpu-1x{c.pp}"),
        seq_len=row.seq_len // c.cp,
        global_batch_size=config.global_batch_size,
    )
    return workload, config


def main(holding: str = "") -> None:
    """Prints a row for each rank, and the worst."""
    print(
        "| model | tokens | config | pipeline rank | measured, GiB | dry run, GiB | error | peak at |"
    )
    print("|---|---|---|---|---|---|---|---|", flush=True)
    runner, errors = LocalDryRunner(), []
    for row in measured():
        if holding not in str(row):
            continue
        workload, config = training_of(row, lambda model: runner.inspect(model, limits=LIMITS))
        run = runner.run(workload, config, pp_rank=row.pp_rank, limits=LIMITS)
        errors.append(run.peak.total_bytes / row.bytes - 1)
        moment = run.peak.moment
        print(
            f"| {row.model.name} | {row.seq_len:,} | {row.degrees} | {row.pp_rank} | {row.bytes / GIB:.2f} |"
            f" {run.peak.total_bytes / GIB:.2f} | {errors[-1]:+.2%} | {moment.phase}, {moment.module} |",
            flush=True,
        )
    if errors:
        print(
            f"\n{len(errors)} ranks: median {np.median(np.abs(errors)):.2%}, worst {max(errors, key=abs):+.2%}"
        )


if __name__ == "__main__":
    main(*sys.argv[1:2])
