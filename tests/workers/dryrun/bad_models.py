"""Models that cannot be run dry, one for each reason, and one that can."""

from __future__ import annotations

import json
import mmap
import os
import time
from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor, nn


@torch.library.custom_op("autotune_tests::twice", mutates_args=())
def twice(x: Tensor) -> Tensor:
    """An operator without a fake kernel."""
    return 2 * x


LIBRARY = torch.library.Library("autotune_tests_library", "DEF")
LIBRARY.define("thrice(Tensor x) -> Tensor")
LIBRARY.impl("thrice", lambda x: 3 * x, "CPU")


class Tokens(nn.Module):
    """Tokens (b, s) -> logits (b, s, 32), by way of a function of the hidden states."""

    def __init__(self, inner: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.embed, self.head = nn.Embedding(32, 8), nn.Linear(8, 32)
        self.inner = inner

    def forward(self, tokens: Tensor) -> Tensor:
        return self.head(self.inner(self.embed(tokens)))


def plain() -> nn.Module:
    return Tokens(torch.tanh)


def frozen() -> nn.Module:
    return plain().requires_grad_(False)


def ends_the_process() -> nn.Module:
    os._exit(3)


def is_fed_words() -> dict[str, object]:
    return {"model": plain(), "input": lambda size, seq_len: "words"}


def branches_on_values() -> nn.Module:
    def inner(x: Tensor) -> Tensor:
        return x if x.mean() > 0 else -x

    return Tokens(inner)


def picks_by_values() -> nn.Module:
    return Tokens(lambda x: x + x[x > 0].sum())


def lacks_a_kernel() -> nn.Module:
    return Tokens(twice)


def lacks_a_kernel_of_a_library() -> nn.Module:
    return Tokens(torch.ops.autotune_tests_library.thrice)


def needs_a_gpu_when_it_runs() -> nn.Module:
    return Tokens(lambda x: x + torch.arange(8, device="cuda"))


def multiplies_what_does_not_fit() -> nn.Module:
    return Tokens(lambda x: x @ torch.ones(3, 3))


def needs_a_gpu() -> nn.Module:
    return Tokens(torch.tanh).to("cuda")


def reads_its_weights() -> nn.Module:
    model = Tokens(torch.tanh)
    np.linalg.norm(model.head.weight.detach().numpy())
    return model


class PickedTokens(nn.Module):
    """Runs its head on the tokens above 16 alone."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.head = nn.Embedding(32, 8), nn.Linear(8, 32)

    def forward(self, tokens: Tensor) -> Tensor:
        return self.head(self.embed(tokens)[tokens > 16])


def picks_by_tokens() -> dict[str, object]:
    return {"model": PickedTokens(), "loss": lambda output, inputs: output.sum()}


def reads_a_bad_file() -> nn.Module:
    json.loads("{")
    return Tokens(torch.tanh)


def logs_a_number() -> nn.Module:
    def inner(x: Tensor) -> Tensor:
        return x / max(x.abs().max().item(), 1e-3)

    return Tokens(inner)


def aborts() -> nn.Module:
    os.abort()


def never_ends() -> nn.Module:
    def inner(x: Tensor) -> Tensor:
        while True:
            time.sleep(0.01)

    return Tokens(inner)


def fills_memory() -> nn.Module:
    held = [bytearray(64 << 20) for _ in range(1 << 10)]
    return Tokens(lambda x: x * len(held))


def fills_memory_when_it_runs() -> nn.Module:
    """In its first forward pass, and not all at once."""

    def inner(x: Tensor) -> Tensor:
        held = [bytearray(16 << 20) for _ in range(1 << 10)]
        return x * len(held)

    return Tokens(inner)


class FillsMemory(nn.Module):
    """Ends beyond its limit within torch's own code, where no line is the user's."""

    def forward(self, x: Tensor) -> Tensor:
        raise MemoryError


def fills_memory_in_a_module_of_a_library() -> nn.Module:
    FillsMemory.forward.__code__ = FillsMemory.forward.__code__.replace(
        co_filename="/x/site-packages/library.py"
    )
    model = plain()
    model.head = nn.Sequential(FillsMemory())
    return model


def fills_memory_step_by_step() -> nn.Module:
    """By less than a limit's room each time, with all of it free again before the end."""
    held = []
    for _ in range(1 << 8):
        held.append(bytearray(8 << 20))
    held.clear()
    return plain()


def maps_shared_memory() -> nn.Module:
    """Which the kernel does not count as private."""
    held = mmap.mmap(-1, 2 << 30)
    for place in range(0, len(held), mmap.PAGESIZE):
        held[place] = 1
    held.close()
    return plain()
