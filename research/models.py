"""The cost model that a replayed searcher is given: honest, shipped, wrong (differently in each
cell, or alike for all cells of a trainer) or useless."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from zlib import crc32

import numpy as np
from scipy.special import ndtr

from autotune.cost import Calibration, calibration_for, estimate
from autotune.space import SearchSpace
from autotune.spec import Estimate
from research.constants_document import TIME
from research.held_out import by_model, held_out
from research.time_fit import pairs
from tests.benchmarks.perturbation import PHYSICAL, perturbed

MODELS = ("held_out", "shipped", "wrong", "wrong_alike", "useless")
MEMORY_CONSTANTS = tuple(
    n for n in PHYSICAL if n.endswith("_bytes") or n in ("activation_factor", "usable_fraction")
)
"""Constants that are left alone when time is made wrong; memory is scaled as a whole."""

HELD_OUT = tuple(n for n in TIME if not n.endswith("_sigma"))
"""Constants that are fitted without a model; error bars are those that ship, which are the spread
of held-out errors, and so is memory."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Prediction:
    """An estimate of all configs, and the constants behind it."""

    estimate: Estimate
    calibration: Calibration


def prediction(
    space: SearchSpace, model: str, seed: int, held_out: Calibration | None
) -> Prediction:
    """The estimate of all configs of a cell, by one of `MODELS`; `held_out` None means that nothing
    was fitted on its model."""
    apart = len(space) if model != "wrong_alike" else crc32(space.workload.trainer.encode())
    rng = np.random.default_rng([seed, apart])
    shipped = calibration_for(space.workload)
    constants = shipped
    if model != "shipped" and held_out is not None:
        constants = replace(shipped, **{n: getattr(held_out, n) for n in HELD_OUT})
    if model.startswith("wrong"):
        constants = replace(
            perturbed(constants, rng, math.log(2.0)),
            **{n: getattr(constants, n) for n in MEMORY_CONSTANTS},
        )
    predicted = estimate(space.workload, space.table, calibration=constants)
    if model.startswith("wrong"):
        predicted = _with_memory(predicted, rng.choice([0.75, 1.25]), space, constants)
    if model == "useless":
        predicted = predicted.take(rng.permutation(len(space)))
    return Prediction(estimate=predicted, calibration=constants)


def held_out_constants() -> dict[tuple[str, str], Calibration]:
    """Constants by (model, trainer), each fitted on the published sweeps without any row of that
    model; takes some seconds."""
    sweeps = ("nanotron", "megatron")
    return {
        (block.workload.model.name, block.workload.trainer): constants
        for pair in pairs()
        if pair.name.endswith(sweeps)
        for block, constants in held_out(pair, by_model)
    }


def _with_memory(
    predicted: Estimate, factor: float, space: SearchSpace, constants: Calibration
) -> Estimate:
    parts = predicted.memory_parts_bytes
    scaled = type(parts)(
        **{n: getattr(parts, n) * factor for n in type(parts).__dataclass_fields__}
    )
    limit = space.workload.cluster.gpu.memory_bytes * constants.usable_fraction
    z = np.log(scaled.total / limit) / constants.memory_sigma
    return replace(
        predicted,
        peak_memory_bytes=scaled.total,
        peak_memory_low_bytes=predicted.peak_memory_low_bytes * factor,
        peak_memory_high_bytes=predicted.peak_memory_high_bytes * factor,
        memory_parts_bytes=scaled,
        oom_probability=ndtr(z),
    )
