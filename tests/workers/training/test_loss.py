"""The chunked loss is the loss of whole logits, which it never makes."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from autotune_workers.training.model.loss import (
    CHUNKS,
    IGNORED,
    VocabularySlice,
    chunked_token_losses,
    token_losses,
)

WIDTH = 16


class LargestTensor(TorchDispatchMode):
    """Notes how many elements the largest result of any operation has."""

    def __init__(self) -> None:
        super().__init__()
        self.elements = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        made = [x.numel() for x in tree_leaves(result) if isinstance(x, torch.Tensor)]
        self.elements = max([self.elements, *made])
        return result


def inputs(tokens: int, vocab_size: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(tokens)
    hidden = torch.randn((tokens, WIDTH), generator=generator).requires_grad_()
    weight = torch.randn((vocab_size, WIDTH), generator=generator).requires_grad_()
    targets = torch.randint(0, vocab_size, (tokens,), generator=generator)
    targets[::5] = IGNORED
    return hidden, weight, targets


@pytest.mark.thorough
@given(st.integers(1, 40), st.integers(2, 60))
@settings(deadline=None, derandomize=True, max_examples=30)
def test_losses_and_gradients_are_those_of_whole_logits(tokens: int, vocab_size: int) -> None:
    hidden, weight, targets = inputs(tokens, vocab_size)
    vocabulary = VocabularySlice(start=0, size=vocab_size)
    chunked = chunked_token_losses(hidden, weight, targets, vocabulary)
    whole = token_losses(hidden @ weight.T, targets, vocabulary)
    torch.testing.assert_close(chunked, whole, rtol=1e-5, atol=1e-5)
    assert not chunked[::5].any(), "what does not count has no loss"
    wanted = torch.linspace(0.5, 1.5, tokens)
    seen = torch.autograd.grad((chunked * wanted).sum(), (hidden, weight))
    for gradient, expected in zip(
        seen, torch.autograd.grad((whole * wanted).sum(), (hidden, weight)), strict=True
    ):
        torch.testing.assert_close(gradient, expected, rtol=1e-4, atol=1e-5)


def test_no_more_than_one_chunk_of_logits_exists_at_a_time() -> None:
    tokens, vocab_size = 512, 1000
    hidden, weight, targets = inputs(tokens, vocab_size)
    vocabulary = VocabularySlice(start=0, size=vocab_size)
    with LargestTensor() as chunked:
        chunked_token_losses(hidden, weight, targets, vocabulary).sum().backward()
    with LargestTensor() as whole:
        token_losses(hidden @ weight.T, targets, vocabulary).sum().backward()
    assert chunked.elements == tokens // CHUNKS * vocab_size
    assert whole.elements == tokens * vocab_size
