"""Which releases a command's Python has of the libraries that decide how a training runs. Read from
the names of their folders: nothing is imported or run."""

from __future__ import annotations

import re
import shutil
from collections.abc import Sequence
from pathlib import Path

LIBRARIES = (
    "torch", "transformers", "accelerate", "lightning", "pytorch_lightning", "deepspeed", "megatron_core", "torchtitan", "nanotron", "trl", "peft",
    "flash_attn", "transformer_engine", "torchao", "triton", "nvidia_nccl_cu12", "nvidia_nccl_cu13", "bitsandbytes", "xformers", "liger_kernel", "apex",
)  # fmt: skip
_SHEBANG = re.compile(r"#!\s*(\S+)")


def versions_of(command: Sequence[str]) -> dict[str, str]:
    """By library, and of Python itself; empty where the command is no Python of this machine."""
    for word in command:
        if (python := _python_of(word)) is not None:
            return _found(python)
    return {}


def _python_of(word: str) -> Path | None:
    """The interpreter that the word is, or that the script of that name starts with."""
    found = shutil.which(word)
    if found is None:
        return None
    if re.fullmatch(r"(?:python|pypy)[\d.]*", Path(found).name):
        return Path(found)
    with open(found, "rb") as file:
        first = file.readline(300).decode(errors="replace")
    shebang = _SHEBANG.match(first)
    if shebang is None or "python" not in first:
        return None
    return (
        Path(shebang[1])
        if Path(shebang[1]).is_file() and "python" in Path(shebang[1]).name
        else None
    )


def _found(python: Path) -> dict[str, str]:
    found: dict[str, str] = {}
    for start in dict.fromkeys((python, python.resolve())):
        for packages in sorted(start.parent.parent.glob("lib*/python3*/*-packages")):
            found.setdefault("python", packages.parent.name.removeprefix("python"))
            for info in packages.glob("*.dist-info"):
                name, _, version = info.name.removesuffix(".dist-info").partition("-")
                if name.lower() in LIBRARIES:
                    found.setdefault(name.lower(), version)
    return found
