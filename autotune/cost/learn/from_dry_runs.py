"""Correct the memory formulas with dry runs: some configs of a space were dry-run, and the
formulas' values for the others are multiplied by factors fitted to those.

    y_i     allocated bytes at the highest peak of any rank of config i, from its dry run
    x_ik    bytes of part k of config i from the formulas: states, activations, logits, buffers; in addition activations, states and a fixed size for each
            property that configs share (`COMMON`)
    theta_k factor of part k; prior mean 1 (0 for shared properties), prior standard deviation from `PARTS` and `SHARED_SPREAD`

    sum_k theta_k x_ik / y_i = 1 + e_i,  e_i of standard deviation s         (Bayesian linear regression: Bishop 2006, section 3.3)
    spread of a config that was not run:  sqrt(x' V x / y^2 + s^2)           V: covariance of theta

A config's spread is large if the runs do not determine its factors; a dry run of the config with
the largest spread adds the most information. Configs that were dry-run have the peak of their run.
reserved = allocated * (1 + fragmentation) + framework: fragmentation and the memory of the
framework are constants of the trainer and GPU type.

The FLOPs of matrix products are corrected by one factor: those of the dry run divided by those of
the formulas. Attention, traffic and memory-bound work are not corrected. Neglected: the peak may be
at another moment of the step than in the formulas; e includes that.

Only the native trainer is corrected, because a dry run executes its loop. Other trainers keep
weights, gradients and buffers differently.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import final

import numpy as np
from numpy.typing import NDArray

from autotune.cost.calibration import Calibration
from autotune.cost.layout import Column, head_flops, layer_matmul_flops, layout_of
from autotune.cost.learn.dry_runs import ConfigDryRun, enough_steps
from autotune.cost.memory.constants import reserved_sigma
from autotune.cost.memory.peak import RankMemory
from autotune.cost.time.recompute import repeated
from autotune.cost.traits import traits_of
from autotune.spec import KNOBS, ConfigTable, MemoryParts, Workload

DRY_RUN_TRAINER = "native"
"""the trainer whose training loop a dry run executes"""
OWN_ERROR = 0.01
"""minimum standard deviation of e"""
PARTS: Mapping[str, float] = {
    "weights": 0.1,
    "gradients": 0.2,
    "optimizer": 0.1,
    "activations": 0.5,
    "logits": 0.5,
    "buffers": 1.0,
}
"""parts of the formulas: prior standard deviation of the factor, whose prior mean is 1"""
MODES = KNOBS["recompute"].values
COMMON = ("all", "tp", "pp", "zero1", "sharded", "zero2", "once", "once sharded", *MODES)
"""properties that configs share: tensor or pipeline parallelism, ZeRO 1, sharded weights, ZeRO 2,
steps of one micro-batch (with sharded weights), a recomputation mode"""
SHARED_SPREAD = 0.3
"""prior standard deviation of the factors of shared properties, whose prior mean is 0: on
activations, on states, and on a tenth of the median config's memory"""


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Corrected:
    """Memory of every row, corrected by dry runs."""

    memory: RankMemory
    sigma: Column
    """standard deviation of ln peak memory"""


def corrected_memory(
    workload: Workload,
    table: ConfigTable,
    constants: Calibration,
    formulas: Callable[[ConfigTable], RankMemory],
) -> Corrected | None:
    """Return the memory of every row; None without dry runs of the workload. `formulas`: computes
    the uncorrected memory of configs of the workload."""
    runs = constants.dry_runs
    if runs is None or not runs.points or workload.trainer != DRY_RUN_TRAINER:
        return None
    known = ConfigTable.of([point.config for point in runs.points])
    predicted = formulas(table)
    allocated, spread = _corrected_allocation(
        known, formulas(known), table, predicted, constants, runs.points
    )
    states = {
        name: np.array(getattr(predicted.parts, name), dtype=float)
        for name in ("weights", "gradients", "optimizer")
    }
    for point, rows in zip(runs.points, _matching_rows(known, table), strict=True):
        held, spread[rows] = point.parts_bytes, 0.0
        more = table.accumulation_steps[rows] / point.config.accumulation_steps - 1.0
        allocated[rows] = point.allocated_bytes + more * held["inputs"]
        states["weights"][rows] = held["parameters"] + held["buffers"]
        states["gradients"][rows], states["optimizer"][rows] = held["gradients"], held["optimizer"]
    most = np.minimum(1.0, allocated / sum(states.values()))
    states = {name: value * most for name, value in states.items()}
    loose = constants.fragmentation * allocated
    parts = MemoryParts(
        **states,
        activations=allocated - sum(states.values()),
        logits=np.zeros_like(allocated),
        framework=constants.framework_bytes + loose,
    )
    sigma = np.hypot(spread, reserved_sigma(workload.cluster.gpu.name, workload.trainer))
    return Corrected(memory=RankMemory(parts=parts, spare=loose), sigma=sigma)


def _corrected_allocation(
    known: ConfigTable,
    predicted_for_known: RankMemory,
    table: ConfigTable,
    predicted: RankMemory,
    constants: Calibration,
    points: tuple[ConfigDryRun, ...],
) -> tuple[Column, Column]:
    """Fit the factors; return the allocated bytes of every row and the standard deviation of their
    ln."""
    run = np.array([point.allocated_bytes for point in points])
    there, here = _parts(known, predicted_for_known, constants), _parts(table, predicted, constants)
    states = there["weights"] + there["gradients"] + there["optimizer"]
    # this model may keep far more or less than a decoder of its size, so the prior of the factors is
    # centered on the median ratio
    kept = np.maximum(there["activations"] + there["logits"], 1.0)
    multiple = float(np.median(np.maximum(run - states, 0.02 * run) / kept))
    fixed = 0.1 * float(np.median(run))
    x, x_here = _columns(known, there, multiple, fixed), _columns(table, here, multiple, fixed)
    rest = x.shape[1] - len(PARTS)
    prior = np.array([*[1.0] * len(PARTS), *[0.0] * rest])
    sd = np.array([*PARTS.values(), *[SHARED_SPREAD] * rest])
    scaled, residuals = x / run[:, None], 1.0 - x @ prior / run
    noise = OWN_ERROR
    for _ in range(3):  # s depends on the residuals, and the factors depend on s
        cov = np.linalg.inv(np.diag(sd**-2.0) + scaled.T @ scaled / noise**2)
        theta = prior + cov @ scaled.T @ residuals / noise**2
        left = 1.0 - scaled @ theta
        used = float(np.trace(scaled @ cov @ scaled.T)) / noise**2
        noise = max(OWN_ERROR, float(np.sqrt(left @ left / max(len(run) - used, 1.0))))
    least = 0.1 * (here["weights"] + here["optimizer"])
    allocated = np.maximum(x_here @ theta, least)
    spread = np.sqrt(np.einsum("nk,kl,nl->n", x_here, cov, x_here)) / allocated
    return allocated, np.minimum(np.hypot(spread, noise), 1.0)


def _parts(table: ConfigTable, predicted: RankMemory, constants: Calibration) -> dict[str, Column]:
    """Return the allocated bytes of every part of `PARTS` from the formulas, shape (N,) each."""
    names = [name for name in PARTS if name != "buffers"]
    parts = {
        name: np.broadcast_to(getattr(predicted.parts, name), len(table)).astype(float)
        for name in names
    }
    loose = constants.framework_bytes + np.broadcast_to(predicted.spare, len(table))
    return parts | {"buffers": np.maximum(predicted.parts.framework - loose, 0.0)}


def _columns(
    table: ConfigTable, parts: Mapping[str, Column], multiple: float, fixed: float
) -> NDArray[np.float64]:
    """Return x, shape (N, K): the parts, then activations, states and a fixed size for each shared
    property."""
    kept, logits = multiple * parts["activations"], multiple * parts["logits"]
    own = {**parts, "activations": kept, "logits": logits}
    is_in = {
        "all": np.ones(len(table)),
        "tp": table.tp > 1,
        "pp": table.pp > 1,
        "once": table.accumulation_steps == 1,
    }
    is_in |= {
        "zero1": table.zero_stage == 1,
        "sharded": table.zero_stage >= 2,
        "zero2": table.zero_stage == 2,
    }
    is_in |= {"once sharded": is_in["once"] & is_in["sharded"]}
    is_in |= {mode: table.is_word("recompute", mode) for mode in MODES}
    of = (kept + logits, parts["weights"] + parts["gradients"], np.full(len(table), fixed))
    shared = [np.where(is_in[name], size, 0.0) for size in of for name in COMMON]
    return np.stack([*(own[name] for name in PARTS), *shared], axis=1)


def _matching_rows(known: ConfigTable, table: ConfigTable) -> list[NDArray[np.intp]]:
    """Return for each dry-run config the indices of the rows with the same peak."""
    names = [name for name in KNOBS if name != "accumulation_steps"]
    columns = np.stack(
        [enough_steps(table), *(np.asarray(table.column(name)) for name in names)], axis=1
    )
    wanted = np.stack(
        [known.accumulation_steps, *(np.asarray(known.column(name)) for name in names)], axis=1
    )
    return [np.flatnonzero((columns == row).all(axis=1)) for row in wanted]


def product_factor(workload: Workload, constants: Calibration) -> float:
    """Return the FLOPs of matrix products in dry runs divided by those of the formulas: the median
    of runs of whole models, or 1 if there are none."""
    runs = constants.dry_runs
    if runs is None or workload.trainer != DRY_RUN_TRAINER or workload.peft is not None:
        return 1.0
    points = [point for point in runs.points if point.product_flops]
    if not points:
        return 1.0
    model, traits = workload.model, traits_of(workload.trainer)
    table = ConfigTable.of([point.config for point in points])
    layout = layout_of(workload, table)
    again = repeated(model, table, layout, traits, float(workload.seq_len))
    layers = (3.0 + again.matmuls) * model.num_layers * layer_matmul_flops(model)
    predicted = layout.tokens / layout.tp * (layers + 3.0 * head_flops(model))
    return float(np.median([point.product_flops for point in points] / predicted))
