"""Finds the versions of training libraries that a command's Python has installed, from the names of
`.dist-info` folders. Nothing is imported or run."""

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
    """Versions by library name, and of Python itself. Empty if no word of the command is a Python
    interpreter or script of this machine."""
    for word in command:
        if (python := _python_of(word)) is not None:
            return _installed(python)
    return {}


def _python_of(word: str) -> Path | None:
    """The Python interpreter that the word names, or that is in the shebang of the script that it
    names; None if it names neither."""
    path = shutil.which(word)
    if path is None:
        return None
    if re.fullmatch(r"(?:python|pypy)[\d.]*", Path(path).name):
        return Path(path)
    with open(path, "rb") as file:
        first_line = file.readline(300).decode(errors="replace")
    shebang = _SHEBANG.match(first_line)
    if shebang is None or "python" not in first_line:
        return None
    interpreter = Path(shebang[1])
    return interpreter if interpreter.is_file() and "python" in interpreter.name else None


def _installed(python: Path) -> dict[str, str]:
    versions: dict[str, str] = {}
    for start in dict.fromkeys((python, python.resolve())):
        for packages in sorted(start.parent.parent.glob("lib*/python3*/*-packages")):
            versions.setdefault("python", packages.parent.name.removeprefix("python"))
            for info in packages.glob("*.dist-info"):
                name, _, version = info.name.removesuffix(".dist-info").partition("-")
                if name.lower() in LIBRARIES:
                    versions.setdefault(name.lower(), version)
    return versions
