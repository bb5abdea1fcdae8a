"""The result of a dry run of one rank: the memory, work and traffic of two optimizer steps that
were run without data and without a GPU.

Bytes are the memory that the allocator gives to tensors (`allocated`) on this rank. The memory that
an allocator reserves beyond the tensors, and the GPU's own context, are not part of a dry run.

Steps are counted from 0. The first step has no optimizer state before its end, so the peak of a
training run is the peak in step 1.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from autotune.spec.plain import Plain

Phase = Literal["build", "forward", "backward", "optimizer"]
"""the phases of a step; recomputation is part of the backward pass"""

MEMORY_CATEGORIES = (
    "parameters",
    "buffers",
    "gradients",
    "optimizer",
    "activations",
    "temporaries",
    "communication",
    "inputs",
)
"""parameters: shards or copies on the rank; activations: created in a forward pass and alive after
their module has ended; communication: gathered weights and buffers for collectives; inputs:
micro-batches and targets; temporaries: all other results of operations"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Moment:
    """A point in time in the run."""

    step: int
    """optimizer step, from 0"""
    phase: Phase
    """phase of that step"""
    micro_batch: int
    """number of the micro-batch within the step, from 0; -1 outside micro-batches"""
    module: str
    """name of the innermost running module of the model; empty outside the model"""


@dataclass(frozen=True, slots=True, kw_only=True)
class MemorySample:
    """Bytes allocated at a given moment."""

    moment: Moment
    """time of the sample"""
    parts_bytes: Mapping[str, int]
    """bytes by category, one of `MEMORY_CATEGORIES`"""

    @property
    def total_bytes(self) -> int:
        """Bytes in all categories."""
        return sum(self.parts_bytes.values())


@dataclass(frozen=True, slots=True, kw_only=True)
class ModuleCost:
    """One module's contribution, without its children."""

    name: str
    """the module's name in the model"""
    kind: str
    """name of the module's class"""
    parameter_bytes: int
    """bytes of the module's weights on the rank"""
    saved_bytes: int
    """bytes that one micro-batch keeps for the backward pass"""
    at_peak_bytes: int
    """bytes in all categories that the module allocated and that are alive at the rank's peak"""
    forward_flops: int
    """FLOPs of one micro-batch"""
    backward_flops: int
    """FLOPs of one micro-batch, including recomputation"""


@dataclass(frozen=True, slots=True, kw_only=True)
class MatrixProduct:
    """A matmul shape, m x k by k x n, and how many times it runs."""

    m: int
    n: int
    k: int
    dtype: str
    """dtype of the operands, with torch's name: bfloat16"""
    count: int
    """number of times the matmul runs in one micro-batch, forward and backward"""


@dataclass(frozen=True, slots=True, kw_only=True)
class CollectiveCall:
    """Collectives of the same kind, group, size and phase."""

    kind: str
    """all_reduce, all_gather, reduce_scatter, all_to_all, broadcast, send, recv"""
    axis: str
    """mesh axis of the group (tp, pp, dp_cp, ...), or `ranks` for any other group"""
    ranks: tuple[int, ...]
    """ranks in the group, in order"""
    num_bytes: int
    """bytes per call: what a rank contributes to an all_reduce, reduce_scatter, all_to_all,
    broadcast or send, or receives from an all_gather or recv"""
    phase: Phase
    """phase in which the collective is called"""
    count: int
    """number of calls in one optimizer step"""


@dataclass(frozen=True, slots=True, kw_only=True)
class DryRun(Plain):
    """A dry run of one rank in a job."""

    rank: int
    """global number of the dry-run rank"""
    pp_rank: int
    """the rank's position in the pipeline"""
    world_size: int
    """number of ranks in the job"""
    num_parameters: int
    """number of parameters in the whole model"""
    rank_parameters: int
    """number of elements that this rank keeps"""
    peak: MemorySample
    """the moment of highest memory use in the second step"""
    phase_peaks: tuple[MemorySample, ...]
    """the sample with the highest memory use in each phase of each step, in order"""
    timeline: tuple[MemorySample, ...]
    """samples of the second step and of the moment before it, thinned to a few hundred samples that
    include every local peak"""
    modules: tuple[ModuleCost, ...]
    """modules, in the model's order"""
    flops: int
    """FLOPs of one micro-batch, forward and backward, including recomputation"""
    products: tuple[MatrixProduct, ...]
    """the matmuls of one micro-batch"""
    collectives: tuple[CollectiveCall, ...]
    """collectives in the second step"""
    guesses: tuple[str, ...] = ()
    """values that depend on the model's data and therefore had to be assumed (balanced routing,
    values of tensors), as text"""
    took_s: float = 0.0
    """wall time of the dry run"""
    process_peak_bytes: int = 0
    """resident memory of the dry run's process"""
    versions: Mapping[str, str] = field(default_factory=dict)
    """versions of torch, transformers and other packages that affect the result"""
