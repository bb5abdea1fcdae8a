"""Libraries run their ordinary code on fake tensors, as they would on real ones.

transformers    takes a fake tensor for a sign that a graph is traced, and then makes attention masks that training does not make
torch.nn.init   draws truncated normal numbers until none lies outside, which a dry run cannot see: one draw is enough there
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from importlib.util import find_spec
from typing import Any

from autotune_workers.dryrun import torch_patches


@contextlib.contextmanager
def taken_for_real(*, own_model: bool) -> Iterator[None]:
    """A block in which this holds. `own_model`: whether code outside of autotune builds the model; transformers is imported only then."""
    with torch_patches.single_draws(), _no_tracing() if own_model else contextlib.nullcontext():
        yield


@contextlib.contextmanager
def _no_tracing() -> Iterator[None]:
    if find_spec("transformers") is None:
        yield
        return
    from transformers.utils import import_utils

    def never(tensor: Any) -> bool:
        return False

    with torch_patches.replaced(import_utils, "is_fake_tensor", lambda _: never):
        yield
