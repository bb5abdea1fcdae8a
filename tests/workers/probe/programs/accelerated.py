"""accelerate's loop: `accumulate()` leaves the optimizer out of all but the last micro-batch of a
step."""

import sys

import torch
from accelerate import Accelerator
from torch import nn
from torch.utils.data import DataLoader

accelerator = Accelerator(cpu=True, gradient_accumulation_steps=3, mixed_precision=sys.argv[1])
torch.manual_seed(0)
model = nn.Sequential(nn.Embedding(64, 32), nn.Linear(32, 64))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
loader = DataLoader(torch.randint(0, 64, (64, 16)), batch_size=4)
model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
for ids in loader:
    with accelerator.accumulate(model):
        loss = nn.functional.cross_entropy(model(ids).float().flatten(0, 1), ids.flatten())
        accelerator.backward(loss)
        optimizer.step()
        optimizer.zero_grad()
