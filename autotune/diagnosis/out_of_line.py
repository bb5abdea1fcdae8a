"""Finds outliers of a cluster in the measurements of a calibration: GPUs, nodes or links that are
slower than the others. Pure functions.

GPU     its rate is below the median of the others by `SLOWER` and by `DEVIATIONS` robust standard deviations (1.4826 median absolute deviations)
node    all of its GPUs are outliers
link    the exchange between two nodes takes `LINK_TIMES` the median of all pairs; if that holds for all links of a node, the node is reported instead

With only two nodes, the two directions of their link are compared with each other.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from statistics import median
from typing import Any

SLOWER, DEVIATIONS, LINK_TIMES = 0.10, 4.0, 2.0
"""minimum fraction by which a GPU is slower (10%, the usual limit in acceptance tests of large
clusters), in standard deviations of the others, and minimum ratio for a link"""
ALONE = 0.25
"""the fraction if there are only two GPUs, because the spread of the other one is unknown"""


@dataclass(frozen=True, slots=True, kw_only=True)
class OutOfLine:
    """A GPU, node or link that is slower than the others."""

    kind: str
    """gpu, node or link"""
    name: str
    """`rank 3 (node a)`, `node a`, `a to b`"""
    node: str
    """its node; for a link, the sending node"""
    what: str
    """matmul, memory, or exchange"""
    times: float
    """ratio by which it is slower than the others"""

    @property
    def text(self) -> str:
        """A sentence about the outlier."""
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
    """Find outliers. `rates`: by quantity (matmul, memory) and rank, higher is faster; `nodes`: by
    rank; `exchanges_s`: seconds to send the same message, by (sending node, receiving node)."""
    outliers: list[OutOfLine] = []
    names = set(nodes.values())
    for quantity, by_rank in rates.items():
        slow = _slow_ranks(by_rank)
        slow_nodes = names - {nodes[r] for r in by_rank if r not in slow}
        if len(names) == 1:
            slow_nodes = set()
        for node in sorted(slow_nodes):
            times = median(slow[r] for r in by_rank if nodes[r] == node)
            outliers.append(
                OutOfLine(kind="node", name=f"node {node}", node=node, what=quantity, times=times)
            )
        outliers += [
            OutOfLine(
                kind="gpu",
                name=f"rank {r} (node {nodes[r]})",
                node=nodes[r],
                what=quantity,
                times=times,
            )
            for r, times in sorted(slow.items())
            if nodes[r] not in slow_nodes
        ]
    return (*outliers, *_links(exchanges_s))


def _slow_ranks(by_rank: Mapping[int, float]) -> dict[int, float]:
    """Return the outlier ranks, with the ratio by which each is slower."""
    if len(by_rank) < 2:
        return {}
    slow = {}
    for rank, rate in by_rank.items():
        others = [other for r, other in by_rank.items() if r != rank]
        usual = median(others)
        spread = 1.4826 * median(abs(other - usual) for other in others)
        threshold = SLOWER if len(others) > 1 else ALONE
        if rate < (1 - threshold) * usual and usual - rate > DEVIATIONS * spread:
            slow[rank] = usual / rate
    return slow


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
    slow_nodes = {}
    for node in nodes:
        touching = [exchanges_s[pair] for pair in pairs if node in pair]
        others = [exchanges_s[pair] for pair in pairs if node not in pair]
        if others and min(touching) >= LINK_TIMES * median(others):
            slow_nodes[node] = median(touching) / median(others)
    of_nodes = [
        OutOfLine(kind="node", name=f"node {node}", node=node, what="exchange", times=times)
        for node, times in slow_nodes.items()
    ]
    of_pairs = [
        _link(pair, seconds / usual)
        for pair, seconds in sorted(exchanges_s.items())
        if seconds >= LINK_TIMES * usual and not set(pair) & set(slow_nodes)
    ]
    return [*of_nodes, *of_pairs]


def _link(pair: tuple[str, str], times: float) -> OutOfLine:
    return OutOfLine(
        kind="link", name=f"{pair[0]} to {pair[1]}", node=pair[0], what="exchange", times=times
    )


def of_readings(readings: Sequence[Mapping[str, Any]]) -> tuple[OutOfLine, ...]:
    """Find outliers in the readings of a calibration, one per rank: {"rank", "node", "rates":
    {quantity: rate}, "exchanges_s": {receiving node: seconds}}."""
    rates: dict[str, dict[int, float]] = {}
    nodes: dict[int, str] = {}
    exchanges_s: dict[tuple[str, str], float] = {}
    for reading in readings:
        rank = int(reading["rank"])
        nodes[rank] = str(reading["node"])
        for what, rate in reading["rates"].items():
            rates.setdefault(what, {})[rank] = float(rate)
        for receiver, seconds in reading["exchanges_s"].items():
            exchanges_s[nodes[rank], receiver] = float(seconds)
    return out_of_line(rates, nodes, exchanges_s)
