"""One process, nothing but torch; prints what a first script prints."""

import argparse
import time

import torch
from torch import nn

parser = argparse.ArgumentParser()
parser.add_argument("--batch-size", type=int, default=2)
parser.add_argument("--grad-accum", type=int, default=8)
parser.add_argument("--iters", type=int, default=200)
parser.add_argument("--threads", type=int, default=1)
args = parser.parse_args()

torch.manual_seed(0)
torch.set_num_threads(args.threads)
layers = [nn.TransformerEncoderLayer(128, 4, 512, dropout=0.0, batch_first=True) for _ in range(2)]
model = nn.Sequential(nn.Embedding(256, 128), *layers, nn.Linear(128, 256))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
print(f"{sum(p.numel() for p in model.parameters()):,} parameters")

for it in range(1, args.iters + 1):
    start = time.time()
    total = 0.0
    for _ in range(args.grad_accum):
        x = torch.randint(256, (args.batch_size, 33))
        loss = (
            nn.functional.cross_entropy(model(x[:, :-1]).flatten(0, 1), x[:, 1:].flatten())
            / args.grad_accum
        )
        loss.backward()
        total += loss.item()
    optimizer.step()
    optimizer.zero_grad()
    print(
        f"iter {it}/{args.iters} | train loss {total:.4f} | {1000 * (time.time() - start):.1f} ms",
        flush=True,
    )
