"""Bounds: no matmul of a trainer is faster than the fastest that was ever measured on the GPU (`GpuSpec.measured_flops_per_s`).

    matmul_efficiency               <= measured / peak in bf16
    matmul_efficiency * fp8_factor  <= measured / peak in fp8

Below its rated power (`GpuSpec.clock`) matmuls and attention are slower by the clock that is left, and the bounds lower; memory keeps its clock.

A GPU type that no trainer was measured on reaches the same share of its best matmul as the others do of theirs: datasheets differ in how far their peaks
can be reached at all (bf16: 87% on A100, 51% on MI300X).
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from autotune.spec import GpuSpec

if TYPE_CHECKING:
    from autotune.cost.calibration import Calibration


def ceiling(gpu: GpuSpec, precision: str) -> float:
    """The fastest matmul ever measured in a precision, as a fraction of the datasheet's peak; 1 where none is known."""
    peak = gpu.peak_flops_per_s.get(precision)
    return float(gpu.ceiling_flops_per_s(precision) / peak) if peak else 1.0


def bounded(constants: Calibration, gpu: GpuSpec, *, share: float | None = None) -> Calibration:
    """The constants within the bounds of a GPU; `share`: of its best matmul that trainers reach, for a type that nothing was fitted on."""
    plain, eight = ceiling(gpu, "bf16"), ceiling(gpu, "fp8")
    efficiency = min(constants.matmul_efficiency, plain)
    if share is not None and "bf16" in gpu.measured_flops_per_s:
        efficiency = share * plain
    factor = min(constants.fp8_factor, eight / efficiency)
    return replace(
        constants,
        matmul_efficiency=efficiency * gpu.clock,
        attention_efficiency=constants.attention_efficiency * gpu.clock,
        attention_limit=constants.attention_limit * gpu.clock,
        fp8_factor=factor,
    )
