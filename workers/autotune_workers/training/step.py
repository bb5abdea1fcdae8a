"""The training of one rank: built once from a request, then stepped.

A step: forward and backward of all micro-batches (in a pipeline or one after the other), gradients
summed over ranks, all ranks agree on loss and gradient norm, clipping, optimizer.

Restrictions on requests are declared by the native trainer (`find_limits`) and by the constraints
of the space; this module adds only the checks that depend on the device of the rank.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.profiler import record_function

from autotune.errors import ConfigError
from autotune.ports import TrialRequest
from autotune.space.constraint import LAWS, why_not
from autotune.spec import ParallelConfig, Workload
from autotune.spec.post_training import RL_KNOBS
from autotune.trainers.native.trainer import TRAINER
from autotune_workers.probe.injected.phases import BACKWARD, COLLECTIVE, FORWARD, Phase, Phases
from autotune_workers.probe.injected.phases import OPTIMIZER as STEPPING
from autotune_workers.probe.injected.profile import OPTIMIZER
from autotune_workers.training.data import SequenceSource, rows_of
from autotune_workers.training.model.own_stage import OwnStage
from autotune_workers.training.optimizer import build_optimizer, clip, learning_rate
from autotune_workers.training.parallel.activation_checkpointing import check_compiler
from autotune_workers.training.parallel.fully_sharded import FullySharded, free_gathered
from autotune_workers.training.parallel.gradient_sync import local_gradient
from autotune_workers.training.parallel.mesh import Mesh, RankContext, build_mesh
from autotune_workers.training.parallel.pipeline_parallel import Pipeline, check_schedule
from autotune_workers.training.precision import (
    LossScaler,
    check_precision,
    first_loss_scale,
    matrix_products,
)
from autotune_workers.training.task import Task
from autotune_workers.training.tasks import DecoderTask, OwnTask
from autotune_workers.training.torch_internals import compile_or_fail, norms_of

SHARD_CONSTRAINTS = (
    *(
        "tp_heads",
        "tp_kv_heads",
        "tp_ffn",
        "sp_sequence",
        "cp_sequence",
        "cp_heads",
        "ep_experts",
        "ep_ranks",
    ),
    *(
        "replicas_divide",
        "replicas_shards",
        "pp_layers",
        "pp_schedule",
        "pp_virtual_stages",
        "pp_interleave",
    ),
)
"""constraints of the space on how work is divided among ranks. The others only keep equivalent
configs out of the space, which can be trained all the same"""
_LAWS = tuple(law for law in LAWS if law.name in SHARD_CONSTRAINTS)


def validate(request: TrialRequest, context: RankContext) -> None:
    """Raises `ConfigError` if the request violates limits of the trainer, constraints of the space,
    or needs what this rank's device lacks."""
    config, workload = request.config, request.workload
    if config.world_size != context.world_size:
        raise ConfigError(
            f"tp * pp * dp * cp must equal the number of ranks, but {config.world_size} != {context.world_size}"
        )
    if limits := TRAINER.limits(workload, _without_phases(workload, config)):
        raise ConfigError(
            "; ".join(map(str, limits)), field=limits[0].knob.removeprefix("workload.")
        )
    if reason := why_not(workload, config, _LAWS):
        raise ConfigError(reason)
    learning_rate(request)
    first_loss_scale(request)
    check_precision(config, workload.model, context.device)
    if config.compile:
        check_compiler(context.device)
    if config.pp > 1:
        check_schedule(config)
    most = workload.model.max_positions
    if most and workload.seq_len > most:
        raise ConfigError(
            f"seq_len must not exceed max_positions, but {workload.seq_len} > {most}",
            field="seq_len",
        )


def _without_phases(workload: Workload, config: ParallelConfig) -> ParallelConfig:
    """The config without the knobs of post-training, which `PostTraining` reads itself."""
    if workload.rl is None:
        return config
    return replace(
        config, extra={name: value for name, value in config.extra.items() if name not in RL_KNOBS}
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """The result of a step, the same on all ranks."""

    loss: float
    """mean over all tokens of the global batch, nats"""
    grad_norm: float
    """global norm before clipping"""
    finite: bool
    """whether loss and gradient norm are finite"""
    skipped: bool
    """whether the update was skipped because loss scaling caused an overflow"""
    part_square: float
    """squared norm of the mean gradient of `part_size` sequences, before clipping; NaN if it is not
    measured"""


class Training:
    """The model, data and optimizer of one rank."""

    def __init__(
        self,
        request: TrialRequest,
        context: RankContext,
        *,
        mesh: Mesh | None = None,
        stream: SequenceSource | None = None,
        task: Callable[[Mesh], Task] | None = None,
    ) -> None:
        """Builds model, data and optimizer; collective. Raises `ConfigError` before that if the
        config cannot be trained here.

        `mesh`, `stream`: used instead of the mesh built from the config and the tokens of the
        request's data; dry runs pass both. `task`: makes the task; default: sequences of one
        length.
        """
        validate(request, context)
        config = request.config
        self._config, self._device = config, context.device
        self._unequal = request.workload.rl is not None
        self.activation_budget = config.activation_budget / 100
        self._mesh = mesh or build_mesh(config, context)
        self._task = (
            make_task(request, self._mesh, context, stream) if task is None else task(self._mesh)
        )
        self._model = self._task.parallelize()
        context.progress.watch(self._mesh.counted_groups())
        for stage in self._model.stages.values():
            stage.register_forward_pre_hook(context.progress.begin_micro_batch)
        self._sync = self._model.sync
        self._scaler = LossScaler(config.precision, start=first_loss_scale(request))
        self._optimizer = build_optimizer(request, self._sync.shards)
        self._pipeline = self._build_pipeline() if config.pp > 1 else None
        self._first_square = torch.zeros((), dtype=torch.float64, device=context.device)
        self.phases = Phases()

    def _build_pipeline(self) -> Pipeline:
        return Pipeline(
            self._model.stages,
            self._config,
            group=self._mesh.group("pp"),
            device=self._device,
            task=self._task,
            loss=self._loss,
        )

    @property
    def stages(self) -> tuple[nn.Module, ...]:
        """The modules of this rank, one for each of its pipeline stages. Submodules have the same
        names as in the whole model."""
        return tuple(
            s.module if isinstance(s, OwnStage) else s for s in self._model.stages.values()
        )

    @property
    def updated(self) -> list[Tensor]:
        """The tensors that the optimizer updates."""
        return [shard.tensor for shard in self._sync.shards]

    def batch(self, step: int) -> tuple[Any, Any]:
        """Inputs and targets of this rank in a step: micro_batch_size * accumulation_steps
        sequences."""
        config = self._config
        rows = rows_of(
            step,
            dp=config.dp,
            dp_rank=self._mesh.dp,
            micro_batch_size=config.micro_batch_size,
            accumulation_steps=config.accumulation_steps,
        )
        return self._task.batch(rows)

    def step(self, inputs: Any, targets: Any) -> Outcome:
        """Runs one optimizer step; collective."""
        parts = [] if self._pipeline else self._micro_batches(inputs, targets)
        self._sync.expect(len(parts) or self._config.accumulation_steps)
        with self._computing():
            if self._pipeline is None:
                losses = self._accumulate(parts)
            else:
                with Phase(self.phases, BACKWARD):
                    losses = self._pipeline.step(inputs, targets)
        with Phase(self.phases, COLLECTIVE):
            self._sync.finish()
        loss = (
            torch.stack([x.detach() for x in losses]).sum()
            if losses
            else torch.zeros((), device=self._device)
        )
        loss_scale = self._scaler.scale
        with Phase(self.phases, COLLECTIVE):
            outcome = self._agree(loss)
        if not outcome.skipped and outcome.finite:
            with record_function(OPTIMIZER), Phase(self.phases, STEPPING):
                clip(
                    [s.tensor.grad for s in self._sync.shards],
                    norm=outcome.grad_norm,
                    loss_scale=loss_scale,
                )
                self._optimizer.step()
        with Phase(self.phases, COLLECTIVE):
            self._sync.publish()
        return outcome

    def forward(self, stage: nn.Module, inputs: Any, targets: Any) -> None:
        """Computes the log-probabilities of all micro-batches with `stage` and discards them;
        collective. Not for pipelines."""
        with self._computing(), torch.no_grad(), Phase(self.phases, FORWARD):
            for x, y in self._micro_batches(inputs, targets):
                self._task.loss(self._task.run(stage, x, y), y)
        free_gathered(stage)

    @contextmanager
    def _computing(self) -> Iterator[None]:
        compiled = (
            compile_or_fail(self.activation_budget) if self._config.compile else nullcontext()
        )
        with matrix_products(self._config.precision), compiled, warnings.catch_warnings():
            # logits are a view of a DTensor's local part, and are never modified
            warnings.filterwarnings("ignore", message="FSDP2-wrapped module .* returned a view")
            yield

    def _micro_batches(self, inputs: Any, targets: Any) -> list[tuple[Any, Any]]:
        size = self._config.micro_batch_size
        return [*zip(self._task.split(inputs, size), self._task.split(targets, size), strict=True)]

    def _accumulate(self, micro_batches: list[tuple[Any, Any]]) -> list[Tensor]:
        """Runs forward and backward passes; returns each micro-batch's share of the loss."""
        (stage,) = self._model.stages.values()
        losses = []
        for i, (x, y) in enumerate(micro_batches):
            if isinstance(self._sync, FullySharded):
                self._sync.micro_batch(i)
            with Phase(self.phases, FORWARD):
                loss = self._loss(self._task.run(stage, x, y), y)
            with Phase(self.phases, BACKWARD):
                loss.backward()
            losses.append(loss.detach())
            if i == 0 and self._measures_first_gradient:
                self._first_square = self._local_square()
        return losses

    def _loss(self, output: Any, targets: Any) -> Tensor:
        """The micro-batch's share of the global mean loss, times the loss scale."""
        return self._task.loss(output, targets) * (self._scaler.scale * self._task.share)

    def _agree(self, loss: Tensor) -> Outcome:
        """Sums loss and squared gradient norms over all ranks, so that all get the same outcome;
        updates the loss scale."""
        square = torch.zeros((), device=loss.device, dtype=torch.float64)
        norms = norms_of([s.tensor.grad for s in self._sync.shards])
        for norm, shard in zip(norms, self._sync.shards, strict=True):
            square += norm.double().square() / shard.copies
        part = self._part_square()
        sums = torch.stack(
            (
                loss.double() / self._config.tp,
                square,
                square.new_tensor(math.nan) if part is None else part,
            )
        )
        dist.all_reduce(sums)
        scale = self._scaler.scale
        total_loss, total_square, total_part = sums.tolist()
        total_loss, norm = (
            total_loss / scale,
            math.sqrt(total_square) / scale if total_square >= 0 else math.nan,
        )
        finite = math.isfinite(norm)
        skipped = self._scaler.update(finite)
        return Outcome(
            loss=total_loss,
            grad_norm=norm,
            finite=finite and math.isfinite(total_loss),
            skipped=skipped and math.isfinite(total_loss),
            part_square=total_part / scale**2,
        )

    # the gradient of a part of the batch, needed for the gradient noise scale

    def _part_square(self) -> Tensor | None:
        """This rank's share of the squared norm of the mean gradient of `part_size` sequences,
        times the loss scale squared; None if it cannot be measured. The sum over ranks is the
        norm."""
        count, dp = self._config.accumulation_steps, self._config.dp
        if self._config.cp > 1 or self._config.ep > 1:  # a rank does not see whole sequences
            return None
        if self._unequal:  # ranks have different numbers of tokens
            return None
        if dp == 1:  # the part is the first micro-batch
            return self._first_square * count**2 if self._measures_first_gradient else None
        # the part is this rank's share of the batch, weighted 1 / dp in the sum over ranks
        square = self._sync.local_square
        return None if square is None else square.double() * dp

    @property
    def _measures_first_gradient(self) -> bool:
        """Whether this rank has the complete gradient of the first micro-batch alone, and the batch
        has more micro-batches."""
        config = self._config
        alone = config.dp * config.pp * config.cp * config.ep == 1
        return (
            alone and config.zero_stage < 2 and config.accumulation_steps > 1 and not self._unequal
        )

    def _local_square(self) -> Tensor:
        """This rank's share of the squared norm of the gradient so far; collective over tp."""
        weights = self._model.weights
        norms = norms_of([local_gradient(w.parameter) for w in weights])
        shares = [norm.double().square() / w.copies for norm, w in zip(norms, weights, strict=True)]
        return torch.stack(shares).sum()


def part_size(config: ParallelConfig) -> int:
    """Number of sequences behind `Outcome.part_square`: those of one data-parallel rank, or with
    dp=1 those of one micro-batch."""
    return config.global_batch_size // config.dp if config.dp > 1 else config.micro_batch_size


def make_task(
    request: TrialRequest, mesh: Mesh, context: RankContext, stream: SequenceSource | None
) -> Task:
    """The task of the request: `OwnTask` for a model built by user code, otherwise
    `DecoderTask`."""
    kind = DecoderTask if request.workload.model.code is None else OwnTask
    return kind(request, mesh, context, stream)
