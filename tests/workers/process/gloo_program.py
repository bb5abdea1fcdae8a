"""A plain torchrun script: an all-reduce over all ranks in every step, and rank 0 prints. It names no node, address or port."""

from __future__ import annotations

import argparse
import time

import torch
import torch.distributed as dist


def main() -> None:
    """Trains nothing."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--micro-batch", type=int, required=True)
    parser.parse_args()
    dist.init_process_group("gloo")
    for step in range(10):
        began_s = time.perf_counter()
        total = torch.ones(1)
        dist.all_reduce(total)
        assert total.item() == dist.get_world_size()
        if dist.get_rank() == 0:
            seconds = time.perf_counter() - began_s
            print(f"iteration {step}: loss = 2.0\niteration {step}: {1000 * seconds:.4f} ms", flush=True)
    print(f"ranks {dist.get_world_size()}", flush=True)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
