"""What a dry run of one rank says: the memory, work and traffic of two optimizer steps that were run without data and without a GPU.

Bytes are those that the allocator hands out to tensors (`allocated`), on this rank. What an allocator reserves beyond them, and the GPU's own
context, are not part of a dry run.

Steps are counted from 0. The first step has no optimizer state before its end, so the peak of a training is that of step 1.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from autotune.spec.plain import Plain

Phase = Literal["build", "forward", "backward", "optimizer"]
"""the part of a run in which something happens; recomputation is part of the backward pass"""

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
"""parameters: shards or copies that the rank keeps.  activations: made in a forward pass and alive after their module ended.
temporaries: all else that an operation made.  communication: gathered weights and buffers of collectives.  inputs: micro-batches and targets"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Moment:
    """A place in the run."""

    step: int
    """optimizer step, from 0"""
    phase: Phase
    """of that step"""
    micro_batch: int
    """of that step, from 0; -1 where no micro-batch is under way"""
    module: str
    """name of the innermost module of the model that runs; empty outside of it"""


@dataclass(frozen=True, slots=True, kw_only=True)
class MemorySample:
    """The bytes allocated at one moment."""

    moment: Moment
    """when"""
    parts_bytes: Mapping[str, int]
    """by `MEMORY_CATEGORIES`"""

    @property
    def total_bytes(self) -> int:
        """Of all categories."""
        return sum(self.parts_bytes.values())


@dataclass(frozen=True, slots=True, kw_only=True)
class ModuleCost:
    """What one module of the model (without its children) adds."""

    name: str
    """its name in the model"""
    kind: str
    """name of its class"""
    parameter_bytes: int
    """of what the rank keeps of its weights"""
    saved_bytes: int
    """that one micro-batch leaves for the backward pass"""
    at_peak_bytes: int
    """that it made and that are alive at the peak of the rank, of all categories"""
    forward_flops: int
    """of one micro-batch"""
    backward_flops: int
    """of one micro-batch, with what is recomputed"""


@dataclass(frozen=True, slots=True, kw_only=True)
class MatrixProduct:
    """A shape of matmul, m x k by k x n, and how often it runs."""

    m: int
    n: int
    k: int
    dtype: str
    """of its operands, as torch names it: bfloat16"""
    count: int
    """in one micro-batch, forward and backward"""


@dataclass(frozen=True, slots=True, kw_only=True)
class CollectiveCall:
    """Collectives of one kind over one group, of one size, in one phase."""

    kind: str
    """all_reduce, all_gather, reduce_scatter, all_to_all, broadcast, send, recv"""
    axis: str
    """mesh axis of the group (tp, pp, dp_cp, ...), or `ranks` where the group is none of them"""
    ranks: tuple[int, ...]
    """of the group, in its order"""
    num_bytes: int
    """of one call: what a rank contributes to an all_reduce, reduce_scatter, all_to_all, broadcast or send, and receives of an all_gather or recv"""
    phase: Phase
    """in which it is called"""
    count: int
    """calls in one optimizer step"""


@dataclass(frozen=True, slots=True, kw_only=True)
class DryRun(Plain):
    """One rank of a job, dry-run."""

    rank: int
    """global rank that was dry-run"""
    pp_rank: int
    """its place in the pipeline"""
    world_size: int
    """ranks of the job"""
    num_parameters: int
    """of the whole model"""
    rank_parameters: int
    """elements that this rank keeps"""
    peak: MemorySample
    """the fullest moment of the second step"""
    phase_peaks: tuple[MemorySample, ...]
    """the fullest moment of each phase of each step, in order"""
    timeline: tuple[MemorySample, ...]
    """the second step (first: the moment before it), thinned to at most some hundred samples that keep every local peak"""
    modules: tuple[ModuleCost, ...]
    """in the order of the model"""
    flops: int
    """of one micro-batch, forward and backward, including recomputation"""
    products: tuple[MatrixProduct, ...]
    """the matmuls of one micro-batch"""
    collectives: tuple[CollectiveCall, ...]
    """of the second step"""
    guesses: tuple[str, ...] = ()
    """what depends on the model's data and had to be assumed by the run (balanced routing, values), in words"""
    took_s: float = 0.0
    """wall time of the run"""
    process_peak_bytes: int = 0
    """resident memory of the process of the dry run"""
    versions: Mapping[str, str] = field(default_factory=dict)
    """versions of torch, transformers and other packages that affect the result"""
