"""Everything that this package uses of torch without a promise that it stays: the only module that names it.

    distributed_c10d._world.pg_map              the process groups that this rank is in; no public call lists them
    distributed_c10d._abort_process_group       ends collectives that wait for a lost peer; public only per backend
    DeviceMesh._flatten, DeviceMesh._unflatten  the mesh axes dp_cp, and expert_data with ep
    tensor._utils.compute_local_shape_and_global_offset    which part of a weight a rank holds
    tensor._redistribute, tensor._sharding_prop, tensor.debug._clear_sharding_prop_cache    DTensor's caches, see `forget_shardings`
    torch._foreach_norm, torch._foreach_mul_    one kernel for many gradients, as torch's own optimizers use them
    torch._dynamo.config                        whether a failed compilation is an error

`torch_version` bounds the releases. Importing this module under another one raises `RunnerError`, which names bound, version and remedy.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from typing import Any

from autotune_workers.training.torch_version import check_torch_version

check_torch_version()

import torch  # noqa: E402 - the version is checked before
import torch.distributed as dist  # noqa: E402
from torch import Tensor  # noqa: E402
from torch.distributed.device_mesh import DeviceMesh  # noqa: E402
from torch.distributed.tensor import _redistribute, _sharding_prop  # noqa: E402
from torch.distributed.tensor._utils import compute_local_shape_and_global_offset  # noqa: E402
from torch.distributed.tensor.debug import _clear_sharding_prop_cache  # noqa: E402


def process_groups() -> list[dist.ProcessGroup]:
    """Every process group that this rank is in, in the order in which they were made."""
    return list(dist.distributed_c10d._world.pg_map)


def abort_process_group() -> None:
    """Breaks off the collectives of the default process group; they raise in the thread that waits for them."""
    dist.distributed_c10d._abort_process_group()


def flatten_axes(mesh: DeviceMesh, name: str) -> DeviceMesh:
    """The mesh with all its axes joined to one of this name."""
    return mesh._flatten(name)


def split_axis(mesh: DeviceMesh, axis: str, sizes: tuple[int, ...], names: tuple[str, ...]) -> DeviceMesh:
    """The mesh with one axis split into several, the slowest first."""
    return mesh._unflatten(axis, sizes, names)


def local_shape_and_offset(
    shape: Sequence[int], mesh: DeviceMesh, placements: Sequence[Any]
) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Shape of this rank's part of a tensor of that shape, and where it begins."""
    local_shape, offset = compute_local_shape_and_global_offset(torch.Size(shape), mesh, placements)
    return tuple(local_shape), tuple(offset)


def forget_shardings() -> None:
    """Empties DTensor's caches of how it cut and moved tensors.

    They are keyed by the shape of the mesh: a later mesh of the same shape would be given process groups that have been destroyed.
    """
    _clear_sharding_prop_cache()
    for module in (_redistribute, _sharding_prop):
        for cached in vars(module).values():
            if hasattr(cached, "cache_clear") and not isinstance(cached, type):
                cached.cache_clear()


def norms_of(tensors: Sequence[Tensor]) -> list[Tensor]:
    """The Euclidean norm of each tensor."""
    return list(torch._foreach_norm(list(tensors)))


def scale_all(tensors: Sequence[Tensor | None], factor: float) -> None:
    """Multiplies every tensor in place."""
    torch._foreach_mul_(list(tensors), factor)


@contextlib.contextmanager
def compile_or_fail() -> Iterator[None]:
    """Within the block, a layer that cannot be compiled, or would be compiled too often, raises. By default torch runs it uncompiled."""
    with torch._dynamo.config.patch(fail_on_recompile_limit_hit=True, suppress_errors=False):
        yield
