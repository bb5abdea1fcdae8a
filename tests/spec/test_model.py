"""Models: counted as the checkpoints count, read from Hugging Face's config.json."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from autotune.errors import SpecError
from autotune.spec import ModelSpec, catalog

LLAMA_8B = {
    "model_type": "llama",
    "hidden_size": 4096,
    "intermediate_size": 14336,
    "num_attention_heads": 32,
    "num_hidden_layers": 32,
    "num_key_value_heads": 8,
    "tie_word_embeddings": False,
    "vocab_size": 128256,
}
GPT2_SMALL = {
    "model_type": "gpt2",
    "n_embd": 768,
    "n_head": 12,
    "n_layer": 12,
    "n_positions": 1024,
    "vocab_size": 50257,
}
MIXTRAL = {
    "model_type": "mixtral",
    "hidden_size": 4096,
    "intermediate_size": 14336,
    "num_attention_heads": 32,
    "num_hidden_layers": 32,
    "num_key_value_heads": 8,
    "num_local_experts": 8,
    "num_experts_per_tok": 2,
    "vocab_size": 32000,
}


@pytest.mark.parametrize(
    ("document", "name"),
    [(LLAMA_8B, "llama-8b"), (GPT2_SMALL, "gpt2-small"), (MIXTRAL, "mixtral-8x7b")],
)
def test_hugging_face_configs_are_the_catalog_models(
    document: dict[str, Any], name: str, tmp_path: Path
) -> None:
    file = tmp_path / "config.json"
    file.write_text(json.dumps(document), encoding="utf-8")
    assert ModelSpec.from_hf(document, name=name) == catalog.model(name)
    assert ModelSpec.from_hf(file, name=name) == catalog.model(name)


@pytest.mark.parametrize(
    ("content", "match"),
    [
        (None, "cannot be read"),
        ("{", "is not JSON"),
        ("[]", "must contain a JSON object"),
        ("{}", "lacks num_hidden_layers"),
    ],
)
def test_an_invalid_config_json_has_an_error_with_the_reason(
    content: str | None, match: str, tmp_path: Path
) -> None:
    file = tmp_path / "config.json"
    if content is not None:
        file.write_text(content, encoding="utf-8")
    with pytest.raises(SpecError, match=match):
        ModelSpec.from_hf(file)


@pytest.mark.parametrize(
    ("change", "match"),
    [
        ({"num_layers": 0}, "num_layers must be 1"),
        ({"num_layers": -1}, "num_layers must be 1"),
        ({"hidden_size": 1 << 40}, "hidden_size must be 1"),
        ({"num_attention_heads": 7}, "hidden_size must be a multiple of num_attention_heads"),
        ({"num_kv_heads": 3}, "num_kv_heads must divide"),
        ({"num_experts": 4}, "experts_per_token must be 1"),
        ({"experts_per_token": 2}, "needs num_experts"),
    ],
)
def test_impossible_shapes_are_rejected(change: dict[str, int], match: str) -> None:
    shape = {"num_layers": 2, "hidden_size": 64, "num_attention_heads": 8, "vocab_size": 100}
    with pytest.raises(SpecError, match=match):
        ModelSpec(name="odd", **{**shape, **change})


def test_an_encoder_is_rejected() -> None:
    sizes = {"num_hidden_layers": 2, "hidden_size": 64, "num_attention_heads": 4, "vocab_size": 100}
    with pytest.raises(SpecError, match="bert"):
        ModelSpec.from_hf({"model_type": "bert", **sizes})
