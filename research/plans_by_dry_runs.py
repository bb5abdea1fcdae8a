"""Plans of models that code builds: the best configs have the memory of their own dry runs, and
what is said of the others is held against dry runs of some of them.

    python -m research.plans_by_dry_runs                     all architectures, as a table
    python -m research.plans_by_dry_runs llama vit ...       these

Eight data-parallel ranks; micro-batch, ZeRO stage, recomputation and accumulation vary. *exact*: of
the five best configs of the plan, those whose memory is that of a dry run. *others*: configs drawn
at random, run dry for the comparison alone; *outside* of them are off by more than 5% and by more
than their 90% interval says. Dry runs are made in this process.
"""

from __future__ import annotations

import json
import random
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from autotune import api
from autotune.cost import calibration_for, estimate
from autotune.cost.learn.dry_runs import ConfigDryRun, DryRuns, shortened
from autotune.plan.dry_runs import TOP, profile_study
from autotune.plan.fit import pipeline_ranks
from autotune.plan.plan import plan
from autotune.ports import DryRunLimits
from autotune.space import SearchSpace
from autotune.spec import DryRun, ModelCode, ModelSpec, ParallelConfig, Peft, Study, Workload
from autotune_workers.dryrun.played_rank import dry_run, first_rank_of_stage
from autotune_workers.dryrun.process import stand_in
from autotune_workers.training.torch_internals import forget_shardings
from tests.benchmarks.architectures import ARCHITECTURES, SEQ_LEN

OTHERS = 8
"""configs that are held against dry runs"""
WITHIN = 0.05
"""error that need not be said"""
SPACE = {
    "dp": [8],
    "micro_batch_size": [1, 2, 4, 8, 16],
    "zero_stage": [0, 1, 2, 3],
    "recompute": ["none", "full"],
    "precision": ["bf16"],
}


class HereRunner:
    """Dry runs in this process."""

    def inspect(self, model: ModelSpec, *, limits: DryRunLimits) -> ModelSpec:
        """The model as it is."""
        return model

    def run(
        self, workload: Workload, config: ParallelConfig, *, pp_rank: int, limits: DryRunLimits
    ) -> DryRun:
        """See `DryRunner.run`."""
        try:
            return dry_run(
                stand_in(workload, config).request, rank=first_rank_of_stage(config, pp_rank)
            )
        finally:
            forget_shardings()  # a later mesh of the same shape would be given groups that are gone


@dataclass(frozen=True, slots=True, kw_only=True)
class Planned:
    """The plan of one architecture."""

    name: str
    configs: int
    runs: int
    exact: int
    """of the best `TOP` configs, those that were run"""
    errors: tuple[float, ...]
    """of others, relative; above zero where too much is predicted"""
    reaches: tuple[float, ...]
    """half of their 90% intervals"""

    @property
    def outside(self) -> int:
        """Others that are off by more than 5% and by more than was said."""
        return sum(
            abs(e) > max(WITHIN, reach) for e, reach in zip(self.errors, self.reaches, strict=True)
        )


def study_of(name: str) -> Study:
    """A study of that architecture."""
    from autotune_workers.own_model.inspection import inspect

    code = ModelCode(module="tests.benchmarks.architectures:build", args=json.dumps({"name": name}))
    unknown = ModelSpec(
        name="model", num_layers=1, hidden_size=1, num_attention_heads=1, vocab_size=1, code=code
    )
    asked = api.load_study(
        {
            "name": "s",
            "model": "gpt2-small",
            "cluster": "h100-sxm-1x8",
            "space": SPACE,
            "workload": {"seq_len": SEQ_LEN, "global_batch_size": 256},
        }
    )
    peft = Peft(rank=8) if ARCHITECTURES[name].lora else None
    return replace(asked, workload=replace(asked.workload, model=inspect(unknown), peft=peft))


def truth(workload: Workload, config: ParallelConfig) -> ConfigDryRun:
    """The dry runs of a config."""
    short = shortened(config)
    asked, limits = replace(workload, global_batch_size=short.global_batch_size), DryRunLimits()
    ranks = pipeline_ranks(short.pp)
    return ConfigDryRun.of(
        short, tuple(HereRunner().run(asked, short, pp_rank=rank, limits=limits) for rank in ranks)
    )


def planned(name: str, seed: int = 0) -> Planned:
    """Makes the dry runs and the plan, then those of others."""
    study = study_of(name)
    space = SearchSpace.of_study(study)
    found = profile_study(study, runner=HereRunner(), space=space)
    constants = replace(calibration_for(study.workload), dry_runs=found)
    best = plan(space, calibration=constants, top=TOP).rows
    others = [config for config in space if not found.is_known(config)]
    drawn = random.Random(seed).sample(others, min(OTHERS, len(others)))
    errors, reaches = [], []
    for config in drawn:
        alone = replace(
            constants, dry_runs=DryRuns(fingerprint="", points=(truth(study.workload, config),))
        )
        right, said = (
            estimate(study.workload, config, calibration=one) for one in (alone, constants)
        )
        errors.append(float(said.peak_memory_bytes) / float(right.peak_memory_bytes) - 1.0)
        reaches.append(float(said.peak_memory_high_bytes) / float(said.peak_memory_bytes) - 1.0)
    exact = sum(
        any(point.config == shortened(row.config) for point in found.points) for row in best
    )
    runs = len(found.points)
    return Planned(
        name=name,
        configs=len(space),
        runs=runs,
        exact=exact,
        errors=tuple(errors),
        reaches=tuple(reaches),
    )


def table(names: Sequence[str]) -> Iterator[Planned]:
    """Prints a row for each architecture as it comes."""
    print(
        "| architecture | configs | run dry | of the best five exact | others: median error | worst | said | outside |"
    )
    print("|---|---|---|---|---|---|---|---|", flush=True)
    for name in names:
        row = planned(name)
        errors = np.abs(row.errors)
        figures = f"{np.median(errors):.1%} | {errors.max():.1%} | {np.median(row.reaches):.1%} | {row.outside} of {len(errors)}"
        print(f"| {name} | {row.configs} | {row.runs} | {row.exact} | {figures} |", flush=True)
        yield row


if __name__ == "__main__":
    rows = list(table(sys.argv[1:] or list(ARCHITECTURES)))
    every = [error for row in rows for error in row.errors]
    print(f"\n{len(rows)} plans: {sum(row.outside for row in rows)} of {len(every)} others outside")
