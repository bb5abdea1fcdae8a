"""The model that a program names by its id on Hugging Face's hub, or by the folder of its weights."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

from autotune.schema.files import is_model_file
from autotune.spec import catalog


def model_named(named: Any, base: Path, folder: Path) -> tuple[str, str] | None:
    """(the model for the spec, a comment): of the hub as the catalog has it, or a config.json, also of a folder that is named; None for any other.

    `base`: the folder that a path begins at; `folder`: of the spec.
    """
    text = str(named or "")
    if text in catalog.model_names() or text.lower() in catalog.hub_models():
        return text, ""
    of_tail = {_tail(hub): name for hub, name in catalog.hub_models().items()}
    if text and (found := of_tail.get(_tail(text))) is not None:
        return found, f"assumed for {text}"
    for local in (base / text, base / text / "config.json") if text else ():
        if is_model_file(str(local)) and local.is_file():
            return os.path.relpath(local.resolve(), folder.resolve()), ""
    return None


def _tail(hub: str) -> str:
    """A hub id without owner and without what no shape depends on: how the weights were tuned, the 3 or 3.1 of Llama's 8B and 70B, the 2 or 2.5 of Qwen's 1.5B, 7B and 72B."""
    name = re.sub(
        r"^(meta-)?llama-3-", "llama-3.1-", hub.rstrip("/").rpartition("/")[2].lower()
    ).removeprefix("meta-")
    name = re.sub(r"^qwen2-(?=(1\.5b|7b|72b)\b)", "qwen2.5-", name)
    return re.sub(r"-(hf|base|(instruct|thinking)(-2507)?|chat|it|sft|dpo)$", "", name)
