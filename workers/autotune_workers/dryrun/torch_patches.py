"""What dry runs replace in torch while they run. Every replacement is a block, after which torch is
as it was.

    ShardingPropagator._propagate_tensor_meta_non_cached    DTensor runs operations on global shapes there, which cost no memory
    UntypedStorage.resize_                          FSDP frees and refills gathered weights by it
    _fsdp_param._chunk_with_empty                   makes the shards of all ranks, of which one is kept
    FSDPParam.reset_sharded_param                   compares addresses, which fake tensors do not have
    FSDPParam.init_unsharded_param                  makes the gathered weights, whose gradients are to be told apart
    FSDPParam.to_accumulated_grad_if_needed         keeps whole gradients for the next micro-batch
    schedules._batch_p2p                            sends messages, which are made to hold their tensors
    bias.can_use_flash_attention, bias.can_use_efficient_attention    whether a causal bias needs a mask
    CausalBias.__new__                              cannot be made of a fake tensor
    _PipelineStageBase.*_one_chunk                  say which micro-batch a pipeline stage works on
    torch.nn.init._no_grad_trunc_normal_            draws again until no number lies outside of its bounds

None of these names is promised to stay; `torch_private` tells what happens under another release of
torch.
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
"""methods of a pipeline stage that work on one micro-batch, whose number is their first argument,
and the phase in which they do"""


@contextlib.contextmanager
def replaced(owner: Any, name: str, instead: Callable[..., Any]) -> Iterator[None]:
    """A block in which `instead` is called in place of that function, which it is given before the
    arguments."""
    original = getattr(owner, name)

    def called(*arguments: Any, **keywords: Any) -> Any:
        return instead(original, *arguments, **keywords)

    setattr(owner, name, called)
    try:
        yield
    finally:
        setattr(owner, name, original)


def single_draws() -> AbstractContextManager[None]:
    """Truncated normal numbers are drawn once: whether one lies outside of its bounds is not known
    of a fake tensor."""

    def draw(original: Any, tensor: Tensor, mean: float, std: float, *_: Any, **__: Any) -> Tensor:
        with torch.no_grad():
            return tensor.normal_(mean, std)

    return replaced(torch.nn.init, "_no_grad_trunc_normal_", draw)


def sharding_propagation(
    enter: Callable[[], None], leave: Callable[[], None]
) -> AbstractContextManager[None]:
    """Tells when DTensor runs operations on global shapes, and when it has."""

    def propagate(original: Any, *args: Any, **kwargs: Any) -> Any:
        enter()
        try:
            return original(*args, **kwargs)
        finally:
            leave()

    return replaced(ShardingPropagator, "_propagate_tensor_meta_non_cached", propagate)


def storage_resizes(tell: Callable[[Any], None]) -> AbstractContextManager[None]:
    """Tells each storage whose size has been changed."""

    def resize(original: Any, storage: Any, size: int) -> Any:
        result = original(storage, size)
        tell(storage)
        return result

    return replaced(torch.UntypedStorage, "resize_", resize)


def gathered_weights(tell: Callable[[Tensor], None]) -> AbstractContextManager[None]:
    """Tells each weight that FSDP makes of gathered shards."""

    def init(original: Any, param: Any, *args: Any, **kwargs: Any) -> Any:
        known = getattr(param, "_unsharded_param", None)
        result = original(param, *args, **kwargs)
        if (made := getattr(param, "_unsharded_param", None)) is not known and made is not None:
            tell(made)
        return result

    return replaced(FSDPParam, "init_unsharded_param", init)


def accumulated_gradients(tell: Callable[[Tensor], None]) -> AbstractContextManager[None]:
    """Tells each whole gradient that FSDP keeps from one micro-batch to the next."""

    def accumulate(original: Any, param: Any) -> None:
        original(param)
        if param.unsharded_accumulated_grad is not None:
            tell(param.unsharded_accumulated_grad)

    return replaced(FSDPParam, "to_accumulated_grad_if_needed", accumulate)


class _Chunks:
    """What `_chunk_with_empty` returns, each chunk made when it is asked for."""

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
    """FSDP cuts a weight into the shards of all ranks and keeps one: in the block the others are
    not made, which takes long where there are many.

    Before the first step it looks by address whether its shards are still the module's; fake
    tensors have none, and are told by their storage.
    """

    def reset(original: Any, param: Any) -> None:
        weight = getattr(param._module_info.module, param._module_info.param_name)
        kept = param._sharded_param_data
        if weight is param.sharded_param and storage_id(weight._local_tensor) == storage_id(kept):
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
    """A message under way, which holds its tensor as a real one does."""

    def __init__(self, work: Any, tensor: Tensor) -> None:
        self._work, self._tensor = work, tensor

    def wait(self, *arguments: Any) -> Any:
        return self._work.wait(*arguments)

    def is_completed(self) -> Any:
        return self._work.is_completed()


def held_messages() -> AbstractContextManager[None]:
    """Messages between pipeline stages hold their tensors until nobody asks after them any more;
    those of a fake process group hold nothing."""

    def send(original: Any, operations: list[Any], *arguments: Any, **keywords: Any) -> list[Any]:
        works = original(operations, *arguments, **keywords)
        return [_HeldWork(work, each.tensor) for work, each in zip(works, operations, strict=True)]

    return replaced(schedules, "_batch_p2p", send)


@contextlib.contextmanager
def attention_of_gpus() -> Iterator[None]:
    """Attention under a causal bias runs in the kernels that a GPU has for it; on a CPU it would
    make the mask as a tensor."""

    def is_16_bit(original: Any, params: Any, *_: Any) -> bool:
        return params.query.dtype in (torch.float16, torch.bfloat16)

    with (
        replaced(bias, "can_use_flash_attention", is_16_bit),
        replaced(bias, "can_use_efficient_attention", lambda *_: True),
    ):
        yield


@contextlib.contextmanager
def unwatched_biases() -> Iterator[None]:
    """Causal biases, which hold no numbers, are made where no mode sees it: they cannot be made of
    a tensor that one has seen."""

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
    """Tells when a pipeline stage begins on a micro-batch: the phase, and the number of the
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
