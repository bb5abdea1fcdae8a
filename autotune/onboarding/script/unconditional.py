"""What a program does whatever it is told: its code recomputes, compiles, shards or allows TF32 under no condition.

    model.gradient_checkpointing_enable()            recompute=full; so does fsdp_config={"activation_checkpointing": True}
    model = torch.compile(model)                     compile=true
    fully_shard(model), FSDP(model)                  zero_stage=3; 2 where weights stay gathered between the passes
    ZeroRedundancyOptimizer(...)                     zero_stage=1
    torch.backends.cuda.matmul.allow_tf32 = True     precision=tf32: fp32 is computed as tf32

A test for a GPU alone guards nothing where there is one. Any other statement under a test says nothing of a launch, nor does one in a function that is called under tests alone.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from autotune.onboarding.script.syntax import called_name, calls_of, keywords_of, literal_or_none

_RECOMPUTES = frozenset(
    {
        "activation_checkpointing_enable",
        "gradient_checkpointing_enable",
        "enable_gradient_checkpointing",
    }
)
_ADAPTS = frozenset({"get_peft_model", "inject_adapter_in_model"})
_SHARDS = frozenset({"fully_shard", "FSDP", "FullyShardedDataParallel"})
_ALLOWS_TF32 = re.compile(r"(torch\.)?backends\.cuda\.matmul\.allow_tf32")

_GUARDS_NOTHING = re.compile(
    r"__name__ == .*|(torch\.)?cuda\.is_available\(\)|(\w+\.)?device(_type|\.type)? == ['\"]cuda['\"]|use_cuda"
)
_MODEL = re.compile(
    r"(self\.)?(\w+_)?(model|net|network|module|transformer|backbone|unet|dit|policy|ddp)(_\w+)?"
)


class InCode(NamedTuple):
    """The value that code gives a knob, whatever the program is told."""

    value: Any
    line: int


def unconditional(tree: ast.Module) -> dict[str, InCode]:
    """What the code gives each knob; of several, what shards most, and else the first."""
    found: dict[str, InCode] = {}
    for node in plain_nodes(tree):
        for knob, value in _done_by(node).items():
            if knob not in found or (knob == "zero_stage" and value > found[knob].value):
                found[knob] = InCode(value, getattr(node, "lineno", 0))
    return found


def plain_nodes(tree: ast.Module) -> list[ast.AST]:
    """The nodes of what runs under no condition."""
    plain = list(_plain(tree.body))
    calls = {called_name(node) for node in plain if isinstance(node, ast.Call)}
    every = {called_name(call) for call in calls_of(tree)}
    for function in ast.walk(tree):
        if isinstance(function, ast.FunctionDef) and (
            function.name in calls or function.name not in every
        ):
            plain += _plain(function.body)
    return plain


def shards(tree: ast.Module) -> bool:
    """Whether a call of torch's FSDP is anywhere in the text."""
    return any(
        called_name(call) in _SHARDS and _stage(keywords_of(call)) > 0 for call in calls_of(tree)
    )


def offloads(tree: ast.Module) -> str:
    """The call by which FSDP may keep weights on the host, with its line; empty: there is none."""
    for call in calls_of(tree):
        asked = keywords_of(call).get("offload_params")
        is_asked = asked is not None and literal_or_none(asked) is not False
        if called_name(call) in {"CPUOffloadPolicy", "CPUOffload" if is_asked else ""}:
            return f"{called_name(call)} in line {call.lineno}"
    return ""


def adapts(tree: ast.Module) -> tuple[str, bool]:
    """(the call that gives a model adapters, with its line; whether it is under no condition); an empty one where there is none."""
    found = [call for call in calls_of(tree) if called_name(call) in _ADAPTS]
    if not found:
        return "", False
    plain = {id(node) for node in plain_nodes(tree)}
    call = next((call for call in found if id(call) in plain), found[0])
    return f"{called_name(call)} in line {call.lineno}", id(call) in plain


def _plain(body: list[ast.stmt]) -> Iterator[ast.AST]:
    """The nodes of the statements that no test guards, in no function within."""
    for statement in body:
        if isinstance(statement, ast.If) and not _GUARDS_NOTHING.fullmatch(
            ast.unparse(statement.test)
        ):
            continue
        if isinstance(statement, ast.FunctionDef | ast.AsyncFunctionDef):
            continue
        yield statement
        for name, value in ast.iter_fields(statement):
            if name == "orelse" and isinstance(statement, ast.If):
                continue
            if isinstance(value, list) and value and isinstance(value[0], ast.stmt):
                yield from _plain(value)
            elif (
                isinstance(value, ast.expr) and name != "test" and not isinstance(value, ast.IfExp)
            ):
                yield from ast.walk(value)


def _done_by(node: ast.AST) -> dict[str, Any]:
    if isinstance(node, ast.Call):
        name = called_name(node)
        settings = literal_or_none(keywords_of(node).get("fsdp_config"))
        if name in _RECOMPUTES or (
            isinstance(settings, dict) and settings.get("activation_checkpointing") is True
        ):
            return {"recompute": "full"}
        if name == "ZeroRedundancyOptimizer":
            return {"zero_stage": 1}
        if name in _SHARDS and (stage := _stage(keywords_of(node))):
            return {"zero_stage": stage}
        if name == "set_float32_matmul_precision" and node.args:
            return (
                {"precision": "tf32"} if literal_or_none(node.args[0]) in ("high", "medium") else {}
            )
    if isinstance(node, ast.Assign) and len(node.targets) == 1:
        target = ast.unparse(node.targets[0])
        if _ALLOWS_TF32.fullmatch(target):
            return {"precision": "tf32"} if literal_or_none(node.value) is True else {}
        is_compile = (
            isinstance(node.value, ast.Call) and ast.unparse(node.value.func) == "torch.compile"
        )
        return {"compile": True} if is_compile and _MODEL.fullmatch(target) else {}
    return {}


def _stage(given: Mapping[str, ast.expr]) -> int:
    """The ZeRO stage that a call of torch's FSDP amounts to; 0 where it shards nothing."""
    strategy = ast.unparse(given["sharding_strategy"]) if "sharding_strategy" in given else ""
    if strategy.endswith("NO_SHARD"):
        return 0
    stays_gathered = strategy.endswith(("SHARD_GRAD_OP", "_HYBRID_SHARD_ZERO2"))
    return (
        2 if stays_gathered or literal_or_none(given.get("reshard_after_forward")) is False else 3
    )
