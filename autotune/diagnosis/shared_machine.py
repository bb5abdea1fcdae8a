"""The law of processors that other processes use."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from autotune.diagnosis.critical import Steps
from autotune.diagnosis.evidence import Evidence, Node
from autotune.diagnosis.finding import Finding
from autotune.diagnosis.seen_at import who

FOREIGN_CORES = 0.08
"""processors whose use by others counts, at the least"""


def foreign_processes(evidence: Evidence, steps: Steps) -> Iterator[Finding]:
    """Others use the processors that ranks wait for."""
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
            float(
                (sum(busy[at] for busy in steps.busy.values()) + steps.delay[at]).sum()
                / steps.time[at].sum()
            )
            for at in here
        )
        due = max(0.0, 1.0 - usable / wanted) if wanted > 0 else 0.0
        at = max(here, key=lambda i: delays[i])
        excess = (float(delays[at]) - due) / (1.0 - due)
        if foreign + stolen < _noticed(cores) or excess <= 0:
            continue
        cost = min(
            excess,
            (foreign + stolen)
            / max(foreign + stolen + float(np.mean([1 - delays[i] for i in here])), 1e-9),
        )
        by_step = (
            np.maximum(0.0, (steps.delay[at] / np.maximum(steps.time[at], 1e-12) - due) / (1 - due))
            * steps.slowest
        )
        _, low, high = steps.share(by_step * (cost / excess))
        own = tuple(f"(process {rank.pid})" for rank in steps.ranks)
        processes = (
            (cores_used, name) for node in nodes for name, cores_used in node.others.items()
        )
        others = sorted(
            ((cores_used, name) for cores_used, name in processes if not name.endswith(own)),
            reverse=True,
        )
        is_alone = len(here) > 1 and delays[at] >= 2 * max(delays[i] for i in here if i != at)
        rank = steps.ranks[at].rank if is_alone else None
        told = [
            f"{who(rank, 'ranks')} waited for a processor {float(delays[at]):.0%} of the time; having more ranks than cores explains {due:.0%}"
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


def others_use(evidence: Evidence, name: str) -> float:
    """Share of the processors of a node's machine that other processes, or a hypervisor, use; 0 where that is too little to count."""
    machine = next((node.machine for node in evidence.nodes if node.name == name), None)
    nodes = [node for node in evidence.nodes if node.machine == machine]
    if not nodes or (taken := sum(_taken(nodes))) < _noticed(nodes[0].cores):
        return 0.0
    return min(1.0, taken / max(1, nodes[0].cores))


def _taken(nodes: Sequence[Node]) -> tuple[float, float]:
    """Processors of one machine that others use, and that a hypervisor took."""
    return max(node.busy for node in nodes) - sum(node.ours for node in nodes), max(
        node.stolen for node in nodes
    )


def _noticed(cores: int) -> float:
    """Processors from which on their use by others counts."""
    return max(FOREIGN_CORES, 0.03 * cores)
