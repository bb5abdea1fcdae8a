"""Trains an exported config outside any study: `torchrun -m autotune_workers.launch request.json`,
on every node.

The request is a `TrialRequest` as plain values (trainer `native` writes it). Rank 0 prints one JSON
object per optimizer step and one with the result, and writes the whole measurement to
`measurement.json` beside the request. Exit codes: 0 trained, 1 refused or failed, 2 no such request
or not the ranks that it needs.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import traceback
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from autotune.errors import AutotuneError
from autotune.ports import TrialRequest
from autotune.spec.plain import to_plain
from autotune.spec.texts.as_text import number_of
from autotune.whole_files import whole_file
from autotune_workers.training.rendezvous import tear_down
from autotune_workers.training.run_trial import (
    RankContext,
    StepReport,
    TrialFailed,
    TrialResult,
    run_trial,
)

MEASUREMENT = "measurement.json"
"""the file beside the request, with every series and the evidence of each rank"""
MAX_REQUEST_BYTES = 1 << 20
"""a longer file is no request"""
COLLECTIVE_TIMEOUT = timedelta(minutes=10)
"""a rank that waits so long for another gives up"""


def main(arguments: list[str] | None = None) -> int:
    """Runs the request of the command line on this rank and returns the exit code."""
    parser = argparse.ArgumentParser(
        prog="torchrun ... -m autotune_workers.launch", description="Train an exported config."
    )
    parser.add_argument("request", type=Path, help="request.json from an exported folder")
    options = parser.parse_args(arguments)
    try:
        request = read_request(options.request)
    except (OSError, ValueError, TypeError, KeyError, AutotuneError) as error:
        print(f"{options.request} is not an exported request: {error}", file=sys.stderr)
        return 2
    world = int(os.environ.get("WORLD_SIZE", "1"))
    if world != request.config.world_size:
        print(
            f"the config needs tp * pp * dp * cp = {number_of(request.config.world_size, 'rank')}, but torchrun started {world}; "
            f"start torchrun with nnodes * nproc-per-node = {request.config.world_size}",
            file=sys.stderr,
        )
        return 2
    return train(request, options.request.parent / MEASUREMENT)


def read_request(path: Path) -> TrialRequest:
    """The request in the file. Raises `ValueError`, `KeyError`, `TypeError` or `SpecError` for
    anything else."""
    text = path.read_bytes()
    if len(text) > MAX_REQUEST_BYTES:
        raise ValueError(f"the file has {len(text)} bytes, more than {MAX_REQUEST_BYTES}")
    return TrialRequest.from_dict(json.loads(text))


def train(request: TrialRequest, target: Path) -> int:
    """Trains on the ranks that torchrun started; collective. Rank 0 writes the measurement to
    `target`. Returns the exit code."""
    rank = int(os.environ.get("RANK", "0"))
    device = _device(request)
    _initialize(device)
    result = _result(
        request, RankContext(rank=rank, world_size=dist.get_world_size(), device=device)
    )
    tear_down(is_healthy=result is not None)
    if result is None:
        return 1
    if rank == 0:
        _report(result, target)
    return 0


def _report(result: TrialResult, target: Path) -> None:
    """The line with the result, and the file with the whole measurement."""
    measurement = result.measurement
    try:
        with whole_file(target, mode=0o644) as part:
            part.write_text(json.dumps(measurement.to_dict()), encoding="utf-8")
    except OSError as error:
        print(f"the measurement was not saved: {error}", file=sys.stderr, flush=True)
    # One object inside another: a line with a speed of its own would be read as one of a step.
    result_line = {
        "steps": len(measurement.step_times_s),
        "tokens_per_s": measurement.tokens_per_s,
        "median_step_time_s": measurement.step_time_s,
        "peak_memory_bytes": measurement.peak_memory_bytes,
        "skipped_steps": measurement.skipped_steps,
        "nonfinite_steps": measurement.nonfinite_steps,
        "stopped": result.stopped,
    }
    _say({"result": result_line})


def _result(request: TrialRequest, context: RankContext) -> TrialResult | None:
    """What the trial measured; None when it failed, which is said at once: with NCCL, tearing down
    may have to wait for a peer that failed."""
    try:
        return run_trial(request, context, _say_step if context.rank == 0 else lambda _: True)
    except TrialFailed as error:
        if context.rank == 0:
            _say({"failure": error.failure.to_dict()})
    except AutotuneError as error:
        print(error, file=sys.stderr, flush=True)
    except Exception:
        traceback.print_exc()
    return None


def _device(request: TrialRequest) -> torch.device:
    if request.workload.cluster.gpu.is_cpu or not torch.cuda.is_available():
        return torch.device("cpu")
    device = torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0")))
    torch.cuda.set_device(device)
    return device


def _initialize(device: torch.device) -> None:
    """The default process group over the ranks of torchrun; alone, without torchrun, a group of
    one."""
    on_gpu = device.type == "cuda"
    where: dict[str, Any] = {"device_id": device} if on_gpu else {}
    if "MASTER_ADDR" not in os.environ:
        where |= {"store": dist.HashStore(), "rank": 0, "world_size": 1}
    dist.init_process_group(
        "cpu:gloo,cuda:nccl" if on_gpu else "gloo", timeout=COLLECTIVE_TIMEOUT, **where
    )


def _say_step(step: StepReport) -> bool:
    line = {
        "step": step.step,
        "step_time_s": step.time_s,
        "loss": step.loss,
        "grad_norm": step.grad_norm,
    }
    _say({**line, "skipped": True} if step.skipped else line)
    return True


def _say(document: dict[str, Any]) -> None:
    print(json.dumps(to_plain(document)), flush=True)


if __name__ == "__main__":
    sys.exit(main())
