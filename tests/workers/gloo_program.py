"""A training script for several nodes, as people write it for torchrun: it sums a number over all
ranks in each step and prints a log.

torchrun ... gloo_program.py --steps N --micro-batch M --ranks R [--step-s S]
"""

from __future__ import annotations

import argparse
import os
import socket
import time

import torch
import torch.distributed as dist


def main() -> None:
    """Prints one step after the other, on rank 0."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, required=True)
    parser.add_argument("--micro-batch", type=int, required=True)
    parser.add_argument("--ranks", type=int, required=True)
    parser.add_argument("--step-s", type=float, default=0.05)
    arguments = parser.parse_args()
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    assert dist.get_world_size() == arguments.ranks
    print(
        f"rank {rank} on {socket.gethostname()} in {os.getcwd()} with {os.environ.get('COLOUR')}",
        flush=True,
    )
    for step in range(arguments.steps):
        began_s = time.monotonic()
        time.sleep(arguments.step_s)
        ranks = torch.ones(1)
        dist.all_reduce(ranks)
        if rank == 0:
            loss = 5.0 - 0.01 * step
            print(
                f"iteration {step}: {1000 * (time.monotonic() - began_s):.3f} ms, loss = {loss:.3f}",
                flush=True,
            )
            print(f"{int(ranks.item())} ranks", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
