"""Measurements of the cluster at hand, turned into constants: fractions of the figures that its `ClusterSpec` states.

    matmul       rate r of m x n x k:      1/r = (1 + half_size * (1/m + 1/n + 1/k)) / (peak * efficiency), a line in the sum of inverses
    collectives  time t of S bytes:        t = latency + moved / (bandwidth * efficiency), a line in the moved bytes

Both are fitted by Theil-Sen (the median of slopes, Sen 1968), which a single disturbed measurement does not move.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from autotune.cost.calibration import Calibration, known_constants
from autotune.errors import SpecError
from autotune.spec import ClusterSpec, LinkSpec
from autotune.spec.checks import nearest, one_of, positive, positive_int

KEYS = ("matmul", "memory_bytes_per_s", "collectives", "host_overhead_s", "concurrency")
NOTES = ("gpu", "memory_bytes", "versions", "date")
"""what a calibrator may say about its measurement beside: kept by those who keep them, no constants"""
_ROUNDS = {"all_reduce": 2.0, "all_gather": 1.0, "reduce_scatter": 1.0}
"""ring passes of each collective"""


def constants_of(measured: Mapping[str, Any], *, cluster: ClusterSpec, trainer: str) -> Calibration:
    """`Calibration.from_measurements`."""
    for key in measured:
        if key not in KEYS + NOTES:
            raise SpecError(f"a calibration measures nothing called {key!r}", remedy=nearest(key, KEYS), field=str(key))
    constants = known_constants(cluster.gpu.name, trainer)
    values: dict[str, Any] = {}
    values.update(_matmul(_rows(measured, "matmul"), cluster, constants))
    if measured.get("memory_bytes_per_s") is not None:
        rate = positive("memory_bytes_per_s", measured["memory_bytes_per_s"])
        values["memory_efficiency"] = rate / cluster.gpu.memory_bytes_per_s
    collectives = _rows(measured, "collectives")
    values.update(_links(collectives, cluster))
    if measured.get("host_overhead_s") is not None:
        values["layer_host_s"] = positive("host_overhead_s", measured["host_overhead_s"], zero=True)
    concurrency = _rows(measured, "concurrency")
    if concurrency:
        values["full_speed_ranks"] = _full_speed_ranks(concurrency)
    what = ", ".join(key for key in KEYS if measured.get(key))
    return replace(
        constants, **values, source=f"measured on {cluster.name} ({what or 'nothing'}); the rest: {constants.source}"
    )


def _rows(measured: Mapping[str, Any], key: str) -> Sequence[Mapping[str, Any]]:
    rows = measured.get(key) or ()
    if not isinstance(rows, Iterable) or isinstance(rows, str | Mapping):
        raise SpecError(f"{key} must be a list, but is {rows!r}", field=key)
    listed = list(rows)
    for row in listed:
        if not isinstance(row, Mapping):
            raise SpecError(f"{key} must hold objects, but holds {row!r}", field=key)
    return listed


def _number(row: Mapping[str, Any], name: str) -> float:
    if name not in row:
        raise SpecError(f"a measurement lacks {name}: {dict(row)}", field=name)
    return positive(name, row[name])


def _matmul(rows: Sequence[Mapping[str, Any]], cluster: ClusterSpec, constants: Calibration) -> dict[str, float]:
    """Efficiency and half size from the precision that was measured most; the intercept is where the sum of inverses vanishes."""
    if not rows:
        return {}
    by_precision: dict[str, list[tuple[float, float]]] = {}
    for row in rows:
        precision = one_of("precision", row.get("precision"), cluster.gpu.peak_flops_per_s)
        inverses = sum(1.0 / _number(row, side) for side in ("m", "n", "k"))
        seconds_per_flop = cluster.gpu.peak_flops_per_s[precision] / _number(row, "flops_per_s")
        by_precision.setdefault(precision, []).append((inverses, seconds_per_flop))
    points = max(by_precision.values(), key=len)
    slope, intercept = _line(points)
    fastest = min(y for _, y in points)
    intercept = min(
        max(intercept, 0.5 * fastest), fastest
    )  # beyond the largest shape measured, trust at most twice its rate
    return {
        "matmul_efficiency": 1.0 / intercept,
        "half_size": max(slope, 0.0) / intercept if len(points) > 1 else constants.half_size,
    }


def _links(rows: Sequence[Mapping[str, Any]], cluster: ClusterSpec) -> dict[str, float]:
    """Fractions of the links' bandwidths, and the latencies, from collectives inside a node and between nodes."""
    values: dict[str, float] = {}
    for scope in ("intra", "inter"):
        points = []
        members = []
        for row in rows:
            if one_of("scope", row.get("scope"), ("intra", "inter")) != scope:
                continue
            rounds = _ROUNDS[one_of("kind", row.get("kind"), _ROUNDS)]
            ranks = positive_int("ranks", row.get("ranks"), least=2)
            moved = (ranks - 1) / ranks * _number(row, "bytes")
            points.append((moved, _number(row, "time_s") / rounds))
            members.append(ranks)
        if not points:
            continue
        slope, intercept = _line(points)
        if len({x for x, _ in points}) == 1 or slope <= 0:
            slope, intercept = min(y / x for x, y in points), 0.0
        link: LinkSpec = cluster.intra_node if scope == "intra" else cluster.inter_node
        values[f"{scope}_efficiency"] = 1.0 / (slope * link.bytes_per_s)
        typical = float(np.median(members))
        if scope == "intra" and intercept > 0 and link.latency_s > 0:
            values["latency_factor"] = intercept / (link.latency_s * math.log2(typical))
        elif scope == "inter" and intercept > 0:
            nodes = max(2.0, typical / cluster.gpus_per_node)
            values["hop_s"] = max(intercept - link.latency_s, 0.0) / nodes
    return values


def _full_speed_ranks(rows: Sequence[Mapping[str, Any]]) -> float:
    """The largest sum of the ranks' rates, in units of one rank's rate alone."""
    rates = {positive_int("ranks", row.get("ranks")): _number(row, "flops_per_s") for row in rows}
    alone = rates[min(rates)]
    saturated = max(ranks * rate / alone for ranks, rate in rates.items())
    return 0.0 if saturated >= 0.9 * max(rates) else max(1.0, saturated)


def _line(points: Sequence[tuple[float, float]]) -> tuple[float, float]:
    """(slope, intercept) by Theil-Sen; (0, the median) when all points share one abscissa."""
    slopes = [(b[1] - a[1]) / (b[0] - a[0]) for i, a in enumerate(points) for b in points[i + 1 :] if a[0] != b[0]]
    slope = float(np.median(slopes)) if slopes else 0.0
    return slope, float(np.median([y - slope * x for x, y in points]))
