"""Functions of torch that dry runs replace while they run. Each replacement is a context manager
that restores the original.

    ShardingPropagator._propagate_tensor_meta_non_cached    runs operations on global shapes for DTensor, which must not be recorded
    UntypedStorage.resize_                          FSDP frees and reallocates gathered weights with it
    _fsdp_param._chunk_with_empty                   creates the shards of all ranks, of which one is used
    FSDPParam.reset_sharded_param                   compares addresses, which fake tensors do not have
    FSDPParam.init_unsharded_param                  creates the gathered weights, whose gradients are recorded
    FSDPParam.to_accumulated_grad_if_needed         keeps unsharded gradients for the next micro-batch
    schedules._batch_p2p                            sends messages, which must keep their tensors alive
    bias.can_use_flash_attention, bias.can_use_efficient_attention    whether a causal bias needs a mask
    CausalBias.__new__                              fails for fake tensors
    _PipelineStageBase.*_one_chunk                  show which micro-batch a pipeline stage works on
    torch.nn.init._no_grad_trunc_normal_            redraws until all numbers are within bounds

These names are private or undocumented; see `torch_private` for other releases of torch.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager
from functools import partial
from typing import Any

from autotune.spec import Phase
from autotune_workers.training.torch_version import check_torch_version

check_torch_version()

import torch  # noqa: E402 - the version is checked before
from torch import Tensor  # noqa: E402
from torch.distributed.fsdp._fully_shard import _fsdp_param  # noqa: E402
from torch.distributed.fsdp._fully_shard._fsdp_param import FSDPParam  # noqa: E402
from torch.distributed.pipelining import schedules  # noqa: E402
from torch.distributed.pipelining.stage import _PipelineStageBase  # noqa: E402
from torch.distributed.tensor._sharding_prop import ShardingPropagator  # noqa: E402
from torch.nn.attention import bias  # noqa: E402
from torch.nn.attention.bias import CausalBias  # noqa: E402
from torch.utils._python_dispatch import _disable_current_modes  # noqa: E402

from autotune_workers.dryrun.torch_private import storage_id  # noqa: E402

CHUNKS: Mapping[str, Phase] = {
    "forward_one_chunk": "forward",
    "backward_one_chunk": "backward",
    "backward_weight_one_chunk": "backward",
}
"""phase of each method of a pipeline stage that processes one micro-batch; its first argument is
the number of the micro-batch"""


@contextlib.contextmanager
def replaced(owner: Any, name: str, instead: Callable[..., Any]) -> Iterator[None]:
    """Within the block, calls of the function call `instead(original, *arguments)`."""
    original = getattr(owner, name)

    def called(*arguments: Any, **keywords: Any) -> Any:
        return instead(original, *arguments, **keywords)

    setattr(owner, name, called)
    try:
        yield
    finally:
        setattr(owner, name, original)


def single_draws() -> AbstractContextManager[None]:
    """Truncated normal numbers are drawn only once, because checking their bounds needs values."""

    def draw(original: Any, tensor: Tensor, mean: float, std: float, *_: Any, **__: Any) -> Tensor:
        with torch.no_grad():
            return tensor.normal_(mean, std)

    return replaced(torch.nn.init, "_no_grad_trunc_normal_", draw)


def sharding_propagation(
    enter: Callable[[], None], leave: Callable[[], None]
) -> AbstractContextManager[None]:
    """Calls `enter` and `leave` around DTensor's operations on global shapes."""

    def propagate(original: Any, *args: Any, **kwargs: Any) -> Any:
        enter()
        try:
            return original(*args, **kwargs)
        finally:
            leave()

    return replaced(ShardingPropagator, "_propagate_tensor_meta_non_cached", propagate)


def storage_resizes(tell: Callable[[Any], None]) -> AbstractContextManager[None]:
    """Calls `tell` with each resized storage."""

    def resize(original: Any, storage: Any, size: int) -> Any:
        result = original(storage, size)
        tell(storage)
        return result

    return replaced(torch.UntypedStorage, "resize_", resize)


def gathered_weights(tell: Callable[[Tensor], None]) -> AbstractContextManager[None]:
    """Calls `tell` with each new weight that FSDP gathers shards into."""

    def init(original: Any, param: Any, *args: Any, **kwargs: Any) -> Any:
        known = getattr(param, "_unsharded_param", None)
        result = original(param, *args, **kwargs)
        if (made := getattr(param, "_unsharded_param", None)) is not known and made is not None:
            tell(made)
        return result

    return replaced(FSDPParam, "init_unsharded_param", init)


def accumulated_gradients(tell: Callable[[Tensor], None]) -> AbstractContextManager[None]:
    """Calls `tell` with each unsharded gradient that FSDP keeps for the next micro-batch."""

    def accumulate(original: Any, param: Any) -> None:
        original(param)
        if param.unsharded_accumulated_grad is not None:
            tell(param.unsharded_accumulated_grad)

    return replaced(FSDPParam, "to_accumulated_grad_if_needed", accumulate)


class _Chunks:
    """Replaces the list that `_chunk_with_empty` returns; creates each chunk on access."""

    def __init__(self, tensor: Tensor, num_chunks: int, dim: int) -> None:
        self._tensor, self._dim = tensor, dim
        self._size = -(-tensor.shape[dim] // num_chunks)

    def __getitem__(self, index: int) -> Tensor:
        start = index * self._size
        if start >= self._tensor.shape[self._dim]:
            return self._tensor.new_empty(0)
        return self._tensor.narrow(
            self._dim, start, min(self._size, self._tensor.shape[self._dim] - start)
        )


@contextlib.contextmanager
def shards_of_one_rank() -> Iterator[None]:
    """Within the block, FSDP creates only this rank's shard of a weight: creating the shards of all
    ranks and discarding the others is slow for many ranks.

    Also replaces FSDP's check before the first step that the module still has its shards: it
    compares addresses, which fake tensors do not have, so storages are compared instead.
    """

    def reset(original: Any, param: Any) -> None:
        weight = getattr(param._module_info.module, param._module_info.param_name)
        shard = param._sharded_param_data
        if weight is param.sharded_param and storage_id(weight._local_tensor) == storage_id(shard):
            param._sharding_spec = weight._spec
        else:
            original(param)

    with (
        replaced(
            _fsdp_param, "_chunk_with_empty", lambda _, *given, **named: _Chunks(*given, **named)
        ),
        replaced(FSDPParam, "reset_sharded_param", reset),
    ):
        yield


class _HeldWork:
    """A pending message that keeps its tensor alive, as real ones do."""

    def __init__(self, work: Any, tensor: Tensor) -> None:
        self._work, self._tensor = work, tensor

    def wait(self, *arguments: Any) -> Any:
        return self._work.wait(*arguments)

    def is_completed(self) -> Any:
        return self._work.is_completed()


def held_messages() -> AbstractContextManager[None]:
    """Messages between pipeline stages keep their tensors alive as long as they exist themselves;
    those of a fake process group would not."""

    def send(original: Any, operations: list[Any], *arguments: Any, **keywords: Any) -> list[Any]:
        works = original(operations, *arguments, **keywords)
        return [_HeldWork(work, op.tensor) for work, op in zip(works, operations, strict=True)]

    return replaced(schedules, "_batch_p2p", send)


@contextlib.contextmanager
def attention_of_gpus() -> Iterator[None]:
    """Attention with a causal bias uses the kernels that a GPU would use; on a CPU it would
    materialize the mask."""

    def is_16_bit(original: Any, params: Any, *_: Any) -> bool:
        return params.query.dtype in (torch.float16, torch.bfloat16)

    with (
        replaced(bias, "can_use_flash_attention", is_16_bit),
        replaced(bias, "can_use_efficient_attention", lambda *_: True),
    ):
        yield


@contextlib.contextmanager
def unwatched_biases() -> Iterator[None]:
    """Causal biases, which have no values, are created outside of dispatch modes: creating them
    from a tensor seen by a mode fails."""

    def new(kind: type, *_: Any, **__: Any) -> Any:
        with _disable_current_modes():
            return Tensor.__new__(kind)

    CausalBias.__new__ = new
    try:
        yield
    finally:
        del CausalBias.__new__


@contextlib.contextmanager
def pipeline_chunks(tell: Callable[[Phase, int], None]) -> Iterator[None]:
    """Calls `tell(phase, micro-batch number)` when a pipeline stage begins a pass over a
    micro-batch."""

    def chunk(
        phase: Phase, original: Any, stage: Any, number: int, *args: Any, **kwargs: Any
    ) -> Any:
        tell(phase, number)
        return original(stage, number, *args, **kwargs)

    with contextlib.ExitStack() as stack:
        for name, phase in CHUNKS.items():
            stack.enter_context(replaced(_PipelineStageBase, name, partial(chunk, phase)))
        yield
