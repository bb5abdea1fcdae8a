"""The plan of a model for tensor parallelism: which modules are cut, and how, by the names that transformers uses.

    colwise                        the outputs of a Linear are cut and stay so      colwise_gather_output, colwise_rep   ... and are gathered again
    rowwise                        the inputs are cut, the outputs are summed       rowwise_split_input, rowwise_rep     ... of an input that is whole
    embedding_rowwise              the vocabulary of an Embedding is cut            replicated_with_grad_allreduce       whole weights that see cut inputs
    replicate                      nothing is cut

A key is the name of a module, or a pattern where `*` stands for one part of it: "layers.*.mlp.up_proj". A torch `ParallelStyle` is taken as it is.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from autotune.errors import ConfigError
from autotune.spec.checks import nearest
from autotune_workers.own_model.built_model import BuiltModel

STYLES = (
    *("colwise", "rowwise", "colwise_gather_output", "colwise_rep", "rowwise_split_input", "rowwise_rep"),
    *("embedding_rowwise", "replicated_with_grad_allreduce", "replicate"),
)
"""names of styles that the training loop applies"""


def planned(built: BuiltModel) -> Mapping[str, Any]:
    """The style of each module that the plan names, by the module's name, in the order of the model."""
    patterns = [(re.compile(_expression(key)), style) for key, style in built.tp_plan.items()]
    found: dict[str, Any] = {}
    for name, _ in built.model.named_modules():
        for pattern, style in patterns:
            if name and pattern.fullmatch(name):
                found[name] = style
    return found


def check_plan(built: BuiltModel) -> None:
    """Raises `ConfigError` for a style that is not known, and for a pattern that no module matches."""
    names = [name for name, _ in built.model.named_modules()]
    parameters = [name for name, _ in built.model.named_parameters()]
    for key, style in built.tp_plan.items():
        if isinstance(style, str) and style not in STYLES:
            raise ConfigError(
                f"the tensor plan gives {key!r} the style {style!r}, which the native trainer does not apply",
                remedy=nearest(style, STYLES) or f"use {', '.join(STYLES)}, or a torch ParallelStyle",
                field="model.tp_plan",
            )
        if not any(re.fullmatch(_expression(key), name) for name in (*names, *parameters)):
            raise ConfigError(
                f"the tensor plan names {key!r}, but the model has no such module",
                remedy=nearest(key, names) or "a `*` in a pattern stands for one part of a name",
                field="model.tp_plan",
            )


def is_supported(plan: Mapping[str, Any]) -> bool:
    """Whether all its styles are known."""
    return all(not isinstance(style, str) or style in STYLES for style in plan.values())


def _expression(pattern: str) -> str:
    return re.escape(pattern).replace(r"\*", r"[^.]+")
