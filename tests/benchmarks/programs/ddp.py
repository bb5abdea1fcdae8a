"""DistributedDataParallel under torchrun, with no_sync while it accumulates; rank 0 prints."""

import argparse
import contextlib
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--micro_batch", type=int, default=2)
    parser.add_argument("--accumulate", type=int, default=4)
    parser.add_argument("--max_steps", type=int, default=200)
    args = parser.parse_args()

    dist.init_process_group("gloo")
    torch.manual_seed(0)
    torch.set_num_threads(1)
    layers = [
        nn.TransformerEncoderLayer(128, 4, 512, dropout=0.0, batch_first=True) for _ in range(2)
    ]
    model = DistributedDataParallel(
        nn.Sequential(nn.Embedding(256, 128), *layers, nn.Linear(128, 256))
    )
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    torch.manual_seed(dist.get_rank())
    for step in range(args.max_steps):
        t0 = time.perf_counter()
        for micro in range(args.accumulate):
            x = torch.randint(256, (args.micro_batch, 33))
            with model.no_sync() if micro + 1 < args.accumulate else contextlib.nullcontext():
                loss = nn.functional.cross_entropy(
                    model(x[:, :-1]).flatten(0, 1), x[:, 1:].flatten()
                )
                (loss / args.accumulate).backward()
        norm = nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        if dist.get_rank() == 0:
            dt = time.perf_counter() - t0
            print(
                f"step {step:5d} | loss {loss.item():.4f} | norm {norm:.3f} | dt {dt * 1000:.2f}ms",
                flush=True,
            )
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
