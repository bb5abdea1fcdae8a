"""Formulas corrected by dry runs: some configs of a space were run dry, and what the formulas say
of the others is multiplied by factors that fit those.

    y_i     bytes that tensors hold at the peak of the fullest rank of config i, by its dry run
    x_ik    what the formulas say of config i, by part k: states, activations, logits, buffers; and once more activations, states and a fixed size for what
            configs have in common (`COMMON`)
    theta_k factor of part k, before any run 1 (of what configs have in common: 0), give or take `SPREAD`

    sum_k theta_k x_ik / y_i = 1 + e_i,  e_i of standard deviation s         (Bayesian linear regression: Bishop 2006, section 3.3)
    spread of a config that was not run:  sqrt(x' V x / y^2 + s^2)           V: covariance of theta

So a config is as uncertain as what no run has pinned, and the widest one tells most when it is run
(`widest`). Configs that were run have the peak of their run. reserved = allocated * (1 +
fragmentation) + framework: what an allocator reserves beyond tensors and what the framework takes
are constants of the trainer and GPU type.

The work of matrix products is corrected by one factor: FLOPs of the products that ran over those of
the formulas. Attention, traffic and what is bound by memory stay with the formulas. Neglected: that
the peak may be at another moment of the step than the formulas think; that is part of e.

Only the native trainer is corrected: its loop is what a dry run runs. Others keep weights,
gradients and buffers in ways of their own.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import final

import numpy as np
from numpy.typing import NDArray

from autotune.cost.calibration import Calibration
from autotune.cost.layout import Column, head_flops, layer_matmul_flops, layout_of
from autotune.cost.learn.dry_runs import RunDry, enough_steps
from autotune.cost.memory.constants import reserved_sigma
from autotune.cost.memory.peak import RankMemory
from autotune.cost.time.recompute import repeated
from autotune.cost.traits import traits_of
from autotune.spec import KNOBS, ConfigTable, MemoryParts, Workload

PLAYED_TRAINERS = ("native",)
"""trainers whose own code is what a dry run runs"""
OWN_ERROR = 0.01
"""least standard deviation of e"""
PARTS: Mapping[str, float] = {
    "weights": 0.1,
    "gradients": 0.2,
    "optimizer": 0.1,
    "activations": 0.5,
    "logits": 0.5,
    "buffers": 1.0,
}
"""parts of the formulas: standard deviation of the factor, which is 1 before any run"""
MODES = KNOBS["recompute"].values
COMMON = ("all", "tp", "pp", "zero1", "sharded", "zero2", "once", "once sharded", *MODES)
"""what configs have in common: tensor or pipeline parallelism, ZeRO 1, sharded weights, ZeRO 2,
steps of one micro-batch (with sharded weights), a mode of recomputation"""
SHARED_SPREAD = 0.3
"""standard deviation of the factors of what configs have in common, which are 0 before any run: on
activations, on states, and on a tenth of the median config's memory"""


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Corrected:
    """The memory of every row by dry runs."""

    memory: RankMemory
    sigma: Column
    """standard deviation of the log of the peak"""


def corrected_memory(
    workload: Workload,
    table: ConfigTable,
    constants: Calibration,
    formulas: Callable[[ConfigTable], RankMemory],
) -> Corrected | None:
    """The memory of every row; None where no dry run tells of it. `formulas`: the memory of other
    configs of the workload by the formulas."""
    runs = constants.dry_runs
    if runs is None or not runs.points or workload.trainer not in PLAYED_TRAINERS:
        return None
    known = ConfigTable.of([point.config for point in runs.points])
    said = formulas(table)
    allocated, spread = _fitted(known, formulas(known), table, said, constants, runs.points)
    states = {
        name: np.array(getattr(said.parts, name), dtype=float)
        for name in ("weights", "gradients", "optimizer")
    }
    for point, rows in zip(runs.points, _places(known, table), strict=True):
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


def _fitted(
    known: ConfigTable,
    said_of_known: RankMemory,
    table: ConfigTable,
    said: RankMemory,
    constants: Calibration,
    points: tuple[RunDry, ...],
) -> tuple[Column, Column]:
    """Allocated bytes of every row, and the standard deviation of their log."""
    run = np.array([point.allocated_bytes for point in points])
    there, here = _parts(known, said_of_known, constants), _parts(table, said, constants)
    states = there["weights"] + there["gradients"] + there["optimizer"]
    # what a decoder of like size keeps may be far from what this model keeps, so factors are about
    # its usual multiple
    kept = np.maximum(there["activations"] + there["logits"], 1.0)
    multiple = float(np.median(np.maximum(run - states, 0.02 * run) / kept))
    fixed = 0.1 * float(np.median(run))
    x, x_here = _columns(known, there, multiple, fixed), _columns(table, here, multiple, fixed)
    rest = x.shape[1] - len(PARTS)
    prior = np.array([*[1.0] * len(PARTS), *[0.0] * rest])
    sd = np.array([*PARTS.values(), *[SHARED_SPREAD] * rest])
    scaled, residuals = x / run[:, None], 1.0 - x @ prior / run
    noise = OWN_ERROR
    for _ in range(3):  # s follows from what is left, and the factors from s
        cov = np.linalg.inv(np.diag(sd**-2.0) + scaled.T @ scaled / noise**2)
        theta = prior + cov @ scaled.T @ residuals / noise**2
        left = 1.0 - scaled @ theta
        used = float(np.trace(scaled @ cov @ scaled.T)) / noise**2
        noise = max(OWN_ERROR, float(np.sqrt(left @ left / max(len(run) - used, 1.0))))
    least = 0.1 * (here["weights"] + here["optimizer"])
    allocated = np.maximum(x_here @ theta, least)
    spread = np.sqrt(np.einsum("nk,kl,nl->n", x_here, cov, x_here)) / allocated
    return allocated, np.minimum(np.hypot(spread, noise), 1.0)


def _parts(table: ConfigTable, said: RankMemory, constants: Calibration) -> dict[str, Column]:
    """What tensors hold, by the formulas."""
    names = [name for name in PARTS if name != "buffers"]
    parts = {
        name: np.broadcast_to(getattr(said.parts, name), len(table)).astype(float) for name in names
    }
    loose = constants.framework_bytes + np.broadcast_to(said.spare, len(table))
    return parts | {"buffers": np.maximum(said.parts.framework - loose, 0.0)}


def _columns(
    table: ConfigTable, parts: Mapping[str, Column], multiple: float, fixed: float
) -> NDArray[np.float64]:
    """x: the parts, then activations, states and a fixed size by what configs have in common."""
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


def _places(known: ConfigTable, table: ConfigTable) -> list[NDArray[np.intp]]:
    """The rows whose peak is that of each config that was run."""
    names = [name for name in KNOBS if name != "accumulation_steps"]
    columns = np.stack(
        [enough_steps(table), *(np.asarray(table.column(name)) for name in names)], axis=1
    )
    wanted = np.stack(
        [known.accumulation_steps, *(np.asarray(known.column(name)) for name in names)], axis=1
    )
    return [np.flatnonzero((columns == row).all(axis=1)) for row in wanted]


def product_factor(workload: Workload, constants: Calibration) -> float:
    """FLOPs of matrix products that ran over those of the formulas, by the median of the whole
    models that were run; 1 where none was."""
    runs = constants.dry_runs
    if runs is None or workload.trainer not in PLAYED_TRAINERS or workload.peft is not None:
        return 1.0
    points = [point for point in runs.points if point.product_flops]
    if not points:
        return 1.0
    model, traits = workload.model, traits_of(workload.trainer)
    table = ConfigTable.of([point.config for point in points])
    layout = layout_of(workload, table)
    again = repeated(model, table, layout, traits, float(workload.seq_len))
    layers = (3.0 + again.matmuls) * model.num_layers * layer_matmul_flops(model)
    said = layout.tokens / layout.tp * (layers + 3.0 * head_flops(model))
    return float(np.median([point.product_flops for point in points] / said))
