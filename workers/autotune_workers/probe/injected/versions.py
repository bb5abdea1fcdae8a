"""Versions and settings that may affect training speed: libraries, driver, kernel, the program's
commit, and the GPU's clock and power limits. Unknown ones are left out."""

from __future__ import annotations

import os
import platform
import re
import sys
from typing import Any

_LIBRARIES = ("transformers", "accelerate", "lightning", "pytorch_lightning", "deepspeed", "megatron.core", "torchtitan", "nanotron", "trl", "peft", "flash_attn", "transformer_engine", "torchao", "triton", "ray")  # fmt: skip
_DRIVER = re.compile(r"(?:Module|x86_64|aarch64)\s+(\d+\.[\d.]+)")


def versions(torch: Any = None) -> dict[str, str]:
    """Versions by name; of libraries only if this process has imported them. `torch`: the module,
    if imported."""
    script = os.path.abspath(sys.argv[0]) if sys.argv and sys.argv[0] else ""
    driver = _DRIVER.search(text_of("/proc/driver/nvidia/version"))
    found = {
        "python": platform.python_version(),
        "kernel": platform.release(),
        **{name: getattr(sys.modules.get(name), "__version__", "") for name in _LIBRARIES},
        **({} if torch is None else {"torch": torch.__version__, **_gpu_versions(torch)}),
        "driver": driver[1] if driver else "",
        "commit": commit_of(os.path.dirname(script) if script else os.getcwd()),
    }
    return {name: str(version) for name, version in found.items() if version}


def _gpu_versions(torch: Any) -> dict[str, str]:
    found = {}
    if getattr(torch.version, "cuda", None):
        found["cuda"] = str(torch.version.cuda)
    if getattr(torch.version, "hip", None):
        found["rocm"] = str(torch.version.hip)
    if not uses_cuda(torch):
        return found
    try:
        found["nccl"] = ".".join(map(str, torch.cuda.nccl.version()))
        from .nvml import Gpu

        read = Gpu(str(torch.cuda.get_device_properties(torch.cuda.current_device()).uuid)).read()
        for name, text in (
            ("power_limit_watts", "gpu_power_limit"),
            ("max_clock_mhz", "gpu_max_clock"),
        ):
            if name in read:
                found[text] = f"{read[name]:.0f}"
    except Exception:  # no NVML: its readings are left out
        pass
    return found


def commit_of(folder: str) -> str:
    """The commit checked out in the folder or above it (12 characters), read from git's files;
    empty if there is none."""
    while True:
        head = text_of(os.path.join(folder, ".git", "HEAD"))
        root = os.path.join(folder, ".git")
        if not head and os.path.isfile(root):  # a work tree
            root = os.path.join(folder, text_of(root).replace("gitdir:", "").strip())
            head = text_of(os.path.join(root, "HEAD"))
        if head:
            break
        parent = os.path.dirname(folder)
        if parent == folder:
            return ""
        folder = parent
    if not head.startswith("ref:"):
        return head.strip()[:12]
    name = head[4:].strip()
    common = text_of(os.path.join(root, "commondir")).strip()
    for git_folder in (root, os.path.join(root, common)) if common else (root,):
        found = text_of(os.path.join(git_folder, *name.split("/"))).strip()
        if found:
            return found[:12]
        for line in text_of(os.path.join(git_folder, "packed-refs")).splitlines():
            if line.endswith(" " + name):
                return line[:12]
    return ""


def uses_cuda(torch: Any) -> bool:
    """Whether this process has initialized CUDA."""
    return bool(torch.cuda.is_available() and torch.cuda.is_initialized())


def text_of(path: str) -> str:
    """The text of a file (at most 1 MiB); empty if it cannot be read."""
    try:
        with open(path, errors="replace") as file:
            return file.read(1 << 20)
    except OSError:
        return ""
