"""Which GPU, node or link of a cluster is slower than its likes, by what a calibration measured of
each. Pure.

a GPU     its rate is `SLOWER` below the median of all, and beyond `DEVIATIONS` of their spread (1.4826 median absolute deviations)
a node    so are all of its GPUs
a link    the exchange of a pair of nodes takes `LINK_TIMES` the median of all pairs; a node all of whose links do is named instead of them
of two    nodes there is one link: the two directions are compared with each other
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from statistics import median
from typing import Any

SLOWER, DEVIATIONS, LINK_TIMES = 0.10, 4.0, 2.0
"""a tenth, as the sniff tests of large clusters ask"""
ALONE = 0.25
"""the same where there is one other alone, whose own spread is not known"""


@dataclass(frozen=True, slots=True, kw_only=True)
class OutOfLine:
    """Something that is slower than its likes."""

    kind: str
    """gpu, node or link"""
    name: str
    """`rank 3 (node a)`, `node a`, `a to b`"""
    node: str
    """the node that it is on; of a link the one that sends"""
    what: str
    """matmul, memory, or exchange"""
    times: float
    """how many times slower than the others"""

    @property
    def text(self) -> str:
        """In a sentence."""
        return (
            f"{self.name} is an outlier: {self.what} {self.times:.2f} times slower than the others"
        )

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON values."""
        return {**asdict(self), "text": self.text}


def out_of_line(
    rates: Mapping[str, Mapping[int, float]],
    nodes: Mapping[int, str],
    exchanges_s: Mapping[tuple[str, str], float],
) -> tuple[OutOfLine, ...]:
    """`rates`: by what was measured (matmul, memory) of each rank; `nodes`: of each rank;
    `exchanges_s`: seconds to send the same message from one node to another."""
    found: list[OutOfLine] = []
    for what, of_rank in rates.items():
        slow = _slow(of_rank)
        several = set(nodes.values()) if len(set(nodes.values())) > 1 else set()
        whole = several - {nodes[r] for r in of_rank if r not in slow}
        for node in sorted(whole):
            times = median(slow[r] for r in of_rank if nodes[r] == node)
            found.append(
                OutOfLine(kind="node", name=f"node {node}", node=node, what=what, times=times)
            )
        found += [
            OutOfLine(
                kind="gpu",
                name=f"rank {r} (node {nodes[r]})",
                node=nodes[r],
                what=what,
                times=times,
            )
            for r, times in sorted(slow.items())
            if nodes[r] not in whole
        ]
    return (*found, *_links(exchanges_s))


def _slow(of_rank: Mapping[int, float]) -> dict[int, float]:
    if len(of_rank) < 2:
        return {}
    found = {}
    for rank, rate in of_rank.items():
        others = [other for r, other in of_rank.items() if r != rank]
        usual = median(others)
        spread = 1.4826 * median(abs(other - usual) for other in others)
        least = SLOWER if len(others) > 1 else ALONE
        if rate < (1 - least) * usual and usual - rate > DEVIATIONS * spread:
            found[rank] = usual / rate
    return found


def _links(exchanges_s: Mapping[tuple[str, str], float]) -> list[OutOfLine]:
    pairs = list(exchanges_s)
    nodes = sorted({node for pair in pairs for node in pair})
    if len(nodes) < 2:
        return []
    if len(nodes) == 2:
        slow = max(pairs, key=exchanges_s.__getitem__)
        times = exchanges_s[slow] / min(exchanges_s.values())
        return [_link(slow, times)] if times >= LINK_TIMES else []
    usual = median(exchanges_s.values())
    found = {}
    for node in nodes:
        touching = [exchanges_s[pair] for pair in pairs if node in pair]
        others = [exchanges_s[pair] for pair in pairs if node not in pair]
        if others and min(touching) >= LINK_TIMES * median(others):
            found[node] = median(touching) / median(others)
    whole = [
        OutOfLine(kind="node", name=f"node {node}", node=node, what="exchange", times=times)
        for node, times in found.items()
    ]
    alone = [
        _link(pair, seconds / usual)
        for pair, seconds in sorted(exchanges_s.items())
        if seconds >= LINK_TIMES * usual and not set(pair) & set(found)
    ]
    return [*whole, *alone]


def _link(pair: tuple[str, str], times: float) -> OutOfLine:
    return OutOfLine(
        kind="link", name=f"{pair[0]} to {pair[1]}", node=pair[0], what="exchange", times=times
    )


def of_readings(readings: Sequence[Mapping[str, Any]]) -> tuple[OutOfLine, ...]:
    """Of what each rank of a calibration's probe says: {"rank", "node", "rates": {what: rate},
    "exchanges_s": {node: seconds to send to it}}."""
    rates: dict[str, dict[int, float]] = {}
    nodes: dict[int, str] = {}
    exchanges_s: dict[tuple[str, str], float] = {}
    for said in readings:
        rank = int(said["rank"])
        nodes[rank] = str(said["node"])
        for what, rate in said["rates"].items():
            rates.setdefault(what, {})[rank] = float(rate)
        for to, seconds in said["exchanges_s"].items():
            exchanges_s[nodes[rank], to] = float(seconds)
    return out_of_line(rates, nodes, exchanges_s)
