"""One rank of a job, watched: the native training is built and runs two optimizer steps, on fake
tensors or on real ones.

It is the training that a real trial runs. A dry run differs from it in three places: the tokens
(zeros of the right shape), the process group, and the answers to questions about values
(`fake_answers`).

Kernels that a GPU has and a CPU has not, where they keep other tensors than what a CPU runs in
their place.

attention   under a causal bias: flash or memory-efficient attention, where a CPU would make the mask as a tensor
RMS norm    one kernel that keeps its input and one statistic per row (`aten::_fused_rms_norm`, torch >= 2.9); a CPU runs products and means one after the
            other and keeps the normalized rows too. Layer norm's kernel, which both have, stands in: it keeps one statistic per row more

Libraries run their ordinary code on fake tensors, as they would on real ones.

transformers    takes a fake tensor for a sign that a graph is traced, and then makes attention masks that training does not make
torch.nn.init   draws truncated normal numbers until none lies outside, which a dry run cannot see: one draw is enough there

A timeline of at most some hundred samples, which keeps the shape of the curve: of each stretch its
highest and its lowest sample.
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
    """A block on CPU tensors that keeps what a GPU would keep."""
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
    """A block for a model that code outside of autotune builds; transformers is imported only
    then."""
    if find_spec("transformers") is None:
        yield
        return
    from transformers.utils import import_utils

    with torch_patches.replaced(import_utils, "is_fake_tensor", lambda *_: False):
        yield


STRETCHES = 200
"""into which a step is cut"""


def thinned(
    samples: Sequence[MemorySample], stretches: int = STRETCHES
) -> tuple[MemorySample, ...]:
    """The first and the last sample, and two of each stretch, in order."""
    if len(samples) <= 2 * stretches:
        return tuple(samples)
    kept = {0, len(samples) - 1}
    for stretch in range(stretches):
        places = range(
            stretch * len(samples) // stretches, (stretch + 1) * len(samples) // stretches
        )
        kept |= {
            max(places, key=lambda i: samples[i].total_bytes),
            min(places, key=lambda i: samples[i].total_bytes),
        }
    return tuple(samples[i] for i in sorted(kept))


STEPS = 2
"""the first has no optimizer state before its end"""
AXES = ("tp", "pp", "cp", "ep", "expert_data", "dp_cp")
"""mesh axes in the order in which a group takes its name, where several are the same; parts of the
last two come before them"""
VERSIONS = ("torch", "transformers", "peft")
"""packages that decide a result"""


class FakeTokens:
    """Sequences of zeros, made like any tensor: fake ones in a dry run."""

    def __init__(self, seq_len: int) -> None:
        self._seq_len = seq_len

    def sequences(self, indices: NDArray[np.int64]) -> Tensor:
        """See `SequenceSource`."""
        return torch.zeros((len(indices), self._seq_len + 1), dtype=torch.int64)


def first_rank_of_stage(config: ParallelConfig, pp_rank: int) -> int:
    """Global rank of the first rank of a pipeline stage: the pipeline axis is the slowest of the
    mesh."""
    return pp_rank * (config.world_size // config.pp)


def dry_run(
    request: TrialRequest,
    *,
    rank: int,
    notes: Sequence[str] = (),
    watched: Callable[[RankWatch], None] | None = None,
) -> DryRun:
    """Two steps of that rank on fake tensors, in this process. Raises whatever the model's code
    raises.

    `notes`: stand among its guesses.  `watched`: is told what watches, before anything is built.
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
            run = watched_run(request, context, mesh, watch, know_inputs=answers.know_inputs)
    return replace(run, guesses=(*notes, *answers.guesses))


def watched_run(
    request: TrialRequest,
    context: RankContext,
    mesh: Mesh,
    watch: RankWatch,
    *,
    know_inputs: Callable[[Iterable[Any]], None] = lambda _: None,
) -> DryRun:
    """Two steps of this rank. On real tensors, all ranks of the job must do this together.

    `know_inputs`: is told the leaves of each batch.
    """
    began_s = time.perf_counter()
    with watch.watching(), _one_thread():
        training = Training(
            request, context, mesh=mesh, stream=FakeTokens(request.workload.seq_len)
        )
        watch.know_model(training.stages, training.updated)
        for step in range(STEPS):
            watch.begin_step(step)
            batch = training.batch(step)
            inputs = pytree.tree_leaves(batch)
            for tensor in inputs:
                watch.memory.mark(tensor, "inputs")
            watch.memory.mark_rest("inputs")
            know_inputs(inputs)
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
        collectives=watch.collectives.told(watch.axes),
        took_s=took_s,
        process_peak_bytes=status_bytes("VmHWM")
        or 0,  # ru_maxrss would count the process that started this one
        versions={name: metadata.version(name) for name in VERSIONS if name in sys.modules},
    )


def axis_names(mesh: Mesh) -> dict[tuple[int, ...], str]:
    """The mesh axis of each group of ranks; of several with the same ranks the first of `AXES`."""
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
    """Each once, also where two modules share it."""
    return list({id(p): p for stage in stages for p in stage.parameters()}.values())


def _modules(
    stages: Sequence[nn.Module], watch: RankWatch, micro_batches: int
) -> tuple[ModuleCost, ...]:
    """All modules of the rank; the outermost ones of several stages count as one."""
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
