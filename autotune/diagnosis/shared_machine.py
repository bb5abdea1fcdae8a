"""The rule on processors that other processes use."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from autotune.diagnosis.critical import Steps
from autotune.diagnosis.evidence import Evidence, Node
from autotune.diagnosis.finding import Finding
from autotune.diagnosis.seen_at import who

FOREIGN_CORES = 0.08
"""minimum usage by other processes to count, cores"""


def foreign_processes(evidence: Evidence, steps: Steps) -> Iterator[Finding]:
    """Yield a finding for each machine on which ranks wait for processors that other processes
    use."""
    if not steps.ranks:
        return
    for machine in sorted({node.machine for node in evidence.nodes}):
        nodes = [node for node in evidence.nodes if node.machine == machine]
        names = {node.name for node in nodes}
        here = [at for at, rank in enumerate(steps.ranks) if rank.node in names]
        if here and (finding := _on_machine(nodes, steps, here)):
            yield finding


def _on_machine(nodes: Sequence[Node], steps: Steps, here: Sequence[int]) -> Finding | None:
    """Return the finding for one machine, or None if other processes use too little of it. `here`:
    indices of its ranks."""
    delays = steps.delay.sum(axis=1) / np.maximum(steps.time.sum(axis=1), 1e-12)
    taken, due = sum(_taken(nodes)), _oversubscribed(nodes, steps, here)
    worst = max(here, key=lambda i: delays[i])
    excess = (float(delays[worst]) - due) / (1.0 - due)
    if taken < _noticed(nodes[0].cores) or excess <= 0:
        return None
    running = float(np.mean([1 - delays[i] for i in here]))
    cost = min(excess, taken / max(taken + running, 1e-9))
    waited = steps.delay[worst] / np.maximum(steps.time[worst], 1e-12)
    by_step = np.maximum(0.0, (waited - due) / (1 - due)) * steps.slowest
    _, low, high = steps.share(by_step * (cost / excess))
    is_one_rank = len(here) > 1 and delays[worst] >= 2 * max(delays[i] for i in here if i != worst)
    rank, node = steps.ranks[worst].rank if is_one_rank else None, steps.ranks[worst].node
    waits = f"{who(rank, 'ranks')} waited for a processor {float(delays[worst]):.0%} of the time; having more ranks than cores explains {due:.0%}"
    return Finding(
        cause="foreign_process",
        share=cost,
        low=min(low, cost),
        high=max(high, cost),
        rank=rank,
        node=node,
        what=f"other processes use the processors on {f'node {node}' if node else 'the machine'}",
        evidence=(waits, *_who_takes(nodes, steps)),
        confirm="run `top` on the machine during training",
        change="stop these processes, or reserve processors for the ranks (taskset, cgroups, an exclusive allocation)",
    )


def _oversubscribed(nodes: Sequence[Node], steps: Steps, here: Sequence[int]) -> float:
    """Return the share of the time that ranks would wait for processors even without other
    processes, because there are more ranks than cores."""
    cores, names = nodes[0].cores, {node.name for node in nodes}
    usable = min(cores, max(steps.ranks[at].cores for at in here) * len(names))
    runnable = sum(steps.busy.values()) + steps.delay
    wanted = sum(float(runnable[at].sum() / steps.time[at].sum()) for at in here)
    return max(0.0, 1.0 - usable / wanted) if wanted > 0 else 0.0


def _who_takes(nodes: Sequence[Node], steps: Steps) -> Iterator[str]:
    """Yield sentences on the processors that others use, and on the two processes that use most."""
    foreign, stolen = _taken(nodes)
    of_host = f", and a hypervisor took {stolen:.2f}" if stolen > 0.02 else ""
    yield f"of {nodes[0].cores} processors, other processes used {foreign:.2f}{of_host}"
    own_pids = tuple(f"(process {rank.pid})" for rank in steps.ranks)
    processes = ((used, name) for node in nodes for name, used in node.others.items())
    others = sorted((each for each in processes if not each[1].endswith(own_pids)), reverse=True)
    yield from (f"{name} used {used:.2f} processors" for used, name in others[:2])


def others_use(evidence: Evidence, name: str) -> float:
    """Return the share of the processors of a node's machine that other processes or the hypervisor
    use; 0 if that is too little to count."""
    machine = next((node.machine for node in evidence.nodes if node.name == name), None)
    nodes = [node for node in evidence.nodes if node.machine == machine]
    if not nodes or (taken := sum(_taken(nodes))) < _noticed(nodes[0].cores):
        return 0.0
    return min(1.0, taken / max(1, nodes[0].cores))


def _taken(nodes: Sequence[Node]) -> tuple[float, float]:
    """Return the number of processors of one machine that other processes use, and that the
    hypervisor took."""
    foreign = max(node.busy for node in nodes) - sum(node.ours for node in nodes)
    return foreign, max(node.stolen for node in nodes)


def _noticed(cores: int) -> float:
    """Return the minimum usage by other processes to count, in cores."""
    return max(FOREIGN_CORES, 0.03 * cores)
