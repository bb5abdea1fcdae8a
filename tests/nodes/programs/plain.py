"""DistributedDataParallel, written by hand; prints a line for each step."""

from __future__ import annotations

import argparse
import time

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--batch-size", type=int, default=4)
    parser.add_argument("--steps", type=int, default=20)
    arguments = parser.parse_args()
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    model = DistributedDataParallel(
        torch.nn.Sequential(torch.nn.Embedding(256, 64), torch.nn.Linear(64, 256))
    )
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    for step in range(arguments.steps):
        began_s = time.perf_counter()
        tokens = torch.randint(256, (arguments.batch_size, 33))
        logits = model(tokens[:, :-1])
        loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if dist.get_rank() == 0:
            print(
                f"step {step} loss: {loss.item():.4f} step time: {time.perf_counter() - began_s:.6f} s",
                flush=True,
            )
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
