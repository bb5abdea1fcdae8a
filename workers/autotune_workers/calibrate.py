"""Calibration: the real speed of this machine, measured with the rank processes that run trials:
matmul, memory, launches, collectives, shared cores.

    matmul               list of {m, n, k, precision, flops_per_s}: one rank alone; (m, k) by (k, n) takes 2*m*n*k FLOPs
    memory_bytes_per_s   reading and writing together, of a copy too large for any cache
    host_overhead_s      to launch one transformer layer's forward and backward pass, its tensors too small to matter
    collectives          list of {kind, ranks, scope, bytes, time_s}; bytes: the whole tensor (reduced, gathered or scattered)
    concurrency          list of {ranks, flops_per_s}: rate of each rank while so many compute at once (CPU ranks share cores)
    out_of_line          GPUs, nodes and links that are slower than their likes, where there are several: each rank's matmul and memory, and an exchange of
                         each pair of nodes (`autotune.diagnosis.out_of_line`)
    nodes                hostnames of those that this was measured on

Each figure is the median of repeated timings, for these machines are disturbed by others. Assumes
that the ranks of one node are alike. A quick calibration, which a study begins with where nothing
was measured, takes fewer timings on fewer numbers of ranks (`QUICK`).
"""

from __future__ import annotations

import datetime
import math
import os
import platform
import socket
import statistics
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist

from autotune.detect import memory_bytes
from autotune.diagnosis.out_of_line import OutOfLine, of_readings
from autotune.errors import RunnerError
from autotune.ports import AttemptEnded, AttemptQueued, TrialRequest
from autotune.spec import (
    ClusterSpec,
    GpuSpec,
    LinkSpec,
    Measurement,
    MeasureSpec,
    ModelSpec,
    ParallelConfig,
    Workload,
    number_of,
)
from autotune_workers.runners.any_trainer import AnyTrainerRunner
from autotune_workers.runners.local import LocalRunner
from autotune_workers.training.parallel.mesh import RankContext
from autotune_workers.training.run_trial import TrialResult

PROBE = "autotune_workers.calibrate:probe"
PROBE_TIMEOUT_S = 180.0
EACH = "each"
"""the probe of every rank and every pair of nodes"""
CPU_SIZES = (
    (128, 128, 128),
    (256, 256, 256),
    (512, 512, 512),
    (1024, 1024, 1024),
    (512, 128, 512),
    (1024, 256, 256),
)
GPU_SIZES = (
    (512, 512, 512),
    (1024, 1024, 1024),
    (2048, 2048, 2048),
    (4096, 4096, 4096),
    (8192, 8192, 8192),
    (4096, 1024, 4096),
    (8192, 4096, 1024),
    (16384, 4096, 4096),
)
CPU_MESSAGES_BYTES = (1 << 12, 1 << 16, 1 << 20, 1 << 23)
GPU_MESSAGES_BYTES = (1 << 16, 1 << 20, 1 << 24, 1 << 28)
Progress = Callable[[str, float], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Effort:
    """What is measured, and how often."""

    ranks: tuple[int, ...]
    """numbers of ranks that are measured together; more ranks of one node tell nothing new"""
    begin_s: float
    """from the start of the calibration, after which no further number of ranks is begun; the first
    one is always measured"""
    repeats: int
    """timings of which the median counts; of collectives three times as many"""
    round_s: float
    """seconds that one timing of a short call repeats it for"""


FULL = Effort(ranks=(2, 4, 8), begin_s=math.inf, repeats=5, round_s=0.05)
QUICK = Effort(ranks=(2, 4), begin_s=12.0, repeats=3, round_s=0.02)


def calibrate_local(
    progress: Progress | None = None,
    *,
    quick: bool = False,
    runner: str = "local",
    runner_options: Mapping[str, Any] | None = None,
    interrupted: Callable[[], bool] = lambda: False,
) -> dict[str, Any]:
    """Measures this machine; takes about a minute, `quick` under 20 s. `progress` is told what is
    measured, and the fraction that is done.

    `runner`, `runner_options`: of the study for which it is measured; on a Ray cluster that was
    joined the ranks run on its workers. `interrupted()` is asked about every second. Raises
    `RunnerError` when ranks cannot be run here, or when it was interrupted.
    """
    began_s, effort = time.monotonic(), QUICK if quick else FULL
    collectives: list[Mapping[str, Any]] = []
    stray: tuple[OutOfLine, ...] = ()
    nodes: list[str] = []
    with _prober(runner, dict(runner_options or {})) as prober:

        def readings_of(what: str, ranks: int, fraction: float) -> Mapping[str, Any]:
            if progress is not None:
                progress(f"{what} on {number_of(ranks, 'rank')}", fraction)
            request = _request(ranks, what, prober.capacity, quick=quick)
            return _measured(prober, request, what, progress, fraction, interrupted)

        sizes = [n for n in effort.ranks if n <= prober.capacity]
        alone = readings_of("alone", 1, 0.0)
        concurrency = [{"ranks": 1, "flops_per_s": alone["concurrency"]}]
        for index, ranks in enumerate(sizes):
            if collectives and time.monotonic() - began_s > effort.begin_s:
                break
            together = readings_of("together", ranks, (index + 1) / (len(sizes) + 1))
            concurrency.append({"ranks": ranks, "flops_per_s": together["concurrency"]})
            collectives.extend(together["collectives"])
        # cores are no devices
        if prober.capacity > 1 and (alone["on_gpu"] or not isinstance(prober, LocalRunner)):
            of_each = readings_of(EACH, prober.capacity, 0.9)["of_each"]
            stray, nodes = of_readings(of_each), sorted({reading["node"] for reading in of_each})
    if progress is not None:
        progress("done", 1.0)
    return {
        "out_of_line": [each.to_dict() for each in stray],
        "nodes": nodes,
        "matmul": alone["matmul"],
        "memory_bytes_per_s": alone["memory"],
        "host_overhead_s": alone["host"],
        "collectives": collectives,
        "concurrency": concurrency,
        "gpu": torch.cuda.get_device_name(0) if alone["on_gpu"] else "cpu",
        "memory_bytes": alone["capacity"],
        "versions": {
            "torch": torch.__version__,
            "python": platform.python_version(),
            "cuda": torch.version.cuda or "",
        },
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
    }


def _prober(runner: str, options: dict[str, Any]) -> AnyTrainerRunner:
    """A runner whose trials are probes: on the workers of a Ray cluster that was joined, else on
    this machine."""
    if runner == "ray" and (options.get("address") or os.environ.get("RAY_ADDRESS")):
        from autotune_workers.runners.ray import RayRunner

        return RayRunner(**{**options, "trial": PROBE})
    return LocalRunner(
        trial=PROBE, **{name: options[name] for name in ("max_ranks", "device") if name in options}
    )


def _measured(
    runner: AnyTrainerRunner,
    request: TrialRequest,
    what: str,
    progress: Progress | None,
    fraction: float,
    interrupted: Callable[[], bool],
) -> Mapping[str, Any]:
    """The readings of one probe, run as a trial."""
    runner.start(request)
    end_s = time.monotonic() + 2 * PROBE_TIMEOUT_S
    while time.monotonic() < end_s:
        if interrupted():
            raise RunnerError("the calibration was interrupted")
        for event in runner.poll(1.0):
            if isinstance(event, AttemptQueued):
                end_s = time.monotonic() + 2 * PROBE_TIMEOUT_S
                if progress is not None:
                    progress(f"{what} waits: {event.reason}", fraction)
            if isinstance(event, AttemptEnded):
                if event.measurement is None:
                    reason = event.failure.message if event.failure else "it was cancelled"
                    raise RunnerError(
                        f"this machine cannot be measured: {reason}",
                        remedy="run `autotune doctor` to see what is missing",
                    )
                return event.measurement.evidence
    raise RunnerError(
        f"this machine cannot be measured, because {what} on {number_of(request.config.world_size, 'rank')} does not finish"
    )


def _request(ranks: int, what: str, capacity: int, *, quick: bool) -> TrialRequest:
    """A trial whose training loop is the probe; model and config only carry the number of ranks."""
    link = LinkSpec(latency_s=0.0, bytes_per_s=1e9)
    gpu = GpuSpec(
        name="cpu",
        memory_bytes=float(memory_bytes()),
        peak_flops_per_s={"fp32": 1e12},
        memory_bytes_per_s=1e10,
    )
    cluster = ClusterSpec(
        name="local", gpu=gpu, num_nodes=1, gpus_per_node=capacity, intra_node=link, inter_node=link
    )
    model = ModelSpec(
        name="probe", num_layers=1, hidden_size=64, num_attention_heads=1, vocab_size=2
    )
    return TrialRequest(
        study="calibration",
        number={"together": ranks, EACH: -1}.get(what, 0),
        attempt=1,
        workload=Workload(model=model, cluster=cluster, seq_len=1, global_batch_size=ranks),
        config=ParallelConfig(dp=ranks, precision="fp32"),
        measure=MeasureSpec(start_timeout_s=PROBE_TIMEOUT_S, trial_timeout_s=PROBE_TIMEOUT_S),
        trainer_options={"probe": what, "quick": quick},
    )


def probe(
    request: TrialRequest, context: RankContext, report: Callable[[Any], bool]
) -> TrialResult:
    """The "training loop" of a probe: takes its readings and hands them back as those of a
    measurement."""
    began_s = time.perf_counter()
    effort = QUICK if request.trainer_options["quick"] else FULL
    what = request.trainer_options["probe"]
    if what == EACH:
        of_each: list[Any] = [None] * context.world_size
        dist.all_gather_object(of_each, each_rank(context, effort))
        readings: dict[str, Any] = {"of_each": of_each}
    elif what == "alone":
        readings = _alone(context.device, effort)
    else:
        readings = _together(context, effort)
    spent_s = time.perf_counter() - began_s
    return TrialResult(
        measurement=Measurement(
            step_times_s=(spent_s,), num_ranks=context.world_size, evidence=readings
        )
    )


def each_rank(context: RankContext, effort: Effort) -> dict[str, Any]:
    """What this rank measures of itself while all others do, and, where it is the first of its
    node, how long it takes to send to the first of each other node. Pairs take turns, so that no
    two share a link; collective."""
    device = context.device
    dist.barrier()
    side = _side(device)
    rates = {
        "matmul": _matmul_rate(side, side, side, torch.float32, device, effort),
        "memory": _copy_rate((1 << 28 if device.type == "cuda" else 1 << 24) // 4, device, effort),
    }
    node = socket.gethostname()
    hosts: list[Any] = [None] * context.world_size
    dist.all_gather_object(hosts, node)
    first = {host: hosts.index(host) for host in dict.fromkeys(hosts)}
    message = torch.zeros(
        (GPU_MESSAGES_BYTES[-2] if device.type == "cuda" else CPU_MESSAGES_BYTES[-1]) // 4,
        device=device,
    )
    exchanges_s: dict[str, float] = {}
    for sender, of_sender in first.items():
        for receiver, of_receiver in first.items():
            dist.barrier()
            if sender == receiver or context.rank not in (of_sender, of_receiver):
                continue
            seconds = _exchange_s(
                message, context.rank == of_sender, of_sender, of_receiver, device, effort
            )
            if context.rank == of_sender:
                exchanges_s[receiver] = seconds
    return {"rank": context.rank, "node": node, "rates": rates, "exchanges_s": exchanges_s}


def _exchange_s(
    message: torch.Tensor,
    sends: bool,
    sender: int,
    receiver: int,
    device: torch.device,
    effort: Effort,
) -> float:
    """Median seconds until a message has come and its receipt is back."""
    receipt, rounds = torch.zeros(1, device=device), []
    for _ in range(effort.repeats + 1):  # the first one makes the connection
        began_s = time.perf_counter()
        if sends:
            dist.send(message, receiver)
            dist.recv(receipt, receiver)
        else:
            dist.recv(message, sender)
            dist.send(receipt, sender)
        _synchronize(device)
        rounds.append(time.perf_counter() - began_s)
    return statistics.median(rounds[1:])


def _alone(device: torch.device, effort: Effort) -> dict[str, Any]:
    """Readings of one rank that has the node to itself."""
    on_gpu = device.type == "cuda"
    matmul = []
    for precision, dtype in _precisions(device).items():
        torch.backends.cuda.matmul.allow_tf32 = precision == "tf32"
        for m, n, k in GPU_SIZES if on_gpu else CPU_SIZES:
            rate = _matmul_rate(m, n, k, dtype, device, effort)
            matmul.append({"m": m, "n": n, "k": k, "precision": precision, "flops_per_s": rate})
    torch.backends.cuda.matmul.allow_tf32 = False
    side = _side(device)
    return {
        "on_gpu": on_gpu,
        "matmul": matmul,
        "memory": _copy_rate((1 << 30 if on_gpu else 1 << 27) // 4, device, effort),
        "host": _layer_host_s(device, effort),
        "concurrency": _matmul_rate(side, side, side, torch.float32, device, effort),
        "capacity": float(
            torch.cuda.get_device_properties(device).total_memory if on_gpu else memory_bytes()
        ),
    }


def _side(device: torch.device) -> int:
    """Of the square matrices that all ranks multiply at once."""
    return 4096 if device.type == "cuda" else 512


def _together(context: RankContext, effort: Effort) -> dict[str, Any]:
    """Readings of ranks that do the same at once; the slowest rank counts."""
    device, size = context.device, context.world_size
    side = _side(device)
    dist.barrier()
    own = _matmul_rate(side, side, side, torch.float32, device, effort)
    rate = torch.tensor([own], dtype=torch.float64, device=device)
    dist.all_reduce(rate, dist.ReduceOp.MIN)
    collectives = []
    for bytes_ in GPU_MESSAGES_BYTES if device.type == "cuda" else CPU_MESSAGES_BYTES:
        count = bytes_ // 4 // size * size
        whole, part = torch.zeros(count, device=device), torch.zeros(count // size, device=device)
        calls: dict[str, Callable[[], Any]] = {
            "all_reduce": lambda whole=whole: dist.all_reduce(whole),  # type: ignore[misc]
            "all_gather": lambda whole=whole, part=part: dist.all_gather_into_tensor(whole, part),  # type: ignore[misc]
            "reduce_scatter": lambda whole=whole, part=part: dist.reduce_scatter_tensor(
                part, whole
            ),  # type: ignore[misc]
        }
        for kind, call in calls.items():
            seconds = torch.tensor(
                [_collective_s(call, device, effort)], dtype=torch.float64, device=device
            )
            dist.all_reduce(seconds, dist.ReduceOp.MAX)
            collectives.append(
                {
                    "kind": kind,
                    "ranks": size,
                    "scope": "intra",
                    "bytes": count * 4,
                    "time_s": float(seconds),
                }
            )
    return {"concurrency": float(rate), "collectives": collectives}


def _precisions(device: torch.device) -> dict[str, torch.dtype]:
    if device.type == "cpu":
        return {"fp32": torch.float32, "bf16": torch.bfloat16}
    half = (
        {"bf16": torch.bfloat16} if torch.cuda.is_bf16_supported(including_emulation=False) else {}
    )
    tf32 = {"tf32": torch.float32} if torch.cuda.get_device_capability(device)[0] >= 8 else {}
    # what people train in comes first
    return {
        **half,
        "fp16": torch.float16,
        **tf32,
        "fp32": torch.float32,
    }


def _matmul_rate(
    m: int, n: int, k: int, dtype: torch.dtype, device: torch.device, effort: Effort
) -> float:
    left = torch.randn(m, k, device=device).to(dtype)
    right = torch.randn(k, n, device=device).to(dtype)
    out = torch.empty(m, n, device=device, dtype=dtype)
    return 2.0 * m * n * k / _seconds(lambda: torch.mm(left, right, out=out), device, effort)


def _copy_rate(numbers: int, device: torch.device, effort: Effort) -> float:
    """Bytes/s read and written together."""
    source = torch.ones(numbers, device=device)
    target = torch.empty_like(source)
    return (
        2
        * source.numel()
        * source.element_size()
        / _seconds(lambda: target.copy_(source), device, effort)
    )


def _layer_host_s(device: torch.device, effort: Effort) -> float:
    """Forward and backward of a layer of width 8 on 4 tokens: nothing but launches."""
    with torch.random.fork_rng(devices=[]):
        layer = torch.nn.TransformerEncoderLayer(8, 1, 32, dropout=0.0, batch_first=True).to(device)
    tokens = torch.ones(1, 4, 8, device=device, requires_grad=True)

    def both() -> None:
        layer(tokens).sum().backward()

    return _seconds(both, device, effort)


def _seconds(call: Callable[[], Any], device: torch.device, effort: Effort) -> float:
    """Median over some rounds of the mean time of a call, each round long enough for the clock."""
    call()
    _synchronize(device)
    began_s = time.perf_counter()
    call()
    _synchronize(device)
    count = max(1, min(1000, int(effort.round_s / max(time.perf_counter() - began_s, 1e-6))))
    rounds = []
    for _ in range(effort.repeats):
        began_s = time.perf_counter()
        for _ in range(count):
            call()
        _synchronize(device)
        rounds.append((time.perf_counter() - began_s) / count)
    return statistics.median(rounds)


def _collective_s(call: Callable[[], Any], device: torch.device, effort: Effort) -> float:
    """The same for a collective: all ranks make the same number of calls, however long one takes on
    each."""
    rounds = []
    for _ in range(3 * effort.repeats):
        dist.barrier()
        _synchronize(device)
        began_s = time.perf_counter()
        call()
        _synchronize(device)
        rounds.append(time.perf_counter() - began_s)
    return statistics.median(rounds)


def _synchronize(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
