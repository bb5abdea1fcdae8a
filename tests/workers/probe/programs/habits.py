"""A small training with one habit: a frozen teacher, or an average of weights, that is called with
gradients, a frozen reference that is called without them, an average that is never called, tensor
parallelism on a mesh without names, ranks that average no gradients, each with a network, or a
stage, of its own, an optimizer that sends its weights after the step, parameters that wait on the
host, an outer module of which only a method is called, or ranks that are forked."""

import copy
import os
import sys

import torch
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import CPUOffloadPolicy, FullyShardedDataParallel, fully_shard
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    RowwiseParallel,
    parallelize_module,
)


class Network(nn.Module):
    def __init__(self, width=16):
        super().__init__()
        self.inside = nn.Sequential(
            nn.Linear(8, width, bias=False), nn.Linear(width, 8, bias=False)
        )
        self.outside = nn.Parameter(torch.zeros(8))

    def forward(self, x):
        return self.inside(x) + self.outside


def train(rank, habit):
    model, teacher, average, reference = Network(), nn.Identity(), None, None
    if habit == "forked":
        torch.distributed.init_process_group(
            "gloo", init_method=f"file://{os.getcwd()}/meet", rank=rank, world_size=2
        )
        model = nn.parallel.DistributedDataParallel(model)
    elif habit in ("teacher", "average"):
        teacher = Network(64).requires_grad_(habit == "average")
    elif habit == "reference":
        reference = Network(64).requires_grad_(False).eval()
    elif habit == "copy":
        average = copy.deepcopy(model).requires_grad_(False)
    elif habit in ("alone", "stage", "sends"):
        torch.distributed.init_process_group("gloo")
        rank = torch.distributed.get_rank()
        if habit == "stage" and rank:
            model = nn.Linear(8, 8)
        elif habit == "sends":
            model = nn.parallel.DistributedDataParallel(model)
    elif habit != "method":
        torch.distributed.init_process_group("gloo")
        mesh = init_device_mesh("cpu", (2,), mesh_dim_names=("x",) if habit == "named" else None)
        if habit == "host":
            fully_shard(model, mesh=mesh, offload_policy=CPUOffloadPolicy(pin_memory=False))
        elif habit in ("mesh", "named"):
            plan = {"0": ColwiseParallel(), "1": RowwiseParallel()}
            parallelize_module(model.inside, mesh, plan)
        else:
            model = FullyShardedDataParallel(model, device_id=torch.device("cpu"))
    call = model.forward if habit == "method" else model
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, foreach=False)
    if habit == "sends":
        optimizer = ZeroRedundancyOptimizer(model.parameters(), torch.optim.SGD, lr=0.1)
    for step in range(4):
        torch.manual_seed(step + 100 * rank)
        batch = torch.randn(4, 8)
        # as a network that computes a loss, the teacher is given what the model makes, too
        with torch.no_grad():
            batch = reference(batch) if reference else batch
        made = call(batch)
        (teacher(made) - teacher(batch)).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
        if average:
            averaging = zip(average.parameters(), model.parameters(), strict=True)
            for mean, weight in averaging:
                mean.lerp_(weight.detach(), 0.1)
    if torch.distributed.is_initialized():
        torch.distributed.destroy_process_group()


if __name__ == "__main__":
    if sys.argv[1] == "forked":
        torch.multiprocessing.start_processes(train, ("forked",), nprocs=2, start_method="fork")
    else:
        train(0, sys.argv[1])
