"""What the end of each node of a program says, weighed: the node that failed counts, not one that
merely lost its peer.

gone      the keeper was lost: WORKER_LOST, whatever the others say of broken connections
failed    the program of the node ended by itself with an exit code other than 0; of several the first one counts. What its log says of the
          cause (`failure.cause`) takes the place of the exit code, which is the launcher's
echo      as failed, but its log speaks of a peer that is gone: counts only when nothing else does
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
"""other nodes whose last lines are kept in a failure"""
OTHER_LINES = 5
"""last lines that are kept of each other node"""


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeEnd:
    """How the program of one node ended."""

    node: int
    """number of the node, from 0"""
    address: str = ""
    """address of the node; empty when it was never known"""
    code: int | None = None
    """exit status, negative for a signal; None: not known"""
    was_told: bool = False
    """whether it was told to end before it ended"""
    gone: str = ""
    """why its keeper is lost; empty when it is not"""
    kernel_oom: bool = False
    """whether the kernel's out-of-memory killer has struck on this node meanwhile"""
    peak_bytes: int | None = None
    """largest resident memory of one process"""
    gpu_peak_bytes: int | None = None
    """most memory on one GPU"""
    log_tail: tuple[str, ...] = ()
    """last lines of its log"""
    collectives: Begun = field(default_factory=dict)
    """that its ranks had begun when it fell silent, where NCCL's flight recorder told"""

    @property
    def failed(self) -> bool:
        """Whether it ended by itself, and not well."""
        return bool(self.gone) or (not self.was_told and self.code != 0)


def explain(
    ends: Sequence[NodeEnd], causes: Sequence[CauseReader], steps_done: int
) -> Evidence | None:
    """The evidence of the node that failed first; None when all ended well. `ends`: in the order of
    their ending; `causes`: what was read of each node's log."""
    failed = sorted((end for end in ends if end.failed), key=lambda end: not end.gone)
    found = [(_of_node(end, causes[end.node], steps_done, len(ends)), end) for end in failed]
    cause = weigh(evidence for evidence, _ in found)
    if cause is None:
        return None
    blamed = next(end for evidence, end in found if evidence is cause)
    return replace(
        cause, log_tail=log_tail(ends, replace(blamed, log_tail=cause.log_tail or blamed.log_tail))
    )


def log_tail(ends: Sequence[NodeEnd], first: NodeEnd | None = None) -> tuple[str, ...]:
    """The last lines of the nodes' logs, those of `first` (default: node 0) whole; each with its
    node where there are several."""
    if len(ends) == 1:
        return (first or ends[0]).log_tail
    by_node = sorted(ends, key=lambda end: end.node)
    first = first or by_node[0]
    others = [end for end in by_node if end.node != first.node][:OTHER_NODES]
    kept = [(first, first.log_tail), *((end, end.log_tail[-OTHER_LINES:]) for end in others)]
    return tuple(f"[node {end.node}] {line}" for end, lines in kept for line in lines)


def rank_behind(ends: Sequence[NodeEnd]) -> tuple[int, str] | None:
    """The rank that had not come to a collective in which others waited, and which one; None where
    no flight recorder told."""
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
    mine = counts[rank]
    last_begun = ((group, last) for r in sorted(begun) for group, last in begun[r].items())
    missing = ((group, last) for group, last in last_begun if mine.get(group, last[0]) < last[0])
    group, (number, name) = max(missing, key=lambda pair: pair[1][0])
    where = f"{name} (collective {number} of process group {group})"
    return (
        rank,
        f"rank {rank} has not reached {where}, which is awaited by {number_of(waiting, 'other rank')}",
    )


def _of_node(end: NodeEnd, causes: CauseReader, steps_done: int, nodes: int) -> Evidence:
    where = f"node {end.node} ({end.address})" if end.address else f"node {end.node}"
    step = steps_done or None
    if end.gone:
        is_named = nodes == 1 or (end.address and end.address in end.gone)
        why = end.gone if is_named else f"{where}: {end.gone}"
        return of_death(rank=None, code=None, step=step, log_tail=end.log_tail, why=why)
    # what peers did later says nothing
    told = weigh(causes.evidence(causes.steps_heard, kernel_oom=end.kernel_oom))
    is_explained = told is not None and told.weight not in ("echo", "timeout")
    death = of_death(
        rank=None,
        code=end.code,
        step=step,
        log_tail=end.log_tail,
        kernel_oom=end.kernel_oom,
        is_explained=is_explained,
    )
    if told is None or (death.weight == "memory" and told.weight not in ("memory", "verdict")):
        evidence = death
    elif told.weight == "echo":
        evidence = replace(
            death, message=f"{death.message}: {told.exception}"[:400], log_tail=told.log_tail
        )
    else:
        evidence = told
    if nodes == 1:
        return evidence
    is_echo = evidence.weight == "death" and (
        evidence is not told and (told is not None or PEER_GONE.search("\n".join(end.log_tail)))
    )
    weight = "echo" if is_echo else evidence.weight
    return replace(evidence, weight=weight, message=f"{evidence.message} on {where}")


def went_on(found: tuple[str, int]) -> Failure:
    """Of a program that ran out of memory and did not end: what said so, and the steps that were
    done then."""
    what, steps = found
    message = f"the program ran out of memory and continued, so the steps do not measure this config, because batches were skipped or made smaller ({what})"
    return Failure(kind=FailureKind.OUT_OF_MEMORY, message=message, step=steps or None)
