"""A small training with one habit: a frozen teacher that is called with gradients, tensor parallelism on a mesh without names, or parameters that wait on the host."""

import sys

import torch
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import CPUOffloadPolicy, fully_shard
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    RowwiseParallel,
    parallelize_module,
)


def network(width: int) -> nn.Module:
    return nn.Sequential(nn.Linear(8, width, bias=False), nn.Linear(width, 8, bias=False))


if __name__ == "__main__":
    habit = sys.argv[1]
    model, teacher = network(16), nn.Identity()
    if habit == "teacher":
        teacher = network(64).requires_grad_(False)
    else:
        torch.distributed.init_process_group("gloo")
        mesh = init_device_mesh("cpu", (2,))
        if habit == "host":
            fully_shard(model, mesh=mesh, offload_policy=CPUOffloadPolicy(pin_memory=False))
        else:
            parallelize_module(model, mesh, {"0": ColwiseParallel(), "1": RowwiseParallel()})
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, foreach=False)
    for step in range(4):
        torch.manual_seed(step)
        batch = torch.randn(4, 8)
        # as a network that computes a loss, the teacher is given what the model makes, too
        made = model(batch)
        (teacher(made) - teacher(batch)).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
    if torch.distributed.is_initialized():
        torch.distributed.destroy_process_group()
