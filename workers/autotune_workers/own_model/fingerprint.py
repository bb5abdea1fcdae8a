"""Digest of what decides which model is built: the user's code, its arguments, and the releases of the packages that it uses."""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Iterable
from importlib import metadata
from pathlib import Path

from autotune.spec import ModelCode, ModelSpec
from autotune.spec.plain import fingerprint

_ALWAYS = ("torch", "transformers")
"""packages whose release counts in any case"""


def code_fingerprint(model: ModelSpec, loaded: Iterable[str]) -> str:
    """Of the model's code; `loaded`: names of the modules that its import and its building brought in."""
    assert model.code is not None
    names = set(loaded)
    packages = {name.partition(".")[0] for name in names} | set(_ALWAYS)
    versions = {name: version for name in packages if (version := _version(name))}
    return fingerprint([model.code.module, model.code.args, model.source, _digests(names, model.code), versions])


def _digests(names: Iterable[str], code: ModelCode) -> list[list[str]]:
    """Name and digest of each loaded file of the user's: those in the spec's folder, and those of the builder's own package."""
    own = code.module.partition(":")[0].partition(".")[0]
    found = []
    for name in sorted(names):
        file = getattr(sys.modules.get(name), "__file__", None)
        if file is None or not Path(file).is_file():
            continue
        in_folder = bool(code.folder) and Path(file).resolve().is_relative_to(Path(code.folder).resolve())
        is_installed = "site-packages" in Path(file).parts
        if name.partition(".")[0] == own or (in_folder and not is_installed):
            found.append([name, hashlib.blake2b(Path(file).read_bytes(), digest_size=16).hexdigest()])
    return found


def _version(package: str) -> str:
    try:
        return metadata.version(package)
    except (metadata.PackageNotFoundError, ValueError):
        return ""
