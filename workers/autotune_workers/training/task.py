"""Interface between the training loop and a kind of model: model parts of a rank, micro-batches,
loss, and the tensors sent between pipeline stages.

`DecoderTask` implements it for the built-in decoder, `OwnTask` for models built by user code.

A batch is (inputs, targets): trees of tensors (a tensor, a tuple, a mapping) whose first dimension
is the sequence or sample.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor, nn

from autotune_workers.training.parallel.gradient_sync import GradientSync, Weight

Travelling = tuple[Tensor, ...]
"""meta tensors with the shapes and dtypes of a stage's inputs or outputs"""
Loss = Callable[[Any, Any], Tensor]
"""(output of the last stage, targets) -> the micro-batch's share of the loss"""


@dataclass(frozen=True, slots=True, kw_only=True)
class ParallelModel:
    """The model parts of one rank."""

    stages: Mapping[int, nn.Module]
    """pipeline stages of the rank, by number"""
    weights: list[Weight]
    """of all these stages"""
    sync: GradientSync
    """reduces the gradients over data-parallel ranks, and has the tensors that the optimizer
    updates"""


class Task(ABC):
    """The model, the data and the loss of a training, and the tensors between its stages."""

    share: float
    """weight of a micro-batch's `loss` in the loss of the batch"""

    @abstractmethod
    def parallelize(self) -> ParallelModel:
        """Builds the model parts of this rank; collective."""

    @abstractmethod
    def batch(self, rows: NDArray[np.int64]) -> tuple[Any, Any]:
        """This rank's part of the inputs and targets of the sequences with these numbers. A number
        means the same sequence in every config."""

    @abstractmethod
    def split(self, batch: Any, size: int) -> Sequence[Any]:
        """Splits inputs or targets into micro-batches of `size` sequences."""

    def run(self, stage: nn.Module, inputs: Any, targets: Any) -> Any:
        """The output of a rank's only stage for a micro-batch."""
        return stage(inputs, targets)

    @abstractmethod
    def loss(self, output: Any, targets: Any) -> Tensor:
        """This rank's share of the mean loss of a micro-batch; the sum over cp ranks is the mean.
        `output`: of the last stage."""

    @abstractmethod
    def between(self, stages: Mapping[int, nn.Module]) -> dict[int, tuple[Travelling, Travelling]]:
        """Meta tensors with the shapes and dtypes of each stage's inputs and outputs, by number."""

    @abstractmethod
    def fed(
        self, inputs: Any, targets: Any, *, is_first: bool, is_last: bool
    ) -> tuple[tuple[Tensor, ...], dict[str, Tensor], Tensor | None]:
        """The positional arguments, keyword arguments and target that this rank passes to the
        pipeline schedule. `is_first`, `is_last`: whether it has the first or the last stage."""
