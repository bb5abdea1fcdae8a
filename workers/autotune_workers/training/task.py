"""What a training does: the part of the model that a rank holds, which micro-batches it sees, what
they cost, and what travels between pipeline stages.

`DecoderTask` is that of the decoder that ships; `OwnTask` is that of a model that code builds. The
loop knows no other difference between them.

A batch is (inputs, targets): trees of tensors (a tensor, a tuple, a mapping) whose first dimension
counts sequences, or samples.
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
"""tensors on the meta device that stand for what a stage takes, or gives"""
Loss = Callable[[Any, Any], Tensor]
"""What the last stage gave, and targets -> this micro-batch's share of the loss."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ParallelModel:
    """What one rank holds of the model."""

    stages: Mapping[int, nn.Module]
    """its pipeline stages, by number"""
    weights: list[Weight]
    """of all its stages"""
    sync: GradientSync
    """completes the gradients over data-parallel ranks, and holds what the optimizer updates"""


class Task(ABC):
    """The model, the data and the loss of a training, and the tensors between its stages."""

    share: float
    """weight of what `loss` says of a micro-batch in the loss of the batch"""

    @abstractmethod
    def parallelize(self) -> ParallelModel:
        """What this rank holds of the model; collective."""

    @abstractmethod
    def batch(self, rows: NDArray[np.int64]) -> tuple[Any, Any]:
        """Inputs and targets of the sequences with these numbers, as this rank sees them. The same
        for every config."""

    @abstractmethod
    def split(self, batch: Any, size: int) -> Sequence[Any]:
        """Inputs or targets in micro-batches of `size` sequences."""

    def run(self, stage: nn.Module, inputs: Any, targets: Any) -> Any:
        """What the only stage of a rank makes of a micro-batch."""
        return stage(inputs, targets)

    @abstractmethod
    def loss(self, output: Any, targets: Any) -> Tensor:
        """This rank's share of the mean loss of a micro-batch: the shares of all cp ranks add up to
        it. `output`: what the last stage gave."""

    @abstractmethod
    def between(self, stages: Mapping[int, nn.Module]) -> dict[int, tuple[Travelling, Travelling]]:
        """What each of the stages takes and gives, by number."""

    @abstractmethod
    def fed(
        self, inputs: Any, targets: Any, *, is_first: bool, is_last: bool
    ) -> tuple[tuple[Tensor, ...], dict[str, Tensor], Tensor | None]:
        """Positional inputs, keyword inputs and target of a pipeline's schedule on the rank of the
        first or the last stage."""
