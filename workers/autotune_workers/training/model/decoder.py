"""The bundled decoder: GPT-2 style or Llama style, depending on `ModelSpec.gated_mlp`, as pipeline
stages.

    b sequences of a micro-batch    s positions on this rank    h hidden_size    a, k query and key-value heads on this rank    d head_dim

Weights are stored in fp32 (or the dtype that FSDP provides) and cast when they are used: the
residual stream has the compute dtype, norms and loss are computed in fp32. There is no dropout, so
that two configs differ only by rounding. `initialization` has the initial values.

Attention uses a kernel whose memory is linear in the sequence length, also with grouped queries:

    q (b, a, s, d)   k, v (b, k, s, d)   a query heads, k key-value heads, a / k queries per key

On a GPU, torch runs grouped queries with the flash kernel, or if that does not support the tensors,
with plain matrix products that store scores of (b, a, s, s). Flash supports 16-bit tensors on GPUs
with compute capability 8.0 or higher (torch.nn.functional.scaled_dot_product_attention). For all
others, keys and values are repeated for their queries, and the memory-efficient kernel is used
(Rabe and Staats 2021, arXiv:2112.05682).
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from autotune.spec import ModelSpec

Attend = Callable[[Tensor, Tensor, Tensor], Tensor]
"""causal attention: q (b, a, s, d), k and v (b, k, s, d) -> (b, a, s, d)"""
TIED = "embed.weight"
"""name of the weight that a tied embedding shares with the output projection"""
Loss = Callable[[nn.Linear, Tensor, Tensor], Tensor]
"""output projection, its input (b, s, h) and targets (b, s) -> loss of each token (b * s,)"""


class Linear(nn.Linear):
    """A projection whose weights are cast to the dtype of its input."""

    def __init__(self, inputs: int, outputs: int, *, bias: bool) -> None:
        super().__init__(inputs, outputs, bias=bias)
        self.adapters: nn.Module | None = None
        """low-rank adapters (..., in) -> (..., out), whose output is added to the result"""

    def forward(self, x: Tensor) -> Tensor:
        """(..., in) -> (..., out)."""
        y = F.linear(
            x, self.weight.to(x.dtype), None if self.bias is None else self.bias.to(x.dtype)
        )
        return y if self.adapters is None else y + self.adapters(x)


class RMSNorm(nn.RMSNorm):
    """Root-mean-square norm (Zhang and Sennrich 2019, arXiv:1910.07467, eq. 4), in fp32."""

    def forward(self, x: Tensor) -> Tensor:
        """(..., h) -> (..., h)."""
        return F.rms_norm(x.float(), self.normalized_shape, self.weight.float(), 1e-5).to(x.dtype)


class LayerNorm(nn.LayerNorm):
    """Layer norm with bias, in fp32."""

    def forward(self, x: Tensor) -> Tensor:
        """(..., h) -> (..., h)."""
        return F.layer_norm(
            x.float(), self.normalized_shape, self.weight.float(), self.bias.float(), 1e-5
        ).to(x.dtype)


class Positions(nn.Module):
    """Learned position embeddings."""

    def __init__(self, count: int, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(count, width))

    def forward(self, ids: Tensor) -> Tensor:
        """Positions (s,) -> (s, h)."""
        return F.embedding(ids, self.weight)


class Attention(nn.Module):
    """Causal self-attention with grouped key-value heads (Ainslie et al. 2023,
    arXiv:2305.13245)."""

    def __init__(self, spec: ModelSpec) -> None:
        super().__init__()
        bias = not spec.gated_mlp
        self.head_dim = spec.head_dim
        self.attend: Attend = fused_attention
        self.wq = Linear(spec.hidden_size, spec.num_attention_heads * spec.head_dim, bias=bias)
        self.wk = Linear(spec.hidden_size, spec.num_kv_heads * spec.head_dim, bias=bias)
        self.wv = Linear(spec.hidden_size, spec.num_kv_heads * spec.head_dim, bias=bias)
        self.wo = Linear(spec.num_attention_heads * spec.head_dim, spec.hidden_size, bias=bias)

    def forward(self, x: Tensor, cos: Tensor | None, sin: Tensor | None) -> Tensor:
        """(b, s, h) -> (b, s, h). `cos` and `sin` (s, d) rotate queries and keys in the Llama
        style."""
        q, k, v = (self._heads(w(x)) for w in (self.wq, self.wk, self.wv))
        if cos is not None and sin is not None:
            q, k = rotate(q, cos, sin), rotate(k, cos, sin)
        y = self.attend(q, k, v)
        return self.wo(y.transpose(1, 2).flatten(2))

    def _heads(self, x: Tensor) -> Tensor:
        return x.unflatten(-1, (-1, self.head_dim)).transpose(1, 2)


def rotary(positions: Tensor, head_dim: int, base: float = 10000.0) -> tuple[Tensor, Tensor]:
    """cos and sin (s, d) of rotary position embeddings (Su et al. 2021, arXiv:2104.09864, eq. 34),
    for pairs (i, i + d / 2)."""
    half = torch.arange(0, head_dim, 2, device=positions.device, dtype=torch.float32)
    angle = positions.float()[:, None] * base ** (-half / head_dim)
    angle = torch.cat((angle, angle), dim=-1)
    return angle.cos(), angle.sin()


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotate each pair of (..., s, d) by the angle of its position."""
    low, high = x.float().chunk(2, dim=-1)
    return (x.float() * cos + torch.cat((-high, low), dim=-1) * sin).to(x.dtype)


class Activation(nn.Module):
    """The activation function of an MLP: GELU, or SiLU of a gate times the input."""

    def forward(self, up: Tensor, gate: Tensor | None) -> Tensor:
        """(..., f) -> (..., f)."""
        return F.gelu(up, approximate="tanh") if gate is None else F.silu(gate) * up


class Mlp(nn.Module):
    """Two matrices with GELU (GPT-2 style), or three with a SiLU gate (Shazeer 2020,
    arXiv:2002.05202)."""

    def __init__(self, spec: ModelSpec) -> None:
        super().__init__()
        bias = not spec.gated_mlp
        self.up = Linear(spec.hidden_size, spec.ffn_hidden_size, bias=bias)
        if spec.gated_mlp:
            self.gate: Linear | None = Linear(spec.hidden_size, spec.ffn_hidden_size, bias=False)
        else:
            self.gate = None
        self.activation = Activation()
        self.down = Linear(spec.ffn_hidden_size, spec.hidden_size, bias=bias)

    def forward(self, x: Tensor) -> Tensor:
        """(..., h) -> (..., h)."""
        gate = None if self.gate is None else self.gate(x)
        return self.down(self.activation(self.up(x), gate))


class Block(nn.Module):
    """One layer: attention and MLP (or experts), each after a norm and added to the residual
    stream."""

    def __init__(self, spec: ModelSpec, experts: Callable[[], nn.Module] | None) -> None:
        super().__init__()
        norm = RMSNorm if spec.gated_mlp else LayerNorm
        self.attention_norm = norm(spec.hidden_size)
        self.attention = Attention(spec)
        self.mlp_norm = norm(spec.hidden_size)
        self.mlp: nn.Module = experts() if experts is not None else Mlp(spec)

    def forward(self, x: Tensor, cos: Tensor | None, sin: Tensor | None) -> Tensor:
        """(b, s, h) -> (b, s, h)."""
        x = x + self.attention(self.attention_norm(x), cos, sin)
        return x + self.mlp(self.mlp_norm(x))


class DecoderStage(nn.Module):
    """A pipeline stage: a range of layers, which may be empty, with the embedding before them on the
    first stage and the output projection after them on the last."""

    def __init__(
        self,
        spec: ModelSpec,
        layers: range,
        *,
        is_first: bool,
        is_last: bool,
        dtype: torch.dtype,
        experts: Callable[[], nn.Module] | None = None,
    ) -> None:
        """`is_first`: whether it has the embedding; `is_last`: whether it has the output projection;
        `experts`: creates the experts of a layer; None for a dense model."""
        super().__init__()
        self.spec = spec
        self.dtype = dtype
        self.is_first, self.is_last = is_first, is_last
        self.loss: Loss | None = None
        self.position_ids: Tensor | None = None
        self.cos: Tensor | None = None
        self.sin: Tensor | None = None
        self.embed = nn.Embedding(spec.vocab_size, spec.hidden_size) if self.is_first else None
        has_positions = self.is_first and bool(spec.max_positions)
        self.positions = Positions(spec.max_positions, spec.hidden_size) if has_positions else None
        self.layers = nn.ModuleDict({str(i): Block(spec, experts) for i in layers})
        self.norm: nn.Module | None = None
        self.output: Linear | None = None
        if self.is_last:
            self.norm = RMSNorm(spec.hidden_size) if spec.gated_mlp else LayerNorm(spec.hidden_size)
            self.output = Linear(spec.hidden_size, spec.vocab_size, bias=False)
            self.tie()

    def tie(self) -> None:
        """Share the embedding's weight with the output projection, if the model ties them and both
        are on this stage."""
        if self.spec.tied_embeddings and self.embed is not None and self.output is not None:
            self.output.weight = self.embed.weight

    def place(self, attention_positions: Tensor, stream_positions: Tensor) -> None:
        """Set the positions that attention works on, and those of the residual stream, which are
        fewer with sequence parallelism."""
        self.position_ids = stream_positions
        if self.spec.gated_mlp:
            self.cos, self.sin = rotary(attention_positions, self.spec.head_dim)

    def forward(self, x: Tensor, targets: Tensor | None = None) -> Tensor:
        """Tokens (b, s) or hidden states (b, s, h) -> hidden states; on the last stage logits (b, s,
        V).

        With targets (b, s), a last stage that has a `loss` returns the loss of each token, (b *
        s,), instead of logits.
        """
        if self.embed is not None:
            x = self.embed(x).to(self.dtype)
            if self.positions is not None:
                x = x + self.positions(self.position_ids).to(self.dtype)
        for block in self.layers.values():
            x = block(x, self.cos, self.sin)
        if self.norm is not None and self.output is not None:
            x = self.norm(x)
            if self.loss is None or targets is None:
                return self.output(x)
            return self.loss(self.output, x, targets)
        return x


def split_layers(num_layers: int, num_stages: int, *, by_edges: bool = False) -> list[range]:
    """Layers of each stage. The numbers of layers differ by at most one; longer stages come first.

    `by_edges`: embedding and loss count as one layer each, and remaining layers go to stages without
    either before the first stage.
    """
    units, edge = (num_layers + 2, 1) if by_edges else (num_layers, 0)
    size, longer = divmod(units, num_stages)
    order = (
        range(num_stages)
        if not by_edges or num_stages == 2
        else (*range(1, num_stages - 1), 0, num_stages - 1)
    )
    sizes = [size] * num_stages
    for stage in order[:longer]:
        sizes[stage] += 1
    sizes[0] -= edge
    sizes[-1] -= edge
    ends = list(itertools.accumulate(sizes, initial=0))
    return [range(a, b) for a, b in itertools.pairwise(ends)]


def global_names(stage: DecoderStage) -> Iterator[tuple[str, nn.Parameter]]:
    """Yield each parameter with its name in the whole model. Tied weights have the embedding's
    name."""
    for name, parameter in stage.named_parameters():
        tied = name == "output.weight" and stage.spec.tied_embeddings
        yield TIED if tied else name, parameter


FLASH_DTYPES = (torch.float16, torch.bfloat16)
"""dtypes that the flash kernel supports"""
FLASH_CAPABILITY = (8, 0)
"""minimum compute capability for the flash kernel"""
FLASH_HEAD_DIM = 256
"""maximum head_dim of the flash kernel"""


def fused_attention(q: Tensor, k: Tensor, v: Tensor, *, mask: Any = None) -> Tensor:
    """Attention -> (b, a, s, d), causal or with `mask`, by the kernel that torch selects."""
    if q.shape[1] != k.shape[1] and not _supports_groups(q):
        k, v = expanded(k, q), expanded(v, q)
    grouped = q.shape[1] != k.shape[1]
    return F.scaled_dot_product_attention(
        q, k, v, attn_mask=mask, is_causal=mask is None, enable_gqa=grouped
    )


def expanded(x: Tensor, q: Tensor) -> Tensor:
    """Repeat the heads of keys or values (b, k, c, d) for all query heads -> (b, a, c, d)."""
    return x.repeat_interleave(q.shape[1] // x.shape[1], dim=1)


def _supports_groups(q: Tensor) -> bool:
    """Whether a kernel with linear memory supports grouped queries for this tensor."""
    if q.device.type != "cuda":
        return True
    fits = q.dtype in FLASH_DTYPES and q.shape[-1] <= FLASH_HEAD_DIM
    return fits and torch.cuda.get_device_capability(q.device) >= FLASH_CAPABILITY
