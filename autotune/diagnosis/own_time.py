"""Rules on what a rank does in its own time: data loading, work of the program outside training,
pauses, the compiler, the optimizer, memory."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from autotune.diagnosis.critical import Series, Steps, share_of
from autotune.diagnosis.evidence import Evidence, Rank
from autotune.diagnosis.finding import CLAIMED, SURE, Finding
from autotune.diagnosis.seen_at import (
    most_seen_place,
    node_of,
    only_rank,
    seen_most_often,
    time_spent,
    who,
)
from autotune.spec.texts.as_text import format_bytes

OPTIMIZER, UNNAMED = 0.35, 0.12
"""shares of a healthy step: the optimizer, if the prediction is not calibrated; and work between
phases whose kind is unknown, such as a trainer's bookkeeping"""
PAGE_S = 0.7e-6
"""time in which the kernel provides a new page, seconds"""
_KINDS = (
    "data",
    "log",
    "own",
    "device",
    "optimizer",
    "checkpoint",
    "evaluation",
    "collective",
    "compile",
)
"""kinds of work that the probe recognizes in a stack"""


def waits_for_input(evidence: Evidence, steps: Steps) -> Iterator[Finding]:
    """Yield a finding if the ranks wait for data."""
    part = steps.wall["data"] + steps.within("rest", "data", wall=True)
    if not _has_loader(evidence):
        part = part + _unnamed(steps, blocked=True)
    part = part + steps.within("optimizer", "data", wall=True)
    pausing = steps.free["evaluation"] + steps.free["checkpoint"] > 0
    part = np.where(pausing, np.minimum(part, np.median(part, axis=1, keepdims=True)), part)
    share, low, high = steps.share_of_phase(part)
    rank = only_rank(steps, part)
    unknown_kind = () if _has_loader(evidence) else ("",)
    place = most_seen_place(
        steps.ranks,
        lambda p: p.phase == "data" or (p.phase == "rest" and p.kind in ("data", *unknown_kind)),
        rank,
    )
    workers = evidence.facts.get("workers")
    change = (
        f"raise the DataLoader's num_workers (now {workers})"
        if workers is not None
        else "load data in other processes (set the DataLoader's num_workers)"
    )
    yield Finding(
        cause="input",
        share=share,
        low=low,
        high=high,
        rank=rank,
        node=node_of(steps, rank),
        what=f"{who(rank, 'the ranks')} wait{'s' if rank is not None else ''} for data",
        evidence=(*time_spent(steps, part, rank, "waiting for or preparing data"), *seen_most_often(place)),
        confirm="train a few steps on a single batch kept in memory: the step time should drop by this fraction",
        change=f"{change}, cache decoded samples on the training nodes, or move slow work out of the dataset",
        line=place.line if place else "",
        knob="num_workers",
    )  # fmt: skip


def own_work(evidence: Evidence, steps: Steps) -> Iterator[Finding]:
    """Yield a finding if the program computes, prints or waits outside forward and backward
    passes."""
    # Lightning runs the whole step inside optimizer.step(), so its log calls count as optimizer
    named = steps.within("rest", "log", "own", wall=True) + steps.within(
        "optimizer", "log", wall=True
    )
    if _has_loader(evidence):
        named = named + _unnamed(steps, blocked=True)
    part = named + _unnamed(steps, blocked=False)
    share, low, high = steps.share_of_phase(part)
    if share < UNNAMED and steps.share_of_phase(named)[0] < CLAIMED:
        return
    rank = only_rank(steps, part)
    place = most_seen_place(
        steps.ranks, lambda p: p.kind in ("log", "own") or (p.phase == "rest" and not p.kind), rank
    )
    is_log = place is not None and place.kind == "log"
    yield Finding(
        cause="host",
        share=share,
        low=low,
        high=high,
        rank=rank,
        node=node_of(steps, rank),
        what=f"{who(rank, 'the ranks')} spend{'s' if rank is not None else ''} time on the program's own work outside forward and backward passes",
        evidence=(*time_spent(steps, part, rank, "in the program's own code, outside data loading, forward, backward and optimizer"), *seen_most_often(place)),
        confirm="skip this line for a few steps: the step time should drop by this fraction",
        change="print or log every hundredth step, and do not read values from the device in between"
        if is_log
        else "move that work out of the training loop (into another thread or process), or do it less often",
        line=place.line if place else "",
    )  # fmt: skip


def pauses(evidence: Evidence, steps: Steps) -> Iterator[Finding]:
    """Yield a finding if training pauses for evaluation or checkpoints."""
    paused = steps.wall["evaluation"] + steps.wall["checkpoint"]
    around = steps.wall["data"] + steps.wall["rest"]
    usual = np.median(around, axis=1, keepdims=True)
    part = paused + np.where(paused > 0, np.maximum(0.0, around - usual), 0.0)
    part = part + np.where(
        paused > 0, 0.0, steps.within("rest", "checkpoint", "evaluation", wall=True)
    )
    share, low, high = steps.share_of_phase(part)
    events = int((paused.max(axis=0) > 0).sum()) if steps.count else 0
    saves = float(steps.free["checkpoint"].sum()) > float(steps.free["evaluation"].sum())
    what = "checkpoints" if saves else "evaluation"
    every = f", in {events} of {steps.count} steps" if events else ""
    yield Finding(
        cause="pauses",
        share=share,
        # rare pauses make the interval wide, though their cost is certain
        low=max(low, share / 2) if events > 1 else low,
        high=high,
        what=f"training pauses for {what}{every}",
        evidence=tuple(time_spent(steps, part, None, f"in {what}")),
        confirm=f"switch {what} off for a hundred steps: the mean step time should drop by this fraction",
        change="save less often, or asynchronously" if saves else "evaluate less often, on fewer batches, or in a separate job",
        knob="save_steps" if saves else "eval_steps",
    )  # fmt: skip


def recompilation(evidence: Evidence, steps: Steps) -> Iterator[Finding]:
    """Yield a finding if torch recompiles after warm-up."""
    part = compiling(steps)
    share, low, high = steps.share_of_phase(part)
    count = int((part.max(axis=0) > 0).sum())
    yield Finding(
        cause="recompilation",
        share=share,
        low=low if count < 3 else max(low, SURE),
        high=high,
        what=f"torch recompiles in {count} of {steps.count} steps after warm-up",
        evidence=tuple(time_spent(steps, part, None, "in torch's compiler")),
        confirm="set TORCH_LOGS=recompiles to see which guard fails, usually because a shape changes",
        change="pad or bucket lengths, mark the dimension as dynamic (torch.compile(dynamic=True)), or switch compilation off",
        knob="compile",
    )


def optimizer(evidence: Evidence, steps: Steps) -> Iterator[Finding]:
    """Yield a finding if the optimizer takes a larger share of the step than in a healthy run."""
    part = steps.wall["optimizer"] - steps.within(
        "optimizer", "collective", "log", "data", wall=True
    )
    part = part + steps.within("rest", "optimizer", wall=True)  # gradient clipping
    share, low, high = steps.share_of_phase(part)
    due = OPTIMIZER
    if evidence.is_measured_here and evidence.predicted_s:
        due = (
            1.5 * evidence.predicted_parts_s.get("optimizer", 0.0) / evidence.predicted_s[0]
            + CLAIMED
        )
    if share < due:
        return
    place = most_seen_place(
        steps.ranks,
        lambda p: p.phase == "optimizer" and p.kind not in ("log", "data", "collective"),
        None,
    )
    yield Finding(
        cause="optimizer",
        share=share,
        low=low,
        high=high,
        what="the optimizer takes a large share of the step",
        evidence=(*time_spent(steps, part, None, "in the optimizer"), *seen_most_often(place)),
        confirm="measure optimizer.step() alone, with the device synchronized",
        change="use the fused optimizer (fused=True), shard its states (ZeRO), or accumulate more micro-batches per step",
        knob="zero_stage",
    )


def memory_short(evidence: Evidence, steps: Steps) -> Iterator[Finding]:
    """Yield a finding if a rank is short of memory or its allocator keeps returning memory to the
    system."""
    by_rank = (
        _memory_pressure(steps, at) for at, rank in enumerate(steps.ranks) if rank.elapsed_s > 0
    )
    worst = max((p for p in by_rank if p.seen), key=lambda p: p.share, default=None)
    if worst is None:
        return
    share, rank = min(worst.share, 1.0), worst.rank
    yield Finding(
        cause="memory",
        share=share,
        low=share / 2,
        high=min(1.0, 2 * share),
        rank=rank.rank,
        node=rank.node,
        what=f"memory is tight on rank {rank.rank}" if worst.is_short else f"rank {rank.rank} reallocates its memory from the system in every step",
        evidence=tuple(worst.seen),
        confirm="run with a smaller micro-batch: the time per sequence should drop",
        change="use a smaller micro-batch or recomputation; on GPUs, set PYTORCH_ALLOC_CONF=expandable_segments:True; on CPUs, raise the memory limit or use an allocator that keeps freed memory (MALLOC_TRIM_THRESHOLD_, jemalloc)",
        knob="micro_batch_size",
    )  # fmt: skip


@dataclass(frozen=True, slots=True)
class _MemoryPressure:
    rank: Rank
    share: float
    """of the elapsed time that it costs"""
    seen: list[str]
    """observations in words; empty without pressure"""
    is_short: bool
    """whether memory is short; False: new pages only cost time"""


def _memory_pressure(steps: Steps, at: int) -> _MemoryPressure:
    rank = steps.ranks[at]
    elapsed_s = rank.elapsed_s
    seen, cost_s = [], 0.0
    if rank.alloc_retries > 0:
        seen.append(
            f"the GPU's allocator had to free its cache and retry {rank.alloc_retries:g} times"
        )
        cost_s = max(cost_s, rank.alloc_retries * 0.1)
    idle = (steps.own[at] - sum(busy[at] for busy in steps.busy.values())).clip(0)
    blocked_s = float(idle.mean()) / float(steps.slowest.mean()) * elapsed_s
    if rank.major_faults / elapsed_s > 20:
        seen.append(f"{rank.major_faults / elapsed_s:.0f} pages a second were read back from disk")
        cost_s = max(cost_s, blocked_s, rank.major_faults * 1e-4)
    if rank.memory_at_limit / elapsed_s > 1:
        seen.append(f"the rank's cgroup reached its memory limit {rank.memory_at_limit:.0f} times")
        cost_s = max(cost_s, min(blocked_s + rank.system_s, elapsed_s))
    is_short = bool(seen)
    used_s = max(rank.user_s + rank.system_s, 1e-9)
    new_pages_s = min(rank.minor_faults * PAGE_S, rank.system_s)
    if new_pages_s > CLAIMED * used_s and rank.system_s > 0.15 * used_s:
        new_pages = rank.minor_faults / elapsed_s
        seen.append(
            f"the allocator returns memory to the system and requests it again ({new_pages:,.0f} new pages a second, {format_bytes(4096 * new_pages)}/s), and the kernel uses {rank.system_s / used_s:.0%} of the CPU time"
        )
        cost_s = max(cost_s, rank.system_s / used_s * elapsed_s)
    return _MemoryPressure(rank, cost_s / elapsed_s, seen, is_short)


def _unnamed(steps: Steps, *, blocked: bool) -> Series:
    """Return the time between phases whose kind of work is unknown, shape (ranks, steps):
    `blocked`, or else on a processor. Zero if forward passes were not observed, because then all
    time is between phases."""
    if not steps.count or float(steps.free["forward"].sum()) <= 0:
        return np.zeros_like(steps.time)
    unknown = np.array([[1.0 - share_of(rank, "rest", *_KINDS)] for rank in steps.ranks])
    idle = np.maximum(0.0, steps.free["rest"] - steps.busy["rest"])
    busy = steps.wall["rest"] - idle
    return np.asarray((idle if blocked else busy) * unknown, dtype=float)


def compiling(steps: Steps) -> Series:
    """Return the seconds in torch's compiler, shape (ranks, steps)."""
    return np.array(
        [rank.compile_s[-steps.count :] or (0.0,) * steps.count for rank in steps.ranks],
        dtype=float,
    ).reshape(len(steps.ranks), steps.count)


def _has_loader(evidence: Evidence) -> bool:
    """Return whether the program uses torch's DataLoader. If so, time outside of it is not data
    loading."""
    return evidence.facts.get("workers") is not None
