"""The tasks of the built-in decoder (next-token prediction) and of models built by user code.

A user's model that reads tokens is trained on the same windows of the token stream as the decoder.
If the builder has an `input` function, it is called for one sample at a time, with a random seed
derived from (seed, sample number), so that every config sees the same samples in the same order.

The ranks of a host build a user's model in turns if the host does not have the memory for a full
copy per rank.

    copy    4 bytes * parameters of the whole model (fp32) * virtual stages of the rank
    room    free memory of the host
    ranks that build at once = floor(SHARE * room / copy)

A rank frees its copy before the next turn and keeps its part on its device. On CPUs the device is
the host, so the calculation is only valid if the config shards the weights.
"""

from __future__ import annotations

import copy
import functools
import math
import socket
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeVar, final

import numpy as np
import torch
import torch.distributed as dist
from numpy.typing import NDArray
from torch import Tensor, nn

from autotune.detect import free_memory_bytes
from autotune.errors import ConfigError
from autotune.ports import TrialRequest
from autotune.spec.texts.as_text import format_bytes
from autotune_workers.own_model.builder import build, build_without_memory
from autotune_workers.own_model.built_model import BuiltModel, with_own_plans
from autotune_workers.own_model.users_line import error_with_line
from autotune_workers.training.data import SequenceSource, seed_of, token_stream
from autotune_workers.training.model.decoder import DecoderStage
from autotune_workers.training.model.loss import token_losses
from autotune_workers.training.model.own_stage import OwnStage, takes_embeddings
from autotune_workers.training.model.packed_sequences import counted_targets, without_document_ends
from autotune_workers.training.parallel.context_parallel import positions_of
from autotune_workers.training.parallel.mesh import Mesh, RankContext, tied_embedding_group
from autotune_workers.training.parallel.parallelize import own_stage, parallelize, parallelize_own
from autotune_workers.training.parallel.tensor_parallel import vocabulary_slice
from autotune_workers.training.precision import DTYPES
from autotune_workers.training.task import ParallelModel, Task, Travelling
from autotune_workers.training.torch_internals import pytree

SHARE = 0.8
"""fraction of a host's free memory that copies may use"""
SMALL_BYTES = 1 << 30
"""below this size all copies are built at once, without checking the free memory"""
Made = TypeVar("Made")
HostMemory = tuple[str, float]
"""name of a rank's host, and its free memory in bytes as the rank reads it"""


def in_turns(
    make: Callable[[], Made], *, copy_bytes: int, room: Callable[[], float] | None = None
) -> Made:
    """Calls `make` at this rank's turn and returns its result. Collective, except for small models
    and in dry runs, whose tensors take no memory.

    `room`: returns the free bytes of this host; default: as the system reports. Raises
    `ConfigError` on every rank if a host has no room for one copy. An error of `make` is raised
    after the last turn.
    """
    if copy_bytes < SMALL_BYTES or type(torch.empty(0)) is not torch.Tensor:
        return make()
    hosts: list[HostMemory | None] = [None] * dist.get_world_size()
    dist.all_gather_object(hosts, (socket.gethostname(), (room or free_memory_bytes)()))
    turns = turns_of([host for host in hosts if host is not None], copy_bytes)
    made: list[Made] = []
    failed: Exception | None = None
    for turn in range(max(turns) + 1):
        if turns[dist.get_rank()] == turn:
            try:
                made.append(make())
            except Exception as error:  # raised later: other ranks wait for this one
                failed = error
        dist.barrier()
    if failed is not None:
        raise failed
    return made[0]


def turns_of(hosts: Sequence[HostMemory], copy_bytes: int) -> list[int]:
    """The turn of each rank, from 0. `hosts`: by rank. Raises `ConfigError` if a host has no room
    for one copy."""
    room: dict[str, float] = {}
    for host, free_bytes in hosts:
        room[host] = min(free_bytes, room.get(host, math.inf))
    at_once = {host: int(SHARE * left / copy_bytes) for host, left in room.items()}
    for host, count in at_once.items():
        if not count:
            raise ConfigError(
                f"every rank builds the whole model in fp32 in host memory, {format_bytes(copy_bytes)}, before keeping only its shard, but {host} has {format_bytes(room[host])} left, and only {SHARE:.0%} of this memory may be used",
                remedy="use hosts with more memory, fewer virtual_stages, or a smaller model; or set the model to a decoder's shape, which is built shard by shard",
                field="model",
            )
    ranks_before = dict.fromkeys(room, 0)
    turns = []
    for host, _ in hosts:
        turns.append(ranks_before[host] // at_once[host])
        ranks_before[host] += 1
    return turns


@final
class DecoderTask(Task):
    """Next-token prediction on a token stream, by the built-in decoder."""

    def __init__(
        self,
        request: TrialRequest,
        mesh: Mesh,
        context: RankContext,
        stream: SequenceSource | None = None,
    ) -> None:
        """`stream`: the tokens, where they are not those of the request's data."""
        config, workload = request.config, request.workload
        self._request, self._mesh, self._context = request, mesh, context
        self._config, self._device = config, context.device
        self.share = 1.0 / (config.accumulation_steps * config.dp)
        self._seq_len, self._document_len = workload.seq_len, workload.document_len
        self._hidden_size = workload.model.hidden_size
        self._stream = stream or token_stream(request)
        self._positions = positions_of(workload.seq_len, config.cp, mesh.cp, config.cp_style).to(
            self._device
        )
        self._vocabulary = vocabulary_slice(workload.model.vocab_size, mesh.axes["tp"])

    def parallelize(self) -> ParallelModel:
        """See `Task`."""
        return parallelize(self._request, self._mesh, self._context)

    def batch(self, rows: NDArray[np.int64]) -> tuple[Tensor, Tensor]:
        """Tokens and targets (rows, s) of the positions of this rank."""
        windows = self._stream.sequences(rows).to(self._device)
        targets = windows[:, 1:][:, self._positions]
        return windows[:, :-1][:, self._positions], without_document_ends(
            targets, self._positions, self._document_len
        )

    def split(self, batch: Tensor, size: int) -> Sequence[Tensor]:
        """See `Task`."""
        return batch.split(size)

    def loss(self, output: Tensor, targets: Tensor) -> Tensor:
        """See `Task`. `output`: logits, or with a chunked loss the loss of each token."""
        losses = output
        if self._config.loss != "chunked":
            losses = token_losses(output.flatten(0, 1), targets.flatten(), self._vocabulary)
        return losses.sum() / (len(targets) * counted_targets(self._seq_len, self._document_len))

    def between(self, stages: Mapping[int, nn.Module]) -> dict[int, tuple[Travelling, Travelling]]:
        """See `Task`. Between stages: this rank's part of the hidden states (b, s, h). Output of
        the last: logits of this rank's part of the vocabulary, or losses."""
        config, dtype = self._config, DTYPES[self._config.precision]
        seq_len = self._seq_len // config.cp
        stream_len = seq_len // config.tp if config.sequence_parallel else seq_len
        tokens_shape = (config.micro_batch_size, seq_len)

        def empty(*shape: int, dtype: torch.dtype = dtype) -> Tensor:
            return torch.empty(shape, dtype=dtype, device="meta", requires_grad=True)

        stream = empty(config.micro_batch_size, stream_len, self._hidden_size)
        tokens = torch.empty(tokens_shape, dtype=torch.int64, device="meta")
        tensors: dict[int, tuple[Travelling, Travelling]] = {}
        for number, stage in stages.items():
            assert isinstance(stage, DecoderStage)
            output = stream
            if stage.is_last and stage.loss:
                output = empty(math.prod(tokens_shape), dtype=torch.float32)
            elif stage.is_last:
                output = empty(*tokens_shape, self._vocabulary.size)
            tensors[number] = ((tokens,) if stage.is_first else (stream,), (output,))
        return tensors

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


@final
class OwnTask(Task):
    """The task of a model built by user code."""

    def __init__(
        self,
        request: TrialRequest,
        mesh: Mesh,
        context: RankContext,
        stream: SequenceSource | None = None,
    ) -> None:
        """`stream`: the tokens, where they are not those of the request's data."""
        self._request, self._mesh, self._context = request, mesh, context
        self._stream = stream
        self.share = 1.0 / (request.config.accumulation_steps * request.config.dp)

    def parallelize(self) -> ParallelModel:
        """See `Task`. Ranks build the model in turns if a host has no room for a copy per rank."""
        config = self._request.config
        tied_group = tied_embedding_group(config, self._mesh, self._context)
        copy_bytes = 4 * self._request.workload.model.num_parameters * config.virtual_stages
        self._built, model = in_turns(
            functools.partial(self._make, tied_group), copy_bytes=copy_bytes
        )
        if self._built.input is not None:
            self._stream = None
        elif self._stream is None:
            self._stream = token_stream(self._request)
        return model

    def _make(self, tied_group: dist.ProcessGroup | None) -> tuple[BuiltModel, ParallelModel]:
        built = build_seeded(self._request)
        return built, parallelize_own(
            self._request, built, self._mesh, self._context, tied_group=tied_group
        )

    def batch(self, rows: NDArray[np.int64]) -> tuple[Any, Any]:
        """Tokens and next tokens, (rows, s); or the joined samples of the builder's `input`, and no
        targets."""
        if self._stream is not None:
            windows = self._stream.sequences(rows).to(self._context.device)
            # contiguous, as from a data loader
            return windows[:, :-1].contiguous(), windows[:, 1:].contiguous()
        samples = [self._sample(int(row)) for row in rows]
        return pytree.tree_map(_joined, samples[0], *samples[1:]), ()

    def split(self, batch: Any, size: int) -> Sequence[Any]:
        """See `Task`."""
        count = self._request.config.accumulation_steps
        leaves, structure = pytree.tree_flatten(batch)
        pieces = [
            leaf.split(size)
            if isinstance(leaf, Tensor) and leaf.ndim and len(leaf) == size * count
            else [leaf] * count
            for leaf in leaves
        ]
        return [
            pytree.tree_unflatten(list(piece), structure) for piece in zip(*pieces, strict=True)
        ] or [batch] * count

    def loss(self, output: Tensor, targets: Any) -> Tensor:
        """See `Task`. `output`: the loss, as a tensor of one element."""
        return output.sum()

    def between(self, stages: Mapping[int, nn.Module]) -> dict[int, tuple[Travelling, Travelling]]:
        """See `Task`. Shapes are found by running the stages on the meta device."""
        config = self._request.config
        dtype = DTYPES[config.precision]
        batch = self.batch(np.arange(config.micro_batch_size, dtype=np.int64))
        leaves, structure = pytree.tree_flatten(batch)
        if not all(
            isinstance(leaf, Tensor) and len(leaf) == config.micro_batch_size for leaf in leaves
        ):
            raise ConfigError(
                "with a pipeline, every value of `input` must be a tensor with one entry per sample",
                remedy="create the other values inside the module, or use pp=1",
                field="pp",
            )
        streams = self._streams(leaves, structure, max(stages))
        tensors: dict[int, tuple[Travelling, Travelling]] = {}
        for number, stage in stages.items():
            assert isinstance(stage, OwnStage)
            stage.structure = structure
            taken = (
                _meta_like(leaves[0]) if stage.is_first else _as_sent(streams[number - 1], dtype)
            )
            loss = torch.empty(1, device="meta", requires_grad=True)
            tensors[number] = (
                (taken,),
                (loss if stage.is_last else _as_sent(streams[number], dtype),),
            )
        return tensors

    def _streams(self, leaves: list[Tensor], structure: Any, last: int) -> list[Tensor]:
        """The outputs of stages 0 to `last` as meta tensors. For base models of transformers they
        are hidden states (*shape of the input, width)."""
        config, model = self._request.config, self._built.model
        if takes_embeddings(self._built):
            width = model.config.get_text_config().hidden_size
            return [torch.empty((*leaves[0].shape, width), device="meta")] * (last + 1)
        given, streams = _meta_like(leaves[0]), []
        named = {f"leaf_{i}": _meta_like(leaf) for i, leaf in enumerate(leaves)}
        whole = with_own_plans(build_without_memory(self._request.workload.model)).model
        if any(parameter.device.type != "meta" for parameter in whole.parameters()):
            whole = whole.to("meta")
        for number in range(min(last + 1, config.pp * config.virtual_stages - 1)):
            stage = own_stage(
                replace(self._built, model=copy.deepcopy(whole)),
                number,
                replace(config, precision="fp32"),
            )
            stage.structure = structure
            given = stage(given, **named).detach()
            streams.append(given)
        return streams

    def fed(
        self, inputs: Any, targets: Any, *, is_first: bool, is_last: bool
    ) -> tuple[tuple[Tensor, ...], dict[str, Tensor], Tensor | None]:
        """See `Task`. Every stage gets all inputs as keywords, because any module may read them."""
        leaves = pytree.tree_leaves((inputs, targets))
        named = {f"leaf_{i}": leaf for i, leaf in enumerate(leaves)}
        return (leaves[0],) if is_first else (), named, leaves[0] if is_last else None

    def _sample(self, row: int) -> Any:
        assert self._built.input is not None
        with torch.random.fork_rng(devices=()):
            torch.manual_seed(seed_of(row, self._request.seed))
            try:
                made = self._built.input(1, self._request.workload.seq_len)
            except Exception as error:  # the user's code may raise anything
                raise ConfigError(
                    f"the builder's `input` raised {error_with_line(error)}",
                    remedy="correct the line",
                    field="model.input",
                ) from error
        if not any(isinstance(leaf, Tensor) for leaf in pytree.tree_leaves(made)):
            raise ConfigError(
                f"the builder's `input` must return the model's arguments as tensors (one, a tuple, or a mapping of keywords), but returned a "
                f"{type(made).__name__} without tensors",
                remedy="return tensors whose first dimension has one entry per sample, from input(micro_batch_size, seq_len)",
                field="model.input",
            )
        return pytree.tree_map(
            lambda x: x.to(self._context.device) if isinstance(x, Tensor) else x, made
        )


def _meta_like(tensor: Tensor) -> Tensor:
    """A meta tensor of the same shape and dtype."""
    return torch.empty(tensor.shape, dtype=tensor.dtype, device="meta")


def _as_sent(tensor: Tensor, dtype: torch.dtype) -> Tensor:
    """A meta tensor of that dtype like the given one; tensors of integers are returned unchanged."""
    if not tensor.is_floating_point():
        return tensor
    return torch.empty(tensor.shape, dtype=dtype, device="meta", requires_grad=True)


def build_seeded(request: TrialRequest) -> BuiltModel:
    """Builds the whole model in host memory, with the same initial values on every rank."""
    with torch.random.fork_rng(devices=()):
        torch.manual_seed(request.seed)
        built = with_own_plans(build(request.workload.model))
    built.model.train()
    return built


def _joined(*values: Any) -> Any:
    """Concatenates an input's values for all samples; the first value if it is no tensor of one
    sample."""
    first = values[0]
    if isinstance(first, Tensor) and first.ndim and len(first) == 1:
        return torch.cat(values)
    return first
