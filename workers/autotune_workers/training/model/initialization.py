"""Initial values of the weights, which do not depend on how the model is divided over ranks.

Each weight is drawn from a separate generator, seeded by (seed, its name in the whole model). A rank
draws the whole weight and keeps its part.
"""

from __future__ import annotations

import hashlib
import math

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from autotune.spec import ModelSpec
from autotune_workers.training.model.decoder import DecoderStage
from autotune_workers.training.parallel.tensor_parallel import local_part


def initial_value(
    name: str, shape: torch.Size, spec: ModelSpec, seed: int, device: torch.device
) -> Tensor:
    """The initial value of a whole weight: N(0, 0.02^2), for residual projections scaled by
    1/sqrt(2 L) (Radford et al. 2019, section 2.3).

    Low-rank adapters (r, in) and (out, r) have N(0, 1 / in) and 0 (Hu et al. 2021, section 4.1).
    """
    kind = name.rsplit(".", 1)[-1]
    if "norm" in name and kind == "weight":
        return torch.ones(shape, device=device)
    if "norm" in name or kind == "bias" or name.endswith("adapters.b"):
        return torch.zeros(shape, device=device)
    scale = 0.02
    if name.endswith("adapters.a"):
        scale = shape[1] ** -0.5
    elif name.endswith(("wo.weight", "down.weight")):
        scale /= math.sqrt(2 * spec.num_layers)
    digest = hashlib.blake2b(f"{seed}/{name}".encode(), digest_size=7).digest()
    generator = torch.Generator(device=device).manual_seed(int.from_bytes(digest))
    return torch.randn(shape, generator=generator, device=device).mul_(scale)


def materialize(
    module: nn.Module,
    names: dict[nn.Parameter, str],
    spec: ModelSpec,
    *,
    seed: int,
    device: torch.device,
) -> None:
    """Allocate the module's weights that are on the meta device, with their initial values. `names`:
    each weight's name in the whole model."""
    for inner in module.modules():
        for key, parameter in inner.named_parameters(recurse=False):
            if parameter.device.type != "meta":
                continue
            whole = initial_value(names[parameter], parameter.shape, spec, seed, device)
            values: Tensor = local_part(whole, parameter).to(parameter.dtype, copy=True)
            if isinstance(parameter, DTensor):
                values = DTensor.from_local(
                    values,
                    parameter.device_mesh,
                    parameter.placements,
                    run_check=False,
                    shape=parameter.shape,
                    stride=parameter.stride(),
                )
            inner.register_parameter(
                key, nn.Parameter(values, requires_grad=parameter.requires_grad)
            )
    for stage in (m for m in module.modules() if isinstance(m, DecoderStage)):
        stage.tie()
