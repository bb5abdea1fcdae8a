"""What dry runs name of torch without a promise that it stays: fake tensors and groups, modes,
autograd's numbers. See `torch_patches` for what they replace.

    torch._subclasses.fake_tensor                       tensors that have a shape and no memory
    torch.testing._internal.distributed.fake_pg         a process group of any size in one process, whose collectives do nothing
    torch.utils._python_dispatch.TorchDispatchMode      sees every operation
    torch._C._autograd._get_sequence_nr, torch._C._current_autograd_node, torch._C._current_graph_task_id    where a backward pass is
    UntypedStorage._cdata                               identity of a storage
    torch.utils.checkpoint._StopRecomputationError      by which recomputation ends as soon as it has what the backward pass needs

This module and `torch_patches` are the only ones of the package that use private names. Importing
either under a torch outside the bounds of `training.torch_version` raises `RunnerError`, which
names bound, version and remedy.
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
"""the question on which device a fake tensor is said to be"""
WAIT = torch.ops._c10d_functional.wait_tensor.default
"""the wait for a functional collective"""
RANGE_BEGINS = torch.ops.profiler._record_function_enter_new.default
"""the beginning of a named range"""


def fake_tensors() -> Any:
    """A block in which tensors have shapes and no memory. Real ones that are used in it are taken
    as fake ones of their shape."""
    return FakeTensorMode(allow_non_fake_inputs=True)


def real_tensors() -> Any:
    """A block within `fake_tensors` in which operations are computed."""
    return unset_fake_temporarily()


@contextlib.contextmanager
def fake_process_group(rank: int, world_size: int) -> Iterator[None]:
    """The default process group of that size, of which this process is the given rank and there are
    no others."""
    dist.init_process_group("fake", rank=rank, world_size=world_size, store=FakeStore())
    try:
        yield
    finally:
        dist.destroy_process_group()


def group_of(boxed: Any) -> dist.ProcessGroup:
    """The process group in an argument of a collective: boxed, or by name."""
    if isinstance(boxed, str):
        return torch._C._distributed_c10d._resolve_process_group(boxed)
    return boxed if isinstance(boxed, dist.ProcessGroup) else dist.ProcessGroup.unbox(boxed)


def storage_id(tensor: Tensor) -> int:
    """Identity of the memory behind a plain tensor, among those that live now."""
    return tensor.untyped_storage()._cdata


def has_memory(tensor: Tensor) -> bool:
    """Whether it would take memory on a device: what is on the meta device does not."""
    device = tensor.fake_device if isinstance(tensor, FakeTensor) else tensor.device
    return bool(device.type != "meta")


def is_wrapper(kind: type) -> bool:
    """Whether tensors of this class hold other tensors (DTensor, a collective's result, 8-bit
    numbers) and run their operations on those."""
    return hasattr(kind, "__tensor_flatten__")


def parts_of(tensor: Tensor) -> Iterator[Tensor]:
    """The plain tensors that it is made of: itself, or what a wrapper holds."""
    if not is_wrapper(type(tensor)):
        yield tensor
        return
    names, _ = tensor.__tensor_flatten__()
    for part in (getattr(tensor, name) for name in names):
        if isinstance(part, Tensor):  # others are meshes
            yield from parts_of(part)


def backward_pass() -> int:
    """Number of the backward pass that runs now; -1 outside of one."""
    return torch._C._current_graph_task_id()


def next_sequence_number() -> int:
    """That of the next node of the autograd graph: nodes are numbered in the order of the forward
    pass."""
    return torch._C._autograd._get_sequence_nr()


def running_sequence_number() -> int:
    """That of the node whose backward runs now; -1 outside of one."""
    node = torch._C._current_autograd_node()
    return -1 if node is None else node._sequence_nr()
