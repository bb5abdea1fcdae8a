"""The laws: when a class of cause may be claimed, and what it costs. Each takes the evidence and
gives findings, or none.

A finding is claimed when its share of the step is `CLAIMED` or more and the lower end of its
interval `SURE` or more; classes whose healthy share is not zero have their own threshold, or the
share that was predicted where the prediction rests on measurements of this cluster.

    input            data: the time in data loaders, and time between phases in which the program loads; where it has no loader, also time before a forward
                     pass in which it is blocked without a reason that can be named
    host             time between phases in which the program prints, waits or computes itself; on GPUs, of a profile, launches that do not keep up
    communication    shared waits beyond what is due; between nodes where the ranks are on several
    slow rank, node  one rank (all ranks of a node) computes longer than the others in `MOSTLY` of the steps, with as many tokens, by more where others use its machine; or of three or more nodes the
                     links of one get far less through than those of the others, and communication is beyond what is due
    unequal lengths  which rank is slowest changes, and its time follows its tokens; or one rank has more tokens than the others
    bubble           a profile shows more of it than was predicted
    optimizer        its step beyond what is due
    memory           the allocator retries, pages come from disk, the group's memory is at its limit, or fresh pages cost processor time
    recompilation    time in torch's compiler after warm-up
    pauses           evaluation and checkpoints, with the loading that they need
    clocks           heat, power cap or brake hold the clocks of a GPU down
    foreign process  ranks wait for processors that others use, longer than their own number explains
    knob             what was asked for differs from what was seen
    prediction       all of this does not explain why the step is outside of its predicted interval
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from autotune.diagnosis.between_ranks import (
    communication,
    communication_due,
    slow_ranks,
    unequal_work,
)
from autotune.diagnosis.critical import LEAST_STEPS, Steps
from autotune.diagnosis.evidence import Evidence
from autotune.diagnosis.finding import CLAIMED, SURE, Diagnosis, Finding
from autotune.diagnosis.log_words import WARNED_OF, named_rank
from autotune.diagnosis.own_time import (
    memory_short,
    optimizer,
    own_work,
    pauses,
    recompilation,
    waits_for_input,
)
from autotune.diagnosis.profiled import profile_lines, with_profile
from autotune.diagnosis.readings import (
    bubble,
    clocks,
    knobs_without_effect,
    log_times,
    readings_of_memory,
)
from autotune.diagnosis.shared_machine import foreign_processes
from autotune.spec.texts.as_text import format_duration

WIDE = 3.0
"""an interval of a prediction whose ends are so many times apart tells little"""


def diagnose(evidence: Evidence) -> Diagnosis:
    """What holds the run back, the costliest first."""
    steps = Steps(evidence)
    found: list[Finding] = []
    if steps.is_enough:
        for law in _OF_STEPS:
            found += law(evidence, steps)
    for rule in _OF_READINGS:
        found += rule(evidence)
    found = with_profile(evidence, found, communication_due(evidence))
    found = _with_log(evidence, found)
    found = [
        f
        for f in found
        if f.share is None or (f.share >= CLAIMED and (f.low is None or f.low >= SURE))
    ]
    short = max((f.share or 0.0 for f in found if f.cause == "memory"), default=0.0)
    # clearing pages is the kernel's work, wherever in the program it happens
    found = [f for f in found if f.cause != "host" or not short or (f.share or 0.0) > 2 * short]
    found += _prediction(
        evidence, steps, 1.0 - float(np.prod([1.0 - (f.share or 0.0) for f in found]))
    )
    # what is faster than predicted costs nothing, but whatever else was said of it rests on a wrong
    # prediction
    found.sort(
        key=lambda f: (f.cause == "prediction" and f.share is None, f.share or -1.0), reverse=True
    )
    return Diagnosis(
        findings=tuple(found), verdict=_verdict(evidence, steps, found), not_seen=tuple(_not_seen(evidence)), profile=tuple(profile_lines(evidence)), table=tuple(_table(steps))
    )  # fmt: skip


def _with_log(evidence: Evidence, found: Sequence[Finding]) -> list[Finding]:
    """The findings, with lines of the log that speak of their causes; a line whose cause was not
    found is a finding, but a mere warning of what was measured not to matter is none."""
    told = dict(evidence.hints)
    known = [
        replace(f, evidence=(*f.evidence, f"the log says: {line}"))
        if (line := told.pop(f.cause, ""))
        else f
        for f in found
    ]
    for cause, line in told.items():
        if evidence.ranks and cause in WARNED_OF:
            continue
        what, confirm, change = _HINTED[cause]
        rank = named_rank(line) if cause == "slow_rank" else None
        known.append(
            Finding(
                cause=cause,
                rank=rank,
                what=what,
                evidence=(f"the log says: {line}",),
                confirm=confirm,
                change=change,
            )
        )
    return known


def _prediction(evidence: Evidence, steps: Steps, explained: float) -> Iterator[Finding]:
    if evidence.predicted_s is None or len(evidence.step_times_s) < 4:
        return
    expected, low, high = evidence.predicted_s
    seen = float(np.median(evidence.step_times_s))
    undisturbed = seen
    if steps.is_enough:  # what others took is not the prediction's fault
        undisturbed = seen * (
            1.0 - float((steps.delay / np.maximum(steps.time, 1e-12)).mean(axis=1).max())
        )
    if min(undisturbed, seen * (1.0 - explained)) <= high and seen >= low:
        return
    share = max(0.0, 1 - expected / seen) if seen > high else None
    yield Finding(
        cause="prediction",
        share=share,
        low=max(0.0, 1 - high / seen) if share else None,
        high=max(0.0, 1 - low / seen) if share else None,
        what=f"a step takes {format_duration(seen)}, {'more' if share else 'less'} than the predicted {format_duration(expected)} ({format_duration(low)} to {format_duration(high)})"
        + (", and nothing in the run explains the difference" if share and not explained else ""),
        evidence=(
            f"the median of {len(evidence.step_times_s)} steps is outside the predicted interval",
            *([f"the other findings explain {explained:.0%} of the step"] if share and explained else []),
        ),
        confirm="run `autotune calibrate` on this machine, then the same review or plan: the prediction should improve",
        change="correct the prediction's inputs (model, sequence length, batch, cluster, precision), or calibrate",
    )  # fmt: skip


Law = Callable[[Evidence, Steps], Iterator[Finding]]


_OF_STEPS: tuple[Law, ...] = (
    waits_for_input, own_work, pauses, recompilation, slow_ranks, unequal_work, communication, optimizer, memory_short, foreign_processes,
)  # fmt: skip


_OF_READINGS: tuple[Callable[[Evidence], Iterator[Finding]], ...] = (
    bubble,
    clocks,
    readings_of_memory,
    knobs_without_effect,
    log_times,
)


_HINTED = {
    "slow_rank": ("a library reports ranks that are slower than the others", "swap ranks (a different CUDA_VISIBLE_DEVICES or host list) and see whether the slowness stays with the machine", "exclude this device or node, or check its clocks, cooling and link"),
    "recompilation": ("torch recompiled too often and no longer compiles part of the program", "set TORCH_LOGS=recompiles to see which guard fails", "pad or bucket lengths, or mark the dimension as dynamic"),
    "memory": ("memory is tight", "run with a smaller micro-batch: the time per sequence should drop", "use a smaller micro-batch or recomputation, or set PYTORCH_ALLOC_CONF=expandable_segments:True"),
    "input": ("a library warns that data loading may not keep up", "train a few steps on a single batch kept in memory", "raise the DataLoader's num_workers"),
    "communication_between_nodes": ("NCCL uses TCP between nodes, not InfiniBand or RoCE", "set NCCL_DEBUG=INFO to see which network NCCL uses", "install and select the fast network (NCCL_IB_HCA, NCCL_NET), or request nodes that have a fast network"),
    "communication_inside_node": ("GPUs in a node cannot access each other's memory", "run nvidia-smi topo -p2p r", "unset NCCL_P2P_DISABLE, or fix the PCIe access control settings"),
    "clocks": ("a GPU's clocks are throttled", "run nvidia-smi -q -d PERFORMANCE,CLOCK,POWER during training", "fix the cooling, or raise the power limit"),
    "knob_without_effect": ("a requested setting has no effect", "look at this line and the lines around it in the log", "install what is missing, or use a setting that is available"),
}  # fmt: skip


def _table(steps: Steps) -> Iterator[dict[str, Any]]:
    for at, rank in enumerate(steps.ranks):
        parts = {name: float(np.mean(values[at])) for name, values in steps.free.items()}
        waits = float(steps.wait[at].mean()) if steps.count else 0.0
        parts["backward"] = max(0.0, parts["backward"] - max(0.0, waits - parts.pop("collective")))
        yield {
            "rank": rank.rank,
            "node": rank.node,
            "step_s": float(steps.time[at].mean()) if steps.count else None,
            "parts_s": {
                **parts,
                "waiting for others": waits,
                "waiting for a processor": float(steps.delay[at].mean()),
            },
        }


def _not_seen(evidence: Evidence) -> Iterator[str]:
    if not evidence.ranks and evidence.is_watched:
        yield "no torch optimizer step was observed in the command's processes"
    elif not evidence.ranks:
        yield "no rank was observed, so only step times are known; `autotune run --diagnose -- COMMAND` observes all ranks"
    elif len(evidence.ranks) < evidence.world:
        yield f"{evidence.world - len(evidence.ranks)} of {evidence.world} ranks were not observed; start the command on every node with `autotune run --diagnose`"
    if evidence.ranks and not evidence.nodes:
        yield "the run was too short to see what else was running on the machine"
    if evidence.profile_failed:
        yield f"no profile: {evidence.profile_failed}"
    if evidence.predicted_s is None:
        yield "there is no prediction to compare with, because the run's model or batch is unknown"


def _verdict(evidence: Evidence, steps: Steps, found: Sequence[Finding]) -> str:
    if found:
        first = found[0]
        cost = (
            f"{first.share:.0%} of the step"
            if first.share is not None
            else "an unknown share of the step"
        )
        more = f"; {len(found) - 1} more findings below" if len(found) > 1 else ""
        return f"{first.what} ({cost}){more}"
    if not evidence.step_times_s:
        return "no optimizer step was observed, so there is no diagnosis"
    if max(steps.count, len(evidence.step_times_s)) < LEAST_STEPS:
        return "too few steps were observed for a diagnosis"
    if evidence.predicted_s is not None:
        _, low, high = evidence.predicted_s
        seen = float(np.median(evidence.step_times_s))
        if low <= seen <= high and high > WIDE * low:
            return f"Nothing found: no cause accounts for a noticeable share of the step ({format_duration(seen)}; the prediction, {format_duration(low)} to {format_duration(high)}, is too wide to say more)"
        if low <= seen <= high:
            return f"Nothing found: the run is as fast as predicted ({format_duration(seen)} a step, predicted {format_duration(low)} to {format_duration(high)})"
    return "Nothing found: no cause accounts for a noticeable share of the step"
