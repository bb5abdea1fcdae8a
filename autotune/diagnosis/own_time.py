"""Laws of what ranks do with their own time: loading, the program's own work, pauses, the compiler,
the optimizer, memory."""

from __future__ import annotations

from collections.abc import Iterator

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
"""shares of a healthy step, where nothing better is known: of the optimizer, and of the program's
work between phases of no kind that is known, a trainer's usual care"""
PAGE_S = 0.7e-6
"""a fresh page, cleared by the kernel"""


def waits_for_input(evidence: Evidence, steps: Steps) -> Iterator[Finding]:
    """Ranks wait for data."""
    part = steps.wall["data"] + steps.within("rest", "data", wall=True)
    if not _has_loader(evidence):
        part = part + _unnamed(steps, blocked=True)
    part = part + steps.within("optimizer", "data", wall=True)
    pausing = steps.free["evaluation"] + steps.free["checkpoint"] > 0
    part = np.where(pausing, np.minimum(part, np.median(part, axis=1, keepdims=True)), part)
    share, low, high = steps.share_of_phase(part)
    rank = only_rank(steps, part)
    unnamed = () if _has_loader(evidence) else ("",)
    place = most_seen_place(
        steps.ranks,
        lambda p: p.phase == "data" or (p.phase == "rest" and p.kind in ("data", *unnamed)),
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
    """The program works, prints or waits outside its passes."""
    # Lightning's step of the optimizer has the whole step in it
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
    prints = place is not None and place.kind == "log"
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
        if prints
        else "move that work out of the training loop (into another thread or process), or do it less often",
        line=place.line if place else "",
    )  # fmt: skip


def pauses(evidence: Evidence, steps: Steps) -> Iterator[Finding]:
    """Evaluation and checkpoints."""
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
        # a few pauses among many steps scatter by their number, not by chance
        low=max(low, share / 2) if events > 1 else low,
        high=high,
        what=f"training pauses for {what}{every}",
        evidence=tuple(time_spent(steps, part, None, f"in {what}")),
        confirm=f"switch {what} off for a hundred steps: the mean step time should drop by this fraction",
        change="save less often, or asynchronously" if saves else "evaluate less often, on fewer batches, or in a separate job",
        knob="save_steps" if saves else "eval_steps",
    )  # fmt: skip


def recompilation(evidence: Evidence, steps: Steps) -> Iterator[Finding]:
    """Torch's compiler, after warm-up."""
    part = compiling(steps)
    share, low, high = steps.share_of_phase(part)
    again = int((part.max(axis=0) > 0).sum())
    yield Finding(
        cause="recompilation",
        share=share,
        low=low if again < 3 else max(low, SURE),
        high=high,
        what=f"torch recompiles in {again} of {steps.count} steps after warm-up",
        evidence=tuple(time_spent(steps, part, None, "in torch's compiler")),
        confirm="set TORCH_LOGS=recompiles to see which guard fails, usually because a shape changes",
        change="pad or bucket lengths, mark the dimension as dynamic (torch.compile(dynamic=True)), or switch compilation off",
        knob="compile",
    )


def optimizer(evidence: Evidence, steps: Steps) -> Iterator[Finding]:
    """The optimizer's step."""
    part = steps.wall["optimizer"] - steps.within(
        "optimizer", "collective", "log", "data", wall=True
    )
    part = part + steps.within("rest", "optimizer", wall=True)  # clipping
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
    """A rank that is short of memory, or gets it anew from the system all the time."""
    worst: tuple[float, Rank, list[str], bool] | None = None
    for rank in steps.ranks:
        if rank.elapsed_s <= 0:
            continue
        told, cost_s = [], 0.0
        if rank.alloc_retries > 0:
            told.append(
                f"the GPU's allocator had to free its cache and retry {rank.alloc_retries:g} times"
            )
            cost_s = max(cost_s, rank.alloc_retries * 0.1)
        blocked_s = (
            float(
                (
                    steps.own[steps.ranks.index(rank)]
                    - sum(b[steps.ranks.index(rank)] for b in steps.busy.values())
                )
                .clip(0)
                .mean()
            )
            / float(steps.slowest.mean())
            * rank.elapsed_s
        )
        if rank.major_faults / rank.elapsed_s > 20:
            told.append(
                f"{rank.major_faults / rank.elapsed_s:.0f} pages a second were read back from disk"
            )
            cost_s = max(cost_s, blocked_s, rank.major_faults * 1e-4)
        if rank.memory_at_limit / rank.elapsed_s > 1:
            told.append(
                f"the rank's cgroup reached its memory limit {rank.memory_at_limit:.0f} times"
            )
            cost_s = max(cost_s, min(blocked_s + rank.system_s, rank.elapsed_s))
        used_s = max(rank.user_s + rank.system_s, 1e-9)
        is_short = bool(told)
        fresh_s = min(rank.minor_faults * PAGE_S, rank.system_s)
        if fresh_s > CLAIMED * used_s and rank.system_s > 0.15 * used_s:
            told.append(
                f"the allocator returns memory to the system and requests it again ({rank.minor_faults / rank.elapsed_s:,.0f} new pages a second, {format_bytes(4096 * rank.minor_faults / rank.elapsed_s)}/s), and the kernel uses {rank.system_s / used_s:.0%} of the CPU time"
            )
            cost_s = max(cost_s, rank.system_s / used_s * rank.elapsed_s)
        if told and (worst is None or cost_s / rank.elapsed_s > worst[0]):
            worst = (cost_s / rank.elapsed_s, rank, told, is_short)
    if worst is None:
        return
    share, rank, told, is_short = worst
    share = min(share, 1.0)
    yield Finding(
        cause="memory",
        share=share,
        low=share / 2,
        high=min(1.0, 2 * share),
        rank=rank.rank,
        node=rank.node,
        what=f"memory is tight on rank {rank.rank}" if is_short else f"rank {rank.rank} reallocates its memory from the system in every step",
        evidence=tuple(told),
        confirm="run with a smaller micro-batch: the time per sequence should drop",
        change="use a smaller micro-batch or recomputation; on GPUs, set PYTORCH_ALLOC_CONF=expandable_segments:True; on CPUs, raise the memory limit or use an allocator that keeps freed memory (MALLOC_TRIM_THRESHOLD_, jemalloc)",
        knob="micro_batch_size",
    )  # fmt: skip


def _unnamed(steps: Steps, *, blocked: bool) -> Series:
    """Time between phases whose kind is not known: blocked, or on a processor. Where the phases of
    the passes were not seen, nothing is."""
    if not steps.count or float(steps.free["forward"].sum()) <= 0:
        return np.zeros_like(steps.time)
    unknown = np.array(
        [
            [
                1.0
                - share_of(
                    rank,
                    "rest",
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
            ]
            for rank in steps.ranks
        ]
    )
    idle = np.maximum(0.0, steps.free["rest"] - steps.busy["rest"])
    busy = steps.wall["rest"] - idle
    return np.asarray((idle if blocked else busy) * unknown, dtype=float)


def compiling(steps: Steps) -> Series:
    """Seconds in torch's compiler."""
    return np.array(
        [rank.compile_s[-steps.count :] or (0.0,) * steps.count for rank in steps.ranks],
        dtype=float,
    ).reshape(len(steps.ranks), steps.count)


def _has_loader(evidence: Evidence) -> bool:
    """Whether the program draws from torch's DataLoader: what it does elsewhere is then no
    loading."""
    return evidence.facts.get("workers") is not None
