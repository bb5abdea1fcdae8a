"""Rules on ranks that wait for each other: a slow rank or node, unequal work, collectives and their
links."""

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
"""share of a healthy step spent in collectives, if the prediction is not calibrated"""
MOSTLY = 0.7
"""minimum share of steps in which a slow rank is slower than all others"""
SLOWER, SLOWER_BESIDE = 0.1, 0.25
"""minimum fraction by which a slow rank computes longer than the others: on a GPU; and on CPUs, or
if other processes use its machine. Healthy ranks on CPUs differ by up to the second value, because
the sibling hyperthread of a core may be busy. It grows to twice that if other processes use more
than half of the machine"""
FOLLOWS = 0.6
"""minimum correlation of compute time and tokens"""
STANDS_OUT = 2.5
"""minimum ratio by which an outlier link is slower than the others"""
AXES = {
    "DDP": ("dp", "all-reduce of gradients"),
    "FSDP": ("dp", "all-gather of weights and reduce-scatter of gradients"),
}


def slow_ranks(evidence: Evidence, steps: Steps) -> Iterator[Finding]:
    """Yield a finding if a rank, or all ranks of a node, computes longer than the others."""
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
        fastest_inside, slowest_outside = compute[inside].min(axis=0), compute[~inside].max(axis=0)
        middle = np.median(compute[~inside], axis=0)
        # not clipped at zero: a process that is stopped now and then is normal in the other steps
        excess = compute - middle
        excess[~inside] = 0.0
        usual_s = float(middle.mean())
        is_mostly = float(np.mean(fastest_inside > slowest_outside)) >= MOSTLY or float(
            np.mean(fastest_inside)
        ) > 1.3 * float(compute[~inside].mean(axis=1).max())
        used_by_others = others_use(evidence, steps.ranks[group[0]].node)
        threshold = (
            SLOWER
            if evidence.on_gpu and not used_by_others
            else SLOWER_BESIDE * (1.0 + max(0.0, 2.0 * used_by_others - 1.0))
        )
        if not is_mostly or usual_s <= 0 or float(excess[inside].mean()) < threshold * usual_s:
            continue
        if _tokens_explain(steps, group):
            yield _more_tokens(steps, group, excess)
            return
        share, low, high = steps.share_of_work(np.maximum(0.0, excess))
        rank = steps.ranks[group[0]]
        who = f"node {node}" if node else f"rank {rank.rank}"
        ratio = float(compute[inside].mean()) / usual_s
        yield Finding(
            cause="slow_node" if node else "slow_rank",
            share=share,
            low=max(low, SURE) if share >= CLAIMED else low,
            high=high,
            rank=None if node else rank.rank,
            node=node or rank.node,
            what=f"{who} computes {ratio:.2f} times as long as the others, which wait",
            evidence=(
                f"computation per step: {format_duration(float(compute[inside].mean()))} on {who}, {format_duration(usual_s)} on the others",
                *_why_slow(steps, group),
            ),
            confirm="swap ranks (another host list or device) and see whether the slowness stays with the machine or follows the rank",
            change="if the slowness follows the rank, distribute the work equally; if not, exclude this device or node, or check its CPU quota, clocks and cooling"
            if _computes_more(steps, group) > 1 + SLOWER
            else "exclude this device or node, or check its CPU quota, clocks and cooling",
        )
        return


def unequal_work(evidence: Evidence, steps: Steps) -> Iterator[Finding]:
    """Yield a finding if the ranks do unequal amounts of work in a step and the slowest rank
    changes."""
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
    slowest_share = (
        np.bincount(compute.argmax(axis=0), minlength=len(steps.ranks)).max() / steps.count
    )
    has_experts = _has_experts(evidence)
    correlation = _correlation(tokens, compute) if tokens is not None else 0.0
    if slowest_share >= MOSTLY or (correlation < FOLLOWS and not has_experts):
        return
    part = np.maximum(0.0, compute - compute.mean(axis=0))
    share, low, high = steps.share_of_work(part)
    by_tokens = correlation >= FOLLOWS
    seen = []
    if tokens is not None:
        seen.append(
            f"ranks train on {tokens.min():,.0f} to {tokens.max():,.0f} tokens or sequences per step"
        )
    if by_tokens:
        seen.append(f"a rank's time tracks its number of tokens (correlation {correlation:.2f})")
    seen.append(
        f"the slowest rank changes; no rank is the slowest in more than {slowest_share:.0%} of the steps"
    )
    yield Finding(
        cause="unequal_lengths",
        share=share,
        low=low,
        high=high,
        what="ranks do unequal amounts of work in a step, and wait for the rank with the most work"
        if by_tokens
        else "ranks take unequal times for equal numbers of tokens, for example because experts get unequal shares",
        evidence=tuple(seen),
        confirm="train a few steps on sequences of equal length: the step time should drop by this fraction",
        change="pack sequences to equal length, or group batches by length on all ranks"
        if by_tokens
        else "raise the load-balancing loss weight, or limit the expert capacity",
    )


def communication(evidence: Evidence, steps: Steps) -> Iterator[Finding]:
    """Yield a finding if all ranks wait for collectives longer than in a healthy run."""
    if not steps.is_together or not steps.ranks:
        return
    waits = steps.shared_wait
    share, low, high = steps.share(waits)
    # ranks also wait for a rank that waits for a processor; that is no communication
    queued = 0.0
    if any(others_use(evidence, rank.node) for rank in steps.ranks):
        queued = float((steps.delay / np.maximum(steps.time, 1e-12)).mean(axis=1).max())
    if share < communication_due(evidence) + queued or low < SURE:
        return
    several = evidence.on_several_nodes
    axis, collective = _axis(evidence, steps)
    slow_node = _slow_link(steps) if several else None
    mean_s = float(waits.mean())
    seen = [
        f"every rank waits at least {format_duration(mean_s)} in a {format_duration(float(steps.slowest.mean()))} step"
    ]
    count = evidence.facts.get("trainable") or evidence.facts.get("parameters")
    if count and axis == "dp" and mean_s > 0:
        ring_bytes = 2 * (evidence.world - 1) / evidence.world * 4.0 * float(count)
        seen.append(
            f"sending {format_bytes(ring_bytes)} of fp32 gradients in that time means {format_bytes(ring_bytes / mean_s)}/s per rank"
        )
    seen += (
        [_link_text(link) for link in _slowest_links(steps)[:2]]
        if several
        else _moved_inside(steps)
    )
    where = "between nodes" if several else "inside the node"
    is_one_node = slow_node is not None and len({rank.node for rank in steps.ranks}) > 2
    cause = "communication_between_nodes" if several else "communication_inside_node"
    yield Finding(
        cause="slow_node" if is_one_node else cause,
        share=share,
        low=low,
        high=high,
        node=slow_node or "",
        what=f"ranks wait for {collective} ({axis}) {where}"
        + (f"; the link of node {slow_node} is much slower" if slow_node else ""),
        evidence=tuple(seen),
        confirm="measure the collective alone (`autotune calibrate`, nccl-tests): the collective should reach the link's bandwidth",
        change=("fix that node's link or exclude the node; " if slow_node else "")
        + (
            "all-reduce gradients less often (more accumulation steps) or in bf16, overlap the all-reduce with the backward pass (bucket size), or shard within nodes and replicate between nodes (HSDP)"
            if several
            else "all-reduce gradients less often (more accumulation steps) or in bf16, and overlap the all-reduce with the backward pass (bucket size)"
        ),
        knob="accumulation_steps",
    )  # fmt: skip


def communication_due(evidence: Evidence) -> float:
    """Return the share of the step that communication takes in a healthy run: from a calibrated
    prediction, with a margin, or else `COMMUNICATION`."""
    predicted = evidence.predicted_parts_s
    if not (evidence.is_measured_here and predicted and evidence.predicted_s):
        return COMMUNICATION
    expected = sum(value for name, value in predicted.items() if name.endswith("_comm"))
    return 1.5 * expected / evidence.predicted_s[0] + CLAIMED


def _groups(steps: Steps) -> Iterator[tuple[list[int], str]]:
    """Yield candidates for slowness, as (indices of ranks, name of the node or ""): if there are
    several nodes, each node with several ranks, slowest first; then the slowest single rank."""
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
    """Yield sentences on what may slow the ranks of the group: quotas, cores, clocks, more work."""
    ranks = [steps.ranks[at] for at in group]
    others = [rank for at, rank in enumerate(steps.ranks) if at not in group]
    elapsed_s = max(ranks[0].elapsed_s, 1e-9)
    if (stopped := max(rank.stopped_s for rank in ranks) / elapsed_s) > 0.03:
        yield f"the slow process was stopped, frozen or limited by a quota for {stopped:.0%} of the time"
    if (throttled := max(rank.throttled_s for rank in ranks) / elapsed_s) > 0.03:
        yield f"a cgroup quota stopped the slow process for {throttled:.0%} of the time"
    if others and ranks[0].cores and ranks[0].cores < min(rank.cores for rank in others):
        yield f"the slow process can use {ranks[0].cores} processors, the others {min(rank.cores for rank in others)}"
    clock, other_clocks = (
        ranks[0].gpu.get("sm_clock_mhz", 0.0),
        [rank.gpu.get("sm_clock_mhz", 0.0) for rank in others],
    )
    if clock and other_clocks and clock < 0.95 * float(np.median(other_clocks)):
        yield f"the slow GPU runs at {clock:.0f} MHz, the others at {np.median(other_clocks):.0f}"
    if (ratio := _computes_more(steps, group)) > 1 + SLOWER:
        yield f"the slow rank's passes take {ratio:.2f} times as much processor time as the other ranks' passes"


def _computes_more(steps: Steps, group: Sequence[int]) -> float:
    """Return the processor time of the first rank's forward and backward passes, divided by the
    median of the ranks outside the group."""
    busy = (steps.busy["forward"] + steps.busy["backward"]).mean(axis=1)
    rest = np.delete(busy, list(group))
    return float(busy[group[0]] / max(float(np.median(rest)), 1e-12)) if len(rest) else 1.0


def _tokens(steps: Steps) -> Series | None:
    """Return the tokens or sequences per step, shape (ranks, steps); None if not known for all
    steps."""
    if not all(len(rank.tokens) >= steps.count for rank in steps.ranks):
        return None
    tokens = np.array([rank.tokens[-steps.count :] for rank in steps.ranks])
    return tokens if tokens.max() > 0 else None


def _tokens_explain(steps: Steps, group: Sequence[int]) -> bool:
    """Return whether each rank of the group has clearly more tokens than any other rank."""
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


def _has_experts(evidence: Evidence) -> bool:
    config = evidence.facts.get("config") or {}
    return any(
        int(config.get(name) or 0) > 1
        for name in ("num_experts", "num_local_experts", "n_routed_experts")
    )


def _axis(evidence: Evidence, steps: Steps) -> tuple[str, str]:
    """Return the mesh axis whose collectives the ranks wait for, and the name of the
    collectives."""
    degrees = {name: int(value) for name, value in (evidence.facts.get("degrees") or {}).items()}
    for axis, name in (
        ("tp", "tensor-parallel collectives"),
        ("cp", "context-parallel exchange"),
        ("ep", "expert all-to-all"),
        ("pp", "transfers between stages"),
    ):
        if degrees.get(axis, 1) >= max(2, evidence.world):
            return axis, name
    places = [place for rank in steps.ranks for place in rank.places]
    called = [place for place in places if place.kind == "collective" and place.function]
    for wrapper in evidence.facts.get("wrappers", ()):
        for name, axis_and_collective in AXES.items():
            if str(wrapper).startswith(name):
                return axis_and_collective
    if called:
        return "dp", max(called, key=lambda place: place.share).function
    return "dp", "all-reduce"


def _slowest_links(steps: Steps) -> list[Link]:
    links = [link for rank in steps.ranks for link in rank.links]
    return sorted(
        (link for link in links if link.sent_bytes > 0), key=lambda link: link.bytes_per_s or np.inf
    )


def _moved_inside(steps: Steps) -> list[str]:
    """Return a sentence on the PCIe and NVLink traffic of the GPU with the most PCIe traffic; empty
    if the driver does not report it."""
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
    retransmitted = f", {link.resent:.0f} segments retransmitted" if link.resent else ""
    throughput = (
        f"{format_bytes(link.bytes_per_s)}/s delivered"
        if link.bytes_per_s
        else "hardly anything was sent"
    )
    return f"{link.local} to {link.remote}: {throughput}, round trips up to {format_duration(link.rtt_s)}{queued}{retransmitted}"


def _slow_link(steps: Steps) -> str | None:
    """Return the node whose links are slower than those of the other nodes by `STANDS_OUT`, or
    None. With two nodes, the two directions of their link are compared."""
    node_of = {link.local: rank.node for rank in steps.ranks for link in rank.links}
    speeds: dict[tuple[str, str], float] = {}
    for rank in steps.ranks:
        for link in rank.links:
            speed, receiver = link.bytes_per_s, node_of.get(link.remote)
            if speed and receiver is not None and receiver != rank.node:
                pair = (rank.node, receiver)
                speeds[pair] = min(speed, speeds.get(pair, speed))
    nodes = sorted({node for pair in speeds for node in pair})
    if len(nodes) == 2:
        slow, _ = min(speeds, key=speeds.__getitem__)
        fast, _ = max(speeds, key=speeds.__getitem__)
        is_slower = slow != fast and STANDS_OUT * speeds[slow, fast] < speeds[fast, slow]
        return slow if is_slower else None
    for node in nodes:
        touching = [speed for pair, speed in speeds.items() if node in pair]
        others = [speed for pair, speed in speeds.items() if node not in pair]
        if others and STANDS_OUT * max(touching) < float(np.median(others)):
            return node
    return None
