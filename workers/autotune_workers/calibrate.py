"""Calibration: the real speed of this machine, measured with the rank processes that run trials: matmul, memory, launches, collectives, shared cores.

    matmul               list of {m, n, k, precision, flops_per_s}: one rank alone; (m, k) by (k, n) takes 2*m*n*k FLOPs
    memory_bytes_per_s   reading and writing together, of a copy too large for any cache
    host_overhead_s      to launch one transformer layer's forward and backward pass, its tensors too small to matter
    collectives          list of {kind, ranks, scope, bytes, time_s}; bytes: the whole tensor (reduced, gathered or scattered)
    concurrency          list of {ranks, flops_per_s}: rate of each rank while so many compute at once (CPU ranks share cores)

Each figure is the median of repeated timings, for these machines are disturbed by others. Assumes that the ranks of one node are alike.
"""

from __future__ import annotations

import datetime
import platform
import statistics
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
import torch.distributed as dist

from autotune.errors import RunnerError
from autotune.ports import AttemptEnded, TrialRequest
from autotune.spec import ClusterSpec, GpuSpec, LinkSpec, Measurement, MeasureSpec, ModelSpec, ParallelConfig, Workload
from autotune_workers.process.machine import total_memory
from autotune_workers.runners.local import LocalRunner
from autotune_workers.training.mesh import RankContext
from autotune_workers.training.run_trial import TrialResult

PROBE = "autotune_workers.calibrate:probe"
REPEATS = 5
MAX_RANKS = 8
"""more ranks of one node tell nothing new"""
PROBE_TIMEOUT_S = 180.0
CPU_SIZES = ((128, 128, 128), (256, 256, 256), (512, 512, 512), (1024, 1024, 1024), (512, 128, 512), (1024, 256, 256))
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
KINDS = ("all_reduce", "all_gather", "reduce_scatter")
Progress = Callable[[str, float], None]


def calibrate_local(progress: Progress | None = None) -> dict[str, Any]:
    """Measures this machine; takes about a minute. `progress` is told what is measured, and the fraction that is done.

    Raises `RunnerError` when ranks cannot be run here.
    """
    with LocalRunner(trial=PROBE) as runner:
        on_gpu = runner.on_gpu
        sizes = [n for n in (1, 2, 4, 8) if n <= min(runner.capacity, MAX_RANKS)]
        alone = _run(runner, 1, "alone", progress, 0.0)
        found = dict(_pairs(alone))
        matmul = [
            {"m": int(m), "n": int(n), "k": int(k), "precision": precision, "flops_per_s": rate}
            for (_, precision, m, n, k), rate in _of(found, "matmul")
        ]
        concurrency = []
        collectives = []
        for index, ranks in enumerate(sizes):
            together = _run(runner, ranks, "together", progress, (index + 1) / (len(sizes) + 1))
            for (name, *rest), value in _pairs(together):
                if name == "concurrency":
                    concurrency.append({"ranks": ranks, "flops_per_s": value})
                elif name in KINDS:
                    collectives.append(
                        {"kind": name, "ranks": ranks, "scope": "intra", "bytes": int(rest[0]), "time_s": value}
                    )
    if progress is not None:
        progress("done", 1.0)
    return {
        "matmul": matmul,
        "memory_bytes_per_s": found["memory",],
        "host_overhead_s": found["host",],
        "collectives": collectives,
        "concurrency": concurrency,
        "gpu": torch.cuda.get_device_name(0) if on_gpu else "cpu",
        "memory_bytes": found["capacity",],
        "versions": {"torch": torch.__version__, "python": platform.python_version(), "cuda": torch.version.cuda or ""},
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
    }


Key = tuple[str, ...]


def _pairs(readings: Mapping[str, float]) -> Iterator[tuple[Key, float]]:
    return ((tuple(name.split("/")), value) for name, value in readings.items())


def _of(readings: Mapping[Key, float], name: str) -> Iterator[tuple[Key, float]]:
    return ((key, value) for key, value in readings.items() if key[0] == name)


def _run(runner: LocalRunner, ranks: int, what: str, progress: Progress | None, fraction: float) -> Mapping[str, float]:
    """One probe as a trial on so many ranks; its readings by name."""
    if progress is not None:
        progress(f"{what} on {ranks} rank{'s' if ranks > 1 else ''}", fraction)
    request = _request(ranks, what, runner.capacity)
    runner.start(request)
    end_s = time.monotonic() + 2 * PROBE_TIMEOUT_S
    while time.monotonic() < end_s:
        for event in runner.poll(1.0):
            if isinstance(event, AttemptEnded):
                if event.measurement is None:
                    reason = event.failure.message if event.failure else "it was cancelled"
                    raise RunnerError(
                        f"this machine cannot be measured: {reason}", remedy="`autotune doctor` says what is missing"
                    )
                return event.measurement.utilization
    raise RunnerError(f"this machine cannot be measured: {what} on {ranks} ranks does not end")


def _request(ranks: int, what: str, capacity: int) -> TrialRequest:
    """A trial whose training loop is the probe; model and config only carry the number of ranks."""
    link = LinkSpec(latency_s=0.0, bytes_per_s=1e9)
    gpu = GpuSpec(
        name="cpu", memory_bytes=float(total_memory()), peak_flops_per_s={"fp32": 1e12}, memory_bytes_per_s=1e10
    )
    cluster = ClusterSpec(name="local", gpu=gpu, num_nodes=1, gpus_per_node=capacity, intra_node=link, inter_node=link)
    model = ModelSpec(name="probe", num_layers=1, hidden_size=64, num_attention_heads=1, vocab_size=2)
    return TrialRequest(
        study="calibration",
        number=ranks if what == "together" else 0,
        attempt=1,
        workload=Workload(model=model, cluster=cluster, seq_len=1, global_batch_size=ranks),
        config=ParallelConfig(dp=ranks, precision="fp32"),
        measure=MeasureSpec(start_timeout_s=PROBE_TIMEOUT_S, trial_timeout_s=PROBE_TIMEOUT_S),
        trainer_options={"probe": what},
    )


def probe(request: TrialRequest, context: RankContext, report: Callable[[Any], bool]) -> TrialResult:
    """The "training loop" of a probe: takes its readings and hands them back as those of a measurement."""
    began_s = time.perf_counter()
    readings = _alone(context.device) if request.trainer_options["probe"] == "alone" else _together(context)
    return TrialResult(
        measurement=Measurement(
            step_times_s=(time.perf_counter() - began_s,), num_ranks=context.world_size, utilization=readings
        )
    )


def _alone(device: torch.device) -> dict[str, float]:
    on_gpu = device.type == "cuda"
    readings: dict[str, float] = {}
    for precision, dtype in _precisions(device).items():
        torch.backends.cuda.matmul.allow_tf32 = precision == "tf32"
        for m, n, k in GPU_SIZES if on_gpu else CPU_SIZES:
            readings[f"matmul/{precision}/{m}/{n}/{k}"] = _matmul_rate(m, n, k, dtype, device)
    torch.backends.cuda.matmul.allow_tf32 = False
    source = torch.ones((1 << 30 if on_gpu else 1 << 27) // 4, device=device)
    target = torch.empty_like(source)
    copy_s = _seconds(lambda: target.copy_(source), device)
    readings["memory"] = 2 * source.numel() * source.element_size() / copy_s
    readings["host"] = _layer_host_s(device)
    readings["capacity"] = float(torch.cuda.get_device_properties(device).total_memory if on_gpu else total_memory())
    return readings


def _together(context: RankContext) -> dict[str, float]:
    """Readings of ranks that do the same at once; the slowest rank counts."""
    device, size = context.device, context.world_size
    side = 4096 if device.type == "cuda" else 512
    dist.barrier()
    rate = torch.tensor([_matmul_rate(side, side, side, torch.float32, device)], dtype=torch.float64, device=device)
    dist.all_reduce(rate, dist.ReduceOp.MIN)
    readings = {"concurrency": float(rate)}
    if size == 1:
        return readings
    for bytes_ in GPU_MESSAGES_BYTES if device.type == "cuda" else CPU_MESSAGES_BYTES:
        count = bytes_ // 4 // size * size
        whole, part = torch.zeros(count, device=device), torch.zeros(count // size, device=device)
        calls: dict[str, Callable[[], Any]] = {
            "all_reduce": lambda whole=whole: dist.all_reduce(whole),  # type: ignore[misc]
            "all_gather": lambda whole=whole, part=part: dist.all_gather_into_tensor(whole, part),  # type: ignore[misc]
            "reduce_scatter": lambda whole=whole, part=part: dist.reduce_scatter_tensor(part, whole),  # type: ignore[misc]
        }
        for kind, call in calls.items():
            seconds = torch.tensor([_collective_s(call, device)], dtype=torch.float64, device=device)
            dist.all_reduce(seconds, dist.ReduceOp.MAX)
            readings[f"{kind}/{count * 4}"] = float(seconds)
    return readings


def _precisions(device: torch.device) -> dict[str, torch.dtype]:
    if device.type == "cpu":
        return {"fp32": torch.float32, "bf16": torch.bfloat16}
    half = {"bf16": torch.bfloat16} if torch.cuda.is_bf16_supported(including_emulation=False) else {}
    tf32 = {"tf32": torch.float32} if torch.cuda.get_device_capability(device)[0] >= 8 else {}
    return {**half, "fp16": torch.float16, **tf32, "fp32": torch.float32}  # what people train in comes first


def _matmul_rate(m: int, n: int, k: int, dtype: torch.dtype, device: torch.device) -> float:
    left = torch.randn(m, k, device=device).to(dtype)
    right = torch.randn(k, n, device=device).to(dtype)
    out = torch.empty(m, n, device=device, dtype=dtype)
    return 2.0 * m * n * k / _seconds(lambda: torch.mm(left, right, out=out), device)


def _layer_host_s(device: torch.device) -> float:
    """Forward and backward of a layer of width 8 on 4 tokens: nothing but launches."""
    with torch.random.fork_rng(devices=[]):
        layer = torch.nn.TransformerEncoderLayer(8, 1, 32, dropout=0.0, batch_first=True).to(device)
    tokens = torch.ones(1, 4, 8, device=device, requires_grad=True)

    def both() -> None:
        layer(tokens).sum().backward()

    return _seconds(both, device)


def _seconds(call: Callable[[], Any], device: torch.device) -> float:
    """Median over `REPEATS` rounds of the mean time of a call, each round long enough for the clock."""
    call()
    _synchronize(device)
    began_s = time.perf_counter()
    call()
    _synchronize(device)
    count = max(1, min(1000, int(0.05 / max(time.perf_counter() - began_s, 1e-6))))
    rounds = []
    for _ in range(REPEATS):
        began_s = time.perf_counter()
        for _ in range(count):
            call()
        _synchronize(device)
        rounds.append((time.perf_counter() - began_s) / count)
    return statistics.median(rounds)


def _collective_s(call: Callable[[], Any], device: torch.device) -> float:
    """The same for a collective: all ranks make the same number of calls, however long one takes on each."""
    rounds = []
    for _ in range(3 * REPEATS):
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
