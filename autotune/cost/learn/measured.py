"""Compute constants of the cost model from measurements of a cluster, as fractions of the datasheet
values in its `ClusterSpec`.

    matmul       rate r of an m x n x k product    1/r = (1 + half_size * (1/m + 1/n + 1/k)) / (peak * efficiency)
                                                   a straight line in 1/m + 1/n + 1/k
    collectives  time t of S bytes                 t = latency + moved / (bandwidth * efficiency)
                                                   a straight line in the moved bytes, (n-1)/n * S per pass of a ring of n ranks

Both lines are fitted by Theil-Sen (the median of all pairwise slopes; Sen 1968), which is robust to
a disturbed measurement.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from itertools import combinations
from typing import Any

import numpy as np

from autotune.errors import SpecError
from autotune.spec import ClusterSpec, LinkSpec
from autotune.spec.checks import nearest, one_of, positive, positive_int

KEYS = ("matmul", "memory_bytes_per_s", "collectives", "host_overhead_s", "concurrency")
NOTES = ("gpu", "memory_bytes", "versions", "date", "out_of_line", "nodes")
"""keys that describe the measurement, from which no constant is computed"""
_ROUNDS = {"all_reduce": 2.0, "all_gather": 1.0, "reduce_scatter": 1.0}
"""ring passes of each collective"""


def measured_constants(
    measured: Mapping[str, Any], cluster: ClusterSpec, *, half_size: float, full_speed_ranks: float
) -> dict[str, float]:
    """Return the values of the `Calibration` constants that the measurements determine, by name.

    `half_size` and `full_speed_ranks` are used where the measurements do not determine them.
    `Calibration.from_measurements` lists the keys of `measured`. Raises `SpecError` for other keys
    and for values that are not positive numbers.
    """
    if not isinstance(measured, Mapping):
        raise SpecError(f"measurements must be a mapping of keys to values, but are {measured!r}")
    for key in measured:
        if key not in KEYS + NOTES:
            raise SpecError(
                f"a calibration does not measure {key!r}", remedy=nearest(key, KEYS), field=str(key)
            )
    values: dict[str, float] = {}
    values.update(_matmul(_rows(measured, "matmul"), cluster, half_size))
    if measured.get("memory_bytes_per_s") is not None:
        rate = positive("memory_bytes_per_s", measured["memory_bytes_per_s"])
        values["memory_efficiency"] = rate / cluster.gpu.memory_bytes_per_s
    if measured.get("host_overhead_s") is not None:
        values["layer_host_s"] = positive("host_overhead_s", measured["host_overhead_s"], zero=True)
    concurrency = _rows(measured, "concurrency")
    if concurrency:
        values["full_speed_ranks"] = _full_speed_ranks(concurrency, cluster.cores_per_node)
    full_speed_ranks = values.get("full_speed_ranks", full_speed_ranks)
    values.update(_links(_rows(measured, "collectives"), cluster, full_speed_ranks))
    return values


def _rows(measured: Mapping[str, Any], key: str) -> Sequence[Mapping[str, Any]]:
    rows = measured.get(key) or ()
    if not isinstance(rows, Iterable) or isinstance(rows, str | Mapping):
        raise SpecError(f"{key} must be a list, but is {rows!r}", field=key)
    listed = list(rows)
    for row in listed:
        if not isinstance(row, Mapping):
            raise SpecError(f"{key} must contain objects, but contains {row!r}", field=key)
    return listed


def _number(row: Mapping[str, Any], name: str) -> float:
    if name not in row:
        raise SpecError(f"a measurement lacks {name}: {dict(row)}", field=name)
    return positive(name, row[name])


def _matmul(
    rows: Sequence[Mapping[str, Any]], cluster: ClusterSpec, half_size: float
) -> dict[str, float]:
    """Return `matmul_efficiency`, `half_size` and `half_factor`. The first two come from a line
    through the precision with the most shapes, with its intercept at infinite size. `half_factor`
    is the median ratio over the shapes measured in both precisions. If larger products are not
    faster, as on a GPU at its power limit, the efficiency is that of the median product, not of the
    fastest, because a training step runs large products without a pause."""
    if not rows:
        return {}
    by_precision: dict[str, dict[tuple[float, ...], float]] = {}
    for row in rows:
        precision = one_of("precision", row.get("precision"), cluster.gpu.peak_flops_per_s)
        shape = tuple(_number(row, side) for side in ("m", "n", "k"))
        seconds_per_flop = cluster.gpu.peak_flops_per_s[precision] / _number(row, "flops_per_s")
        by_precision.setdefault(precision, {})[shape] = seconds_per_flop
    reference, shapes = max(by_precision.items(), key=lambda item: len(item[1]))
    half = next((by_precision[p] for p in ("bf16", "fp16") if p in by_precision), {})
    if reference in ("bf16", "fp16") or not half.keys() & shapes.keys():
        factor = 1.0
    else:
        factor = float(
            np.median([shapes[shape] / half[shape] for shape in half.keys() & shapes.keys()])
        )
    points = [(sum(1.0 / side for side in shape), seconds) for shape, seconds in shapes.items()]
    slope, intercept = _line(points)
    fastest = min(y for _, y in points)
    # limit extrapolation to twice the rate of the fastest shape
    intercept = (
        min(max(intercept, 0.5 * fastest), fastest)
        if slope > 0
        else float(np.median([seconds for _, seconds in points]))
    )
    return {
        "matmul_efficiency": 1.0 / intercept,
        "half_factor": factor,
        "half_size": max(slope, 0.0) / intercept if len(points) > 1 else half_size,
    }


def _links(
    rows: Sequence[Mapping[str, Any]], cluster: ClusterSpec, full_speed_ranks: float
) -> dict[str, float]:
    """Return the achieved fractions of the links' bandwidths and the latencies, from one line per
    number of ranks through the collectives inside a node and through those between nodes."""
    by_ranks: dict[str, dict[int, list[tuple[float, float]]]] = {"intra": {}, "inter": {}}
    for row in rows:
        scope = one_of("scope", row.get("scope"), by_ranks)
        rounds = _ROUNDS[one_of("kind", row.get("kind"), _ROUNDS)]
        ranks = positive_int("ranks", row.get("ranks"), least=2)
        point = ((ranks - 1) / ranks * _number(row, "bytes"), _number(row, "time_s") / rounds)
        by_ranks[scope].setdefault(ranks, []).append(point)
    values: dict[str, float] = {}
    for scope, groups in by_ranks.items():
        if not groups:
            continue
        link: LinkSpec = cluster.intra_node if scope == "intra" else cluster.inter_node
        lines = {ranks: _line(points) for ranks, points in groups.items()}
        slopes = [slope for slope, _ in lines.values() if slope > 0]
        if slopes:
            slope = float(np.median(slopes))
        else:  # a single size: count all of its time as bandwidth
            slope, lines = min(y / x for points in groups.values() for x, y in points), {}
        values[f"{scope}_efficiency"] = 1.0 / (slope * link.bytes_per_s)
        latencies = {ranks: intercept for ranks, (_, intercept) in lines.items() if intercept > 0}
        if scope == "intra":
            values.update(_latencies_inside(latencies, link.latency_s, full_speed_ranks))
        elif latencies:
            hops = [
                max(s - link.latency_s, 0.0) / max(2.0, n / cluster.domain_gpus)
                for n, s in latencies.items()
            ]
            values["hop_s"] = float(np.median(hops))
    return values


def _latencies_inside(
    latencies: Mapping[int, float], link_s: float, full_speed_ranks: float
) -> dict[str, float]:
    """Return `latency_factor` from groups whose ranks all have a core, and `turn_s`, the additional
    wait for a core, from larger groups; empty without latencies."""
    full = full_speed_ranks or max(latencies, default=0)
    alone = [s / math.log2(n) for n, s in latencies.items() if n <= max(full, min(latencies))]
    if not alone or link_s <= 0:
        return {}
    doubling = float(np.median(alone))
    waits = [
        (s - doubling * math.log2(n)) / ((n - 1) * (n / full - 1))
        for n, s in latencies.items()
        if n > full
    ]
    turns = {"turn_s": max(float(np.median(waits)), 0.0)} if waits else {}
    return {"latency_factor": doubling / link_s, **turns}


def _full_speed_ranks(rows: Sequence[Mapping[str, Any]], cores: int | None) -> float:
    """Return the highest total rate of all ranks in units of a single rank's rate, limited to the
    number of cores; 0 if all measured ranks run at full speed."""
    rates = {positive_int("ranks", row.get("ranks")): _number(row, "flops_per_s") for row in rows}
    alone = rates[min(rates)]
    saturated = max(ranks * rate / alone for ranks, rate in rates.items())
    if cores is not None:
        saturated = min(saturated, float(cores))
    return 0.0 if saturated >= 0.9 * max(rates) else max(1.0, saturated)


def _line(points: Sequence[tuple[float, float]]) -> tuple[float, float]:
    """Return (slope, intercept) by Theil-Sen; (0, median of y) if all points have the same x."""
    pairs = combinations(points, 2)
    slopes = [(b[1] - a[1]) / (b[0] - a[0]) for a, b in pairs if a[0] != b[0]]
    slope = float(np.median(slopes)) if slopes else 0.0
    return slope, float(np.median([y - slope * x for x, y in points]))
