"""All private names of torch that this package uses.

    distributed_c10d._world.pg_map              the process groups of this rank; no public call lists them
    distributed_c10d._abort_process_group       ends collectives that wait for a lost peer; public only per backend
    ProcessGroup._get_sequence_number_for_group number of collectives that a rank has begun in a group
    DeviceMesh._flatten, DeviceMesh._unflatten  the mesh axes dp_cp, and expert_data with ep
    tensor._utils.compute_local_shape_and_global_offset    which part of a weight a rank has
    tensor._redistribute, tensor._sharding_prop, tensor.debug._clear_sharding_prop_cache    DTensor's caches, see `forget_shardings`
    torch._C._cuda_*Cublas*WorkspaceS*          workspace memory of cuBLAS
    torch._foreach_norm, torch._foreach_mul_    one kernel for many gradients, as in torch's optimizers
    torch._dynamo.config                        makes a failed compilation an error
    torch.utils._pytree                         nested samples of users' models
    torch._functorch.config                     fraction of the activations that compiled layers save
    aten._scaled_dot_product_flash_attention*   attention that also returns the log-sum-exps of its scores; no public call does

`torch_version` bounds the releases. Importing this module with another release raises
`RunnerError`.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from typing import Any

from autotune_workers.training.torch_version import check_torch_version

check_torch_version()

import torch  # noqa: E402 - the version is checked before
import torch._functorch.config  # noqa: E402
import torch.distributed as dist  # noqa: E402
from torch import Tensor  # noqa: E402
from torch.distributed.device_mesh import DeviceMesh  # noqa: E402
from torch.distributed.tensor import _redistribute, _sharding_prop  # noqa: E402
from torch.distributed.tensor._utils import compute_local_shape_and_global_offset  # noqa: E402
from torch.distributed.tensor.debug import _clear_sharding_prop_cache  # noqa: E402
from torch.utils import _pytree as pytree  # noqa: E402

__all__ = ["pytree"]


def process_groups() -> list[dist.ProcessGroup]:
    """All process groups of this rank, in order of creation."""
    return list(dist.distributed_c10d._world.pg_map)


def collectives_begun(group: dist.ProcessGroup) -> int | None:
    """Number of collectives that this rank has begun in the group; None if the backend does not
    count them or the group was destroyed."""
    try:
        return int(group._get_sequence_number_for_group())
    except RuntimeError:
        return None


def abort_process_group() -> None:
    """Aborts the collectives of the default process group; they raise in the waiting thread."""
    dist.distributed_c10d._abort_process_group()


def flatten_axes(mesh: DeviceMesh, name: str) -> DeviceMesh:
    """The mesh with all its axes merged into one of this name."""
    return mesh._flatten(name)


def split_axis(
    mesh: DeviceMesh, axis: str, sizes: tuple[int, ...], names: tuple[str, ...]
) -> DeviceMesh:
    """The mesh with one axis split into several, the slowest first."""
    return mesh._unflatten(axis, sizes, names)


def local_shape_and_offset(
    shape: Sequence[int], mesh: DeviceMesh, placements: Sequence[Any]
) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Shape of this rank's part of a tensor of that global shape, and the global index of its first
    element."""
    local_shape, offset = compute_local_shape_and_global_offset(torch.Size(shape), mesh, placements)
    return tuple(local_shape), tuple(offset)


def forget_shardings() -> None:
    """Empties DTensor's caches of sharding decisions and redistributions.

    They are keyed by the shape of the mesh, so a later mesh of the same shape would get destroyed
    process groups.
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


def drop_cublas_workspaces(internals: Any = None) -> bool:
    """Frees the workspaces of cuBLAS; returns False if this torch cannot. cuBLAS allocates them
    again when needed. `internals`: replaces torch._C in tests."""
    drop = getattr(internals or torch._C, "_cuda_clearCublasWorkspaces", None)
    if drop is not None:
        drop()
    return drop is not None


def cublas_workspace_bytes(internals: Any = None) -> int:
    """Bytes that cuBLAS and cublasLt allocate for one handle and stream. `internals`: replaces
    torch._C in tests."""
    internals = internals or torch._C
    names = ("_cuda_getCublasWorkspaceSize", "_cuda_getCublasLtWorkspaceSize")
    return sum(int(getattr(internals, name)()) for name in names if hasattr(internals, name))


@contextlib.contextmanager
def compile_or_fail(activation_budget: float = 1.0) -> Iterator[None]:
    """Within the block, a layer that cannot be compiled, or is recompiled too often, raises instead
    of running uncompiled, which is torch's default.

    `activation_budget`: fraction of the activations that compiled layers save for the backward
    pass; the rest is recomputed.
    """
    with (
        torch._dynamo.config.patch(fail_on_recompile_limit_hit=True, suppress_errors=False),
        torch._functorch.config.patch(activation_memory_budget=activation_budget),
    ):
        yield


def flash_attention(q: Tensor, k: Tensor, v: Tensor, *, causal: bool) -> tuple[Tensor, Tensor]:
    """Attention of q, k and v (b, a, s, d). Returns its output (b, a, s, d) and the log-sum-exps of
    the scores (b, a, s) in fp32."""
    if q.device.type == "cuda":
        out, lse, *_ = torch.ops.aten._scaled_dot_product_flash_attention(q, k, v, is_causal=causal)
    else:
        out, lse = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(
            q, k, v, is_causal=causal
        )
    return out, lse


def flash_attention_backward(
    grad: Tensor, q: Tensor, k: Tensor, v: Tensor, out: Tensor, lse: Tensor, *, causal: bool
) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients of q, k and v (b, a, s, d). `grad`: of the output. `out` and `lse` may come from
    attention over more keys than `k`."""
    if q.device.type == "cuda":
        no_dropout = torch.empty(2, dtype=torch.uint64, device=q.device)
        grads = torch.ops.aten._scaled_dot_product_flash_attention_backward(
            *(
                grad,
                q,
                k,
                v,
                out,
                lse,
                None,
                None,
                q.shape[2],
                k.shape[2],
                0.0,
                causal,
                no_dropout,
                no_dropout,
            )
        )
    else:
        grads = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward(
            grad, q, k, v, out, lse, 0.0, causal
        )
    grad_q, grad_k, grad_v = grads
    return grad_q, grad_k, grad_v
