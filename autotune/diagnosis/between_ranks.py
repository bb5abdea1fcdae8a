"""Laws of what ranks wait for in others: a slow rank or node, unequal work, collectives and the
links that they use."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from autotune.diagnosis.critical import Series, Steps
from autotune.diagnosis.evidence import Evidence, Link
from autotune.diagnosis.finding import CLAIMED, SURE, Finding
from autotune.diagnosis.own_time import compiling
from autotune.diagnosis.shared_machine import others_use
from autotune.spec.texts.as_text import format_bytes, format_duration

COMMUNICATION = 0.25
"""share of a healthy step, where nothing better is known"""
MOSTLY = 0.7
"""share of the steps in which a slow rank is slower than all others"""
SLOWER, SLOWER_BESIDE = 0.1, 0.25
"""share by which a slow rank computes longer than the others; and on processors, or where other
processes use its machine: two ranks' cores differ by less than that by themselves, as threads of a
core whose other thread works, here or in another virtual machine of the host. Where others use more
than half of a machine it grows, to twice as much"""
FOLLOWS = 0.6
"""correlation of time and tokens"""
STANDS_OUT = 2.5
"""times that a link is slower than others"""
AXES = {
    "DDP": ("dp", "all-reduce of gradients"),
    "FSDP": ("dp", "all-gather of weights and reduce-scatter of gradients"),
}


def slow_ranks(evidence: Evidence, steps: Steps) -> Iterator[Finding]:
    """One rank, or all ranks of one node."""
    if len(steps.ranks) < 2:
        return
    compute = (
        steps.own
        - steps.free["data"]
        - steps.free["rest"]
        - steps.free["evaluation"]
        - steps.free["checkpoint"]
    )
    compute = np.maximum(0.0, compute - compiling(steps))
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
        taken = others_use(evidence, steps.ranks[group[0]].node)
        least = (
            SLOWER
            if evidence.on_gpu and not taken
            else SLOWER_BESIDE * (1.0 + max(0.0, 2.0 * taken - 1.0))
        )
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
            what=f"{who} computes {ratio:.2f} times as long as the others, which wait",
            evidence=(
                f"computation per step: {format_duration(float(compute[inside].mean()))} on {who}, {format_duration(usual)} on the others",
                *_why_slow(steps, group),
            ),
            confirm="swap ranks (another host list or device) and see whether the slowness stays with the machine or follows the rank",
            change="if the slowness follows the rank, distribute the work equally; if not, exclude this device or node, or check its CPU quota, clocks and cooling"
            if _computes_more(steps, group) > 1 + SLOWER
            else "exclude this device or node, or check its CPU quota, clocks and cooling",
        )
        return


def unequal_work(evidence: Evidence, steps: Steps) -> Iterator[Finding]:
    """Ranks with unequal work in a step."""
    if len(steps.ranks) < 2:
        return
    compute = np.maximum(
        0.0,
        steps.own
        - steps.free["evaluation"]
        - steps.free["checkpoint"]
        - steps.free["data"]
        - compiling(steps),
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
        else f"ranks train on {tokens.min():,.0f} to {tokens.max():,.0f} tokens or sequences per step"
    )
    yield Finding(
        cause="unequal_lengths",
        share=share,
        low=low,
        high=high,
        what="ranks do unequal amounts of work in a step, and wait for the rank with the most work"
        if follows >= FOLLOWS
        else "ranks take unequal times for equal numbers of tokens, for example because experts get unequal shares",
        evidence=tuple(
            filter(None, (spread, f"a rank's time tracks its number of tokens (correlation {follows:.2f})" if follows >= FOLLOWS else "", f"the slowest rank changes; no rank is the slowest in more than {first:.0%} of the steps"))
        ),
        confirm="train a few steps on sequences of equal length: the step time should drop by this fraction",
        change="pack sequences to equal length, or group batches by length on all ranks"
        if follows >= FOLLOWS
        else "raise the load-balancing loss weight, or limit the expert capacity",
    )  # fmt: skip


def communication(evidence: Evidence, steps: Steps) -> Iterator[Finding]:
    """Collectives that all ranks wait for, beyond what is due."""
    if not steps.is_together or not steps.ranks:
        return
    waits = steps.shared_wait
    share, low, high = steps.share(waits)
    beside = max((others_use(evidence, rank.node) for rank in steps.ranks), default=0.0)
    queued = (
        float((steps.delay / np.maximum(steps.time, 1e-12)).mean(axis=1).max()) if beside else 0.0
    )
    if (
        share < communication_due(evidence) + queued or low < SURE
    ):  # a rank whose turn on the processor others took is waited for
        return
    several = evidence.on_several_nodes
    axis, collective = _axis(evidence, steps)
    slow = _slow_link(steps) if several else None
    mean_s = float(waits.mean())
    told = [
        f"every rank waits at least {format_duration(mean_s)} in a {format_duration(float(steps.slowest.mean()))} step"
    ]
    count = evidence.facts.get("trainable") or evidence.facts.get("parameters")
    if count and axis == "dp" and mean_s > 0:
        ring = 2 * (evidence.world - 1) / evidence.world * 4.0 * float(count)
        told.append(
            f"sending {format_bytes(ring)} of fp32 gradients in that time means {format_bytes(ring / mean_s)}/s per rank"
        )
    told += (
        [_link_text(link) for link in _worst_links(steps)[:2]] if several else _moved_inside(steps)
    )
    where = "between nodes" if several else "inside the node"
    is_of_one = slow is not None and len({rank.node for rank in steps.ranks}) > 2
    cause = "communication_between_nodes" if several else "communication_inside_node"
    yield Finding(
        cause="slow_node" if is_of_one else cause,
        share=share,
        low=low,
        high=high,
        node=slow or "",
        what=f"ranks wait for {collective} ({axis}) {where}"
        + (f"; the link of node {slow} is much slower" if slow else ""),
        evidence=tuple(told),
        confirm="measure the collective alone (`autotune calibrate`, nccl-tests): the collective should reach the link's bandwidth",
        change=("fix that node's link or exclude the node; " if slow else "")
        + (
            "all-reduce gradients less often (more accumulation steps) or in bf16, overlap the all-reduce with the backward pass (bucket size), or shard within nodes and replicate between nodes (HSDP)"
            if several
            else "all-reduce gradients less often (more accumulation steps) or in bf16, and overlap the all-reduce with the backward pass (bucket size)"
        ),
        knob="accumulation_steps",
    )  # fmt: skip


def communication_due(evidence: Evidence) -> float:
    """Share of the step that communication may take."""
    predicted = evidence.predicted_parts_s
    if not (evidence.is_measured_here and predicted and evidence.predicted_s):
        return COMMUNICATION
    expected = sum(value for name, value in predicted.items() if name.endswith("_comm"))
    return 1.5 * expected / evidence.predicted_s[0] + CLAIMED


def _groups(steps: Steps) -> Iterator[tuple[list[int], str]]:
    """Single ranks, the slowest first; before them nodes with several ranks, where there are
    several such nodes or ranks elsewhere."""
    by_node: dict[str, list[int]] = {}
    for at, rank in enumerate(steps.ranks):
        by_node.setdefault(rank.node, []).append(at)
    if len(by_node) > 1:
        means = steps.own.mean(axis=1)
        for node, group in sorted(
            by_node.items(), key=lambda entry: -min(means[at] for at in entry[1])
        ):
            if len(group) > 1:
                yield group, node
    yield [int(steps.own.mean(axis=1).argmax())], ""


def _why_slow(steps: Steps, group: Sequence[int]) -> Iterator[str]:
    ranks = [steps.ranks[at] for at in group]
    others = [rank for at, rank in enumerate(steps.ranks) if at not in group]
    elapsed_s = max(ranks[0].elapsed_s, 1e-9)
    if (stopped := max(rank.stopped_s for rank in ranks) / elapsed_s) > 0.03:
        yield f"the slow process was stopped, frozen or limited by a quota for {stopped:.0%} of the time"
    if (held := max(rank.throttled_s for rank in ranks) / elapsed_s) > 0.03:
        yield f"a cgroup quota stopped the slow process for {held:.0%} of the time"
    if others and ranks[0].cores and ranks[0].cores < min(rank.cores for rank in others):
        yield f"the slow process can use {ranks[0].cores} processors, the others {min(rank.cores for rank in others)}"
    clock, usual = (
        ranks[0].gpu.get("sm_clock_mhz", 0.0),
        [rank.gpu.get("sm_clock_mhz", 0.0) for rank in others],
    )
    if clock and usual and clock < 0.95 * float(np.median(usual)):
        yield f"the slow GPU runs at {clock:.0f} MHz, the others at {np.median(usual):.0f}"
    if (ratio := _computes_more(steps, group)) > 1 + SLOWER:
        yield f"the slow rank's passes take {ratio:.2f} times as much processor time as the other ranks' passes"


def _computes_more(steps: Steps, group: Sequence[int]) -> float:
    """How many times the processor time of the others' its passes take."""
    busy = (steps.busy["forward"] + steps.busy["backward"]).mean(axis=1)
    rest = np.delete(busy, list(group))
    return float(busy[group[0]] / max(float(np.median(rest)), 1e-12)) if len(rest) else 1.0


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
        what=f"rank {rank.rank} has more work per step than the others, which wait",
        evidence=(
            f"rank {rank.rank} trains on {float(tokens[group[0]].mean()):,.0f} tokens or sequences per step, the others on {others:,.0f}",
        ),
        confirm="train a few steps on sequences of equal length: the step time should drop by this fraction",
        change="distribute sequences by token count, or pack them to equal length",
    )


def _correlation(tokens: Series, compute: Series) -> float:
    a = (tokens - tokens.mean(axis=1, keepdims=True)).ravel()
    b = (compute - compute.mean(axis=1, keepdims=True)).ravel()
    norm = float(np.sqrt((a @ a) * (b @ b)))
    return float(a @ b) / norm if norm > 0 else 0.0


def _experts(evidence: Evidence) -> bool:
    config = evidence.facts.get("config") or {}
    return any(
        int(config.get(name) or 0) > 1
        for name in ("num_experts", "num_local_experts", "n_routed_experts")
    )


def _axis(evidence: Evidence, steps: Steps) -> tuple[str, str]:
    degrees = {name: int(value) for name, value in (evidence.facts.get("degrees") or {}).items()}
    for axis, name in (
        ("tp", "tensor-parallel collectives"),
        ("cp", "context-parallel exchange"),
        ("ep", "expert all-to-all"),
        ("pp", "sends between stages"),
    ):
        if degrees.get(axis, 1) >= max(2, evidence.world):
            return axis, name
    places = [place for rank in steps.ranks for place in rank.places]
    called = [place for place in places if place.kind == "collective" and place.function]
    for wrapper in evidence.facts.get("wrappers", ()):
        for name, found in AXES.items():
            if str(wrapper).startswith(name):
                return found
    if called:
        return "dp", max(called, key=lambda place: place.share).function
    return "dp", "all-reduce"


def _worst_links(steps: Steps) -> list[Link]:
    links = [link for rank in steps.ranks for link in rank.links]
    return sorted(
        (link for link in links if link.sent_bytes > 0), key=lambda link: link.bytes_per_s or np.inf
    )


def _moved_inside(steps: Steps) -> list[str]:
    """What the GPU that moves most moves over the links of its node, where the driver tells."""
    known = [rank for rank in steps.ranks if "pcie_bytes_per_s" in rank.gpu]
    if not known:
        return []
    rank = max(known, key=lambda rank: rank.gpu["pcie_bytes_per_s"])
    nvlink = rank.gpu.get("nvlink_bytes_per_s")
    by_nvlink = "" if nvlink is None else f"{format_bytes(nvlink)}/s over NVLink and "
    unused = "; NVLink is not used" if nvlink == 0 and rank.gpu["pcie_bytes_per_s"] > 0 else ""
    return [
        f"rank {rank.rank}'s GPU moves {by_nvlink}{format_bytes(rank.gpu['pcie_bytes_per_s'])}/s over PCIe{unused}"
    ]


def _link_text(link: Link) -> str:
    queued = (
        f", {format_bytes(link.queued_bytes)} queued for sending" if link.queued_bytes > 1e5 else ""
    )
    again = f", {link.resent:.0f} segments retransmitted" if link.resent else ""
    through = (
        f"{format_bytes(link.bytes_per_s)}/s delivered"
        if link.bytes_per_s
        else "hardly anything was sent"
    )
    return f"{link.local} to {link.remote}: {through}, round trips up to {format_duration(link.rtt_s)}{queued}{again}"


def _slow_link(steps: Steps) -> str | None:
    """The node whose link stands out: of three or more, the one all of whose links get `STANDS_OUT`
    times less through than those of the others; of two, the one whose data gets through so much
    slower than the other's."""
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
            min(speeds, key=speeds.__getitem__),
            max(speeds, key=speeds.__getitem__),
        )
        return (
            slow if slow != fast and STANDS_OUT * speeds[slow, fast] < speeds[fast, slow] else None
        )
    for node in nodes:
        touching = [speed for pair, speed in speeds.items() if node in pair]
        others = [speed for pair, speed in speeds.items() if node not in pair]
        if others and STANDS_OUT * max(touching) < float(np.median(others)):
            return node
    return None
