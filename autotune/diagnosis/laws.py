"""The laws: when a class of cause may be claimed, and what it costs. Each takes the evidence and gives findings, or none.

A finding is claimed when its share of the step is `CLAIMED` or more and the lower end of its interval `SURE` or more; classes whose healthy share is not zero
have their own threshold, or the share that was predicted where the prediction rests on measurements of this cluster.

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

from autotune.diagnosis.critical import LEAST_STEPS, Series, Steps, share_of
from autotune.diagnosis.evidence import Evidence, Link, Node, Place, Rank
from autotune.diagnosis.finding import CLAIMED, Diagnosis, Finding
from autotune.diagnosis.log_words import WARNED_OF, named_rank
from autotune.diagnosis.profiled import profile_lines, shares_of, with_profile
from autotune.spec.texts.as_text import format_bytes, format_duration

SURE = 0.02
COMMUNICATION, OPTIMIZER, UNNAMED = 0.25, 0.35, 0.12
"""shares of a healthy step, where nothing better is known: the program's own work between phases, of no kind that is known, is a trainer's usual care, too"""
MOSTLY = 0.7
SLOWER, SLOWER_BESIDE = 0.1, 0.25
"""share by which a slow rank computes longer than the others; and on processors, or where other processes use its machine: two ranks' cores differ by less
than that by themselves, as threads of a core whose other thread works, here or in another virtual machine of the host. Where others use more than half of a machine
it grows, to twice as much"""
FOLLOWS = 0.6
"""correlation of time and tokens"""
PAGE_S = 0.7e-6
"""a fresh page, cleared by the kernel"""
FOREIGN_CORES = 0.08
WIDE = 3.0
"""an interval of a prediction whose ends are so many times apart tells little"""
STANDS_OUT = 2.5
"""times that a link is slower than others"""
AXES = {
    "DDP": ("dp", "all-reduce of gradients"),
    "FSDP": ("dp", "all-gather of weights and reduce-scatter of gradients"),
}


def diagnose(evidence: Evidence) -> Diagnosis:
    """What holds the run back, the costliest first."""
    steps = Steps(evidence)
    found: list[Finding] = []
    if steps.is_enough:
        for law in _OF_STEPS:
            found += law(evidence, steps)
    for rule in _OF_READINGS:
        found += rule(evidence)
    found = with_profile(evidence, found, _due(evidence))
    found = _with_log(evidence, found)
    found = [f for f in found if f.share is None or (f.share >= CLAIMED and (f.low is None or f.low >= SURE))]
    short = max((f.share or 0.0 for f in found if f.cause == "memory"), default=0.0)
    # clearing pages is the kernel's work, wherever in the program it happens
    found = [f for f in found if f.cause != "host" or not short or (f.share or 0.0) > 2 * short]
    found += _prediction(evidence, steps, 1.0 - float(np.prod([1.0 - (f.share or 0.0) for f in found])))
    # what is faster than predicted costs nothing, but whatever else was said of it rests on a wrong prediction
    found.sort(key=lambda f: (f.cause == "prediction" and f.share is None, f.share or -1.0), reverse=True)
    return Diagnosis(
        findings=tuple(found), verdict=_verdict(evidence, steps, found), not_seen=tuple(_not_seen(evidence)), profile=tuple(profile_lines(evidence)), table=tuple(_table(steps))
    )  # fmt: skip


def _input(evidence: Evidence, steps: Steps) -> Iterator[Finding]:
    part = steps.wall["data"] + steps.within("rest", "data", wall=True)
    if not _has_loader(evidence):
        part = part + _unnamed(steps, blocked=True)
    part = part + steps.within("optimizer", "data", wall=True)
    pausing = steps.free["evaluation"] + steps.free["checkpoint"] > 0
    part = np.where(pausing, np.minimum(part, np.median(part, axis=1, keepdims=True)), part)
    share, low, high = steps.share_of_phase(part)
    rank = _only(steps, part)
    unnamed = () if _has_loader(evidence) else ("",)
    place = _place(
        steps.ranks, lambda p: p.phase == "data" or (p.phase == "rest" and p.kind in ("data", *unnamed)), rank
    )
    workers = evidence.facts.get("workers")
    change = (
        f"raise num_workers of its DataLoader (now {workers})"
        if workers is not None
        else "load in other processes (a DataLoader with num_workers)"
    )
    yield Finding(
        cause="input",
        share=share,
        low=low,
        high=high,
        rank=rank,
        node=_node_of(steps, rank),
        what=f"{_who(rank, 'the ranks')} wait{'s' if rank is not None else ''} for data",
        evidence=(*_spent(steps, part, rank, "waiting for or preparing data"), *_seen(place)),
        confirm="train some steps on a single batch kept in memory: the step should get shorter by this share",
        change=f"{change}, cache decoded samples near the ranks, or move slow work out of the dataset",
        line=place.line if place else "",
        knob="num_workers",
    )  # fmt: skip


def _host(evidence: Evidence, steps: Steps) -> Iterator[Finding]:
    # Lightning's step of the optimizer has the whole step in it
    named = steps.within("rest", "log", "own", wall=True) + steps.within("optimizer", "log", wall=True)
    if _has_loader(evidence):
        named = named + _unnamed(steps, blocked=True)
    part = named + _unnamed(steps, blocked=False)
    share, low, high = steps.share_of_phase(part)
    if share < UNNAMED and steps.share_of_phase(named)[0] < CLAIMED:
        return
    rank = _only(steps, part)
    place = _place(steps.ranks, lambda p: p.kind in ("log", "own") or (p.phase == "rest" and not p.kind), rank)
    prints = place is not None and place.kind == "log"
    yield Finding(
        cause="host",
        share=share,
        low=low,
        high=high,
        rank=rank,
        node=_node_of(steps, rank),
        what=f"{_who(rank, 'the ranks')} spend{'s' if rank is not None else ''} time on the program's own work outside forward and backward passes",
        evidence=(*_spent(steps, part, rank, "in the program's own code, outside data loading, forward, backward and optimizer"), *_seen(place)),
        confirm="skip this line for some steps: the step should get shorter by this share",
        change="print or log every hundredth step, and do not read values from the device in between"
        if prints
        else "move that work out of the training loop (into another thread or process), or do it less often",
        line=place.line if place else "",
    )  # fmt: skip


def _pauses(evidence: Evidence, steps: Steps) -> Iterator[Finding]:
    paused = steps.wall["evaluation"] + steps.wall["checkpoint"]
    around = steps.wall["data"] + steps.wall["rest"]
    usual = np.median(around, axis=1, keepdims=True)
    part = paused + np.where(paused > 0, np.maximum(0.0, around - usual), 0.0)
    part = part + np.where(paused > 0, 0.0, steps.within("rest", "checkpoint", "evaluation", wall=True))
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
        what=f"the training pauses for {what}{every}",
        evidence=tuple(_spent(steps, part, None, f"in {what}")),
        confirm=f"switch {what} off for a hundred steps: the mean step should get shorter by this share",
        change="save less often, or asynchronously" if saves else "evaluate less often, on fewer batches, or in a separate job",
        knob="save_steps" if saves else "eval_steps",
    )  # fmt: skip


def _recompilation(evidence: Evidence, steps: Steps) -> Iterator[Finding]:
    part = _compiling(steps)
    share, low, high = steps.share_of_phase(part)
    again = int((part.max(axis=0) > 0).sum())
    yield Finding(
        cause="recompilation",
        share=share,
        low=low if again < 3 else max(low, SURE),
        high=high,
        what=f"torch recompiles in {again} of {steps.count} steps after warm-up",
        evidence=tuple(_spent(steps, part, None, "in torch's compiler")),
        confirm="TORCH_LOGS=recompiles names the guard that fails, usually a shape that changes",
        change="pad or bucket lengths, mark the dimension as dynamic (torch.compile(dynamic=True)), or do not compile",
        knob="compile",
    )


def _slow(evidence: Evidence, steps: Steps) -> Iterator[Finding]:
    """One rank, or all ranks of one node."""
    if len(steps.ranks) < 2:
        return
    compute = steps.own - steps.free["data"] - steps.free["rest"] - steps.free["evaluation"] - steps.free["checkpoint"]
    compute = np.maximum(0.0, compute - _compiling(steps))
    for group, node in _groups(steps):
        inside = np.zeros(len(steps.ranks), dtype=bool)
        inside[group] = True
        mine, others = compute[inside].min(axis=0), compute[~inside].max(axis=0)
        middle = np.median(compute[~inside], axis=0)
        # stopping comes in bursts: steps that it misses are like the others'
        excess = compute - middle
        excess[~inside] = 0.0
        usual = float(middle.mean())
        is_mostly = float(np.mean(mine > others)) >= MOSTLY or float(np.mean(mine)) > 1.3 * float(
            compute[~inside].mean(axis=1).max()
        )
        on_gpu = evidence.facts.get("device") not in (None, "", "cpu") or bool(steps.ranks[group[0]].gpu)
        taken = _others_use(evidence, steps.ranks[group[0]].node)
        least = SLOWER if on_gpu and not taken else SLOWER_BESIDE * (1.0 + max(0.0, 2.0 * taken - 1.0))
        if not is_mostly or usual <= 0 or float(excess[inside].mean()) < least * usual:
            continue
        if _tokens_explain(steps, group):
            yield _more_tokens(steps, group, excess)
            return
        share, low, high = steps.share_of_work(np.maximum(0.0, excess))
        rank = steps.ranks[group[0]]
        who = f"node {node}" if node else f"rank {rank.rank}"
        ratio = float(compute[inside].mean()) / usual
        yield Finding(
            cause="slow_node" if node else "slow_rank",
            share=share,
            low=max(low, SURE) if share >= CLAIMED else low,
            high=high,
            rank=None if node else rank.rank,
            node=node or rank.node,
            what=f"{who} computes {ratio:.2f} times as long as the others, which wait for it",
            evidence=(
                f"computation per step: {who} {format_duration(float(compute[inside].mean()))}, the others {format_duration(usual)}",
                *_why_slow(steps, group),
            ),
            confirm="swap ranks (another host list or device) and see whether the slowness stays with the machine or follows the rank",
            change="if it follows the rank, give the ranks equal work; if not, exclude this device or node, or fix it: check its CPU quota, clocks and cooling"
            if _computes_more(steps, group) > 1 + SLOWER
            else "exclude this device or node, or fix it: check its CPU quota, clocks and cooling",
        )
        return


def _unequal(evidence: Evidence, steps: Steps) -> Iterator[Finding]:
    if len(steps.ranks) < 2:
        return
    compute = np.maximum(
        0.0, steps.own - steps.free["evaluation"] - steps.free["checkpoint"] - steps.free["data"] - _compiling(steps)
    )
    tokens = _tokens(steps)
    first = np.bincount(compute.argmax(axis=0), minlength=len(steps.ranks)).max() / steps.count
    experts = _experts(evidence)
    follows = _correlation(tokens, compute) if tokens is not None else 0.0
    if first >= MOSTLY or (follows < FOLLOWS and not experts):
        return
    part = np.maximum(0.0, compute - compute.mean(axis=0))
    share, low, high = steps.share_of_work(part)
    spread = (
        ""
        if tokens is None
        else f"a rank trains {tokens.min():,.0f} to {tokens.max():,.0f} tokens or sequences in a step"
    )
    yield Finding(
        cause="unequal_lengths",
        share=share,
        low=low,
        high=high,
        what="ranks have unequal work in a step, and wait for the one with the most"
        if follows >= FOLLOWS
        else "ranks take unequal times for equal tokens, for example because experts get unequal numbers of tokens",
        evidence=tuple(
            filter(None, (spread, f"the time of a rank follows its tokens (correlation {follows:.2f})" if follows >= FOLLOWS else "", f"the slowest rank changes: none is slowest in more than {first:.0%} of the steps"))
        ),
        confirm="train some steps on sequences of equal length: the step should get shorter by this share",
        change="pack sequences to equal length, or group batches by length on all ranks"
        if follows >= FOLLOWS
        else "raise the load-balancing loss weight, or limit the expert capacity",
    )  # fmt: skip


def _communication(evidence: Evidence, steps: Steps) -> Iterator[Finding]:
    if not steps.is_together or not steps.ranks:
        return
    waits = steps.shared_wait
    share, low, high = steps.share(waits)
    beside = max((_others_use(evidence, rank.node) for rank in steps.ranks), default=0.0)
    queued = float((steps.delay / np.maximum(steps.time, 1e-12)).mean(axis=1).max()) if beside else 0.0
    if share < _due(evidence) + queued or low < SURE:  # a rank whose turn on the processor others took is waited for
        return
    several = len({rank.node for rank in steps.ranks}) > 1 or evidence.world > len(steps.ranks)
    axis, collective = _axis(evidence, steps)
    slow = _slow_link(steps) if several else None
    mean_s = float(waits.mean())
    told = [
        f"every rank waits for at least {format_duration(mean_s)} of a {format_duration(float(steps.slowest.mean()))} step"
    ]
    count = evidence.facts.get("trainable") or evidence.facts.get("parameters")
    if count and axis == "dp" and mean_s > 0:
        ring = 2 * (evidence.world - 1) / evidence.world * 4.0 * float(count)
        told.append(
            f"sending {format_bytes(ring)} of fp32 gradients in that time means {format_bytes(ring / mean_s)}/s per rank"
        )
    told += [_link_text(link) for link in _worst_links(steps)[:2]] if several else _moved_inside(steps)
    where = "between nodes" if several else "inside the node"
    is_of_one = slow is not None and len({rank.node for rank in steps.ranks}) > 2
    yield Finding(
        cause="slow_node" if is_of_one else "communication_between_nodes" if several else "communication_inside_node",
        share=share,
        low=low,
        high=high,
        node=slow or "",
        what=f"collectives {where} take this share of the step: {collective} ({axis})" + (f"; the link of node {slow} stands out" if slow else ""),
        evidence=tuple(told),
        confirm="measure the collective alone (`autotune calibrate`, nccl-tests): it should reach the link's bandwidth",
        change=("fix that node's link or exclude the node; " if slow else "")
        + (
            "reduce gradients less often (more accumulation steps) or in bf16, overlap them (bucket size), or shard within nodes and replicate between them (HSDP)"
            if several
            else "reduce gradients less often (more accumulation steps) or in bf16, and let them overlap with the backward pass (bucket size)"
        ),
        knob="accumulation_steps",
    )  # fmt: skip


def _due(evidence: Evidence) -> float:
    """Share of the step that communication may take."""
    predicted = evidence.predicted_parts_s
    if not (evidence.is_measured_here and predicted and evidence.predicted_s):
        return COMMUNICATION
    expected = sum(value for name, value in predicted.items() if name.endswith("_comm"))
    return 1.5 * expected / evidence.predicted_s[0] + CLAIMED


def _optimizer(evidence: Evidence, steps: Steps) -> Iterator[Finding]:
    part = steps.wall["optimizer"] - steps.within("optimizer", "collective", "log", "data", wall=True)
    part = part + steps.within("rest", "optimizer", wall=True)  # clipping
    share, low, high = steps.share_of_phase(part)
    due = OPTIMIZER
    if evidence.is_measured_here and evidence.predicted_s:
        due = 1.5 * evidence.predicted_parts_s.get("optimizer", 0.0) / evidence.predicted_s[0] + CLAIMED
    if share < due:
        return
    place = _place(steps.ranks, lambda p: p.phase == "optimizer" and p.kind not in ("log", "data", "collective"), None)
    yield Finding(
        cause="optimizer",
        share=share,
        low=low,
        high=high,
        what="the optimizer's step takes this share",
        evidence=(*_spent(steps, part, None, "in the optimizer"), *_seen(place)),
        confirm="time optimizer.step() alone, with its device synchronized",
        change="use the fused optimizer (fused=True), shard it (ZeRO), or step after more micro-batches",
        knob="zero_stage",
    )


def _memory(evidence: Evidence, steps: Steps) -> Iterator[Finding]:
    worst: tuple[float, Rank, list[str]] | None = None
    for rank in steps.ranks:
        if rank.elapsed_s <= 0:
            continue
        told, cost_s = [], 0.0
        if rank.alloc_retries > 0:
            told.append(f"the GPU's allocator had to free its cache and retry {rank.alloc_retries:g} times")
            cost_s = max(cost_s, rank.alloc_retries * 0.1)
        blocked_s = (
            float(
                (steps.own[steps.ranks.index(rank)] - sum(b[steps.ranks.index(rank)] for b in steps.busy.values()))
                .clip(0)
                .mean()
            )
            / float(steps.slowest.mean())
            * rank.elapsed_s
        )
        if rank.major_faults / rank.elapsed_s > 20:
            told.append(f"{rank.major_faults / rank.elapsed_s:.0f} pages a second were read back from disk")
            cost_s = max(cost_s, blocked_s, rank.major_faults * 1e-4)
        if rank.memory_at_limit / rank.elapsed_s > 1:
            told.append(f"its cgroup reached its memory limit {rank.memory_at_limit:.0f} times")
            cost_s = max(cost_s, min(blocked_s + rank.system_s, rank.elapsed_s))
        used_s = max(rank.user_s + rank.system_s, 1e-9)
        fresh_s = min(rank.minor_faults * PAGE_S, rank.system_s)
        if fresh_s > CLAIMED * used_s and rank.system_s > 0.15 * used_s:
            told.append(
                f"{rank.minor_faults / rank.elapsed_s:,.0f} new pages a second ({format_bytes(4096 * rank.minor_faults / rank.elapsed_s)}/s): the allocator returns memory to the system and requests it again; the kernel uses {rank.system_s / used_s:.0%} of the CPU time"
            )
            cost_s = max(cost_s, rank.system_s / used_s * rank.elapsed_s)
        if told and (worst is None or cost_s / rank.elapsed_s > worst[0]):
            worst = (cost_s / rank.elapsed_s, rank, told)
    if worst is None:
        return
    share, rank, told = worst
    share, is_fresh = min(share, 1.0), all("new pages a second" in text for text in told)
    yield Finding(
        cause="memory",
        share=share,
        low=share / 2,
        high=min(1.0, 2 * share),
        rank=rank.rank,
        node=rank.node,
        what=f"memory is short on rank {rank.rank}" if not is_fresh else f"rank {rank.rank} gets its memory anew from the system in every step",
        evidence=tuple(told),
        confirm="run with a smaller micro-batch: the time per sequence should drop",
        change="a smaller micro-batch or recomputation; on GPUs PYTORCH_ALLOC_CONF=expandable_segments:True; on CPUs a higher limit, or an allocator that keeps freed memory (MALLOC_TRIM_THRESHOLD_, jemalloc)",
        knob="micro_batch_size",
    )  # fmt: skip


def _foreign(evidence: Evidence, steps: Steps) -> Iterator[Finding]:
    if not steps.ranks:
        return
    delays = steps.delay.sum(axis=1) / np.maximum(steps.time.sum(axis=1), 1e-12)
    for machine in sorted({node.machine for node in evidence.nodes}):
        nodes = [node for node in evidence.nodes if node.machine == machine]
        names = {node.name for node in nodes}
        here = [at for at, rank in enumerate(steps.ranks) if rank.node in names]
        if not here:
            continue
        cores = nodes[0].cores
        foreign, stolen = _taken(nodes)
        usable = min(cores, max((steps.ranks[at].cores for at in here), default=cores) * len(names))
        wanted = sum(
            float((sum(busy[at] for busy in steps.busy.values()) + steps.delay[at]).sum() / steps.time[at].sum())
            for at in here
        )
        due = max(0.0, 1.0 - usable / wanted) if wanted > 0 else 0.0
        at = max(here, key=lambda i: delays[i])
        excess = (float(delays[at]) - due) / (1.0 - due)
        if foreign + stolen < _noticed(cores) or excess <= 0:
            continue
        cost = min(
            excess, (foreign + stolen) / max(foreign + stolen + float(np.mean([1 - delays[i] for i in here])), 1e-9)
        )
        by_step = (
            np.maximum(0.0, (steps.delay[at] / np.maximum(steps.time[at], 1e-12) - due) / (1 - due)) * steps.slowest
        )
        _, low, high = steps.share(by_step * (cost / excess))
        others = sorted(
            (
                (cores_used, name)
                for node in nodes
                for name, cores_used in node.others.items()
                if not any(name.endswith(f"(process {rank.pid})") for rank in steps.ranks)
            ),
            reverse=True,
        )
        rank = _alone(steps.ranks, delays, here, at)
        told = [
            f"{_who(rank, 'ranks')} waited for a processor {float(delays[at]):.0%} of the time; having more ranks than cores explains {due:.0%}"
        ]
        told.append(
            f"on {cores} processors, others used {foreign:.2f}"
            + (f", and a hypervisor took {stolen:.2f}" if stolen > 0.02 else "")
        )
        told += [f"{name} used {used:.2f} processors" for used, name in others[:2]]
        yield Finding(
            cause="foreign_process",
            share=cost,
            low=min(low, cost),
            high=max(high, cost),
            rank=rank,
            node=steps.ranks[at].node,
            what="other processes use the processors of "
            + (f"node {steps.ranks[at].node}" if steps.ranks[at].node else "its machine"),
            evidence=tuple(told),
            confirm="look at the machine with `top` while it trains",
            change="stop them, or reserve processors for the ranks (taskset, cgroups, an exclusive allocation)",
        )  # fmt: skip


def _others_use(evidence: Evidence, name: str) -> float:
    """Share of the processors of a node's machine that other processes, or a hypervisor, use; 0 where that is too little to count."""
    machine = next((node.machine for node in evidence.nodes if node.name == name), None)
    nodes = [node for node in evidence.nodes if node.machine == machine]
    if not nodes or (taken := sum(_taken(nodes))) < _noticed(nodes[0].cores):
        return 0.0
    return min(1.0, taken / max(1, nodes[0].cores))


def _taken(nodes: Sequence[Node]) -> tuple[float, float]:
    """Processors of one machine that others use, and that a hypervisor took."""
    return max(node.busy for node in nodes) - sum(node.ours for node in nodes), max(node.stolen for node in nodes)


def _noticed(cores: int) -> float:
    """Processors from which on their use by others counts."""
    return max(FOREIGN_CORES, 0.03 * cores)


def _bubble(evidence: Evidence) -> Iterator[Finding]:
    parts, predicted = evidence.parts_s, evidence.predicted_parts_s
    shares = shares_of(parts)
    if not shares or not predicted or evidence.predicted_s is None:
        return
    seen, due = (
        shares.get("bubble", 0.0),
        (predicted.get("bubble", 0.0) + predicted.get("pp_comm", 0.0)) / evidence.predicted_s[0],
    )
    extra = seen - 1.25 * due
    yield Finding(
        cause="bubble",
        share=extra,
        low=max(0.0, extra / 2),
        high=seen,
        what=f"pipeline stages wait for each other for {seen:.0%} of the step; {due:.0%} is expected",
        evidence=(f"one profiled step: {format_duration(parts.get('bubble', 0.0))} of a step in sends and receives while nothing is computed",),
        confirm="profile a step of each stage: the stage that never waits is the slow one",
        change="split the layers so that stages take equal time (the last one has the head and the loss), or use more micro-batches or an interleaved schedule",
        knob="pp_schedule",
    )  # fmt: skip


def _clocks(evidence: Evidence) -> Iterator[Finding]:
    for rank in sorted(evidence.ranks, key=lambda r: r.gpu.get("sm_clock_mhz", np.inf)):
        clock, most = rank.gpu.get("sm_clock_mhz", 0.0), rank.gpu.get("max_clock_mhz", 0.0)
        reasons = {
            name.removeprefix("held by "): share
            for name, share in rank.gpu.items()
            if name.startswith("held by ") and share >= 0.2
        }
        if not reasons or most <= 0 or clock >= 0.93 * most:
            continue
        cost = 1 - clock / most
        yield Finding(
            cause="clocks",
            share=cost,
            low=cost / 3,
            high=cost,
            rank=rank.rank,
            node=rank.node,
            what=f"{' and '.join(sorted(reasons))} limit the clock of rank {rank.rank}'s GPU to {clock:.0f} of {most:.0f} MHz",
            evidence=(
                *(f"{name}: active in {share:.0%} of the readings" for name, share in sorted(reasons.items())),
                f"{rank.gpu.get('temperature_c', 0):.0f} degrees, {rank.gpu.get('power_watts', 0):.0f} of {rank.gpu.get('power_limit_watts', 0):.0f} watts",
            ),
            confirm="nvidia-smi -q -d PERFORMANCE,CLOCK,POWER while it trains",
            change="fix the cooling, or raise the power limit; if the limit is intended, compare only runs with the same limit",
        )  # fmt: skip
        return
    if evidence.throttled > 0:
        yield Finding(
            cause="clocks",
            what="heat or the power brake lowered a GPU's clocks during the measurement",
            evidence=("NVML's throttle reasons",),
            confirm="nvidia-smi -q -d PERFORMANCE,CLOCK,POWER while it trains",
            change="fix the cooling, and measure again",
        )


def _readings_of_memory(evidence: Evidence) -> Iterator[Finding]:
    if evidence.alloc_retries > 0 and not any(rank.alloc_retries for rank in evidence.ranks):
        yield Finding(
            cause="memory",
            what="memory is short: the GPU's allocator had to retry",
            evidence=(f"{evidence.alloc_retries:g} retries on the fullest rank",),
            confirm="run with a smaller micro-batch: the time per sequence should drop",
            change="a smaller micro-batch or recomputation, or PYTORCH_ALLOC_CONF=expandable_segments:True",
            knob="micro_batch_size",
        )


def _log(evidence: Evidence) -> Iterator[Finding]:
    """What the times in a log tell."""
    times = np.asarray(evidence.step_times_s)
    if evidence.ranks or len(times) < 2 * LEAST_STEPS:
        return
    if len(evidence.data_times_s) == len(times):
        data = np.minimum(np.asarray(evidence.data_times_s), times)
        share = float(data.sum() / times.sum())
        half = float(np.std(data / times)) / len(times) ** 0.5 * 2.3
        yield Finding(
            cause="input",
            share=share,
            low=max(0.0, share - half),
            high=min(1.0, share + half),
            what="the ranks wait for data",
            evidence=(
                f"the log says {format_duration(float(np.mean(data)))} of data loading in a {format_duration(float(times.mean()))} step",
            ),
            confirm="train some steps on a single batch kept in memory: the step should get shorter by this share",
            change="raise num_workers of its DataLoader, cache decoded samples near the ranks, or move slow work out of the dataset",
            knob="num_workers",
        )
    middle = float(np.median(times))
    slow = np.flatnonzero(times > 1.5 * middle)
    gaps = np.diff(slow)
    if len(slow) >= 3 and gaps.min() >= 2 and gaps.max() <= gaps.min() + 1:
        share = float((times[slow] - middle).sum() / times.sum())
        yield Finding(
            cause="pauses",
            share=share,
            low=share / 2,
            high=min(1.0, 1.5 * share),
            what=f"every {int(np.median(gaps))} steps, one step takes {float(np.median(times[slow])) / middle:.1f} times as long: probably evaluation, a checkpoint or logging",
            evidence=(
                f"{len(slow)} of {len(times)} steps are slow, {int(gaps.min())}{f' or {int(gaps.max())}' if gaps.max() > gaps.min() else ''} steps apart",
            ),
            confirm="switch evaluation and checkpoints off for a hundred steps: the mean step should get shorter by this share",
            change="evaluate or save less often, on fewer batches, or asynchronously",
            knob="eval_steps",
        )


def _with_log(evidence: Evidence, found: Sequence[Finding]) -> list[Finding]:
    """The findings, with lines of the log that speak of their causes; a line whose cause was not found is a finding, but a mere warning of what was measured not to
    matter is none."""
    told = dict(evidence.hints)
    known = [
        replace(f, evidence=(*f.evidence, f"the log says: {line}")) if (line := told.pop(f.cause, "")) else f
        for f in found
    ]
    for cause, line in told.items():
        if evidence.ranks and cause in WARNED_OF:
            continue
        what, confirm, change = _HINTED[cause]
        rank = named_rank(line) if cause == "slow_rank" else None
        known.append(
            Finding(
                cause=cause, rank=rank, what=what, evidence=(f"the log says: {line}",), confirm=confirm, change=change
            )
        )
    return known


def _knobs(evidence: Evidence) -> Iterator[Finding]:
    for text in evidence.disagreements:
        knob = text.partition(":")[0]
        yield Finding(
            cause="knob_without_effect",
            what=f"{knob} was requested, but has no effect",
            evidence=(text,),
            confirm="`autotune check SPEC` compares the spec with what is observed",
            change=text.rpartition("; ")[2],
            line=evidence.asked_at.get(knob, ""),
            knob=knob,
        )


def _prediction(evidence: Evidence, steps: Steps, explained: float) -> Iterator[Finding]:
    if evidence.predicted_s is None or len(evidence.step_times_s) < 4:
        return
    expected, low, high = evidence.predicted_s
    seen = float(np.median(evidence.step_times_s))
    undisturbed = seen
    if steps.is_enough:  # what others took is not the prediction's fault
        undisturbed = seen * (1.0 - float((steps.delay / np.maximum(steps.time, 1e-12)).mean(axis=1).max()))
    if min(undisturbed, seen * (1.0 - explained)) <= high and seen >= low:
        return
    share = max(0.0, 1 - expected / seen) if seen > high else None
    yield Finding(
        cause="prediction",
        share=share,
        low=max(0.0, 1 - high / seen) if share else None,
        high=max(0.0, 1 - low / seen) if share else None,
        what=f"a step takes {format_duration(seen)}, {'more' if share else 'less'} than predicted ({format_duration(expected)}, {format_duration(low)} to {format_duration(high)})"
        + (", and nothing in the run explains it" if share and not explained else ""),
        evidence=(
            f"the median of {len(evidence.step_times_s)} steps is outside the predicted interval",
            *([f"the other findings explain {explained:.0%} of the step"] if share and explained else []),
        ),
        confirm="`autotune calibrate` on this machine, then the same review or plan: the prediction should improve",
        change="correct the inputs of the prediction: model, sequence length, batch, cluster, precision; or calibrate",
    )  # fmt: skip


Law = Callable[[Evidence, Steps], Iterator[Finding]]
_OF_STEPS: tuple[Law, ...] = (
    _input, _host, _pauses, _recompilation, _slow, _unequal, _communication, _optimizer, _memory, _foreign,
)  # fmt: skip
_OF_READINGS: tuple[Callable[[Evidence], Iterator[Finding]], ...] = (
    _bubble,
    _clocks,
    _readings_of_memory,
    _knobs,
    _log,
)
_HINTED = {
    "slow_rank": ("a library reports ranks that are slower than the others", "swap ranks (another CUDA_VISIBLE_DEVICES, another host list) and see whether the slowness stays with the machine", "exclude this device or node, or fix it: check its clocks, cooling and link"),
    "recompilation": ("torch recompiled too often and no longer compiles part of the program", "TORCH_LOGS=recompiles names the guard that fails", "pad or bucket lengths, or mark the dimension as dynamic"),
    "memory": ("memory is short", "run with a smaller micro-batch: the time per sequence should drop", "a smaller micro-batch or recomputation, or PYTORCH_ALLOC_CONF=expandable_segments:True"),
    "input": ("a library warns that loading may not keep up", "train some steps on a single batch kept in memory", "raise num_workers of the DataLoader"),
    "communication_between_nodes": ("NCCL uses TCP between nodes, not InfiniBand or RoCE", "NCCL_DEBUG=INFO shows the network in use", "install and select the fast network (NCCL_IB_HCA, NCCL_NET), or ask for nodes with one"),
    "communication_inside_node": ("GPUs in a node cannot access each other's memory", "nvidia-smi topo -p2p r", "unset NCCL_P2P_DISABLE, or fix the PCIe access control settings"),
    "clocks": ("a GPU's clocks are throttled", "nvidia-smi -q -d PERFORMANCE,CLOCK,POWER while it trains", "fix the cooling, or raise the power limit"),
    "knob_without_effect": ("a requested setting has no effect", "look at this line and the lines around it in the log", "install what is missing, or request something available"),
}  # fmt: skip


def _unnamed(steps: Steps, *, blocked: bool) -> Series:
    """Time between phases whose kind is not known: blocked, or on a processor. Where the phases of the passes were not seen, nothing is."""
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


def _compiling(steps: Steps) -> Series:
    return np.array(
        [rank.compile_s[-steps.count :] or (0.0,) * steps.count for rank in steps.ranks], dtype=float
    ).reshape(len(steps.ranks), steps.count)


def _only(steps: Steps, part: Series) -> int | None:
    """The rank that has nearly all of this part, where one has."""
    if len(steps.ranks) < 2:
        return None
    means = part.mean(axis=1)
    at = int(means.argmax())
    others = float(np.delete(means, at).max())
    return (
        steps.ranks[at].rank
        if means[at] > 2 * others and means[at] - others > 0.02 * float(steps.slowest.mean())
        else None
    )


def _alone(ranks: Sequence[Rank], delays: Any, here: Sequence[int], at: int) -> int | None:
    return None if len(here) < 2 or delays[at] < 2 * max(delays[i] for i in here if i != at) else ranks[at].rank


def _node_of(steps: Steps, rank: int | None) -> str:
    return next((r.node for r in steps.ranks if r.rank == rank), "") if rank is not None else ""


def _who(rank: int | None, everyone: str) -> str:
    return everyone if rank is None else f"rank {rank}"


def _spent(steps: Steps, part: Series, rank: int | None, what: str) -> list[str]:
    means = part.mean(axis=1)
    at = next((i for i, r in enumerate(steps.ranks) if r.rank == rank), int(means.argmax()))
    others = (
        f"; rank {steps.ranks[int(means.argmin())].rank} {format_duration(float(means.min()))}"
        if len(means) > 1
        else ""
    )
    return [
        f"rank {steps.ranks[at].rank} spends {format_duration(float(means[at]))} of a step of {format_duration(float(steps.slowest.mean()))} {what}{others}"
    ]


def _place(ranks: Sequence[Rank], wanted: Callable[[Place], bool], rank: int | None) -> Place | None:
    """Where it was seen most often."""
    found = [place for r in ranks if rank in (None, r.rank) for place in r.places if wanted(place) and place.line]
    return max(found, key=lambda place: place.share, default=None)


def _seen(place: Place | None) -> list[str]:
    if place is None:
        return []
    inside = f" (there in {place.function})" if place.function else ""
    return [f"most often at {place.line}: {place.text}".rstrip(": ") + inside]


def _groups(steps: Steps) -> Iterator[tuple[list[int], str]]:
    """Single ranks, the slowest first; before them nodes with several ranks, where there are several such nodes or ranks elsewhere."""
    by_node: dict[str, list[int]] = {}
    for at, rank in enumerate(steps.ranks):
        by_node.setdefault(rank.node, []).append(at)
    if len(by_node) > 1:
        means = steps.own.mean(axis=1)
        for node, group in sorted(by_node.items(), key=lambda entry: -min(means[at] for at in entry[1])):
            if len(group) > 1:
                yield group, node
    yield [int(steps.own.mean(axis=1).argmax())], ""


def _why_slow(steps: Steps, group: Sequence[int]) -> Iterator[str]:
    ranks = [steps.ranks[at] for at in group]
    others = [rank for at, rank in enumerate(steps.ranks) if at not in group]
    elapsed_s = max(ranks[0].elapsed_s, 1e-9)
    if (stopped := max(rank.stopped_s for rank in ranks) / elapsed_s) > 0.03:
        yield f"its process did not run for {stopped:.0%} of the time although it was not waiting: it was stopped, frozen or limited by a quota"
    if (held := max(rank.throttled_s for rank in ranks) / elapsed_s) > 0.03:
        yield f"a cgroup quota stopped it for {held:.0%} of the time"
    if others and ranks[0].cores and ranks[0].cores < min(rank.cores for rank in others):
        yield f"it can use {ranks[0].cores} processors, the others {min(rank.cores for rank in others)}"
    clock, usual = ranks[0].gpu.get("sm_clock_mhz", 0.0), [rank.gpu.get("sm_clock_mhz", 0.0) for rank in others]
    if clock and usual and clock < 0.95 * float(np.median(usual)):
        yield f"its GPU runs at {clock:.0f} MHz, the others at {np.median(usual):.0f}"
    if (ratio := _computes_more(steps, group)) > 1 + SLOWER:
        yield f"its passes take {ratio:.2f} times the processor time of the others'"


def _computes_more(steps: Steps, group: Sequence[int]) -> float:
    """How many times the processor time of the others' its passes take."""
    busy = (steps.busy["forward"] + steps.busy["backward"]).mean(axis=1)
    rest = np.delete(busy, list(group))
    return float(busy[group[0]] / max(float(np.median(rest)), 1e-12)) if len(rest) else 1.0


def _has_loader(evidence: Evidence) -> bool:
    """Whether the program draws from torch's DataLoader: what it does elsewhere is then no loading."""
    return evidence.facts.get("workers") is not None


def _tokens(steps: Steps) -> Series | None:
    if not all(len(rank.tokens) >= steps.count for rank in steps.ranks):
        return None
    tokens = np.array([rank.tokens[-steps.count :] for rank in steps.ranks])
    return tokens if tokens.max() > 0 else None


def _tokens_explain(steps: Steps, group: Sequence[int]) -> bool:
    tokens = _tokens(steps)
    if tokens is None:
        return False
    means = tokens.mean(axis=1)
    others = np.delete(means, group)
    return bool(means[list(group)].min() > (1 + SLOWER) * others.max() > 0)


def _more_tokens(steps: Steps, group: Sequence[int], excess: Series) -> Finding:
    tokens = _tokens(steps)
    assert tokens is not None
    share, low, high = steps.share_of_work(np.maximum(0.0, excess))
    rank = steps.ranks[group[0]]
    others = float(np.delete(tokens.mean(axis=1), group).mean())
    return Finding(
        cause="unequal_lengths",
        share=share,
        low=low,
        high=high,
        rank=rank.rank,
        node=rank.node,
        what=f"rank {rank.rank} has more work in a step than the others, which wait for it",
        evidence=(
            f"it trains {float(tokens[group[0]].mean()):,.0f} tokens or sequences in a step, the others {others:,.0f}",
        ),
        confirm="give all ranks sequences of equal length: the step should get shorter by this share",
        change="distribute sequences by their tokens, or pack them to equal length",
    )


def _correlation(tokens: Series, compute: Series) -> float:
    a = (tokens - tokens.mean(axis=1, keepdims=True)).ravel()
    b = (compute - compute.mean(axis=1, keepdims=True)).ravel()
    norm = float(np.sqrt((a @ a) * (b @ b)))
    return float(a @ b) / norm if norm > 0 else 0.0


def _experts(evidence: Evidence) -> bool:
    config = evidence.facts.get("config") or {}
    return any(int(config.get(name) or 0) > 1 for name in ("num_experts", "num_local_experts", "n_routed_experts"))


def _axis(evidence: Evidence, steps: Steps) -> tuple[str, str]:
    degrees = {name: int(value) for name, value in (evidence.facts.get("degrees") or {}).items()}
    for axis, name in (
        ("tp", "tensor-parallel collectives"),
        ("cp", "context-parallel exchange"),
        ("ep", "all-to-all of experts"),
        ("pp", "sends between stages"),
    ):
        if degrees.get(axis, 1) >= max(2, evidence.world):
            return axis, name
    called = [p for rank in steps.ranks for p in rank.places if p.kind == "collective" and p.function]
    for wrapper in evidence.facts.get("wrappers", ()):
        for name, found in AXES.items():
            if str(wrapper).startswith(name):
                return found
    if called:
        return "dp", max(called, key=lambda place: place.share).function
    return "dp", "all-reduce"


def _worst_links(steps: Steps) -> list[Link]:
    links = [link for rank in steps.ranks for link in rank.links if link.sent_bytes > 0]
    return sorted(links, key=lambda link: link.bytes_per_s or np.inf)


def _moved_inside(steps: Steps) -> list[str]:
    """What the GPU that moves most moves over the links of its node, where the driver tells."""
    known = [rank for rank in steps.ranks if "pcie_bytes_per_s" in rank.gpu]
    if not known:
        return []
    rank = max(known, key=lambda rank: rank.gpu["pcie_bytes_per_s"])
    nvlink = rank.gpu.get("nvlink_bytes_per_s")
    by_nvlink = "" if nvlink is None else f"{format_bytes(nvlink)}/s over NVLink and "
    unused = "; its NVLink is not used" if nvlink == 0 and rank.gpu["pcie_bytes_per_s"] > 0 else ""
    return [
        f"the GPU of rank {rank.rank} moves {by_nvlink}{format_bytes(rank.gpu['pcie_bytes_per_s'])}/s over PCIe{unused}"
    ]


def _link_text(link: Link) -> str:
    queued = f", {format_bytes(link.queued_bytes)} queued for sending" if link.queued_bytes > 1e5 else ""
    again = f", {link.resent:.0f} segments retransmitted" if link.resent else ""
    through = f"{format_bytes(link.bytes_per_s)}/s delivered" if link.bytes_per_s else "hardly anything was sent"
    return f"{link.local} to {link.remote}: {through}, round trips up to {format_duration(link.rtt_s)}{queued}{again}"


def _slow_link(steps: Steps) -> str | None:
    """The node whose link stands out: of three or more, the one all of whose links get `STANDS_OUT` times less through than those of the others; of two, the one
    whose data gets through so much slower than the other's."""
    node_of = {link.local: rank.node for rank in steps.ranks for link in rank.links}
    speeds: dict[tuple[str, str], float] = {}
    for rank in steps.ranks:
        for link in rank.links:
            speed, to = link.bytes_per_s, node_of.get(link.remote)
            if speed and to is not None and to != rank.node:
                speeds[rank.node, to] = min(speed, speeds.get((rank.node, to), speed))
    nodes = sorted({node for pair in speeds for node in pair})
    if len(nodes) == 2:
        (slow, _), (fast, _) = (
            sorted(speeds, key=lambda pair: speeds[pair])[:1][0],
            sorted(speeds, key=lambda pair: -speeds[pair])[0],
        )
        return slow if slow != fast and STANDS_OUT * speeds[slow, fast] < speeds[fast, slow] else None
    for node in nodes:
        touching = [speed for pair, speed in speeds.items() if node in pair]
        others = [speed for pair, speed in speeds.items() if node not in pair]
        if others and STANDS_OUT * max(touching) < float(np.median(others)):
            return node
    return None


def _table(steps: Steps) -> Iterator[dict[str, Any]]:
    for at, rank in enumerate(steps.ranks):
        parts = {name: float(np.mean(values[at])) for name, values in steps.free.items()}
        waits = float(steps.wait[at].mean()) if steps.count else 0.0
        parts["backward"] = max(0.0, parts["backward"] - max(0.0, waits - parts.pop("collective")))
        yield {
            "rank": rank.rank,
            "node": rank.node,
            "step_s": float(steps.time[at].mean()) if steps.count else None,
            "parts_s": {**parts, "waiting for others": waits, "waiting for a processor": float(steps.delay[at].mean())},
        }


def _not_seen(evidence: Evidence) -> Iterator[str]:
    if not evidence.ranks and evidence.is_watched:
        yield "no optimizer step of torch was observed in the processes of the command"
    elif not evidence.ranks:
        yield "no rank was observed from inside, so only step times are known; `autotune run --diagnose -- COMMAND` observes all ranks"
    elif len(evidence.ranks) < evidence.world:
        yield f"{evidence.world - len(evidence.ranks)} of {evidence.world} ranks were not observed: start every node's command with `autotune run --diagnose`"
    if evidence.ranks and not evidence.nodes:
        yield "the run was too short to see what else was running on the machine"
    if evidence.profile_failed:
        yield f"no profile: {evidence.profile_failed}"
    if evidence.predicted_s is None:
        yield "no prediction to compare with: the run's model or batch is unknown"


def _verdict(evidence: Evidence, steps: Steps, found: Sequence[Finding]) -> str:
    if found:
        first = found[0]
        cost = f"{first.share:.0%} of the step" if first.share is not None else "an unknown share of the step"
        more = f"; {len(found) - 1} more below" if len(found) > 1 else ""
        return f"{first.what}: {cost}{more}"
    if not evidence.step_times_s:
        return "no optimizer step was observed, so there is no diagnosis"
    if max(steps.count, len(evidence.step_times_s)) < LEAST_STEPS:
        return "too few steps were observed for a diagnosis"
    if evidence.predicted_s is not None:
        _, low, high = evidence.predicted_s
        seen = float(np.median(evidence.step_times_s))
        if low <= seen <= high and high > WIDE * low:
            return f"Nothing found: no cause costs a noticeable share of the step ({format_duration(seen)}; the prediction, {format_duration(low)} to {format_duration(high)}, is too wide to tell more)"
        if low <= seen <= high:
            return f"Nothing found: it runs as predicted ({format_duration(seen)} a step, predicted {format_duration(low)} to {format_duration(high)})"
    return "Nothing found: no cause costs a noticeable share of the step"
