"""The shape of a model that a program builds from a configuration class of transformers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from autotune.onboarding.first_spec import first_draft

PROGRAM = """import argparse
from transformers import AutoModelForCausalLM, GPT2Config, LlamaConfig, LlamaForCausalLM, Trainer, TrainingArguments
parser = argparse.ArgumentParser()
parser.add_argument("--width", type=int, default=512)
parser.add_argument("--per_device_train_batch_size", type=int, default=2)
args = parser.parse_args()
LAYERS = 6
{code}
"""
LLAMA = "LlamaConfig(hidden_size={width}, intermediate_size=1376, num_hidden_layers=LAYERS, num_attention_heads=8, vocab_size={vocab})"
SHAPE = {"num_layers": 6, "hidden_size": 512, "num_attention_heads": 8, "ffn_hidden_size": 1376}


def llama(width: str = "args.width", vocab: str = "32000") -> str:
    return LLAMA.format(width=width, vocab=vocab)


def model_of(folder: Path, code: str, options: str = "") -> tuple[Any, str]:
    """The draft's model, and what its document asks to fill in."""
    (folder / "train.py").write_text(PROGRAM.format(code=code))
    (folder / "train.sh").write_text(f"torchrun --nproc_per_node=8 train.py {options}\n")
    draft = first_draft(folder / "train.sh", cluster="h100-sxm-1x8", folder=folder)
    return draft.document["model"], draft.text


@pytest.mark.parametrize(
    ("code", "options", "shape"),
    [
        (f"model = LlamaForCausalLM({llama()})", "", {**SHAPE, "vocab_size": 32000}),
        (f"model = LlamaForCausalLM({llama()})", "--width 1024", {**SHAPE, "hidden_size": 1024}),
        (
            "model = AutoModelForCausalLM.from_config(GPT2Config(n_layer=24, n_embd=1024, n_head=16))",
            "",
            {"num_layers": 24, "hidden_size": 1024, "vocab_size": 50257, "tied_embeddings": True},
        ),
    ],
)
def test_the_sizes_of_the_call(
    tmp_path: Path, code: str, options: str, shape: dict[str, Any]
) -> None:
    model, text = model_of(tmp_path, code, options)
    assert {name: model[name] for name in shape} == shape
    assert "fill in: vocab_size" not in text


def test_a_vocabulary_that_is_computed_is_asked_for(tmp_path: Path) -> None:
    model, text = model_of(tmp_path, f"model = LlamaForCausalLM({llama(vocab='len(tokenizer)')})")
    assert {name: model[name] for name in SHAPE} == SHAPE
    assert "# fill in: vocab_size; line 8" in text


@pytest.mark.parametrize(
    "code",
    [
        f"model = LlamaForCausalLM({llama(width='64 * args.heads')})",
        f"model = LlamaForCausalLM({llama()} if args.width else GPT2Config())",
        f"config = {llama()}",
        f"teacher = LlamaForCausalLM({llama()})\nmodel = AutoModelForCausalLM.from_pretrained(args.name)",
        "class LlamaConfig:\n    hidden_size = 8\nmodel = LlamaForCausalLM(LlamaConfig())",
        "model = LlamaForCausalLM(LlamaConfig(**sizes))",
    ],
)
def test_nothing_is_guessed(tmp_path: Path, code: str) -> None:
    assert model_of(tmp_path, code)[0] == "nano-gpt"
