"""What the decisions of a study hang on beside its inputs: the release, and the libraries and the processor that its figures are computed with."""

from __future__ import annotations

import functools
import hashlib
import os
import platform
from collections.abc import Mapping
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import autotune

LIBRARIES = ("numpy", "scipy", "optuna", "cmaes", "torch")
"""distributions that searchers compute with, where they are installed"""
RELEASE = "autotune"
"""key of the release"""
DECIDING = ("cost", "reward", "search", "space", "spec", "study", "trainers")
"""rooms of the package whose code and data decide"""


@functools.cache
def environment() -> Mapping[str, str]:
    """Versions by name, and the processor with the number of its cores, which decide how floating-point sums are ordered."""
    release = f"{autotune.__version__} (code {code_in(Path(autotune.__file__).parent)})"
    found = {RELEASE: release, "processor": f"{_processor()}, {os.cpu_count()} cores"}
    for name in LIBRARIES:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    return found


def code_in(package: Path) -> str:
    """Fingerprint of what decides: between two releases, as in a checkout, it changes under one version."""
    found = hashlib.blake2b(digest_size=4)
    for path in sorted(path for room in DECIDING for path in (package / room).rglob("*")):
        if path.is_file() and "__pycache__" not in path.parts:
            found.update(b"%b %d\n" % (path.relative_to(package).as_posix().encode(), path.stat().st_size))
            found.update(path.read_bytes())
    return found.hexdigest()


def differences(then: Mapping[str, str], now: Mapping[str, str]) -> str:
    """What is not the same, in words: `numpy 2.1.0, here 2.2.1`; empty where all is."""
    names = [name for name in sorted({*then, *now}) if then.get(name) != now.get(name)]
    return ", ".join(f"{name} {then.get(name, 'missing')}, here {now.get(name, 'missing')}" for name in names)


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        lines = []
    names = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return f"{platform.machine()} {next(names, platform.processor())}".strip()
