"""Peak of a real run by the allocator's own account, and of a dry run of the same training: two
optimizer steps on one CPU rank.

    tensors      the most that is allocated whenever no operator runs: what the training holds
    allocator    the most that is allocated at all, within operators too. CPU kernels make buffers that no tensor owns and free them before they return
                 (oneDNN's reordered weights and partial sums). They are of one CPU's instruction set, GPUs have others, and no dry run can tell them:
                 where they add to the peak, the operator is named.

    python -m tests.benchmarks.dry_run_truth                      all architectures, as a table
    python -m tests.benchmarks.dry_run_truth llama vit ...        these

The real run has random weights and random tokens. torch's profiler tells every allocation and
release (`profile_memory`), and a dispatch mode marks where each operator begins and ends. Peaks are
those of the second step. Each run has a process of its own, forked from one that has torch and
transformers imported.
"""

from __future__ import annotations

import json
import multiprocessing
import sys
import tempfile
import time
import traceback
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from autotune.ports import TrialRequest
from autotune.spec import MeasureSpec, ModelCode, ModelSpec, ParallelConfig, Peft, Workload, catalog
from tests.benchmarks.architectures import ARCHITECTURES, SEQ_LEN, VOCABULARY

SECOND_STEP = "the second step"
OPERATOR = "operator "
"""how the mark of an operator begins"""
LIMIT_S = 1800.0
"""of one run"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Peaks:
    """Of a real step."""

    tensors_bytes: int
    """while no operator runs"""
    allocator_bytes: int
    """at any time"""
    operator: str
    """that ran at the latter; empty where none did"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Compared:
    """One architecture in one precision."""

    name: str
    precision: str
    real: Peaks
    dry_bytes: int
    """the dry run's"""
    real_s: float
    dry_s: float
    guesses: tuple[str, ...]

    @property
    def error(self) -> float:
        """Of the dry run, as a share of the peak of the real tensors; above zero where it says too
        much."""
        return self.dry_bytes / self.real.tensors_bytes - 1.0

    @property
    def kernels(self) -> str:
        """In words, what buffers inside of kernels add to the peak."""
        added = self.real.allocator_bytes / self.real.tensors_bytes - 1.0
        return f"{added:+.4%} in {self.real.operator}" if added else "none"


class RandomTokens:
    """Random sequences, so that experts are visited unevenly."""

    def sequences(self, indices: Any) -> Any:
        """See `SequenceSource`."""
        import torch

        made = torch.Generator().manual_seed(int(np.sum(indices)))
        return torch.randint(VOCABULARY, (len(indices), SEQ_LEN + 1), generator=made)


def request_of(name: str, precision: str) -> TrialRequest:
    """Two micro-batches of two samples on one rank."""
    from autotune_workers.own_model.inspection import inspect

    architecture = ARCHITECTURES[name]
    code = ModelCode(module="tests.benchmarks.architectures:build", args=json.dumps({"name": name}))
    unknown = ModelSpec(
        name="model", num_layers=1, hidden_size=1, num_attention_heads=1, vocab_size=1, code=code
    )
    workload = Workload(
        model=inspect(unknown),
        cluster=catalog.cluster("cpu-1x1"),
        seq_len=SEQ_LEN,
        global_batch_size=4,
        peft=Peft(rank=8) if architecture.lora else None,
    )
    config = ParallelConfig(micro_batch_size=2, accumulation_steps=2, precision=precision)
    return TrialRequest(
        study="truth", number=0, attempt=1, workload=workload, config=config, measure=MeasureSpec()
    )


def real_peaks(request: TrialRequest) -> Peaks:
    """Those of the second of two real steps."""
    import torch
    import torch.distributed as dist
    from torch.profiler import ProfilerActivity, profile, record_function

    from autotune_workers.dryrun.torch_private import TorchDispatchMode
    from autotune_workers.training.parallel.mesh import RankContext
    from autotune_workers.training.step import Training

    class Marks(TorchDispatchMode):
        def __torch_dispatch__(
            self, func: Any, types: Any, args: Any = (), kwargs: Any = None
        ) -> Any:
            with record_function(f"{OPERATOR}{func}"):
                return func(*args, **(kwargs or {}))

    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=0, world_size=1)
        try:
            with (
                profile(
                    activities=[ProfilerActivity.CPU], profile_memory=True, acc_events=True
                ) as profiler,
                Marks(),
            ):
                context = RankContext(rank=0, world_size=1, device=torch.device("cpu"))
                training = Training(request, context, stream=RandomTokens())
                training.step(*training.batch(0))
                with record_function(SECOND_STEP):
                    training.step(*training.batch(1))
        finally:
            dist.destroy_process_group()
    return peaks_within(profiler.profiler.kineto_results.events(), SECOND_STEP)


def peaks_within(events: Sequence[Any], name: str) -> Peaks:
    """The highest sums of all allocations and releases so far, within the range of that name."""
    ((begin, end),) = [_range(e) for e in events if e.name() == name]
    moments: list[tuple[int, int, Any]] = []
    for event in events:
        if event.name() == "[memory]":
            moments.append((event.start_ns(), 1, event.nbytes()))
        elif event.name().startswith(OPERATOR):
            entered, left = _range(event)
            moments += [(entered, 0, event.name().removeprefix(OPERATOR)), (left, 2, "")]
    held = tensors = most = 0
    running: list[str] = []
    operator = ""
    for at, what, value in sorted(moments, key=lambda m: m[:2]):
        if at >= begin and tensors == most == 0:
            tensors = most = held
        if what == 0:
            running.append(value)
        elif what == 1:
            held += value
        else:
            running.pop()
        if begin <= at <= end:
            if held > most:
                most, operator = held, running[0] if running else ""
            if not running:
                tensors = max(tensors, held)
    return Peaks(
        tensors_bytes=tensors, allocator_bytes=most, operator=operator if most > tensors else ""
    )


def _range(event: Any) -> tuple[int, int]:
    return event.start_ns(), event.start_ns() + event.duration_ns()


def compare(name: str, precision: str) -> Compared:
    """Both runs. Raises `RuntimeError` with the end of what a failing one said."""
    real, dry = (_in_a_fork(kind, name, precision) for kind in ("real", "dry"))
    return Compared(
        name=name,
        precision=precision,
        real=Peaks(**real["peaks"]),
        dry_bytes=dry["bytes"],
        real_s=real["took_s"],
        dry_s=dry["took_s"],
        guesses=tuple(dry["guesses"]),
    )


def _in_a_fork(kind: str, name: str, precision: str) -> dict[str, Any]:
    forks = multiprocessing.get_context("fork")
    here, there = forks.Pipe(duplex=False)
    process = forks.Process(target=_run, args=(kind, name, precision, there), daemon=True)
    process.start()
    there.close()
    try:
        answer: dict[str, Any] = (
            here.recv() if here.poll(LIMIT_S) else {"error": f"no answer within {LIMIT_S:g} s"}
        )
    except EOFError:
        answer = {"error": "the process died"}
    finally:
        process.kill()
        process.join()
    if "error" in answer:
        raise RuntimeError(f"{kind} run of {name} in {precision}: {answer['error']}")
    return answer


def _run(kind: str, name: str, precision: str, answers: Any) -> None:
    try:
        began_s = time.perf_counter()
        request = request_of(name, precision)
        if kind == "real":
            found: dict[str, Any] = {"peaks": asdict(real_peaks(request)), "guesses": ()}
        else:
            from autotune_workers.dryrun.played_rank import dry_run

            run = dry_run(request, rank=0)
            found = {"bytes": run.peak.total_bytes, "guesses": run.guesses}
        answers.send({**found, "took_s": time.perf_counter() - began_s})
    except BaseException:
        answers.send({"error": traceback.format_exc()[-1500:]})


def table(names: Sequence[str]) -> tuple[list[Compared], dict[str, str]]:
    """Prints a row for each architecture and precision as it comes. Returns the rows, and what
    failed, by name."""
    rows, failed = [], {}
    print(
        "| architecture | precision | tensors, bytes | dry run, bytes | difference | buffers inside kernels add | real, s | dry, s |"
    )
    print("|---|---|---|---|---|---|---|---|", flush=True)
    for name in names:
        for precision in ARCHITECTURES[name].precisions:
            try:
                row = compare(name, precision)
            except RuntimeError as error:
                failed[name] = str(error)
                print(
                    f"| {name} | {precision} | {' '.join(str(error).split())[-700:]} |", flush=True
                )
                continue
            rows.append(row)
            print(
                f"| {name} | {precision} | {row.real.tensors_bytes:,} | {row.dry_bytes:,} | {row.error:+.4%} | {row.kernels} | {row.real_s:.1f} | {row.dry_s:.1f} |",
                flush=True,
            )
    return rows, failed


def main(names: Sequence[str]) -> None:
    """Prints the table and its summary."""
    import torch
    import transformers  # noqa: F401 - so that no fork has to import it

    torch.set_num_threads(1)
    rows, failed = table(names or list(ARCHITECTURES))
    errors = [abs(row.error) for row in rows]
    if errors:
        print(
            f"\n{len(errors)} comparisons: median {np.median(errors):.4%}, worst {max(errors):.4%}; {len(failed)} failed"
        )


if __name__ == "__main__":
    main(sys.argv[1:])
