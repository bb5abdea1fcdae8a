"""A small decoder with tied embeddings in plain torch, as people write them."""

import argparse
import os
import signal
import sys
import time

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.checkpoint import checkpoint

parser = argparse.ArgumentParser()
parser.add_argument("--batch", type=int, default=4)
parser.add_argument("--accumulate", type=int, default=1)
parser.add_argument("--length", type=int, default=16)
parser.add_argument("--steps", type=int, default=6)
parser.add_argument("--dtype", default="float32")
parser.add_argument("--checkpoint", action="store_true")
parser.add_argument("--keywords", action="store_true")
parser.add_argument("--compile", default="")
parser.add_argument("--wrap", default="")
parser.add_argument("--model-file", default="")
parser.add_argument("--begin-file", default="")
parser.add_argument("--end", default="")
args = parser.parse_args()
torch.manual_seed(0)
VOCAB, WIDTH = 64, 32


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.mlp = nn.Sequential(
            nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH)
        )

    def forward(self, x):
        b, t, _ = x.shape
        q, k, v = self.qkv(x).view(b, t, 3, 4, WIDTH // 4).permute(2, 0, 3, 1, 4)
        x = x + self.out(
            F.scaled_dot_product_attention(q, k, v, is_causal=True)
            .transpose(1, 2)
            .reshape(b, t, WIDTH)
        )
        return x + self.mlp(x)


class Decoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.tokens = nn.Embedding(VOCAB, WIDTH)
        self.blocks = nn.ModuleList(Block() for _ in range(2))
        self.head = nn.Linear(WIDTH, VOCAB, bias=False)
        self.head.weight = self.tokens.weight

    def forward(self, ids, labels=None):
        x = self.tokens(ids)
        for block in self.blocks:
            x = checkpoint(block, x, use_reentrant=False) if args.checkpoint else block(x)
        return F.cross_entropy(self.head(x).flatten(0, 1), labels.flatten())


model = Decoder()
if args.wrap:
    torch.distributed.init_process_group("gloo")
if args.compile and args.wrap == "ddp":
    model = torch.compile(model, backend=args.compile)
if args.wrap == "ddp":
    model = nn.parallel.DistributedDataParallel(model)
elif args.wrap == "fsdp2":
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    mesh = init_device_mesh("cpu", (2,))
    for block in model.blocks:
        fully_shard(block, mesh=mesh)
    fully_shard(model, mesh=mesh)
elif args.wrap == "fsdp1":
    from torch.distributed.fsdp import FullyShardedDataParallel

    model = FullyShardedDataParallel(model, device_id=torch.device("cpu"))
if args.compile == "in place":
    model.compile(backend="aot_eager")
elif args.compile and args.wrap != "ddp":
    model = torch.compile(model, backend=args.compile)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
if args.begin_file:
    torch.save(model.state_dict(), args.begin_file)
for step in range(args.steps):
    for _ in range(args.accumulate):
        ids = torch.randint(0, VOCAB, (args.batch, args.length))
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=args.dtype == "bfloat16"):
            loss = model(ids=ids, labels=ids) if args.keywords else model(ids, ids)
        (loss / args.accumulate).backward()
    optimizer.step()
    optimizer.zero_grad()
    time.sleep(0.02)
    with torch.no_grad():
        model(ids, ids)  # an evaluation is no micro-batch
    print(f"step {step}: loss {loss.item():.4f}", flush=True)
if args.compile:
    from torch._dynamo.utils import counters

    stats = {name: counters["stats"][name] for name in ("unique_graphs", "calls_captured")}
    print(
        "graphs",
        stats,
        "breaks",
        len(counters["graph_break"]),
        "; frames",
        counters["frames"]["total"],
        flush=True,
    )
if args.model_file:
    torch.save(model.state_dict(), args.model_file)
if args.end == "os._exit":
    os._exit(3)
if args.end == "SIGKILL":
    os.kill(os.getpid(), signal.SIGKILL)
if args.wrap:
    torch.distributed.destroy_process_group()
sys.exit(0)
