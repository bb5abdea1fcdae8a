"""Finds the node that failed first, rather than one that only lost its peer, from how each node's
program ended.

gone      the keeper was lost: WORKER_LOST, whatever the others report about broken connections
failed    the node's program ended by itself with a nonzero exit code; the first of several counts. The cause in its
          log (`failure.cause`) replaces the exit code, which is the launcher's
echo      as failed, but its log reports a lost peer: counts only if there is nothing else
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from autotune.spec import Failure, FailureKind, number_of
from autotune_workers.gang.failure_kind import PEER_GONE, Evidence, of_death, weigh
from autotune_workers.gang.members import behind
from autotune_workers.process.failure.cause import CauseReader
from autotune_workers.process.failure.flight_recorder import Begun

OTHER_NODES = 15
"""largest number of other nodes whose last lines are kept in a failure"""
OTHER_LINES = 5
"""number of last lines kept of each other node"""


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeEnd:
    """How the program of one node ended."""

    node: int
    """node number, from 0"""
    address: str = ""
    """address of the node; empty if unknown"""
    code: int | None = None
    """exit status, negative for a signal; None if unknown"""
    was_told: bool = False
    """whether it was ordered to end before it ended"""
    gone: str = ""
    """why its keeper was lost; empty if it was not"""
    kernel_oom: bool = False
    """whether the kernel's OOM killer killed something on this node during the attempt"""
    peak_bytes: int | None = None
    """largest resident memory of one process, bytes"""
    gpu_peak_bytes: int | None = None
    """peak memory on one GPU, bytes"""
    log_tail: tuple[str, ...] = ()
    """last lines of its log"""
    collectives: Begun = field(default_factory=dict)
    """collectives that its ranks had begun when it hung, from NCCL's flight recorder"""

    @property
    def failed(self) -> bool:
        """Whether it ended by itself with an error, or was lost."""
        return bool(self.gone) or (not self.was_told and self.code != 0)


def explain(
    ends: Sequence[NodeEnd], causes: Sequence[CauseReader], steps_done: int
) -> Evidence | None:
    """The evidence of the node that failed first; None if none failed. `ends`: in order of their
    end; `causes`: readers of the nodes' logs, by node number."""
    failed = sorted((end for end in ends if end.failed), key=lambda end: not end.gone)
    with_nodes = [
        (_node_evidence(end, causes[end.node], steps_done, len(ends)), end) for end in failed
    ]
    strongest = weigh(evidence for evidence, _ in with_nodes)
    if strongest is None:
        return None
    blamed = next(end for evidence, end in with_nodes if evidence is strongest)
    return replace(
        strongest,
        log_tail=log_tail(ends, replace(blamed, log_tail=strongest.log_tail or blamed.log_tail)),
    )


def log_tail(ends: Sequence[NodeEnd], first: NodeEnd | None = None) -> tuple[str, ...]:
    """The last lines of the nodes' logs: all kept lines of `first` (default: node 0), a few of the
    others. With several nodes each line is prefixed with its node."""
    if len(ends) == 1:
        return (first or ends[0]).log_tail
    by_node = sorted(ends, key=lambda end: end.node)
    first = first or by_node[0]
    others = [end for end in by_node if end.node != first.node][:OTHER_NODES]
    kept = [(first, first.log_tail), *((end, end.log_tail[-OTHER_LINES:]) for end in others)]
    return tuple(f"[node {end.node}] {line}" for end, lines in kept for line in lines)


def rank_behind(ends: Sequence[NodeEnd]) -> tuple[int, str] | None:
    """(rank, message) for the rank that had not reached a collective in which others waited; None
    if no flight recorder shows one."""
    begun: dict[int, dict[str, list[Any]]] = {}
    for end in ends:
        begun |= {int(rank): groups for rank, groups in end.collectives.items() if rank.isdigit()}
    counts = {
        rank: {group: number for group, (number, _) in groups.items()}
        for rank, groups in begun.items()
    }
    found = behind(counts)
    if not found:
        return None
    rank, waiting = min(found.items())
    counts_of_rank = counts[rank]
    last_begun = ((group, last) for r in sorted(begun) for group, last in begun[r].items())
    missing = (
        (group, last) for group, last in last_begun if counts_of_rank.get(group, last[0]) < last[0]
    )
    group, (number, name) = max(missing, key=lambda pair: pair[1][0])
    where = f"{name} (collective {number} of process group {group})"
    return (
        rank,
        f"rank {rank} has not reached {where}, which is awaited by {number_of(waiting, 'other rank')}",
    )


def _node_evidence(end: NodeEnd, causes: CauseReader, steps_done: int, nodes: int) -> Evidence:
    where = f"node {end.node} ({end.address})" if end.address else f"node {end.node}"
    step = steps_done or None
    if end.gone:
        is_named = nodes == 1 or (end.address and end.address in end.gone)
        why = end.gone if is_named else f"{where}: {end.gone}"
        return of_death(rank=None, code=None, step=step, log_tail=end.log_tail, why=why)
    # what peers did afterwards is no evidence
    from_log = weigh(causes.evidence(causes.steps_heard, kernel_oom=end.kernel_oom))
    is_explained = from_log is not None and from_log.weight not in ("echo", "timeout")
    death = of_death(
        rank=None,
        code=end.code,
        step=step,
        log_tail=end.log_tail,
        kernel_oom=end.kernel_oom,
        is_explained=is_explained,
    )
    if from_log is None or (
        death.weight == "memory" and from_log.weight not in ("memory", "verdict")
    ):
        evidence = death
    elif from_log.weight == "echo":
        evidence = replace(
            death,
            message=f"{death.message}: {from_log.exception}"[:400],
            log_tail=from_log.log_tail,
        )
    else:
        evidence = from_log
    if nodes == 1:
        return evidence
    is_echo = evidence.weight == "death" and (
        evidence is not from_log
        and (from_log is not None or PEER_GONE.search("\n".join(end.log_tail)))
    )
    weight = "echo" if is_echo else evidence.weight
    return replace(evidence, weight=weight, message=f"{evidence.message} on {where}")


def went_on(found: tuple[str, int]) -> Failure:
    """The failure of a program that ran out of memory and continued. `found`: (evidence, number of
    steps done by then)."""
    what, steps = found
    message = f"the program ran out of memory and continued, so the steps do not measure this config, because batches were skipped or made smaller ({what})"
    return Failure(kind=FailureKind.OUT_OF_MEMORY, message=message, step=steps or None)
