"""Work and traffic from a profile, in place of the formulas, for the configs that it composes.

    t tensor-parallel ranks    N rows of a table    rows with the same degree, micro-batch and recomputation do the same work per layer

A profile has the shapes of all matrix products and the bytes of all collectives. What they take is what the constants of the GPU type and trainer say, by
the same formulas: the rate of a matrix product by its shape (`compute.py`), the time of a ring by its bytes (`collectives.py`). What is bound
by memory, and what the host takes, is not in a profile and stays with the formulas.

Products in fp32 beside a training in 16 bits run at the rate of fp32. An expert's products are slower by the constants of grouped products.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, final

import numpy as np
from numpy.typing import NDArray

from autotune.cost.calibration import Calibration
from autotune.cost.compute import (
    padded_head,
    peak_flops_per_s,
    peak_of,
    reached_factor,
    sixteen_bits_factor,
    sixteen_bits_peak,
)
from autotune.cost.layout import Column
from autotune.cost.profiled_memory import PROFILED_TRAINERS
from autotune.spec import ConfigTable, ParallelConfig, Workload

if TYPE_CHECKING:
    from autotune.cost.profile import Profile
    from autotune.cost.profile_work import SegmentWork

Sizes = tuple[float, float, float]
"""(b, s, t)"""
RINGS = {"all_reduce": 2.0, "all_gather": 1.0, "reduce_scatter": 1.0}
"""passes of a ring that a collective takes"""


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class ProfiledWork:
    """Of every row; only where `known`. Times are of one micro-batch, forward and backward, with what is recomputed."""

    known: NDArray[np.bool_]
    """whether the profile composes the row"""
    products_s: Column
    """matrix products of one layer"""
    scores_s: Column
    """attention of one layer"""
    rings: Column
    """rings of tensor parallelism in one layer"""
    ring_bytes: Column
    """bytes of their whole tensors, together"""
    first_s: Column
    """products and attention before the layers"""
    first_rings: Column
    """rings there"""
    first_ring_bytes: Column
    """their bytes"""
    last_s: Column
    """products and attention behind the layers"""
    last_rings: Column
    """rings there, with those of the loss"""
    last_ring_bytes: Column
    """their bytes"""
    layer_weights: Column
    """trained weights of one layer"""
    first_weights: Column
    """trained weights before the layers"""
    last_weights: Column
    """trained weights behind the layers"""


def profiled_work(workload: Workload, table: ConfigTable, constants: Calibration) -> ProfiledWork | None:
    """The work of every row by the profile of these constants; None where there is none that answers."""
    profile = constants.profile
    if profile is None or workload.trainer not in PROFILED_TRAINERS or not len(table):
        return None
    names = ("tp", "micro_batch_size", "recompute", *profile.fixed)
    alike = np.stack([table.zero_stage >= 2, *(np.asarray(table.column(name)) for name in names)], axis=1)
    _, examples, place = np.unique(alike.astype(np.int64), axis=0, return_index=True, return_inverse=True)
    found = [_of_group(profile, workload, table[int(row)], constants) for row in examples]
    columns = {
        f.name: np.array([0.0 if group is None else group[f.name] for group in found])[place.reshape(-1)]
        for f in fields(ProfiledWork)
        if f.name != "known"
    }
    known = np.array([group is not None for group in found], dtype=np.bool_)[place.reshape(-1)]
    return ProfiledWork(known=known, **columns) if known.any() else None


def _of_group(
    profile: Profile, workload: Workload, config: ParallelConfig, constants: Calibration
) -> Mapping[str, float] | None:
    """The columns of rows that do the same work; None where the profile does not compose them."""
    from autotune.cost.profile_runs import kind_of  # many modules, and few models have a profile
    from autotune.cost.profile_weights import RankShapes

    if profile.why_no_work(config):
        return None
    work = profile.work[kind_of(config.zero_stage, config.tp)]
    sizes = (float(config.micro_batch_size), workload.seq_len / config.cp, float(config.tp))
    table = ConfigTable.of([config])
    inside = _Rates(workload, table, constants, outside=False)
    outside = _Rates(workload, table, constants, outside=True)
    layer = work.layers[config.recompute]
    weights = RankShapes.of(profile.weights, config.tp, 1, is_first=True, is_last=True)
    rings, ring_bytes = _rings(layer, sizes)
    first_rings, first_ring_bytes = _rings(work.first, sizes)
    last_rings, last_ring_bytes = _rings(work.last, sizes)
    return {
        "products_s": inside.products_s(layer, sizes),
        "scores_s": inside.scores_s(layer, sizes),
        "rings": rings,
        "ring_bytes": ring_bytes,
        "first_s": outside.products_s(work.first, sizes) + outside.scores_s(work.first, sizes),
        "first_rings": first_rings,
        "first_ring_bytes": first_ring_bytes,
        "last_s": outside.products_s(work.last, sizes) + outside.scores_s(work.last, sizes),
        "last_rings": last_rings,
        "last_ring_bytes": last_ring_bytes,
        "layer_weights": float(sum(w.numel for w in weights.layer)),
        "first_weights": float(sum(w.numel for w in weights.first)),
        "last_weights": float(sum(w.numel for w in weights.last)),
    }


@final
class _Rates:
    """FLOP/s of products and attention of one config."""

    def __init__(self, workload: Workload, table: ConfigTable, constants: Calibration, *, outside: bool) -> None:
        """`table`: of the config alone. `outside` of the layers, products stay in 16 bits where those of the layers are in 8."""
        peak, half = float(peak_flops_per_s(workload, table)[0]), sixteen_bits_peak(workload)
        in_half = min(peak, half) * float(sixteen_bits_factor(table, constants)[0])
        reached = in_half if outside else peak * float(reached_factor(table, constants)[0])
        self._constants = constants
        self._product = reached * constants.matmul_efficiency
        self._in_fp32 = min(peak_of(workload, "fp32") * constants.matmul_efficiency, self._product)
        self._attention = in_half * constants.attention_efficiency / padded_head(workload.model)

    def products_s(self, work: SegmentWork, sizes: Sizes) -> float:
        """Of all matrix products."""
        constants, seconds = self._constants, 0.0
        for one, count in work.operations.items():
            if not one.is_product:
                continue
            m, n, k, _ = (max(size.at(*sizes), 1.0) for size in one.sizes)
            rate = self._in_fp32 if one.dtype == "float32" else self._product
            slower = constants.expert_imbalance / constants.grouped_efficiency if one.is_of_an_expert else 1.0
            shape = 1.0 + constants.half_size * (1.0 / m + 1.0 / n + 1.0 / k)
            seconds += count * one.flops.at(*sizes) * slower * shape / rate
        return seconds

    def scores_s(self, work: SegmentWork, sizes: Sizes) -> float:
        """Of attention, without the scores that a mask hides."""
        attention = ((one, count) for one, count in work.operations.items() if not one.is_product)
        return sum(count * one.flops.at(*sizes) * (1.0 - one.hidden) for one, count in attention) / self._attention


def _rings(work: SegmentWork, sizes: Sizes) -> tuple[float, float]:
    """Rings of tensor parallelism, and the bytes of their whole tensors."""
    rings = whole = 0.0
    for one, count in work.collectives.items():
        if one.axis == "tp":
            passes = count * RINGS.get(one.kind, 1.0)
            rings, whole = rings + passes, whole + passes * one.num_bytes.at(*sizes)
    return rings, whole
