"""A training as people write it, data parallel where it is started with several ranks; its options
are faults."""

from __future__ import annotations

import argparse
import os
import sys
import time

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

parser = argparse.ArgumentParser()
parser.add_argument("--steps", type=int, default=60)
parser.add_argument("--batch-size", type=int, default=8)
parser.add_argument("--seq-len", type=int, default=64)
parser.add_argument("--width", type=int, default=256)
parser.add_argument("--layers", type=int, default=4)
parser.add_argument("--accumulation", type=int, default=1)
parser.add_argument("--loader-sleep", type=float, default=0.0)
parser.add_argument("--plain-sleep", type=float, default=0.0)
parser.add_argument("--of-rank", type=int, default=-1)
parser.add_argument("--work", type=int, default=1)
parser.add_argument("--lengths", default="same")
parser.add_argument("--evaluate-every", type=int, default=0)
parser.add_argument("--save-every", type=int, default=0)
parser.add_argument("--print-lines", type=int, default=0)
parser.add_argument("--compile", action="store_true")
parser.add_argument("--shapes", action="store_true")
parser.add_argument("--churn-mb", type=int, default=0)
parser.add_argument("--host-loop", type=int, default=0)
args = parser.parse_args()
rank, ranks = int(os.environ.get("RANK", 0)), int(os.environ.get("WORLD_SIZE", 1))
if ranks > 1:
    torch.distributed.init_process_group("gloo")
torch.set_num_threads(1)
hit = args.of_rank in (-1, rank)


class Tokens(Dataset):
    def __len__(self) -> int:
        return 100_000

    def __getitem__(self, index: int) -> torch.Tensor:
        if args.loader_sleep and hit:
            time.sleep(args.loader_sleep)
        length = args.seq_len
        return torch.randint(0, 512, (length,))


class Block(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.inner = nn.Sequential(
            nn.LayerNorm(width), nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width)
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.inner(x)


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(512, args.width)
        self.blocks = nn.Sequential(*[Block(args.width) for _ in range(args.layers)])
        self.head = nn.Linear(args.width, 512)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.table(tokens)
        for _ in range(args.work if hit else 1):
            x = self.blocks(x)
        return self.head(x)


def loss_of(model: nn.Module, tokens: torch.Tensor) -> torch.Tensor:
    return nn.functional.cross_entropy(model(tokens).flatten(0, 1), tokens.flatten())


def evaluate(model: nn.Module) -> None:
    model.eval()
    with torch.no_grad():
        for _ in range(12):
            loss_of(model, torch.randint(0, 512, (args.batch_size, args.seq_len)))
    model.train()


def next_batch(source: object) -> torch.Tensor:
    if args.plain_sleep:
        if hit:
            time.sleep(args.plain_sleep)
        return torch.randint(0, 512, (args.batch_size, args.seq_len))
    tokens = next(source)
    if args.lengths == "tail":
        rows = args.batch_size * (6 if torch.rand(()).item() < 0.25 else 1)
        return tokens[:1].expand(rows, -1).contiguous()
    return tokens


torch.manual_seed(rank)
model = Model()
if args.compile:
    model = torch.compile(model, backend="eager", dynamic=False)
if ranks > 1:
    model = nn.parallel.DistributedDataParallel(model)
optimizer = torch.optim.AdamW(model.parameters())
source = iter(DataLoader(Tokens(), batch_size=args.batch_size))
shapes = 0
for step in range(args.steps):
    for _ in range(args.accumulation):
        tokens = next_batch(source)
        if args.shapes:
            shapes += 1
            tokens = tokens[:, : args.seq_len - shapes % 40]
        held = (
            [torch.ones(1 << 24) for _ in range(args.churn_mb // 64)]
            if args.churn_mb and hit
            else []
        )
        loss = loss_of(model, tokens)
        loss.backward()
        del held
        for line in range(args.print_lines):
            print(f"micro-batch of step {step}: {line} loss {loss.item():.6f}", flush=True)
        for _ in range(args.host_loop if hit else 0):
            sum(range(2000))
    optimizer.step()
    optimizer.zero_grad()
    if args.evaluate_every and step % args.evaluate_every == args.evaluate_every - 1:
        evaluate(model)
    if args.save_every and step % args.save_every == args.save_every - 1:
        torch.save(
            [p.detach().flatten().repeat(8) for p in model.parameters()], f"checkpoint-{rank}.pt"
        )
    if rank == 0:
        print(f"step {step} loss {loss.item():.4f}", flush=True)
if ranks > 1:
    torch.distributed.destroy_process_group()
sys.exit(0)
