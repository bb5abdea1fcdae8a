"""Private names of torch that dry runs use. See `torch_patches` for those that they replace.

    torch._subclasses.fake_tensor                       tensors with a shape and no memory
    torch.testing._internal.distributed.fake_pg         a process group of any size in one process, whose collectives do nothing
    torch.utils._python_dispatch.TorchDispatchMode      intercepts every operation
    torch._C._autograd._get_sequence_nr, torch._C._current_autograd_node, torch._C._current_graph_task_id    position of a backward pass
    UntypedStorage._cdata                               identity of a storage
    torch.utils.checkpoint._StopRecomputationError      ends a recomputation early, once it has what the backward pass needs

This module and `torch_patches` are the only ones of the package that use private names. Importing
either with a torch release outside of the bounds of `training.torch_version` raises `RunnerError`.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

from autotune_workers.training.torch_version import check_torch_version

check_torch_version()

import torch  # noqa: E402 - the version is checked before
import torch.distributed as dist  # noqa: E402
from torch import Tensor  # noqa: E402
from torch._subclasses.fake_tensor import (  # noqa: E402
    DataDependentOutputException,
    DynamicOutputShapeException,
    FakeTensor,
    FakeTensorMode,
    UnsupportedOperatorException,
    unset_fake_temporarily,
)
from torch.testing._internal.distributed.fake_pg import FakeStore  # noqa: E402
from torch.utils._python_dispatch import TorchDispatchMode  # noqa: E402
from torch.utils.checkpoint import _StopRecomputationError as EndOfRecomputation  # noqa: E402

__all__ = [
    "DataDependentOutputException",
    "DynamicOutputShapeException",
    "EndOfRecomputation",
    "FakeTensor",
    "TorchDispatchMode",
    "UnsupportedOperatorException",
]

DEVICE = torch.ops.prim.device.default
"""reads the device of a tensor"""
WAIT = torch.ops._c10d_functional.wait_tensor.default
"""waits for a functional collective"""
RANGE_BEGINS = torch.ops.profiler._record_function_enter_new.default
"""begins a named range of the profiler"""


def fake_tensors() -> Any:
    """A context manager in which new tensors are fake. Real tensors used in it are treated as fake
    ones of their shape."""
    return FakeTensorMode(allow_non_fake_inputs=True)


def real_tensors() -> Any:
    """A context manager within `fake_tensors` in which operations are executed on real tensors."""
    return unset_fake_temporarily()


@contextlib.contextmanager
def fake_process_group(rank: int, world_size: int) -> Iterator[None]:
    """Within the block, this process is the given rank of a default process group of that size
    whose other ranks do not exist."""
    dist.init_process_group("fake", rank=rank, world_size=world_size, store=FakeStore())
    try:
        yield
    finally:
        dist.destroy_process_group()


def group_of(boxed: Any) -> dist.ProcessGroup:
    """The process group that a collective got as an argument, as an object or by name."""
    if isinstance(boxed, str):
        return torch._C._distributed_c10d._resolve_process_group(boxed)
    return boxed if isinstance(boxed, dist.ProcessGroup) else dist.ProcessGroup.unbox(boxed)


def storage_id(tensor: Tensor) -> int:
    """Identity of a plain tensor's storage; unique among live storages."""
    return tensor.untyped_storage()._cdata


def has_memory(tensor: Tensor) -> bool:
    """Whether the tensor would take memory on a device; false for meta tensors."""
    device = tensor.fake_device if isinstance(tensor, FakeTensor) else tensor.device
    return bool(device.type != "meta")


def is_wrapper(kind: type) -> bool:
    """Whether tensors of this class wrap other tensors (DTensor, results of asynchronous
    collectives, 8-bit formats) and run their operations on those."""
    return hasattr(kind, "__tensor_flatten__")


def parts_of(tensor: Tensor) -> Iterator[Tensor]:
    """The plain tensors inside of nested wrappers; a plain tensor itself."""
    if not is_wrapper(type(tensor)):
        yield tensor
        return
    names, _ = tensor.__tensor_flatten__()
    for part in (getattr(tensor, name) for name in names):
        if isinstance(part, Tensor):  # not a mesh
            yield from parts_of(part)


def backward_pass() -> int:
    """Id of the running backward pass; -1 outside of one."""
    return torch._C._current_graph_task_id()


def next_sequence_number() -> int:
    """Sequence number of the next autograd node; nodes are numbered in the order of the forward
    pass."""
    return torch._C._autograd._get_sequence_nr()


def running_sequence_number() -> int:
    """Sequence number of the autograd node whose backward pass runs; -1 outside of one."""
    node = torch._C._current_autograd_node()
    return -1 if node is None else node._sequence_nr()
