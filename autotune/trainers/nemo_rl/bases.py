"""The files that a configuration of NeMo-RL starts from, by its key `defaults`
(nemo_rl/utils/config.py): they decide what it does not say."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping
from pathlib import PurePosixPath
from typing import Any

from autotune.trainers.base.trainer_option import Option, Reach
from autotune.trainers.nemo_rl.knobs import DEFAULTS
from autotune.trainers.present_configuration import at_path, merged, nested, parse_document

BASE = Option(
    name="base", meaning="base configuration that the launch overrides, from the folder `cwd`; empty if the launch's own settings are complete",
    default="examples/configs/grpo_math_1B.yaml", is_path=True, reach=Reach.FILE,
)  # fmt: skip
_REFERENCE = re.compile(r"\$\{([\w.]+)\}")
_PRODUCT = re.compile(r"\$\{mul:\s*(\d+),\s*(\d+)\s*\}")


def bases_of(document: Mapping[str, Any]) -> tuple[str, ...]:
    """The files that a configuration starts from, the last of which counts most."""
    named = document.get("defaults")
    named = named if isinstance(named, list) else [named]
    return tuple(
        each for each in named if isinstance(each, str) and each.endswith((".yaml", ".yml"))
    )


def beside(name: str, base: str) -> str:
    """The name of a base, by the name of the file that starts from it."""
    return os.path.normpath(os.path.join(os.path.dirname(name), base))


def with_bases(
    files: Mapping[str, str], name: str, text_of: Callable[[str], str | None]
) -> dict[str, str]:
    """The files, and those that the file of that name is based on. `text_of`: the text of a file,
    None where it is not there."""
    found = dict(files)
    for base in bases_of(parse_document(name, found[name])):
        inner = beside(name, base)
        if inner not in found and (text := text_of(inner)) is not None:
            found = with_bases({**found, inner: text}, inner, text_of)
    return found


def inherited(
    document: Mapping[str, Any], name: str, files: Mapping[str, str]
) -> tuple[dict[str, Any], tuple[str, ...]]:
    """(what the files say that a configuration starts from, the names of those that are not
    there)"""
    whole: dict[str, Any] = {}
    missing: tuple[str, ...] = ()
    for base in bases_of(document):
        inner = beside(name, base)
        if inner in files:
            own = parse_document(inner, files[inner])
            below, lost = inherited(
                own, inner, {key: text for key, text in files.items() if key != inner}
            )
            whole, missing = merged(merged(whole, below), own), (*missing, *lost)
        elif PurePosixPath(base).name == PurePosixPath(BASE.default).name:
            whole = merged(whole, nested(DEFAULTS))
        else:
            missing += (base,)
    return whole, missing


def resolved(document: Mapping[str, Any], path: str, depth: int = 8) -> Any:
    """The value, with what it refers to: `${policy.precision}`, and products such as
    `${mul:${policy.max_total_sequence_length}, 4}`."""
    value = at_path(document, path)
    if not isinstance(value, str) or "${" not in value or not depth:
        return value
    plain = _REFERENCE.sub(lambda found: str(resolved(document, found[1], depth - 1)), value)
    if product := _PRODUCT.fullmatch(plain):
        return int(product[1]) * int(product[2])
    return int(plain) if plain.isdecimal() else plain
