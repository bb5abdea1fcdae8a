"""Apply all rules to the evidence and build the diagnosis. Each rule yields the findings of one
class, with their cost as a share of the step.

A finding is reported if its share is at least `CLAIMED` and the lower end of its interval at least
`SURE`. Classes with a share above zero in a healthy run have a threshold of their own, or use the
predicted share if the prediction is calibrated on this cluster.

    input            time in data loaders, and time between phases in which the program loads data; for programs without a loader, also blocked time before a
                     forward pass for which no other reason is known
    host             time between phases in which the program prints, waits or computes; on GPUs, a profile in which kernel launches do not keep up
    communication    time that all ranks wait, beyond the healthy share; between nodes if the ranks are on several
    slow rank, node  a rank, or all ranks of a node, computes longer than the others in `MOSTLY` of the steps with as many tokens (the threshold is higher if other processes use its machine); or
                     communication is beyond the healthy share, and the links of one of three or more nodes are much slower than the others
    unequal lengths  the slowest rank changes, and its time follows its tokens; or one rank has more tokens than the others
    bubble           a profile shows a larger bubble than predicted
    optimizer        optimizer time beyond the healthy share
    memory           the allocator retries, pages are read from disk, the cgroup is at its memory limit, or the kernel spends time on new pages
    recompilation    time in torch's compiler after warm-up
    pauses           evaluation and checkpoints, with the data loading that they cause
    clocks           heat, power cap or power brake lower the clocks of a GPU
    foreign process  ranks wait for processors that other processes use, longer than the number of ranks per core explains
    knob             a requested setting differs from the observed one
    prediction       the step time is outside of its predicted interval, and the other findings do not explain it
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
from autotune.diagnosis.log_hints import WARNED_OF, named_rank
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
from autotune.spec.texts.as_text import format_duration, number_of

WIDE = 3.0
"""ratio of the ends of a prediction's interval above which it is too wide to confirm anything"""


def diagnose(evidence: Evidence) -> Diagnosis:
    """Find why the run is slower than it could be. Findings are sorted by cost."""
    steps = Steps(evidence)
    findings: list[Finding] = []
    if steps.is_enough:
        for rule_of_steps in _RULES_OF_STEPS:
            findings += rule_of_steps(evidence, steps)
    for rule in _RULES_OF_READINGS:
        findings += rule(evidence)
    findings = with_profile(evidence, findings, communication_due(evidence))
    findings = [f for f in _with_log(evidence, findings) if _is_reported(f)]
    memory_share = max((f.share or 0.0 for f in findings if f.cause == "memory"), default=0.0)
    # the kernel clears new pages wherever the program touches them, which looks like host work
    findings = [
        f
        for f in findings
        if f.cause != "host" or not memory_share or (f.share or 0.0) > 2 * memory_share
    ]
    explained = 1.0 - float(np.prod([1.0 - (f.share or 0.0) for f in findings]))
    findings += _prediction(evidence, steps, explained)
    # a run faster than predicted loses no time, but it comes first because the prediction is wrong
    findings.sort(
        key=lambda f: (f.cause == "prediction" and f.share is None, f.share or -1.0), reverse=True
    )
    return Diagnosis(
        findings=tuple(findings),
        verdict=_verdict(evidence, steps, findings),
        not_seen=tuple(_not_seen(evidence)),
        profile=tuple(profile_lines(evidence)),
        table=tuple(_table(steps)),
    )


def _is_reported(finding: Finding) -> bool:
    if finding.share is None:
        return True
    return finding.share >= CLAIMED and (finding.low is None or finding.low >= SURE)


def _with_log(evidence: Evidence, findings: Sequence[Finding]) -> list[Finding]:
    """Add the log's hints: as evidence of findings with the same cause, otherwise as findings of
    their own. Mere warnings are left out if ranks were observed and their
    cause was not found."""
    hints = dict(evidence.hints)
    known = [
        replace(f, evidence=(*f.evidence, f"the log says: {line}"))
        if (line := hints.pop(f.cause, ""))
        else f
        for f in findings
    ]
    for cause, line in hints.items():
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
    """Yield a finding if the step time is outside of its predicted interval. `explained`: share of
    the step that the other findings explain."""
    if evidence.predicted_s is None or len(evidence.step_times_s) < 4:
        return
    expected, low, high = evidence.predicted_s
    seen = float(np.median(evidence.step_times_s))
    undisturbed = seen
    if steps.is_enough:  # the prediction assumes that no other processes run
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
            f"the median of {number_of(len(evidence.step_times_s), 'step')} is outside the predicted interval",
            *([f"the other findings explain {explained:.0%} of the step"] if share and explained else []),
        ),
        confirm="run `autotune calibrate` on this machine, then the same review or plan: the prediction should improve",
        change="correct the prediction's inputs (model, sequence length, batch, cluster, precision), or calibrate",
    )  # fmt: skip


_RULES_OF_STEPS: tuple[Callable[[Evidence, Steps], Iterator[Finding]], ...] = (
    waits_for_input, own_work, pauses, recompilation, slow_ranks, unequal_work, communication, optimizer, memory_short, foreign_processes,
)  # fmt: skip


_RULES_OF_READINGS: tuple[Callable[[Evidence], Iterator[Finding]], ...] = (
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
    """Yield a row per rank with its mean step time and the parts of it, seconds."""
    for at, rank in enumerate(steps.ranks):
        parts = {name: float(np.mean(values[at])) for name, values in steps.free.items()}
        waits_s = float(steps.wait[at].mean()) if steps.count else 0.0
        parts["backward"] = max(
            0.0, parts["backward"] - max(0.0, waits_s - parts.pop("collective"))
        )
        yield {
            "rank": rank.rank,
            "node": rank.node,
            "step_s": float(steps.time[at].mean()) if steps.count else None,
            "parts_s": {
                **parts,
                "waiting for others": waits_s,
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


def _verdict(evidence: Evidence, steps: Steps, findings: Sequence[Finding]) -> str:
    if findings:
        first = findings[0]
        cost = (
            f"{first.share:.0%} of the step"
            if first.share is not None
            else "an unknown share of the step"
        )
        more = f"; {len(findings) - 1} more findings below" if len(findings) > 1 else ""
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
