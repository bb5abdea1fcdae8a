"""Defaults of options that a condition decides on the machine where the script runs.

    dtype = "bfloat16" if torch.cuda.is_available() and torch.cuda.is_bf16_supported() else "float16"

On CPU ranks there is no CUDA; a GPU of the catalog is there and has the formats that it is listed with. Any other condition, and each where no cluster is
named, is not known: then the values between which it decides are all that is said.
"""

from __future__ import annotations

import ast
from dataclasses import replace
from typing import Any

from autotune.onboarding.draft import Place, named_cluster
from autotune.onboarding.script.reading import Script
from autotune.onboarding.script.syntax import called_name, literal_or_none


def settled(script: Script, place: Place) -> Script:
    """The script with the defaults that it has at that place."""
    cluster = named_cluster(place.name)
    facts: dict[str, bool] = {}
    if cluster is not None:
        has_bf16 = not cluster.gpu.is_cpu and "bf16" in cluster.gpu.peak_flops_per_s
        facts = {"is_available": not cluster.gpu.is_cpu, "is_bf16_supported": has_bf16}
    options = tuple(
        replace(option, default=_value(ast.parse(option.computed, mode="eval").body, facts))
        if option.computed
        else option
        for option in script.options
    )
    in_code = {
        knob: made
        for knob, made in script.in_code.items()
        if made.value != "tf32" or not place.is_cpu
    }
    return replace(script, options=options, in_code=in_code)


def _value(node: ast.expr, facts: dict[str, bool]) -> Any:
    """The value; None where it is not known."""
    if not isinstance(node, ast.IfExp):
        found = _holds(node, facts)
        return literal_or_none(node) if found is None else found
    holds = _holds(node.test, facts)
    if holds is None:
        return None
    return _value(node.body if holds else node.orelse, facts)


def _holds(node: ast.expr, facts: dict[str, bool]) -> bool | None:
    """Whether a condition holds; None where that is not known."""
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
        inner = _holds(node.operand, facts)
        return None if inner is None else not inner
    if isinstance(node, ast.BoolOp):
        parts = [_holds(value, facts) for value in node.values]
        decides = isinstance(node.op, ast.Or)
        if decides in parts:
            return decides
        return None if None in parts else not decides
    if isinstance(node, ast.Call) and ast.unparse(node.func).startswith(("torch.cuda.", "cuda.")):
        return facts.get(called_name(node))
    return None
