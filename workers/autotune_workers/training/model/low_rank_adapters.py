"""Low-rank adapters: fine-tuning trains two thin matrices in addition to each projection, whose own
weights are frozen (Hu et al. 2021, LoRA, arXiv:2106.09685).

    y = x W^T + scale * (x A^T) B^T        W (out, in) frozen    A (r, in)    B (out, r)    scale = 2, that is alpha = 2 r

B is initially zero, so that training starts with the unchanged model. Frozen weights have the dtype
of the activations, because no optimizer needs them in fp32. With tensor parallelism, adapters are
split as their projection: B if the outputs are split, A if the inputs are.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor

from autotune.spec import Peft
from autotune_workers.training.model.decoder import Block, DecoderStage, Linear
from autotune_workers.training.parallel.gradient_sync import local
from autotune_workers.training.parallel.tensor_parallel import local_part

SCALE = 2.0
"""factor of the adapters' output"""
ATTENTION = ("wq", "wk", "wv", "wo")
"""names of the attention's projections"""


def apply_adapters(stage: DecoderStage, peft: Peft, dtype: torch.dtype) -> None:
    """Freeze the stage's weights and add adapters to its projections, on the meta device. To be
    called after tensor parallelism was applied, which the adapters follow.

    `dtype`: of the frozen weights.
    """
    for module in stage.modules():
        for name, parameter in module.named_parameters(recurse=False):
            module.register_parameter(name, nn.Parameter(parameter.to(dtype), requires_grad=False))
    stage.tie()
    for block in stage.layers.values():
        for projection in _projections(block, peft.targets):
            projection.adapters = Adapters(projection, peft.rank)


def apply_own_adapters(
    module: nn.Module,
    linears: Mapping[str, nn.Linear],
    rank: int,
    dtype: torch.dtype,
    start: Callable[[str, torch.Size], Tensor],
) -> None:
    """Freeze all weights of a module built by code, and add adapters to some of its projections. To
    be called after tensor parallelism was applied, which the adapters follow.

    `linears`: the projections, by name in the module; `dtype`: of the frozen weights; `start`:
    returns the initial value of a whole weight with this name and shape.
    """
    frozen: dict[nn.Parameter, nn.Parameter] = {}  # keeps shared weights shared
    for inner in module.modules():
        for key, parameter in inner.named_parameters(recurse=False):
            values = parameter.detach()
            if parameter not in frozen:
                frozen[parameter] = nn.Parameter(
                    values.to(dtype) if values.is_floating_point() else values, requires_grad=False
                )
            inner.register_parameter(key, frozen[parameter])
    for name, linear in linears.items():
        adapters = Adapters(linear, rank)
        for key, parameter in adapters.named_parameters():
            local(parameter.detach()).copy_(
                local_part(start(f"{name}.adapters.{key}", parameter.shape), parameter)
            )
        linear.adapters = adapters
        plain = linear.forward
        # set on the instance, which keeps the names of its weights
        linear.forward = functools.partial(_with_adapters, plain, adapters)


def _with_adapters(plain: Callable[[Tensor], Tensor], adapters: Adapters, x: Tensor) -> Tensor:
    return plain(x) + adapters(x)


class Adapters(nn.Module):
    """The matrices A and B of one projection."""

    def __init__(self, projection: nn.Linear, rank: int) -> None:
        super().__init__()
        weight = projection.weight
        inner = torch.empty((rank, projection.in_features), device=weight.device)
        outer = torch.empty((projection.out_features, rank), device=weight.device)
        self.a = nn.Parameter(_split_like(weight, inner, 1))
        self.b = nn.Parameter(_split_like(weight, outer, 0))

    def forward(self, x: Tensor) -> Tensor:
        """(..., in) -> (..., out)."""
        return F.linear(F.linear(x, self.a.to(x.dtype)), self.b.to(x.dtype)) * SCALE


def _split_like(weight: Tensor, whole: Tensor, axis: int) -> Tensor:
    """`whole` as a DTensor, split along the axis if the projection's weight is."""
    if not isinstance(weight, DTensor):
        return whole
    placements = [p if p == Shard(axis) else Replicate() for p in weight.placements]
    return distribute_tensor(whole, weight.device_mesh, placements, src_data_rank=None)


def _projections(block: Block, targets: str) -> list[Linear]:
    attention = [getattr(block.attention, name) for name in ATTENTION]
    if targets == "attention":
        return attention
    # without the router: its choice of experts has no gradient
    mlp = [m for name, m in block.mlp.named_modules() if isinstance(m, Linear) and name != "router"]
    return attention + mlp
