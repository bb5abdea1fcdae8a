"""torchtitan's Python configuration (0.3): a function that returns a Trainer.Config. It is read,
never run.

The function is the one that the command names (`--config tuned`), else the first of the file.
Options of the command override what it says. Its keys are put under the names that the job file of
0.2 has for them, and read by the same rules.
"""

from __future__ import annotations

import ast
from collections.abc import Mapping
from typing import Any

from autotune.errors import SpecError
from autotune.trainers.base.trained_families import TORCHTITAN
from autotune.trainers.present_configuration import KeyReader, PresentConfiguration, Reading, merged
from autotune.trainers.torchtitan.job_file import CONVERTERS
from autotune.trainers.torchtitan.read import flavored, overrides, reading_of

MODES = {
    "FullAC.Config": "full",
    "SelectiveAC.Config": "selective",
    "MemoryBudgetAC.Config": "memory_budget",
}
"""values of `activation_checkpoint`, by the job file's names"""
CLASSES = {"fp8": "Float8LinearConverter", "mxfp8": "MXFP8LinearConverter"}
"""converters of the linear layers, by precision"""
SIZES = {
    "dim": "hidden_size",
    "n_layers": "num_layers",
    "n_heads": "num_attention_heads",
    "n_kv_heads": "num_kv_heads",
    "hidden_dim": "ffn_hidden_size",
    "vocab_size": "vocab_size",
    "tied": "tied_embeddings",
}
"""fields of `ModelSpec`, by the arguments of an export's builders"""
WRITTEN_ANEW = ("loss", "metrics", "checkpoint.enable", "training.disable_cuda_graphs")
"""keys that follow from knobs or are the same in every launch"""
TRACKERS = ("metrics.enable_tensorboard", "metrics.enable_wandb")
"""keys among them that a configuration has chosen"""


def read(present: PresentConfiguration) -> Reading:
    """What the function, the command and the model's module say."""
    name, text = next(
        (n, t) for n, t in present.files.items() if n.endswith(".py") and "Trainer.Config(" in t
    )
    wanted = present.option("config")
    function, call, others = _returned(name, text, wanted)
    written = _arguments(call)
    model_call = _assigned(function, written.pop("model_spec", None))
    whole_loss = written.get("loss", {}).get("") == "CrossEntropyLoss.Config"
    document, model = (
        _renamed(written, ast.unparse(function)),
        _sizes(model_call) or _registered(function, model_call),
    )
    keys = KeyReader(merged(document, overrides(present)), name)
    if others and not wanted:
        keys.remarks.append(
            f"{name} has {len(others) + 1} configurations; only the first, {function.name}, is read; to use another configuration, move it to a separate file"
        )
    if not model and isinstance(model_call, ast.AST):
        remark = f"{name}: model_spec={ast.unparse(model_call):.80} is ignored, because the export trains the spec's model; set the model there"
        keys.remarks.append(remark)
    if trackers := [key for key in TRACKERS if keys.find(key)]:
        keys.remarks.append(
            f"{name}: {', '.join(trackers)} are left out, because an export writes `metrics` itself; add these settings to the exported file"
        )
    keys.drop(*WRITTEN_ANEW, "activation_checkpoint.mode", "optimizer.name")
    return reading_of(
        keys, present, model=model, version="0.3", loss="full" if whole_loss else "own"
    )


def _returned(
    name: str, text: str, wanted: str | None
) -> tuple[ast.FunctionDef, ast.Call, list[str]]:
    """(the configuration's function, the call of Trainer.Config that it returns, names of other
    functions that return one)"""
    try:
        tree = ast.parse(text)
    except (SyntaxError, ValueError) as error:
        raise SpecError(f"{name} is not Python: {error}", field="FILE") from None
    functions = [node for node in tree.body if isinstance(node, ast.FunctionDef)]
    nodes = ((function, node) for function in functions for node in ast.walk(function))
    calls = [
        (function, node)
        for function, node in nodes
        if isinstance(node, ast.Call) and ast.unparse(node.func) == "Trainer.Config"
    ]
    for function, node in calls:
        if wanted in (None, function.name):
            return function, node, [other.name for other, _ in calls if other is not function]
    raise SpecError(
        f"{name} has no function {wanted or ''} that returns a Trainer.Config(...)",
        remedy=f"functions: {', '.join(function.name for function in functions) or 'none'}",
        field="FILE",
    )


def _arguments(call: ast.Call) -> dict[str, Any]:
    """Keyword arguments: literals as values, calls as mappings, anything else as the source that it
    is; the model as its node."""
    found: dict[str, Any] = {}
    for word in call.keywords:
        if word.arg is None:
            continue
        if word.arg == "model_spec":
            found[word.arg] = word.value
        elif isinstance(word.value, ast.Call):
            found[word.arg] = {"": ast.unparse(word.value.func), **_arguments(word.value)}
        else:
            found[word.arg] = _literal(word.value)
    return found


def _literal(node: ast.AST) -> Any:
    try:
        return ast.literal_eval(node)
    except ValueError:
        return ast.unparse(node)


def _renamed(written: dict[str, Any], text: str) -> dict[str, Any]:
    """The keys by the names of the job file."""
    checkpointing = written.pop("activation_checkpoint", {"": "SelectiveAC.Config"})
    written["activation_checkpoint"] = (
        {"mode": "none"}
        if checkpointing is None
        else {
            **checkpointing,
            "mode": MODES.get(checkpointing.get("", ""), checkpointing.get("", "")),
        }
    )
    loader = dict(written.pop("dataloader", {}))
    given = {key: loader.pop(key) for key in ("dataset", "dataset_path") if key in loader}
    converters = [
        f"quantize.linear.{CONVERTERS[p]}"
        for p, name in CLASSES.items()
        if f"{name}.Config(" in text
    ]
    assets = {key: written.pop(key) for key in ("hf_assets_path",) if key in written}
    more: dict[str, Any] = {
        "training": given,
        "dataloader": loader,
        "model": {**assets, "converters": converters},
        "optimizer": {"name": "AdamW"},
    }
    return _plain(merged(written, more))


def _plain(document: Mapping[str, Any]) -> dict[str, Any]:
    """The document without the names of called classes, and without mappings that are empty."""
    found = {
        key: _plain(value) if isinstance(value, Mapping) else value
        for key, value in document.items()
        if key != ""
    }
    return {key: value for key, value in found.items() if value != {}}


def _assigned(function: ast.FunctionDef, node: Any) -> Any:
    """What the function assigned to a name; anything else as it is."""
    if not isinstance(node, ast.Name):
        return node
    found = (
        statement.value
        for statement in function.body
        if isinstance(statement, ast.Assign) and ast.unparse(statement.targets[0]) == node.id
    )
    return next(found, node)


def _registered(function: ast.FunctionDef, node: Any) -> dict[str, Any]:
    """Sizes of `model_registry("8B")`, a flavor of torchtitan's own, whose functions are named by
    the model: `llama3_8b`."""
    if not (
        isinstance(node, ast.Call) and ast.unparse(node.func) == "model_registry" and node.args
    ):
        return {}
    name = next(
        (name for name in ("llama3", "qwen3", "deepseek_v3") if function.name.startswith(name)), ""
    )
    return flavored(name, str(_literal(node.args[0])))


def _sizes(node: Any) -> dict[str, Any]:
    """Sizes of the model that an export brings; nothing for any other."""
    if not isinstance(node, ast.Call) or ast.unparse(node.func) not in set(TORCHTITAN.values()):
        return {}
    given = _arguments(node)
    sizes = {field: given[name] for name, field in SIZES.items() if name in given}
    if given.get("head_dim", 0) * given["n_heads"] not in (0, given["dim"]):
        sizes["attention_head_dim"] = given["head_dim"]
    if latent := given.get("latent"):
        sizes |= {
            name: latent[name]
            for name in ("q_lora_rank", "kv_lora_rank", "qk_rope_head_dim", "v_head_dim")
        }
        sizes["attention_head_dim"] = latent["qk_nope_head_dim"] + latent["qk_rope_head_dim"]
        sizes["shared_ffn_hidden_size"] = given["n_shared_experts"] * given["hidden_dim"]
        if given["n_dense_layers"]:
            sizes |= {
                "num_dense_layers": given["n_dense_layers"],
                "dense_ffn_hidden_size": given["dense_hidden_dim"],
            }
    if experts := given.get("experts"):
        chosen = experts.get("top_k", experts.get("router_top_k"))
        sizes |= {"num_experts": experts["num_experts"], "experts_per_token": chosen}
    return {**sizes, "gated_mlp": True}
