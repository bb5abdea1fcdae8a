"""fp16 with a gradient scaler that leaves the third step out; its data come from a loader that
takes 20 ms for a batch, in workers of its own."""

import sys
import time

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset


class Slow(Dataset):
    def __len__(self):
        return 64

    def __getitem__(self, place):
        if place % 8 == 0:
            time.sleep(0.02)
        return torch.full((4,), float("inf")) if place == 16 else torch.randn(4)


if __name__ == "__main__":
    workers = int(sys.argv[1])
    model = nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scaler = torch.amp.GradScaler("cpu", init_scale=8.0)
    for step, batch in enumerate(DataLoader(Slow(), batch_size=8, num_workers=workers)):
        with torch.autocast("cpu", dtype=torch.float16):
            loss = model(batch).mean()
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
        if step == 5:
            break
