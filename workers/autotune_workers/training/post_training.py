"""A step on sequences of unequal length: a fine-tuning step, or the trainer's phases of a
post-training step (without generation).

    log_prob, reference    forward passes over all sequences, no logits kept beyond a micro-batch; the reference is a frozen copy of the policy
    update                 epochs x mini-batches optimizer steps; micro-batches have a token budget or a fixed number of sequences

Lengths are drawn from the workload's distribution with the study's seed, so every config sees the
same sequences in every step; the tokens come from the study's data. Sequences are assigned to ranks
and packed exactly as in the cost model's simulation (`autotune.cost.rl.packing`). If the config
packs, or the workload does not pad, a micro-batch is one row of concatenated sequences, each of
which attends to itself only; otherwise a micro-batch is padded to its longest sequence.

The objective is the mean log-probability of the next tokens: synthetic responses have no rewards,
and the cost of multiplying by an advantage per sequence is too small to measure.

All ranks synchronize between phases, as in programs whose controller collects the results of each
phase.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, final

import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from autotune.cost.rl.packing import Floats, of_rank, relative_work, step_lengths
from autotune.cost.rl.step import attention_share
from autotune.ports import TrialRequest
from autotune.space.rl_laws import asked_of, knob_value
from autotune_workers.training.data import token_stream
from autotune_workers.training.measuring.measure import synchronize
from autotune_workers.training.model.decoder import DecoderStage
from autotune_workers.training.model.loss import IGNORED, token_losses
from autotune_workers.training.model.packed_sequences import SequenceBounds
from autotune_workers.training.parallel.mesh import Mesh, RankContext, line_up
from autotune_workers.training.parallel.parallelize import decoder_stages, parallelize
from autotune_workers.training.parallel.tensor_parallel import vocabulary_slice
from autotune_workers.training.step import Outcome, Training
from autotune_workers.training.task import ParallelModel, Task, Travelling


@dataclass(frozen=True, slots=True, kw_only=True)
class MicroBatch:
    """The sequences of one forward and backward pass on a rank."""

    tokens: Tensor
    """(b, s)"""
    targets: Tensor
    """(b, s), `IGNORED` at positions without a target"""
    positions: Tensor
    """(s,), position of each token in its sequence"""
    lengths: list[int]
    """lengths of the sequences concatenated in the only row; empty if each sequence has a row"""


@dataclass(frozen=True, slots=True, kw_only=True)
class MiniBatch:
    """The sequences of one optimizer step."""

    micro_batches: list[MicroBatch]
    """of this rank"""
    counted: int
    """number of targets on all ranks, without ignored positions"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sequences:
    """The sequences of a step on one rank."""

    whole: MiniBatch
    """all of them, for the forward-only phases"""
    update: list[MiniBatch]
    """one for each optimizer step, in order"""
    tokens: int
    """number of targets of this rank"""


@final
class UnequalTask(Task):
    """Next-token prediction on sequences of unequal length, by the built-in decoder."""

    share = 1.0

    def __init__(self, request: TrialRequest, mesh: Mesh, context: RankContext) -> None:
        self._request, self._mesh, self._context = request, mesh, context
        self._stream = token_stream(request)
        self._vocabulary = vocabulary_slice(request.workload.model.vocab_size, mesh.axes["tp"])
        self._asked, self._config = asked_of(request.workload), request.config
        self._bounds = SequenceBounds()
        self._counted = 1
        self._multiple = self._config.tp if self._config.sequence_parallel else 1

    def parallelize(self) -> ParallelModel:
        """See `Task`."""
        made = parallelize(self._request, self._mesh, self._context)
        self._attend(made.stages.values())
        return made

    def reference(self) -> nn.Module:
        """Builds a frozen copy of the model; collective."""
        (stage,) = decoder_stages(self._request, self._mesh, self._context).values()
        self._attend([stage])
        return stage.requires_grad_(False)

    def _attend(self, stages: Iterable[nn.Module]) -> None:
        for stage in stages:
            assert isinstance(stage, DecoderStage)
            for block in stage.layers.values():
                block.attention.attend = self._bounds.attend

    def step(self, number: int) -> Sequences:
        """Draws and packs the sequences of a step."""
        lengths = step_lengths(self._asked, number, self._request.seed)
        first, epochs = number * len(lengths), self._asked.epochs
        update_tokens = self._knob("micro_batch_tokens")
        whole = self._packed(
            lengths, first, 1, self._knob("log_prob_micro_batch_tokens") or update_tokens
        )
        update = self._packed(lengths, first, self._asked.mini_batches, update_tokens)
        tokens = sum(int((m.targets != IGNORED).sum()) for m in whole[0].micro_batches)
        return Sequences(whole=whole[0], update=update * epochs, tokens=tokens)

    def _knob(self, name: str) -> Any:
        return knob_value(self._request.workload, self._config, name)

    def _packed(
        self, lengths: Floats, first: int, mini_batches: int, capacity: int
    ) -> list[MiniBatch]:
        config = self._config
        parts = of_rank(
            lengths, self._mesh.dp, ranks=config.dp, mini_batches=mini_batches, micro_batch=config.micro_batch_size, capacity=capacity,
            balance=self._knob("balance"), sorted_by_length=self._knob("group_by_length"),
        )  # fmt: skip
        is_flat = capacity > 0 or not self._asked.padded
        counted = self._counted_targets(lengths, mini_batches)
        return [
            MiniBatch(
                micro_batches=[self._micro_batch(lengths, rows, first, is_flat) for rows in part],
                counted=count,
            )
            for part, count in zip(parts, counted, strict=True)
        ]

    def _counted_targets(self, lengths: Floats, mini_batches: int) -> list[int]:
        """Number of targets of each mini-batch on all ranks: length - 1 per sequence, as its last
        token has no target."""
        ranks = range(self._config.dp)
        dealt = [
            of_rank(lengths, rank, ranks=len(ranks), mini_batches=mini_batches, micro_batch=len(lengths), capacity=0, balance=self._knob("balance"))
            for rank in ranks
        ]  # fmt: skip
        return [
            max(1, sum(int((lengths[rows] - 1).sum()) for parts in dealt for rows in parts[m]))
            for m in range(mini_batches)
        ]

    def _micro_batch(
        self, lengths: Floats, rows: NDArray[Any], first: int, is_flat: bool
    ) -> MicroBatch:
        sizes = [int(lengths[row]) for row in rows]
        windows = self._stream.sequences(rows + first)
        padding = -(sum(sizes) if is_flat else max(sizes)) % self._multiple
        if is_flat:
            tokens = torch.cat([w[:n] for w, n in zip(windows, sizes, strict=True)])[None]
            targets = torch.cat([_targets(w, n) for w, n in zip(windows, sizes, strict=True)])[None]
            sizes = [*sizes, padding] if padding else sizes
            positions = torch.cat([torch.arange(n) for n in sizes])
        else:
            longest = max(sizes)
            tokens = windows[:, :longest]
            targets = torch.stack(
                [nn.functional.pad(_targets(w, n), (0, longest - n), value=IGNORED) for w, n in zip(windows, sizes, strict=True)]
            )  # fmt: skip
            positions, sizes = torch.arange(longest + padding), []
        device = self._context.device
        return MicroBatch(
            tokens=nn.functional.pad(tokens, (0, padding)).to(device),
            targets=nn.functional.pad(targets, (0, padding), value=IGNORED).to(device),
            positions=positions.to(device),
            lengths=sizes,
        )

    def batch(self, rows: NDArray[Any]) -> tuple[Any, Any]:
        """Not supported: `step` draws the sequences."""
        raise NotImplementedError

    def split(self, batch: MiniBatch, size: int) -> Sequence[MicroBatch]:
        """See `Task`."""
        self._counted = batch.counted
        return batch.micro_batches

    def run(self, stage: nn.Module, inputs: MicroBatch, targets: MicroBatch) -> Tensor:
        """See `Task`."""
        self._bounds.lengths = inputs.lengths
        positions, config = inputs.positions, self._config
        assert isinstance(stage, DecoderStage)
        stage.place(
            positions,
            positions.chunk(config.tp)[self._mesh.tp] if self._multiple > 1 else positions,
        )
        return stage(inputs.tokens, targets.targets)

    def loss(self, output: Tensor, targets: MicroBatch) -> Tensor:
        """The micro-batch's share of the mean loss over the targets of the mini-batch."""
        losses = output
        if self._config.loss != "chunked":
            losses = token_losses(output.flatten(0, 1), targets.targets.flatten(), self._vocabulary)
        return losses.sum() / self._counted

    def between(self, stages: Mapping[int, nn.Module]) -> dict[int, tuple[Travelling, Travelling]]:
        """Not supported: unequal sequences are not trained with a pipeline."""
        raise NotImplementedError

    def fed(
        self, inputs: Any, targets: Any, *, is_first: bool, is_last: bool
    ) -> tuple[tuple[Tensor, ...], dict[str, Tensor], Tensor | None]:
        """Not supported, see `between`."""
        raise NotImplementedError


def _targets(window: Tensor, length: int) -> Tensor:
    targets = window[1 : length + 1].clone()
    targets[-1] = IGNORED
    return targets


@final
class PostTraining:
    """The phases of a post-training step on one rank, with the same interface as `Training`."""

    def __init__(self, request: TrialRequest, context: RankContext) -> None:
        self._request, self._context = request, context
        self._asked = asked_of(request.workload)
        tasks: list[UnequalTask] = []

        def task(mesh: Mesh) -> UnequalTask:
            tasks.append(UnequalTask(request, mesh, context))
            return tasks[0]

        self._training = Training(request, context, task=task)
        self._task = tasks[0]
        self._reference = self._task.reference() if self._asked.reference else None
        self._kappa = attention_share(request.workload.model)
        self.phases = self._training.phases
        self.own_phases_s: dict[str, float] = {}
        """seconds of each phase of the last step, by name"""

    def batch(self, step: int) -> tuple[Sequences, float]:
        """The sequences of a step, and its work divided by the work of a mean step."""
        return self._task.step(step), relative_work(
            self._asked, step, self._request.seed, self._kappa
        )

    def step(self, inputs: Sequences, targets: Any) -> Outcome:
        """Runs all phases; collective. Reports the mean loss and the largest gradient norm of the
        optimizer steps."""
        self.own_phases_s = {}
        policy = self._training.stages[0]
        if self._asked.generates:
            with self._phase("log_prob"):
                self._training.forward(policy, inputs.whole, inputs.whole)
        if self._reference is not None:
            with self._phase("reference"):
                self._training.forward(self._reference, inputs.whole, inputs.whole)
        with self._phase("update"):
            outcomes = [self._training.step(batch, batch) for batch in inputs.update]
        return Outcome(
            loss=sum(o.loss for o in outcomes) / len(outcomes),
            grad_norm=max(o.grad_norm for o in outcomes),
            finite=all(o.finite for o in outcomes),
            skipped=any(o.skipped for o in outcomes),
            part_square=float("nan"),
        )

    @contextmanager
    def _phase(self, name: str) -> Iterator[None]:
        start_s = time.perf_counter()
        yield
        synchronize(self._context.device)
        line_up(self._context)
        self.own_phases_s[name] = time.perf_counter() - start_s
