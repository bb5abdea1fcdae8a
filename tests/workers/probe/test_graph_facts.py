"""Whether a model is a decoder, by the graph of a first backward pass: real models, each trained
for one step afterwards."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import transformers
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

from autotune.onboarding.launch.seen_draft import seen_model
from autotune.ports.program_facts import ProgramFacts
from autotune_workers.probe.injected.graph_facts import Graph
from autotune_workers.probe.injected.model_facts import _model, parameter_count

VOCABULARY, WIDTH, LAYERS = 500, 32, 2
SIZES = {
    "hidden_size": WIDTH,
    "num_hidden_layers": LAYERS,
    "num_attention_heads": 2,
    "intermediate_size": 4 * WIDTH,
    "vocab_size": VOCABULARY,
    "pad_token_id": 0,
}
OF_GPT2 = {"n_embd": WIDTH, "n_layer": LAYERS, "n_head": 2, "vocab_size": VOCABULARY}
TOKENS = torch.randint(1, 400, (2, 16), generator=torch.Generator().manual_seed(0))


class Decoder(nn.Module):
    """One that masks its scores itself, and whose head is the matrix of its embedding."""

    def __init__(self, *, causal: bool = True, packed: bool = False) -> None:
        super().__init__()
        self.tokens, self.positions = nn.Embedding(65, WIDTH), nn.Embedding(128, WIDTH)
        self.blocks = nn.ModuleList(
            nn.ModuleDict({"qkv": nn.Linear(WIDTH, 3 * WIDTH), "out": nn.Linear(WIDTH, WIDTH)})
            for _ in range(LAYERS)
        )
        self.causal, self.packed = causal, packed

    def block(self, block: Any, x: Tensor) -> Tensor:
        q, k, v = block["qkv"](x).chunk(3, -1)
        scores = q @ k.mT
        if self.causal:
            scores = scores.masked_fill(torch.ones_like(scores).triu(1).bool(), -torch.inf)
        return x + block["out"](scores.softmax(-1) @ v)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.tokens(tokens % 65) + self.positions(torch.arange(tokens.shape[1]))
        for block in self.blocks:
            x = (
                checkpoint(self.block, block, x, use_reentrant=False)
                if self.packed
                else self.block(block, x)
            )
        return x @ self.tokens.weight.t()


class Layers(nn.Module):
    """torch's own layers."""

    def __init__(self, *, causal: bool) -> None:
        super().__init__()
        self.tokens, self.head = nn.Embedding(VOCABULARY, WIDTH), nn.Linear(WIDTH, VOCABULARY)
        layer = nn.TransformerEncoderLayer(WIDTH, 2, 4 * WIDTH, batch_first=True)
        self.layers = nn.TransformerEncoder(layer, LAYERS, enable_nested_tensor=False)
        self.causal = causal

    def forward(self, tokens: Tensor) -> Tensor:
        mask = nn.Transformer.generate_square_subsequent_mask(tokens.shape[1])
        x = self.tokens(tokens)
        return self.head(
            self.layers(x, mask=mask, is_causal=True) if self.causal else self.layers(x)
        )


class Recommender(nn.Module):
    """Embeddings without attention."""

    def __init__(self) -> None:
        super().__init__()
        self.tables = nn.ModuleList(nn.Embedding(100, 8) for _ in range(4))
        self.top = nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 1))

    def forward(self, tokens: Tensor) -> Tensor:
        return self.top(torch.cat([table(tokens[:, 0] % 100) for table in self.tables], -1))


def of_hub(name: str, sizes: dict[str, Any], attention: str = "sdpa") -> Any:
    base = name.partition("For")[0].removesuffix("LMHeadModel")
    config = getattr(transformers, f"{base}Config")(**sizes)
    return getattr(transformers, name)._from_config(config, attn_implementation=attention)


def seen(model: nn.Module, **given: Any) -> tuple[dict[str, Any], Any]:
    """(the facts after a step, what a spec says of the model)"""
    out = model(**given) if given else model(TOKENS)
    loss = getattr(out, "loss", None)
    if loss is None:
        loss = getattr(out, "logits", out).float().pow(2).mean()
    graph = Graph()
    graph.read(loss)
    loss.backward()
    assert all(p.grad is not None for p in model.parameters() if p.requires_grad and p.dim() > 1)
    facts = _model(model, parameter_count(model), graph)
    spec = seen_model(ProgramFacts(facts), None, seq_len=TOKENS.shape[1])
    assert spec is not None
    return facts, spec


PADDED = torch.ones_like(TOKENS)
PADDED[0, 10:] = 0
LEFT = PADDED.flip(-1)
DECODERS: dict[str, tuple[Any, dict[str, Any]]] = {
    "masks its scores": (lambda: Decoder(), {}),
    "torch's layers": (lambda: Layers(causal=True), {}),
    "gpt2, kernel": (lambda: of_hub("GPT2LMHeadModel", OF_GPT2), {}),
    "gpt2, scores": (lambda: of_hub("GPT2LMHeadModel", OF_GPT2, "eager"), {}),
    "llama, padded": (
        lambda: of_hub("LlamaForCausalLM", SIZES),
        {"input_ids": TOKENS, "attention_mask": PADDED},
    ),
    "llama, padded on the left": (
        lambda: of_hub("LlamaForCausalLM", SIZES, "eager"),
        {"input_ids": TOKENS, "attention_mask": LEFT},
    ),
}


@pytest.mark.parametrize("name", DECODERS)
def test_a_decoder_has_its_shape(name: str) -> None:
    make, given = DECODERS[name]
    facts, (spec, comment) = seen(make(), **given)
    assert facts["is_causal"] is True
    assert facts["shape"]["has_head"] is True
    assert name == "masks its scores" or spec["num_layers"] == LAYERS
    assert "taken as a decoder" not in comment


LABELS = {"input_ids": TOKENS, "labels": torch.tensor([0, 1])}
FULL, NO_HEAD = "its attention sees later tokens", "no layer projects onto its vocabulary"
OTHERS: dict[str, tuple[Any, dict[str, Any], str]] = {
    "bert, classes": (lambda: of_hub("BertForSequenceClassification", SIZES), LABELS, FULL),
    "bert, classes, scores": (
        lambda: of_hub("BertForSequenceClassification", SIZES, "eager"),
        {**LABELS, "attention_mask": PADDED},
        FULL,
    ),
    "bert, masked tokens": (lambda: of_hub("BertForMaskedLM", SIZES), {}, FULL),
    "without a mask": (lambda: Decoder(causal=False), {}, FULL),
    "torch's layers": (lambda: Layers(causal=False), {}, FULL),
    "llama, classes": (
        lambda: of_hub("LlamaForSequenceClassification", SIZES),
        LABELS,
        NO_HEAD,
    ),
    "encoder and decoder": (
        lambda: of_hub(
            "T5ForConditionalGeneration",
            {"d_model": WIDTH, "d_ff": 64, "num_layers": 2, "num_heads": 2, "vocab_size": 500},
        ),
        {"input_ids": TOKENS, "decoder_input_ids": TOKENS},
        FULL,
    ),
    "images": (
        lambda: of_hub(
            "ViTForImageClassification",
            {**SIZES, "image_size": 32, "patch_size": 8},
        ),
        {"pixel_values": torch.ones(2, 3, 32, 32)},
        FULL,
    ),
    "embeddings without attention": (Recommender, {}, NO_HEAD),
}


@pytest.mark.parametrize("name", OTHERS)
def test_what_is_no_decoder_is_planned_by_its_weights(name: str) -> None:
    make, given, why = OTHERS[name]
    model = make()
    facts, (spec, comment) = seen(model, **given)
    assert spec == {"parameters": facts["parameters"]}
    assert comment.endswith(f"not a decoder, because {why}")


def test_what_is_packed_for_the_backward_pass_is_left_packed_and_said_to_be_assumed() -> None:
    facts, _ = seen(Decoder(packed=True))
    assert facts["is_causal"] is None
    spec = {"num_layers": 2, "hidden_size": 64, "num_attention_heads": 4, "vocab_size": 256}
    told = {"parameters": 131_968, "model": "m.Net", "is_causal": None}
    told["shape"] = {**spec, "ffn_hidden_size": 256}
    found = seen_model(ProgramFacts(told), None, seq_len=64)
    assert found is not None
    assert found[1].endswith("assumed to be a decoder, because no attention mask was seen")


@pytest.mark.parametrize("causal", [True, False])
def test_the_modules_of_transformers_say_it_without_a_step(causal: bool) -> None:
    name = "LlamaForCausalLM" if causal else "BertForMaskedLM"
    assert _model(of_hub(name, SIZES), 1, Graph())["is_causal"] is causal


def test_one_sequence_of_few_tokens_and_a_kernels_flag() -> None:
    q = torch.randn(1, 1, 2, 8, requires_grad=True)
    for causal in (True, False):
        graph = Graph()
        graph.read(functional.scaled_dot_product_attention(q, q, q, is_causal=causal).sum())
        assert graph.masks == {"causal": int(causal), "full": int(not causal)}
