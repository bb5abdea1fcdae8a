"""A small GPT under DDP, as people write it: argparse, accumulation, autocast, a line for each
step, a checkpoint at the end. It knows nothing of autotune."""

from __future__ import annotations

import argparse
import os
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional as F

WIDTH, LAYERS, WORDS, HEADS = 768, 12, 32000, 12


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, length, _ = x.shape
        q, k, v = (
            self.qkv(self.norm1(x))
            .view(batch, length, 3, HEADS, WIDTH // HEADS)
            .permute(2, 0, 3, 1, 4)
        )
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(mixed.transpose(1, 2).reshape(batch, length, WIDTH))
        return x + self.down(F.gelu(self.up(self.norm2(x))))


class Gpt(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.head = nn.Embedding(WORDS, WIDTH), nn.Linear(WIDTH, WORDS, bias=False)
        self.blocks = nn.ModuleList(Block() for _ in range(LAYERS))

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.embedding(tokens)
        for block in self.blocks:
            x = block(x)
        return self.head(x)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--batch-size", type=int, default=2)
    parser.add_argument("--grad-accum", type=int, default=16)
    parser.add_argument("--max-steps", type=int, default=200)
    parser.add_argument("--seq-len", type=int, default=512)
    parser.add_argument("--dtype", choices=["float32", "bfloat16"], default="float32")
    parser.add_argument("--out-dir", default="out")
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    dist.init_process_group("nccl")
    torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    torch.manual_seed(args.seed)
    model = nn.parallel.DistributedDataParallel(Gpt().cuda())
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    os.makedirs(args.out_dir, exist_ok=True)
    for step in range(args.max_steps):
        begin = time.time()
        optimizer.zero_grad()
        for micro in range(args.grad_accum):
            tokens = torch.randint(0, WORDS, (args.batch_size, args.seq_len + 1), device="cuda")
            model.require_backward_grad_sync = micro == args.grad_accum - 1
            with torch.autocast("cuda", dtype=torch.bfloat16, enabled=args.dtype == "bfloat16"):
                logits = model(tokens[:, :-1])
                loss = (
                    F.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten()) / args.grad_accum
                )
            loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        value = loss.item() * args.grad_accum
        print(f"step {step} loss {value:.4f} time {(time.time() - begin) * 1000:.1f}ms", flush=True)
    torch.save({"step": step}, os.path.join(args.out_dir, "ckpt.pt"))


if __name__ == "__main__":
    main()
