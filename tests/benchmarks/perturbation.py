"""Constants of the cost model by kind, and a wrong cost model made from a right one.

The benchmarks use it to replay searchers against a wrong cost model, and to draw the simulated
worlds in which the policy is trained.
"""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np

from autotune.cost import Calibration
from autotune.cost.calibration import NUMBERS

PHYSICAL = tuple(n for n in NUMBERS if not n.endswith("_sigma") and n != "level")
"""names of the constants that describe the hardware and the trainer"""
FRACTIONS = tuple(
    n
    for n in NUMBERS
    if n.endswith("_efficiency")
    or n in ("data_overlap", "dispatch_overlap", "usable_fraction", "fp8_factor", "rails")
)
"""names of the constants that are fractions"""
SOFTWARE = (
    "layer_host_s",
    "micro_batch_host_s",
    "step_host_s",
    "pipelined_tensor_host_s",
    "send_host_s",
    "data_overlap",
    "dispatch_overlap",
    "expert_host_s",
    "expert_imbalance",
    "score_bytes",
    "activation_factor",
    "waiting_in_layer",
    "waiting_at_head",
    "buffer_bytes",
    "framework_bytes",
    "usable_fraction",
)
"""names of the constants that belong to the trainer; the other physical ones belong to the
hardware"""


def perturbed(constants: Calibration, rng: np.random.Generator, scale: float) -> Calibration:
    """The constants with errors: each multiplied by exp(scale * standard normal), fractions kept at
    most 1."""
    moved = {
        name: getattr(constants, name)
        * math.exp(min(max(scale * float(rng.standard_normal()), -20.0), 20.0))
        for name in PHYSICAL
    }
    for name in FRACTIONS:
        moved[name] = min(moved[name], max(1.0, getattr(constants, name)))
    return replace(constants, **moved, source=f"{constants.source}, perturbed by {scale:g}")
