"""Chunked loss of transformers' causal language models: the output projection takes the loss itself, so that only one chunk's logits exist at a time.

    hidden (b, s, h) -> mean loss, a scalar that the class hands on in place of the logits

That is the model's own loss only where the class does nothing to the logits behind the projection (no scaling, no soft cap): what comes out of the class
must be the very tensor that the projection gave, which every step checks.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, final

import torch
from torch import Tensor, nn

from autotune.errors import ConfigError
from autotune_workers.training.model.loss import VocabularySlice, chunked_token_losses


@final
class ChunkedHead:
    """The output projection of the last stage."""

    def __init__(self, module: nn.Module, dtype: torch.dtype) -> None:
        """`dtype`: of the matrix products. Changes what the projection gives. Raises `ConfigError` for a class that is no causal language model."""
        find: Any = getattr(module, "get_output_embeddings", lambda: None)
        head = find()
        if getattr(module, "loss_type", "") != "ForCausalLM" or type(head) is not nn.Linear or head.bias is not None:
            raise _refused(
                f"{type(module).__name__} is not a causal language model with a bias-free Linear output projection"
            )
        self._head, self._dtype = head, dtype
        self._targets: Tensor | None = None
        self._given: Tensor | None = None
        head.forward = self._losses

    def loss(self, module: nn.Module, taken: Mapping[str, Tensor], targets: Tensor) -> Tensor:
        """The mean loss of the micro-batch. `taken`: arguments of the class. Raises `ConfigError` where the class changes its logits."""
        self._targets = targets
        found = module(**taken).logits
        if found is not self._given:
            raise _refused(f"{type(module).__name__} scales or caps the logits after its output projection")
        self._targets = self._given = None
        return torch.as_tensor(found)

    def _losses(self, hidden: Tensor) -> Tensor:
        assert self._targets is not None
        weight: Tensor = self._head.weight
        vocabulary = VocabularySlice(start=0, size=len(weight), group=None)
        stream = hidden.flatten(0, 1).to(self._dtype)
        self._given = chunked_token_losses(stream, weight.to(self._dtype), self._targets.flatten(), vocabulary).mean()
        return self._given


def _refused(why: str) -> ConfigError:
    return ConfigError(
        f"loss=chunked computes the loss inside the output projection, but {why}", remedy="use loss=own", field="loss"
    )
