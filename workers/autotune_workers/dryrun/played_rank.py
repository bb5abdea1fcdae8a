"""Builds the native training of one rank and runs two optimizer steps under observation, on fake
tensors or on real ones.

The training code is the one that real trials run. A dry run differs in three things: the tokens
(zeros of the right shape), the process group, and operations that need values (`fake_answers`).

Where kernels of GPUs save other tensors than those of CPUs, the CPU imitates them:

attention   with a causal bias: flash or memory-efficient attention; the CPU would materialize the mask
RMS norm    one kernel that saves its input and one statistic per row (`aten::_fused_rms_norm`, torch >= 2.9); the CPU would save the normalized rows too.
            It is replaced by layer norm, which has one kernel on both and saves one more statistic per row

Libraries must run the same code on fake tensors as on real ones:

transformers    treats a fake tensor as a sign of graph tracing, and then builds attention masks that training does not build
torch.nn.init   redraws truncated normal numbers until all are within bounds, which needs values; here it draws once
"""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from importlib import metadata
from importlib.util import find_spec
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor, nn

from autotune.ports import TrialRequest
from autotune.spec import DryRun, GpuSpec, MemorySample, ModuleCost, ParallelConfig
from autotune_workers.dryrun import torch_patches, torch_private
from autotune_workers.dryrun.fake_answers import FakeAnswers
from autotune_workers.dryrun.rank_watch import RankWatch
from autotune_workers.process.machine import status_bytes
from autotune_workers.training.parallel.gradient_sync import local
from autotune_workers.training.parallel.mesh import Mesh, RankContext, build_mesh
from autotune_workers.training.step import Training
from autotune_workers.training.torch_internals import pytree


@contextlib.contextmanager
def kernels_of_gpus() -> Iterator[None]:
    """Within the block, operations on CPU tensors save for the backward pass what a GPU would
    save."""
    has_fused_norm = hasattr(torch.ops.aten, "_fused_rms_norm_backward")
    norm = (
        torch_patches.replaced(F, "rms_norm", _rms_norm)
        if has_fused_norm
        else contextlib.nullcontext()
    )
    with torch_patches.attention_of_gpus(), norm:
        yield


def _rms_norm(
    original: Any,
    input: Tensor,  # noqa: A002 - torch's name
    normalized_shape: Sequence[int],
    weight: Tensor | None = None,
    eps: float | None = None,
) -> Tensor:
    if weight is not None and weight.dtype != input.dtype:  # torch has no fused kernel for this
        return original(input, normalized_shape, weight, eps)
    return F.layer_norm(
        input, list(normalized_shape), weight, None, eps or torch.finfo(input.dtype).eps
    )


@contextlib.contextmanager
def _no_tracing() -> Iterator[None]:
    """Within the block, transformers does not treat fake tensors as a sign of tracing. Imports
    transformers if it is installed, so use it only for users' models."""
    if find_spec("transformers") is None:
        yield
        return
    from transformers.utils import import_utils

    with torch_patches.replaced(import_utils, "is_fake_tensor", lambda *_: False):
        yield


STRETCHES = 200
"""number of parts of a step's timeline in `thinned`"""


def thinned(
    samples: Sequence[MemorySample], stretches: int = STRETCHES
) -> tuple[MemorySample, ...]:
    """At most 2 * stretches + 2 samples that preserve the shape of the curve: the first and the
    last, and the highest and the lowest of each part."""
    if len(samples) <= 2 * stretches:
        return tuple(samples)
    kept = {0, len(samples) - 1}
    for stretch in range(stretches):
        part = range(stretch * len(samples) // stretches, (stretch + 1) * len(samples) // stretches)
        kept |= {
            max(part, key=lambda i: samples[i].total_bytes),
            min(part, key=lambda i: samples[i].total_bytes),
        }
    return tuple(samples[i] for i in sorted(kept))


STEPS = 2
"""two, because the optimizer state exists only after the first"""
AXES = ("tp", "pp", "cp", "ep", "expert_data", "dp_cp")
"""mesh axes by priority: if several have the same ranks, their group is named after the first;
parts of the last two have priority over them"""
VERSIONS = ("torch", "transformers", "peft")
"""packages that influence results; their versions are recorded"""


class FakeTokens:
    """Sequences of zeros; fake tensors in a dry run."""

    def __init__(self, seq_len: int) -> None:
        self._seq_len = seq_len

    def sequences(self, indices: NDArray[np.int64]) -> Tensor:
        """See `SequenceSource`."""
        return torch.zeros((len(indices), self._seq_len + 1), dtype=torch.int64)


def first_rank_of_stage(config: ParallelConfig, pp_rank: int) -> int:
    """Global rank of the first rank of a pipeline stage. The pipeline is the slowest axis of the
    mesh."""
    return pp_rank * (config.world_size // config.pp)


def dry_run(
    request: TrialRequest,
    *,
    rank: int,
    notes: Sequence[str] = (),
    watched: Callable[[RankWatch], None] | None = None,
) -> DryRun:
    """Runs two steps of that rank on fake tensors, in this process. Raises whatever the model's
    code raises.

    `notes`: added to the guesses of the result. `watched`: called with the observer before anything
    is built.
    """
    context = RankContext(
        rank=rank, world_size=request.config.world_size, device=torch.device("cpu")
    )
    with torch_private.fake_process_group(rank, context.world_size):
        mesh = build_mesh(request.config, context)
        answers = FakeAnswers(lambda: watch.position.place)
        watch = RankWatch(axis_names(mesh), answers)
        if watched is not None:
            watched(watch)
        workload = request.workload
        with (
            torch_private.fake_tensors(),
            torch_patches.shards_of_one_rank(),
            torch_patches.held_messages(),
            _kernels_of(workload.cluster.gpu),
            torch_patches.single_draws(),
            _no_tracing() if workload.model.code is not None else contextlib.nullcontext(),
        ):
            run = watched_run(request, context, mesh, watch, mark_inputs=answers.mark_inputs)
    return replace(run, guesses=(*notes, *answers.guesses))


def watched_run(
    request: TrialRequest,
    context: RankContext,
    mesh: Mesh,
    watch: RankWatch,
    *,
    mark_inputs: Callable[[Iterable[Any]], None] = lambda _: None,
) -> DryRun:
    """Runs two steps of this rank under observation. With real tensors it is collective over all
    ranks of the job.

    `mark_inputs`: called with the tensors of each batch.
    """
    began_s = time.perf_counter()
    with watch.watching(), _one_thread():
        training = Training(
            request, context, mesh=mesh, stream=FakeTokens(request.workload.seq_len)
        )
        watch.mark_model(training.stages, training.updated)
        for step in range(STEPS):
            watch.begin_step(step)
            batch = training.batch(step)
            inputs = pytree.tree_leaves(batch)
            for tensor in inputs:
                watch.memory.mark(tensor, "inputs")
            watch.memory.mark_rest("inputs")
            mark_inputs(inputs)
            training.step(*batch)
            del batch
        watch.memory.settle()
    return _result(request, context, mesh, watch, training.stages, time.perf_counter() - began_s)


def _result(
    request: TrialRequest,
    context: RankContext,
    mesh: Mesh,
    watch: RankWatch,
    stages: Sequence[nn.Module],
    took_s: float,
) -> DryRun:
    peaks, micro_batches = watch.memory.phase_peaks, request.config.accumulation_steps
    flops = sum(
        count for (_, phase), count in watch.work.flops.items() if phase in ("forward", "backward")
    )
    return DryRun(
        rank=context.rank,
        pp_rank=mesh.pp,
        world_size=context.world_size,
        num_parameters=request.workload.model.num_parameters,
        rank_parameters=sum(local(p).numel() for p in _parameters(stages)),
        peak=max(
            (s for (step, _), s in peaks.items() if step == STEPS - 1), key=lambda s: s.total_bytes
        ),
        phase_peaks=tuple(peaks.values()),
        timeline=thinned(watch.memory.timeline),
        modules=_modules(stages, watch, micro_batches),
        flops=flops // micro_batches,
        products=watch.work.products(micro_batches),
        collectives=watch.collectives.as_calls(watch.axes),
        took_s=took_s,
        # not ru_maxrss, which includes the parent process before exec
        process_peak_bytes=status_bytes("VmHWM") or 0,
        versions={name: metadata.version(name) for name in VERSIONS if name in sys.modules},
    )


def axis_names(mesh: Mesh) -> dict[tuple[int, ...], str]:
    """Names of the mesh axes by the ranks of their group; of axes with the same ranks, the first in
    the order of `AXES`."""
    parts = [name for name in mesh.axes if name not in AXES and name not in ("dp",)]
    names: dict[tuple[int, ...], str] = {}
    for name in (*AXES[:4], *parts, *AXES[4:]):
        if name in mesh.axes and mesh.axes[name].size() > 1:
            names.setdefault(tuple(mesh.axes[name].mesh.flatten().tolist()), name)
    return names


def _kernels_of(gpu: GpuSpec) -> contextlib.AbstractContextManager[None]:
    return contextlib.nullcontext() if gpu.is_cpu else kernels_of_gpus()


@contextlib.contextmanager
def _one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def _parameters(stages: Sequence[nn.Module]) -> list[Tensor]:
    """All parameters; those shared by several modules once."""
    return list({id(p): p for stage in stages for p in stage.parameters()}.values())


def _modules(
    stages: Sequence[nn.Module], watch: RankWatch, micro_batches: int
) -> tuple[ModuleCost, ...]:
    """Costs of all modules of the rank. The outermost modules of several stages are merged, as they
    have the same (empty) name."""
    flops, at_peak = watch.work.flops, watch.memory.step_peak_modules
    modules = {name: module for stage in stages for name, module in stage.named_modules()}
    return tuple(
        ModuleCost(
            name=name,
            kind=type(module).__name__,
            parameter_bytes=sum(local(p).nbytes for p in module.parameters(recurse=False)),
            saved_bytes=watch.saved_bytes.get(name, 0),
            at_peak_bytes=at_peak.get(name, 0),
            forward_flops=flops[name, "forward"] // micro_batches,
            backward_flops=flops[name, "backward"] // micro_batches,
        )
        for name, module in modules.items()
    )
