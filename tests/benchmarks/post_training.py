"""Steps of post-training: published phases against the cost model.

    python -m tests.benchmarks.post_training            a table for each sweep
    python -m tests.benchmarks.post_training --rows     every row

Rows: `data/post_training.csv`, the rows of reinforcement learning of the open collection (addresses
with commits in the file). The sweeps of verl_megatron_practice name neither the lengths of
responses nor n; n=16 and the largest lengths stand in the scripts beside the tables (DAPO_7B/*.sh,
GRPO_7B/*.sh). What is assumed of lengths is said at `SWEEPS`; the mean of grpo7b is that of the
printed throughput (tokens of prompts and responses per second and GPU), that of dapo7b the one at
which the printed utilization overstates tokens as much as it does there (15%).

    phase      printed / predicted after one trial: the level of each phase is that of one row of the sweep, and every row is the trial once; median of |error| over all others
    regret     step of the first pick over the best step less 1. A pick ranks configs by printed generation and what the model says of everything else
    memory     rows that ran out of memory and are called, rows that ran and are called
    staleness  verl's fully asynchronous trainer on 64 + 64 GPUs (its docs): the step at two stalenesses from the rows at 0, which tells generation with its tail, and at 0.5, which
               tells generation without it; the update is as printed
"""

from __future__ import annotations

import argparse
import csv
import re
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import permutations
from pathlib import Path
from typing import Any

import numpy as np

from autotune.cost import estimate
from autotune.spec import ClusterSpec, ModelSpec, ParallelConfig, Workload
from autotune.spec.lengths import Lengths
from autotune.spec.post_training import PostTraining, Rollout

DATA = Path(__file__).with_name("data") / "post_training.csv"
QWEN_7B = ModelSpec(
    name="qwen2.5-7b", num_layers=28, hidden_size=3584, ffn_hidden_size=18944, num_attention_heads=28, num_kv_heads=4, vocab_size=152064, gated_mlp=True,
)  # fmt: skip
SWEEPS = {
    "dapo7b": (180.0, 1070.0, False),
    "grpo7b": (130.0, 576.0, True),
}
"""(mean tokens of prompts, of responses, whether a reference model is computed), each log-normal
and cut at the largest"""
LONGEST = (2048, 8192)
FITS = 0.5


@dataclass(frozen=True, slots=True)
class Row:
    """One published step."""

    sweep: str
    gpus: int
    label: str
    workload: Workload
    config: ParallelConfig
    printed: dict[str, float]
    """seconds by phase, and of the whole step"""
    is_oom: bool


def rows() -> list[Row]:
    """The rows of verl_megatron_practice on GPUs whose constants are fitted."""
    with DATA.open(encoding="utf-8") as file:
        found = [
            _row(row) for row in csv.DictReader(file) if row["source"] == "verl_megatron_practice"
        ]
    return [row for row in found if row is not None]


def _row(row: dict[str, str]) -> Row | None:
    notes = row["notes"]
    sweep = "grpo7b" if "grpo" in row["address"] else "dapo7b"
    prompt, response, has_reference = SWEEPS[sweep]
    gpu = {"H100-SXM": "h100-sxm"}.get(row["gpu"])
    if gpu is None:
        return None  # an H20 is in no catalog
    printed = {
        name: float(m[1])
        for name in ("generation", "update_actor", "old_logp", "rollout", "reshard")
        if (m := re.search(rf"{name}=([0-9.]+)", notes))
    }
    if row["step_time_s"]:
        printed["step"] = float(row["step_time_s"])
    is_oom = row["status"] == "oom"
    if not is_oom and "update_actor" not in printed:
        return None
    megatron = "megatron" in row["trainer"]
    tp, pp, dp, cp = (int(row[name]) for name in ("tp", "pp", "dp", "cp"))
    said = re.search(r"micro-batch \(actor\) (\d+)(k?)", notes)
    assert said is not None
    is_dynamic = said[2] == "k" and "Dynamic batch=FALSE" not in notes
    asked = int(said[1]) * 1024 if is_dynamic else 0
    tokens = max(asked, -(-sum(LONGEST) // cp)) if is_dynamic else 0
    forward = row["log_prob_micro_batch"]
    before = max(int(forward[:-1]) * 1024, tokens) if is_dynamic else 0
    fraction = re.search(r"gpu_memory_util=([0-9.]+)", notes)
    rl = PostTraining(
        algorithm="grpo",
        prompts=512,
        responses=16,
        mini_batches=16,
        prompt_lengths=Lengths.of_percentiles({100.0: LONGEST[0]}, prompt),
        response_lengths=Lengths.of_percentiles({100.0: LONGEST[1]}, response),
        reference=has_reference,
        engine="megatron" if megatron else "fsdp",
        micro_batch_tokens=tokens,
        log_prob_micro_batch_tokens=before,
        phase_offload="all" if "offload" in row["sharding"] or sweep == "dapo7b" else "none",
        balance="in_order",
        fused_rope="rope" in notes,
        rollout=Rollout(
            tokens_per_s_per_gpu=((1, 2000.0), (4, 2000.0)),
            tp=4 if "infer_parallel=tp4" in notes.lower() else 1,
            memory_fraction=float(fraction[1]) if fraction else 0.6,
        ),
    )
    nodes = int(row["gpus"]) // 8
    workload = Workload(
        model=QWEN_7B, cluster=ClusterSpec.of(gpu, num_nodes=nodes, gpus_per_node=8), seq_len=sum(LONGEST), global_batch_size=rl.mini_batch, trainer="verl", rl=rl,
    )  # fmt: skip
    fixed = 1 if is_dynamic else int(said[1]) if said[2] == "" else 1
    fixed = min(fixed, 4)
    recompute = row["recompute"] or ("none" if megatron else "full")
    config = ParallelConfig(
        tp=tp, pp=pp, dp=dp, cp=cp, zero_stage=1 if megatron else 3, sequence_parallel=megatron and tp > 1, micro_batch_size=fixed,
        accumulation_steps=rl.mini_batch // (fixed * dp), recompute=recompute, cp_style="ring" if megatron or cp == 1 else "heads",
    )  # fmt: skip
    extra = [word for word in ("rope", "FALSE", "Cuda graph") if word in notes]
    label = f"{row['gpus']} {'megatron' if megatron else 'fsdp'} tp{tp} pp{pp} dp{dp} cp{cp} {asked or f'{fixed} seq'} {recompute} {rl.phase_offload} {' '.join(extra)}"
    return Row(sweep, int(row["gpus"]), label, workload, config, printed, is_oom)


def predicted(row: Row) -> dict[str, float]:
    """Seconds by phase, and P(OOM)."""
    found = estimate(row.workload, row.config)
    assert found.phases_s is not None
    phases = {name: float(value) for name, value in found.phases_s.to_dict().items()}
    return {
        **phases,
        "oom": float(np.asarray(found.oom_probability)),
        "peak": float(np.asarray(found.peak_memory_bytes)),
    }


def after_one_trial(pairs: Sequence[tuple[float, float]]) -> list[float]:
    """|error| of every row with the level of every other; `pairs`: (printed, predicted)."""
    return [
        abs(other[1] * trial[0] / trial[1] / other[0] - 1.0)
        for trial, other in permutations(pairs, 2)
    ]


def judge(found: Sequence[Row], *, show: bool = False) -> dict[str, Any]:
    """The figures of one sweep."""
    results = [(row, predicted(row)) for row in found]
    ran = [(row, p) for row, p in results if not row.is_oom]
    if show:
        for row, p in results:
            said = " ".join(f"{k}={v:g}" for k, v in row.printed.items())
            print(f"{row.label:70s} {said:90s} update {p['update']:6.0f} logp {p['log_prob']:5.0f} refit {p['refit']:4.1f} oom {p['oom']:.2f} peak {p['peak'] / 2**30:.0f}")  # fmt: skip
    figures: dict[str, Any] = {"rows": len(ran)}
    for phase, printed in (("update", "update_actor"), ("log_prob", "old_logp")):
        pairs = [(row.printed[printed], p[phase]) for row, p in ran if printed in row.printed]
        figures[phase] = float(np.median(after_one_trial(pairs))) if len(pairs) > 1 else None
        figures[f"{phase} bias"] = float(np.median([a / b for a, b in pairs])) if pairs else None
    figures["regret"] = {}
    for gpus in sorted({row.gpus for row, _ in ran}):
        of = [
            (row, p)
            for row, p in ran
            if row.gpus == gpus and {"step", "generation"} <= row.printed.keys()
        ]
        if len(of) < 2:
            continue
        scores = [
            row.printed["rollout"] + p["log_prob"] + p["reference"] + p["update"] for row, p in of
        ]
        steps = [row.printed["step"] for row, _ in of]
        figures["regret"][gpus] = steps[int(np.argmin(scores))] / min(steps) - 1.0
    figures["called"] = (
        sum(p["oom"] > FITS for row, p in results if row.is_oom),
        sum(row.is_oom for row, _ in results),
    )
    figures["false"] = (sum(p["oom"] > FITS for _, p in ran), len(ran))
    return figures


def stale_steps() -> list[tuple[float, float, float]]:
    """(staleness, printed step, predicted step) of the rows that the law of staleness has not
    seen."""
    with DATA.open(encoding="utf-8") as file:
        found = [
            (m, row)
            for row in csv.DictReader(file)
            if (
                m := re.search(
                    r"gen=([0-9.]+).*update_actor=([0-9.]+); staleness threshold ([0-9.]+)",
                    row["notes"],
                )
            )
        ]
    printed = {
        float(m[3]): (float(m[1]), float(m[2]), float(row["step_time_s"])) for m, row in found
    }
    bulk = printed[0.5][0] / 0.5
    return [
        (stale, step, update + (1.0 - stale) * bulk)
        for stale, (_, update, step) in printed.items()
        if stale not in (0.0, 0.5)
    ]


def main(arguments: Sequence[str] | None = None) -> int:
    """Print every sweep's figures."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rows", action="store_true", help="every row")
    options = parser.parse_args(arguments)
    everything = rows()
    for sweep in SWEEPS:
        print(sweep, judge([row for row in everything if row.sweep == sweep], show=options.rows))
    for stale, printed, found in stale_steps():
        print(
            f"staleness {stale:g}: {found:.0f} s, printed {printed:.0f} s ({found / printed - 1.0:+.1%})"
        )
    return 0


if __name__ == "__main__":
    sys.exit(main())
