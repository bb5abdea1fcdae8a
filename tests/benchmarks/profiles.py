"""Profiles against dry runs: peak, FLOPs and traffic that a profile composes, for random configs, against each config's own dry run.

    python -m tests.benchmarks.profiles --configs 200 --seed 1

Depth, micro-batch, sequence, tp, pp with its rank and schedule, dp, copies of shards, ZeRO stage, accumulation and recomputation vary. A config that the
profile does not compose counts as "run in full". Then a plan: the time that a thousand configs of one workload take, and some of them, drawn at random, against the fullest of their ranks' dry runs. Dry runs are made in
this process, one after the other.
"""

from __future__ import annotations

import argparse
import itertools
import random
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from autotune.cost.profile import Profile
from autotune.cost.profile_traffic import Call, rank_work
from autotune.ports import DryRunLimits
from autotune.profiling import make_profile
from autotune.spec import ConfigTable, DryRun, ModelSpec, ParallelConfig, Workload, catalog
from autotune_workers.dryrun.played_rank import dry_run, first_rank_of_stage
from autotune_workers.dryrun.stand_ins import stand_in
from autotune_workers.training.torch_internals import forget_shardings

MODEL = ModelSpec(
    name="decoder",
    num_layers=8,
    hidden_size=512,
    num_attention_heads=8,
    num_kv_heads=8,
    vocab_size=4096,
    ffn_hidden_size=1408,
    gated_mlp=True,
)
MODES = ("none", "selective", "full")
WITHIN = 1e-3
"""relative error that counts as exact"""


class HereRunner:
    """Dry runs in this process."""

    def inspect(self, model: ModelSpec, *, limits: DryRunLimits) -> ModelSpec:
        """The model as it is."""
        return model

    def run(
        self,
        workload: Workload,
        config: ParallelConfig,
        *,
        pp_rank: int,
        limits: DryRunLimits,
        traced: bool = False,
        recompute: tuple[str, ...] = (),
    ) -> DryRun:
        """See `DryRunner.run`."""
        asked = stand_in(workload, config, recompute)
        try:
            return dry_run(asked.request, rank=first_rank_of_stage(config, pp_rank), traced=traced)
        finally:
            forget_shardings()  # a later mesh of the same shape would be given groups that are gone


@dataclass(frozen=True, slots=True, kw_only=True)
class Compared:
    """One config."""

    config: str
    """with its depth, sequence and pipeline rank"""
    why_not: str = ""
    """why it is run in full; empty where it is composed"""
    error: float = 0.0
    """of the composed peak, relative"""
    run_bytes: int = 0
    """the dry run's peak"""
    flops_error: float = 0.0
    """of the FLOPs of a micro-batch, relative"""
    other_products: int = 0
    """matrix products of a micro-batch that one of the two does not have"""
    other_calls: int = 0
    """collectives of a step that one of the two does not have: of another kind, axis or size, or not as often"""


def workload_of(layers: int, seq_len: int, global_batch_size: int) -> Workload:
    """The model at that depth."""
    return Workload(
        model=replace(MODEL, num_layers=layers),
        cluster=catalog.cluster("h100-sxm-8x8"),
        seq_len=seq_len,
        global_batch_size=global_batch_size,
    )


def space() -> ConfigTable:
    """Configs that hold all kinds of training."""
    kinds = itertools.product((1, 2, 4), (1, 2), (0, 1, 2, 3), MODES)
    return ConfigTable.of(
        [
            ParallelConfig(tp=tp, pp=pp, zero_stage=z, recompute=mode, dp=2, accumulation_steps=4)
            for tp, pp, z, mode in kinds
        ]
    )


def compare(profile: Profile, *, configs: int, seed: int) -> Iterator[Compared]:
    """Random configs, each with its own dry run."""
    draw, runner = random.Random(seed), HereRunner()
    for _ in range(configs):
        config = random_config(draw)
        layers, seq_len, rank = draw.choice((4, 5, 6, 9)), draw.choice((64, 128, 512, 1024)), draw.randrange(config.pp)
        workload = workload_of(layers, seq_len, config.global_batch_size)
        label = f"L={layers} s={seq_len} rank={rank} {config}"
        if reason := profile.why_not(workload, config):
            yield Compared(config=label, why_not=reason)
            continue
        run = runner.run(workload, config, pp_rank=rank, limits=DryRunLimits())
        composed = profile.rank_peak(workload, config, rank).total_bytes
        work = rank_work(profile, workload, config, rank)
        products = Counter({(p.m, p.n, p.k, p.dtype): p.count for p in run.products})
        calls: Counter[Call] = Counter()
        for call in run.collectives:
            calls[call.kind, call.axis, call.num_bytes] += call.count
        yield Compared(
            config=label,
            error=composed / run.peak.total_bytes - 1.0,
            run_bytes=run.peak.total_bytes,
            flops_error=work.flops / run.flops - 1.0,
            other_products=_others(products, Counter(work.products)),
            other_calls=_others(calls, Counter(work.collectives)),
        )


def _others(one: Counter[Any], other: Counter[Any]) -> int:
    """Items that are not in both."""
    return (one - other).total() + (other - one).total()


def random_config(draw: random.Random) -> ParallelConfig:
    """Any config that the model can be trained with."""
    pp, dp, zero_stage = draw.choice((1, 1, 2, 4)), draw.choice((1, 2, 4, 8)), draw.choice((0, 1, 2, 3))
    return ParallelConfig(
        tp=draw.choice((1, 2, 4, 8)),
        pp=pp,
        dp=dp,
        dp_replicas=draw.choice([1, 1, *(copies for copies in (2, 4) if zero_stage and copies <= dp)]),
        micro_batch_size=draw.choice((1, 2, 3, 4, 8)),
        accumulation_steps=draw.choice((1, 2, 3, 4)) if pp == 1 else draw.choice((4, 8)),
        zero_stage=zero_stage,
        recompute=draw.choice(MODES),
        pp_schedule=draw.choice(("1f1b", "1f1b", "gpipe")) if pp > 1 else "1f1b",
    )


def plan(profile: Profile, *, configs: int, seed: int) -> tuple[float, ConfigTable, NDArray[np.float64]]:
    """Processor seconds of a plan of that many composed configs of one workload, and their peaks."""
    draw, workload = random.Random(seed), workload_of(8, 512, 64)
    drawn = (random_config(draw) for _ in itertools.count())
    table = ConfigTable.of(itertools.islice((c for c in drawn if not profile.why_not(workload, c)), configs))
    began_s = time.process_time()
    peaks, _ = profile.peaks(workload, table)
    return time.process_time() - began_s, table, peaks.total_bytes


def planned(
    profile: Profile, table: ConfigTable, peaks: NDArray[np.float64], *, runs: int, seed: int
) -> Iterator[Compared]:
    """Some configs of a plan, each against the fullest of its first, second and last pipeline rank."""
    runner = HereRunner()
    for row in random.Random(seed).sample(range(len(table)), runs):
        config = table[row]
        workload = workload_of(8, 512, config.global_batch_size)
        ranks = {0, min(1, config.pp - 1), config.pp - 1}
        found = [runner.run(workload, config, pp_rank=rank, limits=DryRunLimits()) for rank in sorted(ranks)]
        fullest = max(run.peak.total_bytes for run in found)
        yield Compared(config=str(config), error=float(peaks[row]) / fullest - 1.0, run_bytes=fullest)


def main() -> None:
    """Prints every config and a summary."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--configs", type=int, default=200)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--planned", type=int, default=30)
    asked = parser.parse_args()
    began_s = time.monotonic()
    profile = make_profile(workload_of(8, 512, 64), space(), HereRunner())
    print(f"profile of {profile.num_runs} dry runs in {time.monotonic() - began_s:.0f} s", flush=True)
    for check in profile.checks:
        print(f"  check {check.kind}: {check.error:+.4%}  {check.config}", flush=True)
    found = []
    for row in compare(profile, configs=asked.configs, seed=asked.seed):
        found.append(row)
        work = f"FLOPs {row.flops_error:+.4%}, products {row.other_products}, collectives {row.other_calls}"
        print(f"{row.error:+9.4%} {row.run_bytes:>13,} {row.config} {row.why_not or work}", flush=True)
    errors = sorted(abs(row.error) for row in found if not row.why_not)
    worst, outside = errors[-1], sum(error > WITHIN for error in errors)
    print(
        f"{len(errors)} composed: median {errors[len(errors) // 2]:.5%}, worst {worst:.4%}, {outside} above {WITHIN:.1%}"
    )
    same = sum(not (row.flops_error or row.other_products or row.other_calls) for row in found if not row.why_not)
    print(f"{same} of these have the same FLOPs, matrix products and collectives as their dry runs")
    print(f"{len(found) - len(errors)} run in full")
    took_s, table, peaks = plan(profile, configs=1000, seed=asked.seed)
    print(f"plan of {len(table)} configs: {took_s:.2f} s of processor time", flush=True)
    worst = 0.0
    for row in planned(profile, table, peaks, runs=asked.planned, seed=asked.seed):
        worst = max(worst, abs(row.error))
        print(f"{row.error:+9.4%} {row.run_bytes:>13,} {row.config}", flush=True)
    print(f"{asked.planned} of them, drawn at random: worst {worst:.4%}")


if __name__ == "__main__":
    main()
