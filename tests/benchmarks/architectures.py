"""Architectures at reduced width and depth, on which dry runs are held against real ones: classes
of transformers, adapters, and five plain modules.

Widths keep the ratios of the published models where memory depends on them (heads, experts, latent
ranks, windows shorter than the sequence).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

VOCABULARY = 2000
SEQ_LEN = 128
"""tokens"""
CLASSES = 10
"""of those that classify"""

_DECODER = {
    "vocab_size": VOCABULARY, "hidden_size": 128, "num_hidden_layers": 3, "num_attention_heads": 4, "num_key_value_heads": 2,
    "intermediate_size": 320, "max_position_embeddings": 256, "use_cache": False,
}  # fmt: skip
_EXPERTS = {
    "num_local_experts": 4,
    "num_experts": 4,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 96,
}
_ENCODER = {
    "vocab_size": VOCABULARY, "hidden_size": 128, "num_hidden_layers": 3, "num_attention_heads": 4, "intermediate_size": 320,
    "max_position_embeddings": 256,
}  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Architecture:
    """One model and how it is trained here."""

    build: Callable[[], Any]
    """what a builder of `{module: ...}` returns"""
    lora: bool = False
    """whether adapters are trained beside frozen weights"""
    precisions: tuple[str, ...] = ("fp32", "bf16")


def _class(name: str, config: str, **options: Any) -> Callable[[], nn.Module]:
    """transformers' class of that name, with random weights."""

    def build() -> nn.Module:
        import transformers

        made = getattr(transformers, config)(**options)
        return getattr(transformers, name)._from_config(made, dtype=torch.float32)

    return build


def _causal(family: str, **options: Any) -> Callable[[], nn.Module]:
    return _class(f"{family}ForCausalLM", f"{family}Config", **options)


def _with_input(
    build: Callable[[], nn.Module],
    names: Mapping[str, Callable[[int, int], Tensor]],
    loss: Callable[[Any, Any], Any] = lambda output, inputs: output.loss,
) -> Callable[[], dict[str, Any]]:
    """A model that takes something else than tokens and labels; its own `.loss` is trained."""

    def built() -> dict[str, Any]:
        def inputs(micro_batch_size: int, seq_len: int) -> dict[str, Tensor]:
            return {name: make(micro_batch_size, seq_len) for name, make in names.items()}

        return {"model": build(), "input": inputs, "loss": loss}

    return built


_loss_of_output = partial(_with_input, loss=lambda output, inputs: output)
"""A module that returns its loss."""


def _tokens(micro_batch_size: int, seq_len: int) -> Tensor:
    return torch.randint(VOCABULARY, (micro_batch_size, seq_len))


def _classes(micro_batch_size: int, seq_len: int) -> Tensor:
    return torch.randint(CLASSES, (micro_batch_size,))


def _images(micro_batch_size: int, seq_len: int) -> Tensor:
    return torch.randn(micro_batch_size, 3, 64, 64)


def _photos(micro_batch_size: int, seq_len: int) -> Tensor:
    """Of the size on which convolutional nets are trained, so that activations outweigh weights as
    they do there."""
    return torch.randn(micro_batch_size, 3, 224, 224)


def _sound(micro_batch_size: int, seq_len: int) -> Tensor:
    return torch.randn(micro_batch_size, 80, 2 * seq_len)


# --- five plain modules


class ConvolutionalNet(nn.Module):
    """Residual stages of convolutions and batch norms, with two blocks each, as in ResNet-18
    (arXiv:1512.03385)."""

    def __init__(self, width: int = 16) -> None:
        super().__init__()
        self.stem = nn.Sequential(
            nn.Conv2d(3, width, 3, padding=1, bias=False), nn.BatchNorm2d(width), nn.ReLU()
        )
        blocks = [(width << max(i - 1, 0), width << i, 1 + (i > 0)) for i in range(4)]
        again = [(width << i, width << i, 1) for i in range(4)]
        self.layers = nn.ModuleList(
            ResidualBlock(*sizes) for pair in zip(blocks, again, strict=True) for sizes in pair
        )
        self.head = nn.Linear(width << 3, CLASSES)

    def forward(self, images: Tensor, classes: Tensor) -> Tensor:
        """The loss."""
        x = self.stem(images)
        for layer in self.layers:
            x = layer(x)
        return nn.functional.cross_entropy(self.head(x.mean((2, 3))), classes)


class ResidualBlock(nn.Module):
    """Two convolutions beside the identity, or beside a projection where the shape changes."""

    def __init__(self, inner: int, outer: int, stride: int) -> None:
        super().__init__()
        self.first = nn.Conv2d(inner, outer, 3, stride=stride, padding=1, bias=False)
        self.second = nn.Conv2d(outer, outer, 3, padding=1, bias=False)
        self.norms = nn.ModuleList(nn.BatchNorm2d(outer) for _ in range(2))
        self.beside = (
            nn.Identity()
            if inner == outer
            else nn.Conv2d(inner, outer, 1, stride=stride, bias=False)
        )

    def forward(self, x: Tensor) -> Tensor:
        """Half the side where the stride is two."""
        y = torch.relu(self.norms[0](self.first(x)))
        return torch.relu(self.norms[1](self.second(y)) + self.beside(x))


class UnevenExperts(nn.Module):
    """A mixture of experts that loops over the tokens of each expert (`nonzero`), so that its
    shapes depend on the routing."""

    def __init__(self, width: int = 128, experts: int = 4) -> None:
        super().__init__()
        self.embedding = nn.Embedding(VOCABULARY, width)
        self.router = nn.Linear(width, experts)
        self.experts = nn.ModuleList(
            nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))
            for _ in range(experts)
        )
        self.head = nn.Linear(width, VOCABULARY)

    def forward(self, tokens: Tensor) -> Tensor:
        """Logits."""
        x = self.embedding(tokens).flatten(0, 1)
        weight, chosen = self.router(x).softmax(-1).topk(2)
        out = torch.zeros_like(x)
        for number, expert in enumerate(self.experts):
            rows, places = torch.where(chosen == number)
            part = expert(x[rows]) * weight[rows, places, None]
            out = out.index_add(0, rows, part.to(out.dtype))
        return self.head(x + out).unflatten(0, tokens.shape)


class StateSpaceModel(nn.Module):
    """Layers with a diagonal linear recurrence over the sequence, as in S4D (arXiv:2206.11893), by
    a scan in steps."""

    def __init__(self, width: int = 96, state: int = 8, depth: int = 2) -> None:
        super().__init__()
        self.embedding = nn.Embedding(VOCABULARY, width)
        self.layers = nn.ModuleList(StateSpaceLayer(width, state) for _ in range(depth))
        self.head = nn.Linear(width, VOCABULARY)

    def forward(self, tokens: Tensor) -> Tensor:
        """Logits."""
        x = self.embedding(tokens)
        for layer in self.layers:
            x = x + layer(x)
        return self.head(x)


class StateSpaceLayer(nn.Module):
    """h' = a h + b x, y = c h for every channel."""

    def __init__(self, width: int, state: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.decay = nn.Parameter(torch.linspace(0.1, 2.0, state).repeat(width, 1))
        self.into, self.out = nn.Linear(width, width * state), nn.Linear(width * state, width)
        self.state = state

    def forward(self, x: Tensor) -> Tensor:
        """Same shape."""
        u = self.into(self.norm(x)).unflatten(-1, (-1, self.state))
        decay, held, kept = torch.exp(-self.decay), torch.zeros_like(u[:, 0]), []
        for position in range(0, u.shape[1], 8):
            held = decay * held + u[:, position : position + 8].sum(1)
            kept.append(held)
        states = torch.stack(kept, 1).repeat_interleave(8, 1)[:, : u.shape[1]]
        return self.out((states + u).flatten(2))


class DiffusionTransformer(nn.Module):
    """Patches with time steps that scale and shift every layer, as in DiT (arXiv:2212.09748)."""

    def __init__(self, width: int = 128, depth: int = 3) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, width, 4, stride=4)
        self.time = nn.Sequential(nn.Linear(1, width), nn.SiLU(), nn.Linear(width, width))
        self.layers = nn.ModuleList(ModulatedBlock(width) for _ in range(depth))
        self.out = nn.Linear(width, 48)

    def forward(self, images: Tensor, times: Tensor) -> Tensor:
        """The predicted noise."""
        x, t = self.patches(images).flatten(2).transpose(1, 2), self.time(times)
        for layer in self.layers:
            x = layer(x, t)
        side = math.isqrt(x.shape[1])
        return nn.functional.pixel_shuffle(
            self.out(x).transpose(1, 2).unflatten(2, (side, side)), 4
        )


class ModulatedBlock(nn.Module):
    """Attention and MLP, modulated by the time step."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.first, self.second = (nn.LayerNorm(width, elementwise_affine=False) for _ in range(2))
        self.attention = nn.MultiheadAttention(width, 4, batch_first=True)
        self.mlp = nn.Sequential(
            nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width)
        )
        self.modulation = nn.Linear(width, 6 * width)

    def forward(self, x: Tensor, t: Tensor) -> Tensor:
        """Same shape."""
        shift, scale, gate, shift2, scale2, gate2 = self.modulation(t)[:, None].chunk(6, -1)
        h = self.first(x) * (1 + scale) + shift
        x = x + gate * self.attention(h, h, h, need_weights=False)[0]
        return x + gate2 * self.mlp(self.second(x) * (1 + scale2) + shift2)


class Recommender(nn.Module):
    """Bags of sparse features, dense features and their products, as in DLRM (arXiv:1906.00091)."""

    def __init__(self, tables: int = 6, rows: int = 5000, width: int = 32) -> None:
        super().__init__()
        self.tables = nn.ModuleList(nn.EmbeddingBag(rows, width, mode="sum") for _ in range(tables))
        self.below = nn.Sequential(nn.Linear(13, 128), nn.ReLU(), nn.Linear(128, width), nn.ReLU())
        pairs = (tables + 1) * tables // 2
        self.above = nn.Sequential(nn.Linear(pairs + width, 256), nn.ReLU(), nn.Linear(256, 1))
        self.register_buffer(
            "pairs", torch.tril_indices(tables + 1, tables + 1, -1), persistent=False
        )

    def forward(self, dense: Tensor, sparse: Tensor, clicks: Tensor) -> Tensor:
        """The loss."""
        x = self.below(dense)
        vectors = torch.stack(
            [x, *(table(ids) for table, ids in zip(self.tables, sparse.unbind(1), strict=True))], 1
        )
        products = (vectors @ vectors.transpose(1, 2))[:, self.pairs[0], self.pairs[1]]
        score = self.above(torch.cat([x, products], 1)).squeeze(1)
        return nn.functional.binary_cross_entropy_with_logits(score, clicks)


def _diffusion() -> dict[str, Any]:
    def inputs(micro_batch_size: int, seq_len: int) -> dict[str, Tensor]:
        return {
            "images": _images(micro_batch_size, seq_len),
            "times": torch.rand(micro_batch_size, 1),
        }

    def loss(output: Tensor, inputs: Mapping[str, Tensor]) -> Tensor:
        return nn.functional.mse_loss(output, inputs["images"])

    return {"model": DiffusionTransformer(), "input": inputs, "loss": loss}


ARCHITECTURES: Mapping[str, Architecture] = {
    "llama": Architecture(build=_causal("Llama", **_DECODER)),
    "mistral": Architecture(build=_causal("Mistral", **_DECODER, sliding_window=64)),
    "qwen3": Architecture(build=_causal("Qwen3", **_DECODER, head_dim=32)),
    "qwen3_moe": Architecture(build=_causal("Qwen3Moe", **_DECODER, **_EXPERTS, head_dim=32), precisions=("bf16",)),
    "mixtral": Architecture(build=_causal("Mixtral", **_DECODER, **_EXPERTS), precisions=("bf16",)),
    "gemma2": Architecture(build=_causal("Gemma2", **_DECODER, head_dim=32, sliding_window=64)),
    "gemma3": Architecture(build=_class("Gemma3ForCausalLM", "Gemma3TextConfig", **_DECODER, head_dim=32, sliding_window=64)),
    "deepseek_v3": Architecture(
        build=_causal(
            "DeepseekV3", **_DECODER | {"num_key_value_heads": 4}, n_routed_experts=4, num_experts_per_tok=2, moe_intermediate_size=96,
            n_shared_experts=1, n_group=1, topk_group=1, first_k_dense_replace=1, q_lora_rank=48, kv_lora_rank=32, qk_rope_head_dim=16,
            qk_nope_head_dim=32, v_head_dim=32,
        ),
        precisions=("bf16",),
    ),
    "gpt_oss": Architecture(build=_causal("GptOss", **_DECODER, num_local_experts=4, num_experts_per_tok=2, head_dim=32, sliding_window=64), precisions=("bf16",)),
    "gpt2": Architecture(build=_class("GPT2LMHeadModel", "GPT2Config", vocab_size=VOCABULARY, n_embd=128, n_layer=3, n_head=4, n_positions=256)),
    "gpt_neox": Architecture(build=_causal("GPTNeoX", **_ENCODER)),
    "phi3": Architecture(build=_causal("Phi3", **_DECODER, pad_token_id=0)),
    "olmo2": Architecture(build=_causal("Olmo2", **_DECODER)),
    "falcon": Architecture(build=_causal("Falcon", vocab_size=VOCABULARY, hidden_size=128, num_hidden_layers=3, num_attention_heads=4, use_cache=False)),
    "bloom": Architecture(build=_causal("Bloom", vocab_size=VOCABULARY, hidden_size=128, n_layer=3, n_head=4, use_cache=False)),
    "opt": Architecture(build=_causal("OPT", vocab_size=VOCABULARY, hidden_size=128, num_hidden_layers=3, num_attention_heads=4, ffn_dim=320, word_embed_proj_dim=128, max_position_embeddings=256)),
    "starcoder2": Architecture(build=_causal("Starcoder2", **_DECODER)),
    "cohere": Architecture(build=_causal("Cohere", **_DECODER)),
    "glm": Architecture(build=_causal("Glm", **_DECODER, head_dim=32, pad_token_id=0)),
    "mamba2": Architecture(
        build=_causal("Mamba2", vocab_size=VOCABULARY, hidden_size=128, num_hidden_layers=2, state_size=16, num_heads=8, head_dim=32, n_groups=2, chunk_size=32, use_cache=False),
    ),
    "bert": Architecture(build=_class("BertForMaskedLM", "BertConfig", **_ENCODER)),
    "roberta": Architecture(build=_class("RobertaForMaskedLM", "RobertaConfig", **_ENCODER)),
    "t5": Architecture(
        build=_with_input(
            _class("T5ForConditionalGeneration", "T5Config", vocab_size=VOCABULARY, d_model=128, d_kv=32, d_ff=320, num_layers=2, num_heads=4, decoder_start_token_id=0),
            {"input_ids": _tokens, "labels": _tokens},
        ),
    ),
    "vit": Architecture(
        build=_with_input(
            _class("ViTForImageClassification", "ViTConfig", hidden_size=128, num_hidden_layers=3, num_attention_heads=4, intermediate_size=320, image_size=64, patch_size=8, num_labels=CLASSES),
            {"pixel_values": _images, "labels": _classes},
        ),
    ),
    "whisper": Architecture(
        build=_with_input(
            _class(
                "WhisperForConditionalGeneration", "WhisperConfig", vocab_size=VOCABULARY, d_model=128, encoder_layers=2, decoder_layers=2,
                encoder_attention_heads=4, decoder_attention_heads=4, encoder_ffn_dim=320, decoder_ffn_dim=320, max_source_positions=SEQ_LEN,
                max_target_positions=256, pad_token_id=0, bos_token_id=1, eos_token_id=2, decoder_start_token_id=1,
            ),
            {"input_features": _sound, "labels": _tokens},
        ),
    ),
    "llama with adapters": Architecture(build=_causal("Llama", **_DECODER), lora=True),
    "a convolutional net": Architecture(build=_loss_of_output(ConvolutionalNet, {"images": _photos, "classes": _classes})),
    "experts with uneven routing": Architecture(build=UnevenExperts),
    "a state-space model": Architecture(build=StateSpaceModel),
    "a diffusion transformer": Architecture(build=_diffusion),
    "a recommender": Architecture(
        build=_loss_of_output(
            Recommender,
            {"dense": lambda n, s: torch.randn(n, 13), "sparse": lambda n, s: torch.randint(5000, (n, 6, s)), "clicks": lambda n, s: torch.rand(n)},
        ),
    ),
}  # fmt: skip


def build(name: str) -> Any:
    """The builder that a spec names: `{module: "tests.benchmarks.architectures:build", args: {name:
    ...}}`."""
    return ARCHITECTURES[name].build()
