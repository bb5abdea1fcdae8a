"""The repeated layers of a module: what is recomputed, compiled, gathered and dealt to pipeline stages one by one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import nn

from autotune_workers.own_model.built_model import BuiltModel


def block_names(built: BuiltModel) -> tuple[str, ...]:
    """Names of the repeated blocks, in the order in which they run; `repeated_blocks` where the builder named none."""
    return built.layers or repeated_blocks(built.model)


def repeated_blocks(module: nn.Module) -> tuple[str, ...]:
    """Those of the longest ModuleList; of a class of transformers with other towers, of its language model, which may have fewer blocks than a tower."""
    language = language_config(module)
    if language is not None:
        for prefix, part in module.named_modules():
            if type(getattr(part, "config", None)) is type(language):
                return tuple(f"{prefix}.{name}" for name in longest_list(part))
    return longest_list(module)


def language_config(module: nn.Module) -> Any:
    """The config of the language model inside a class of transformers with other towers; None where the module is no such class."""
    config: Any = getattr(module, "config", None)
    if not hasattr(config, "get_text_config"):
        return None
    language = config.get_text_config()
    return None if type(language) is type(config) else language


def longest_list(module: nn.Module) -> tuple[str, ...]:
    """Names of the entries of the longest ModuleList (or Sequential of equal modules) that is not inside another's entry; empty where there is none."""
    longest: tuple[str, ...] = ()
    for name, inner in module.named_modules():
        repeated = isinstance(inner, nn.ModuleList) or (
            isinstance(inner, nn.Sequential) and len({type(entry) for entry in inner}) == 1
        )
        if repeated and len(inner) > max(1, len(longest)) and not name.startswith(tuple(f"{n}." for n in longest)):
            longest = tuple(f"{name}.{i}" if name else str(i) for i in range(len(inner)))
    return longest


def attention_modules(module: nn.Module, blocks: Sequence[str]) -> tuple[str, ...]:
    """Names of the modules inside the blocks that are called attention, the outermost of each."""
    found: list[str] = []
    inside = tuple(f"{name}." for name in blocks)
    for name, inner in module.named_modules():
        last = f"{name.rpartition('.')[2]} {type(inner).__name__}".lower()
        is_one = ("attn" in last or "attention" in last) and "norm" not in last
        if is_one and inside and name.startswith(inside) and not name.startswith(tuple(f"{n}." for n in found)):
            found.append(name)
    return tuple(found)
