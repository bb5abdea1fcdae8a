"""Models of other shapes than a decoder's, as their authors would write them: cross attention,
experts of limited capacity, skip connections."""

from __future__ import annotations

import math
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class Attention(nn.Module):
    """Attention to the sequence itself, or to another one."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.q, self.kv, self.o = (
            nn.Linear(width, width),
            nn.Linear(width, 2 * width),
            nn.Linear(width, width),
        )

    def forward(self, x: Tensor, context: Tensor, causal: bool = False) -> Tensor:
        """(b, s, h) and (b, t, h) -> (b, s, h)."""
        q = self.q(x).unflatten(-1, (self.heads, -1)).transpose(1, 2)
        k, v = self.kv(context).unflatten(-1, (2 * self.heads, -1)).transpose(1, 2).chunk(2, 1)
        return self.o(
            F.scaled_dot_product_attention(q, k, v, is_causal=causal).transpose(1, 2).flatten(2)
        )


class EncoderLayer(nn.Module):
    """Attention and MLP."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(2))
        self.attn = Attention(width, heads)
        self.mlp = nn.Sequential(
            nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width)
        )

    def forward(self, x: Tensor) -> Tensor:
        """Same shape."""
        h = self.norms[0](x)
        x = x + self.attn(h, h)
        return x + self.mlp(self.norms[1](x))


class DecoderLayer(nn.Module):
    """Attention, cross attention and MLP."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(3))
        self.attn, self.cross = Attention(width, heads), Attention(width, heads)
        self.mlp = nn.Sequential(
            nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width)
        )

    def forward(self, x: Tensor, memory: Tensor) -> Tensor:
        """The shape of `x`."""
        h = self.norms[0](x)
        x = x + self.attn(h, h, causal=True)
        x = x + self.cross(self.norms[1](x), memory)
        return x + self.mlp(self.norms[2](x))


class EncoderDecoder(nn.Module):
    """One embedding for source, target and output."""

    def __init__(self, vocabulary: int, width: int, heads: int, depth: int) -> None:
        super().__init__()
        self.embed = nn.Embedding(vocabulary, width)
        self.positions = nn.Parameter(torch.randn(1, 64, width) * 0.02)
        self.encoder = nn.ModuleList(EncoderLayer(width, heads) for _ in range(depth))
        self.decoder = nn.ModuleList(DecoderLayer(width, heads) for _ in range(depth))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, vocabulary, bias=False)
        self.head.weight = self.embed.weight

    def forward(self, source: Tensor, target: Tensor) -> Tensor:
        """(b, s) and (b, t) -> logits (b, t, V)."""
        x = self.embed(source) + self.positions[:, : source.shape[1]]
        for layer in self.encoder:
            x = layer(x)
        y = self.embed(target) + self.positions[:, : target.shape[1]]
        for layer in self.decoder:
            y = layer(y, x)
        return self.head(self.norm(y))


def encoder_decoder(
    vocabulary: int = 500, width: int = 32, heads: int = 4, depth: int = 2
) -> dict[str, Any]:
    """Two sequences of different lengths."""

    def make_input(size: int, seq_len: int) -> dict[str, Tensor]:
        source = torch.randint(vocabulary, (size, seq_len))
        return {"source": source, "target": torch.randint(vocabulary, (size, seq_len // 2))}

    def loss(logits: Tensor, inputs: dict[str, Tensor]) -> Tensor:
        return F.cross_entropy(
            logits[:, :-1].float().flatten(0, 1), inputs["target"][:, 1:].flatten()
        )

    return {
        "model": EncoderDecoder(vocabulary, width, heads, depth),
        "input": make_input,
        "loss": loss,
    }


class CapacityExperts(nn.Module):
    """Each token goes to k experts; an expert takes no more than its capacity, c k tokens / experts
    (arXiv:2006.16668, section 2.2)."""

    def __init__(self, width: int, experts: int, k: int, factor: float) -> None:
        super().__init__()
        self.k, self.factor, self.experts = k, factor, experts
        self.router = nn.Linear(width, experts, bias=False)
        self.up = nn.Parameter(torch.randn(experts, width, 2 * width) / width**0.5)
        self.down = nn.Parameter(torch.randn(experts, 2 * width, width) / (2 * width) ** 0.5)

    def forward(self, x: Tensor) -> Tensor:
        """Same shape; tokens beyond the capacity give zeros."""
        tokens = x.flatten(0, 1)
        capacity = math.ceil(self.factor * self.k * len(tokens) / self.experts)
        weight, chosen = self.router(tokens).softmax(-1).topk(self.k)
        marked = F.one_hot(chosen.flatten(), self.experts)
        place = (marked.cumsum(0) * marked).sum(-1) - 1
        kept = place < capacity
        slot = torch.where(kept, chosen.flatten() * capacity + place, self.experts * capacity)
        queue = tokens.new_zeros(self.experts * capacity + 1, tokens.shape[-1])
        queue = queue.index_copy(0, slot, tokens.repeat_interleave(self.k, 0))
        inner = torch.bmm(queue[:-1].unflatten(0, (self.experts, capacity)), self.up)
        out = torch.bmm(F.silu(inner), self.down).flatten(0, 1)
        out = torch.cat([out, out.new_zeros(1, out.shape[-1])])
        mixed = (out[slot] * (weight.flatten() * kept)[:, None]).unflatten(0, (-1, self.k)).sum(1)
        return mixed.to(x.dtype).view_as(x)


class ExpertLayer(nn.Module):
    """Attention and experts."""

    def __init__(self, width: int, heads: int, experts: int) -> None:
        super().__init__()
        self.norms = nn.ModuleList(nn.RMSNorm(width) for _ in range(2))
        self.attn = Attention(width, heads)
        self.experts = CapacityExperts(width, experts, k=2, factor=1.25)

    def forward(self, x: Tensor) -> Tensor:
        """Same shape."""
        h = self.norms[0](x)
        x = x + self.attn(h, h, causal=True)
        return x + self.experts(self.norms[1](x))


class ExpertModel(nn.Module):
    """Layers between an embedding and a projection."""

    def __init__(self, width: int, depth: int, experts: int) -> None:
        super().__init__()
        self.embed = nn.Embedding(256, width)
        self.layers = nn.ModuleList(ExpertLayer(width, 4, experts) for _ in range(depth))
        self.norm, self.head = nn.RMSNorm(width), nn.Linear(width, 256, bias=False)

    def forward(self, tokens: Tensor) -> Tensor:
        """(b, s) -> logits (b, s, V)."""
        x = self.embed(tokens)
        for layer in self.layers:
            x = layer(x)
        return self.head(self.norm(x))


def capacity_experts(width: int = 32, depth: int = 4, experts: int = 4) -> dict[str, Any]:
    """Reads tokens, and can be cut into stages."""
    return {
        "model": ExpertModel(width, depth, experts),
        "pp_split": [f"layers.{i}" for i in range(1, depth)],
    }


class Residual(nn.Module):
    """Two convolutions beside a projection, shifted by the time step."""

    def __init__(self, inner: int, outer: int, time: int) -> None:
        super().__init__()
        self.norms = nn.ModuleList(nn.GroupNorm(4, width) for width in (inner, outer))
        self.first, self.second = (
            nn.Conv2d(inner, outer, 3, padding=1),
            nn.Conv2d(outer, outer, 3, padding=1),
        )
        self.time = nn.Linear(time, outer)
        self.beside = nn.Conv2d(inner, outer, 1) if inner != outer else nn.Identity()

    def forward(self, x: Tensor, time: Tensor) -> Tensor:
        """(b, inner, h, w) -> (b, outer, h, w)."""
        h = self.first(F.silu(self.norms[0](x))) + self.time(F.silu(time))[:, :, None, None]
        return self.beside(x) + self.second(F.silu(self.norms[1](h)))


class UNet(nn.Module):
    """Predicts noise: down, across with attention, and up again beside what the way down left
    (arXiv:1505.04597, arXiv:2006.11239)."""

    def __init__(self, width: int) -> None:
        super().__init__()
        sizes = (width, 2 * width, 4 * width)
        self.time = nn.Sequential(
            nn.Linear(width, 4 * width), nn.SiLU(), nn.Linear(4 * width, 4 * width)
        )
        self.stem, self.out = nn.Conv2d(3, width, 3, padding=1), nn.Conv2d(width, 3, 3, padding=1)
        steps = zip((width, *sizes), sizes, strict=False)
        self.down = nn.ModuleList(Residual(inner, outer, 4 * width) for inner, outer in steps)
        self.middle = Residual(sizes[-1], sizes[-1], 4 * width)
        self.attn = nn.MultiheadAttention(sizes[-1], 4, batch_first=True)
        steps = zip((sizes[-1], *sizes[::-1]), sizes[::-1], strict=False)
        self.up = nn.ModuleList(Residual(inner + outer, outer, 4 * width) for inner, outer in steps)
        self.register_buffer("rates", torch.logspace(0, -4, width // 2), persistent=False)

    def forward(self, noisy: Tensor, step: Tensor) -> Tensor:
        """(b, 3, side, side) and (b,) -> (b, 3, side, side)."""
        angles = step[:, None].float() * self.rates
        time = self.time(torch.cat([angles.sin(), angles.cos()], -1))
        x, left = self.stem(noisy), []
        for block in self.down:
            x = block(x, time)
            left.append(x)
            x = F.avg_pool2d(x, 2)
        x = self.middle(x, time)
        h = x.flatten(2).transpose(1, 2)
        x = x + self.attn(h, h, h, need_weights=False)[0].transpose(1, 2).unflatten(2, x.shape[2:])
        for block in self.up:
            x = F.interpolate(x, scale_factor=2.0, mode="nearest")
            x = block(torch.cat([x, left.pop()], 1), time)
        return self.out(x)


def u_net(width: int = 8, side: int = 16) -> dict[str, Any]:
    """Images and the time steps of a diffusion."""

    def make_input(size: int, seq_len: int) -> dict[str, Tensor]:
        return {"noisy": torch.randn(size, 3, side, side), "step": torch.randint(1000, (size,))}

    def loss(output: Tensor, inputs: dict[str, Tensor]) -> Tensor:
        return F.mse_loss(output.float(), inputs["noisy"])

    return {"model": UNet(width), "input": make_input, "loss": loss}
