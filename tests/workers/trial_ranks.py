"""Ranks for tests of the trial: one process per rank runs a list of configs one after the other and writes what it saw.

    python -m tests.workers.trial_ranks DIRECTORY      reads DIRECTORY/jobs.json {world size: jobs}, writes DIRECTORY/SIZE/results.json

torch is imported once, and the ranks are forked from there.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import traceback
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

from autotune.ports import TrialRequest
from autotune.spec import ClusterSpec, GpuSpec, MeasureSpec, ModelSpec, ParallelConfig, Workload

SIZE: dict[str, Any] = {"num_layers": 4, "hidden_size": 32, "num_attention_heads": 4}
MODELS = {
    "gpt": ModelSpec(name="gpt", vocab_size=257, tied_embeddings=True, max_positions=40, **SIZE),
    "uneven": ModelSpec(name="uneven", vocab_size=256, max_positions=32, **{**SIZE, "num_layers": 5}),
    "llama": ModelSpec(name="llama", vocab_size=256, num_kv_heads=2, gated_mlp=True, ffn_hidden_size=48, **SIZE),
    "moe": ModelSpec(
        name="moe",
        vocab_size=256,
        num_kv_heads=2,
        gated_mlp=True,
        ffn_hidden_size=48,
        num_experts=4,
        experts_per_token=2,
        **SIZE,
    ),
}
CPU = ClusterSpec(
    name="cpu-1x8",
    gpu=GpuSpec(name="cpu", memory_bytes=4e9, peak_flops_per_s={"fp32": 1e11, "bf16": 1e11}, memory_bytes_per_s=1e10),
    gpus_per_node=8,
)
STEPS = 2


def request(model: str, config: str, *, steps: int = STEPS, **changes: Any) -> TrialRequest:
    """A short trial with a learning rate at which a wrong gradient shows in the next loss."""
    point = ParallelConfig.parse(config)
    plain = TrialRequest(
        study="test",
        number=0,
        attempt=1,
        workload=Workload(model=MODELS[model], cluster=CPU, seq_len=32, global_batch_size=point.global_batch_size),
        config=point,
        measure=MeasureSpec(warmup_steps=0, min_steps=steps, max_steps=steps, precision=0.0),
        trainer_options={"learning_rate": 1e-2},
    )
    return replace(plain, **changes)


def run_jobs(
    jobs: dict[int, list[dict[str, Any]]], directory: Path, *, deadline_s: float = 1500
) -> list[dict[str, Any]]:
    """Results of the jobs ({model, config, changes}) by world size, in order; those after a crash are missing."""
    for size in jobs:
        (directory / str(size)).mkdir(parents=True, exist_ok=True)
    (directory / "jobs.json").write_text(json.dumps(jobs))
    root = Path(__file__).parents[2]
    environment = {
        **os.environ,
        "OMP_NUM_THREADS": "1",
        "PYTHONPATH": os.pathsep.join((str(root / "workers"), str(root))),
    }
    with (directory / "log").open("w") as log:
        parent = subprocess.Popen(
            [sys.executable, "-m", "tests.workers.trial_ranks", str(directory)],
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            cwd=root,
            start_new_session=True,
        )
        try:
            parent.wait(timeout=deadline_s)
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(parent.pid, signal.SIGKILL)
            parent.wait()
    paths = [directory / str(size) / "results.json" for size in jobs]
    return [result for path in paths if path.exists() for result in json.loads(path.read_text())]


def _serve_all(directory: Path) -> None:
    import autotune_workers.training.run_trial  # noqa: F401 - so that the ranks need not import it again

    for size in json.loads((directory / "jobs.json").read_text()):
        ranks = []
        for rank in range(int(size)):
            child = os.fork()
            if child == 0:
                _serve(int(size), rank, directory)
                sys.stdout.flush()
                os._exit(0)
            ranks.append(child)
        for child in ranks:
            os.waitpid(child, 0)


def _serve(world_size: int, rank: int, directory: Path) -> None:
    import torch
    import torch.distributed as dist

    from autotune_workers.training.run_trial import RankContext, TrialFailed, run_trial

    torch.set_num_threads(1)
    jobs = json.loads((directory / "jobs.json").read_text())[str(world_size)]
    directory = directory / str(world_size)
    store = dist.FileStore(str(directory / "store"), world_size)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=world_size, timeout=timedelta(seconds=300))
    context = RankContext(rank=rank, world_size=world_size, device=torch.device("cpu"))
    results = []
    for job in jobs:
        groups = len(dist.distributed_c10d._world.pg_map)
        try:
            trial = request(job["model"], job["config"], **job.get("changes", {}))
            outcome = run_trial(trial, context, lambda _: True)
            result = {**job, "measurement": outcome.measurement.to_dict(), "stopped": outcome.stopped}
        except TrialFailed as error:
            result = {**job, "failure": error.failure.to_dict()}
        except BaseException:
            traceback.print_exc()
            result = {**job, "error": traceback.format_exc()}
        result["groups_left"] = len(dist.distributed_c10d._world.pg_map) - groups
        results.append(result)
        if rank == 0:
            (directory / "results.tmp").write_text(json.dumps(results))
            (directory / "results.tmp").rename(directory / "results.json")
        if "error" in result:
            sys.stdout.flush()
            os._exit(1)  # the others are left without a peer, and end too
    dist.destroy_process_group()


if __name__ == "__main__":
    _serve_all(Path(sys.argv[1]))
