"""Real ranks beside dry runs: the same training, watched by the same mode, on gloo ranks with real
tensors and on fake ones.

    python -m tests.workers.dryrun.truth_ranks DIRECTORY     reads DIRECTORY/jobs.json, writes DIRECTORY/{real,dry}-JOB-RANK.json

torch is imported once, and all processes are forked from there. Routers of real ranks choose as dry
runs assume.

A thread of gloo's may hold a tensor for a moment after its collective has ended. That can only add
to a real run's memory, so the leanest account is the training's own: a job is run until every rank
has seen its leanest account twice, `MOST_RUNS` times at most.
"""

from __future__ import annotations

import json
import os
import sys
import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Any

from autotune.ports import TrialRequest
from autotune.spec import DryRun
from autotune.spec.plain import to_plain
from tests.workers.trial_ranks import request, run_module

MOST_RUNS = 6
"""of a job on real ranks"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """A training to be run both ways."""

    model: str
    """of `trial_ranks.MODELS`"""
    config: str
    workload: Mapping[str, Any] = field(default_factory=dict)
    """further fields of the workload"""
    options: Mapping[str, Any] = field(default_factory=dict)
    """of the trainer"""

    @property
    def request(self) -> TrialRequest:
        return request(
            self.model, self.config, workload=self.workload, trainer_options=dict(self.options)
        )

    def __str__(self) -> str:
        return " ".join(
            filter(
                None,
                (self.model, self.config, json.dumps(dict(self.workload)) if self.workload else ""),
            )
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Pair:
    """One rank of a job, run both ways."""

    job: Job
    rank: int
    real: DryRun
    dry: DryRun

    @property
    def error(self) -> float:
        """Of the dry run's peak, relative."""
        return self.dry.peak.total_bytes / self.real.peak.total_bytes - 1


def run_both(jobs: Sequence[Job], directory: Path, *, deadline_s: float = 1500) -> list[Pair]:
    """All ranks of all jobs. Raises `AssertionError` with the log of a process that failed."""
    (directory / "jobs.json").write_text(json.dumps([to_plain(job) for job in jobs]))
    run_module("tests.workers.dryrun.truth_ranks", directory, deadline_s=deadline_s)
    pairs = []
    for number, job in enumerate(jobs):
        for rank in range(job.request.config.world_size):
            paths = [directory / f"{kind}-{number}-{rank}.json" for kind in ("real", "dry")]
            assert all(path.exists() for path in paths), (
                f"{job} on rank {rank}: {(directory / 'log').read_text()[-3000:]}"
            )
            real, dry = (DryRun.from_dict(json.loads(path.read_text())) for path in paths)
            pairs.append(Pair(job=job, rank=rank, real=real, dry=dry))
    return pairs


def _serve(directory: Path) -> None:
    import autotune_workers.dryrun.played_rank  # noqa: F401 - so that the children need not import it again

    jobs = [Job(**plain) for plain in json.loads((directory / "jobs.json").read_text())]
    for size in sorted({job.request.config.world_size for job in jobs}):
        mine = [(n, job) for n, job in enumerate(jobs) if job.request.config.world_size == size]
        children = [_fork(_real_rank, size, rank, mine, directory) for rank in range(size)]
        for child in children:
            os.waitpid(child, 0)
    for number, job in enumerate(jobs):
        for rank in range(job.request.config.world_size):
            os.waitpid(_fork(_dry_rank, number, job, rank, directory), 0)


def _fork(what: Callable[..., None], *arguments: Any) -> int:
    child = os.fork()
    if child == 0:
        try:
            what(*arguments)
        except BaseException:
            traceback.print_exc()
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(0)
    return child


def _real_rank(size: int, rank: int, jobs: Sequence[tuple[int, Job]], directory: Path) -> None:
    import torch
    import torch.distributed as dist

    from autotune_workers.dryrun.played_rank import axis_names, watched_run
    from autotune_workers.dryrun.rank_watch import RankWatch
    from autotune_workers.training.parallel.mesh import (
        RankContext,
        build_mesh,
        destroy_groups,
        living_groups,
    )

    store = dist.FileStore(str(directory / f"store-{size}"), size)
    dist.init_process_group(
        "gloo", store=store, rank=rank, world_size=size, timeout=timedelta(seconds=300)
    )
    context = RankContext(rank=rank, world_size=size, device=torch.device("cpu"))
    for number, job in jobs:
        groups = living_groups()
        asked = job.request
        mesh = build_mesh(asked.config, context)
        runs: list[DryRun] = []
        while len(runs) < MOST_RUNS and not _all_agree(settled(runs) is not None):
            runs.append(
                watched_run(asked, context, mesh, RankWatch(axis_names(mesh), _routed_evenly))
            )
        run = settled(runs) or min(runs, key=lambda run: run.peak.total_bytes)
        (directory / f"real-{number}-{rank}.json").write_text(json.dumps(to_plain(run)))
        destroy_groups(groups)
    dist.destroy_process_group()


def settled(runs: Sequence[DryRun]) -> DryRun | None:
    """A run with the smallest peak, whose account of it (bytes by category, moment) another run
    gives too; None while there is none."""
    least = min((run.peak.total_bytes for run in runs), default=0)
    leanest = [run for run in runs if run.peak.total_bytes == least]
    return next(
        (a for n, a in enumerate(leanest) if any(a.peak == b.peak for b in leanest[:n])), None
    )


def _all_agree(here: bool) -> bool:
    """Whether this holds on all ranks."""
    import torch
    import torch.distributed as dist

    votes = torch.tensor(int(here))
    dist.all_reduce(votes, dist.ReduceOp.MIN)
    return bool(votes.item())


def _routed_evenly(func: Any, _: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Runs an operation; a router's choices are those that a dry run assumes."""
    import torch

    from autotune_workers.dryrun.fake_answers import balanced_choices

    out = func(*args, **kwargs)
    if func is torch.ops.aten.topk.default:
        out[1].copy_(balanced_choices(out[1].shape, args[0].shape[-1]))
    return out


def _dry_rank(number: int, job: Job, rank: int, directory: Path) -> None:
    from autotune_workers.dryrun.played_rank import dry_run

    run = dry_run(job.request, rank=rank)
    (directory / f"dry-{number}-{rank}.json").write_text(json.dumps(to_plain(run)))


if __name__ == "__main__":
    _serve(Path(sys.argv[1]))
