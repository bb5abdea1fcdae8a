"""The training of the decoder that ships: next tokens of a token stream."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from autotune.ports import TrialRequest
from autotune_workers.training.context_parallel import positions_of
from autotune_workers.training.data import SequenceSource, token_stream
from autotune_workers.training.decoder import DecoderStage
from autotune_workers.training.loss import token_losses
from autotune_workers.training.mesh import Mesh, RankContext
from autotune_workers.training.packed_sequences import counted_targets, without_document_ends
from autotune_workers.training.parallelize import parallelize
from autotune_workers.training.precision import DTYPES
from autotune_workers.training.task import ParallelModel, Task, Travelling
from autotune_workers.training.tensor_parallel import vocabulary_slice


@final
class DecoderTask(Task):
    """Next tokens of a token stream, by the decoder that ships."""

    def __init__(
        self, request: TrialRequest, mesh: Mesh, context: RankContext, stream: SequenceSource | None = None
    ) -> None:
        """`stream`: the tokens, where they are not those of the request's data."""
        config, workload = request.config, request.workload
        self._request, self._mesh, self._context = request, mesh, context
        self._config, self._device = config, context.device
        self._seq_len, self._document_len = workload.seq_len, workload.document_len
        self._hidden_size = workload.model.hidden_size
        self._stream = stream or token_stream(request)
        self._positions = positions_of(workload.seq_len, config.cp, mesh.cp, config.cp_style).to(self._device)
        self._vocabulary = vocabulary_slice(workload.model.vocab_size, mesh.axes["tp"])

    def parallelize(self) -> ParallelModel:
        """See `Task`."""
        return parallelize(self._request, self._mesh, self._context)

    def batch(self, rows: NDArray[np.int64]) -> tuple[Tensor, Tensor]:
        """Tokens and targets (rows, s) of the positions of this rank."""
        windows = self._stream.sequences(rows).to(self._device)
        targets = windows[:, 1:][:, self._positions]
        return windows[:, :-1][:, self._positions], without_document_ends(targets, self._positions, self._document_len)

    def split(self, batch: Tensor, size: int) -> Sequence[Tensor]:
        """See `Task`."""
        return batch.split(size)

    def loss(self, output: Tensor, targets: Tensor) -> Tensor:
        """See `Task`. `output`: logits, or the loss of each token where the stage computes it."""
        losses = output
        if self._config.loss != "chunked":
            losses = token_losses(output.flatten(0, 1), targets.flatten(), self._vocabulary)
        return losses.sum() / (len(targets) * counted_targets(self._seq_len, self._document_len))

    def between(self, stages: Mapping[int, nn.Module]) -> dict[int, tuple[Travelling, Travelling]]:
        """See `Task`. The stream is (b, s, h), as one rank holds it; there are logits of the token ids of this rank."""
        config, dtype = self._config, DTYPES[self._config.precision]
        seq_len = self._seq_len // config.cp
        stream_len = seq_len // config.tp if config.sequence_parallel else seq_len
        tokens_shape = (config.micro_batch_size, seq_len)

        def made(*shape: int, dtype: torch.dtype = dtype) -> Tensor:
            return torch.empty(shape, dtype=dtype, device="meta", requires_grad=True)

        stream = made(config.micro_batch_size, stream_len, self._hidden_size)
        tokens = torch.empty(tokens_shape, dtype=torch.int64, device="meta")
        found: dict[int, tuple[Travelling, Travelling]] = {}
        for number, stage in stages.items():
            assert isinstance(stage, DecoderStage)
            given = stream
            if stage.is_last and stage.loss:
                given = made(math.prod(tokens_shape), dtype=torch.float32)
            elif stage.is_last:
                given = made(*tokens_shape, self._vocabulary.size)
            found[number] = ((tokens,) if stage.is_first else (stream,), (given,))
        return found

    def fed(
        self, inputs: Tensor, targets: Tensor, *, is_first: bool, is_last: bool
    ) -> tuple[tuple[Tensor, ...], dict[str, Tensor], Tensor | None]:
        """See `Task`. A last stage that computes the loss takes the targets itself."""
        takes_targets = is_last and self._config.loss == "chunked"
        return (
            (inputs,) if is_first else (),
            {"targets": targets} if takes_targets else {},
            targets if is_last else None,
        )
