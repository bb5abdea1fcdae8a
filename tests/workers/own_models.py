"""Modules as a user would write them, and the functions that build them: what `model: {module:
...}` names in tests."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class Attention(nn.Module):
    """Causal attention of whole heads."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.head_dim = width // heads
        self.q, self.k, self.v, self.o = (nn.Linear(width, width) for _ in range(4))

    def forward(self, x: Tensor) -> Tensor:
        """(b, s, h) -> (b, s, h)."""
        q, k, v = (
            w(x).unflatten(-1, (-1, self.head_dim)).transpose(1, 2)
            for w in (self.q, self.k, self.v)
        )
        return self.o(
            F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(2)
        )


class Block(nn.Module):
    """Pre-norm attention and MLP."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.norm, self.attn = nn.LayerNorm(width), Attention(width, heads)
        self.mlp_norm, self.up, self.down = (
            nn.LayerNorm(width),
            nn.Linear(width, 4 * width),
            nn.Linear(4 * width, width),
        )

    def forward(self, x: Tensor) -> Tensor:
        """(b, s, h) -> (b, s, h)."""
        x = x + self.attn(self.norm(x))
        return x + self.down(F.gelu(self.up(self.mlp_norm(x))))


class TinyLanguageModel(nn.Module):
    """A decoder of one's own."""

    def __init__(self, width: int, depth: int, heads: int, *, tied: bool) -> None:
        super().__init__()
        self.embed = nn.Embedding(256, width)
        self.blocks = nn.ModuleList(Block(width, heads) for _ in range(depth))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, 256, bias=False)
        nn.init.normal_(self.embed.weight, std=0.02)
        if tied:
            self.head.weight = self.embed.weight

    def forward(self, tokens: Tensor) -> Tensor:
        """(b, s) -> logits (b, s, 256)."""
        x = self.embed(tokens)
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))


def language_model(
    width: int = 32, depth: int = 4, heads: int = 4, tied: bool = False
) -> dict[str, Any]:
    """With everything that a builder may return for a model that reads tokens."""
    return {
        "model": TinyLanguageModel(width, depth, heads, tied=tied),
        "tp_plan": {
            **{f"blocks.*.attn.{name}": "colwise" for name in "qkv"},
            "blocks.*.attn.o": "rowwise",
            "blocks.*.up": "colwise",
            "blocks.*.down": "rowwise",
            "head": "colwise_gather_output",
        },
        "pp_split": [f"blocks.{i}" for i in range(1, depth)],
        "shapes": {"num_attention_heads": heads, "ffn_hidden_size": 4 * width},
    }


def split_by_function(depth: int = 4) -> dict[str, Any]:
    """Says how it is cut by a function of its own."""
    built = language_model(depth=depth)

    def split(model: TinyLanguageModel, stage: int, num_stages: int) -> nn.Module:
        parts = [model.embed, *model.blocks, model.norm, model.head]
        size = -(-len(parts) // num_stages)
        return nn.Sequential(*parts[stage * size : (stage + 1) * size])

    return {"model": built["model"], "pp_split": split}


class Recommender(nn.Module):
    """Two tables of embeddings and a small network: no sequence, and two inputs."""

    def __init__(self, users: int, items: int, width: int) -> None:
        super().__init__()
        self.users, self.items = nn.Embedding(users, width), nn.Embedding(items, width)
        self.net = nn.Sequential(nn.Linear(2 * width + 4, width), nn.ReLU(), nn.Linear(width, 1))

    def forward(self, user: Tensor, item: Tensor, features: Tensor) -> Tensor:
        """(b,), (b,) and (b, 4) -> scores (b,)."""
        return self.net(torch.cat((self.users(user), self.items(item), features), dim=-1)).squeeze(
            -1
        )


def recommender(users: int = 50, items: int = 40, width: int = 8) -> dict[str, Any]:
    """A model with an input and a loss of its own."""

    def make_input(batch: int, seq_len: int) -> dict[str, Tensor]:
        return {
            "user": torch.randint(users, (batch,)),
            "item": torch.randint(items, (batch,)),
            "features": torch.randn(batch, 4),
        }

    def loss(scores: Tensor, inputs: dict[str, Tensor]) -> Tensor:
        return F.binary_cross_entropy_with_logits(
            scores.float(), (inputs["features"].sum(-1) > 0).float()
        )

    return {"model": Recommender(users, items, width), "input": make_input, "loss": loss}


def heads_alone(heads: int) -> dict[str, Any]:
    """Tells the number of heads and no width."""
    return {**recommender(width=32), "shapes": {"num_attention_heads": heads}}


def convolutional() -> dict[str, Any]:
    """A convolutional network without repeated blocks."""
    layers = [
        nn.Conv2d(3, 8, 3),
        nn.GroupNorm(2, 8),
        nn.ReLU(),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(8, 10),
    ]

    def make_input(batch: int, seq_len: int) -> Tensor:
        return torch.randn(batch, 3, 8, 8)

    return {
        "model": nn.Sequential(*layers),
        "input": make_input,
        "loss": lambda y, x: F.cross_entropy(y, y.argmax(-1)),
    }


def no_module() -> int:
    """A builder that returns no module."""
    return 3


def raises(width: int = 1) -> nn.Module:
    """A builder that raises."""
    raise ValueError(f"no model is {width} wide")


class FailingForward(nn.Module):
    """A module whose forward pass raises."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(256, 8)

    def forward(self, tokens: Tensor) -> Tensor:
        """Always raises."""
        return self.table(tokens) @ torch.ones(7)


def failing_forward() -> nn.Module:
    """Builds well, and fails in its first step."""
    return FailingForward()
