"""Trains on a GPU, one rank of NCCL, and times its own steps by events on the device; prints them
as JSON. The host runs ahead: nothing waits for the device."""

import json
import os
import sys
import time
from itertools import pairwise

import torch
from torch import nn

torch.distributed.init_process_group("nccl")
device = torch.device("cuda", int(os.environ.get("LOCAL_RANK", 0)))
torch.cuda.set_device(device)
width, accumulate, steps = 2048, 3, int(sys.argv[1])
model = nn.parallel.DistributedDataParallel(
    nn.Sequential(*(nn.Linear(width, width) for _ in range(8))).to(device)
)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
inputs = torch.randn(512, width, device=device)
events = []
began = 0.0
for step in range(steps):
    if step == 5:
        torch.cuda.synchronize()
        began = time.perf_counter()
    for _ in range(accumulate):
        with torch.autocast("cuda", dtype=torch.bfloat16):
            loss = model(inputs).square().mean() / accumulate
        loss.backward()
    optimizer.step()
    events.append(torch.cuda.Event(enable_timing=True))
    events[-1].record()
    optimizer.zero_grad()
torch.cuda.synchronize()
took = time.perf_counter() - began
times = [before.elapsed_time(after) * 1e-3 for before, after in pairwise(events)]
print(
    json.dumps(
        {"times": times, "each": took / (steps - 5), "peak": torch.cuda.max_memory_allocated()}
    ),
    flush=True,
)
torch.distributed.destroy_process_group()
