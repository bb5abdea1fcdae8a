"""Why configs are excluded, for people: the words for the short names under which excluded combinations are counted.

    tp_heads            a law: what is wrong with configs that break it
    megatron_compile    a limit: the trainer, and the knob whose value it cannot express
    memory              the cost model expects it to run out of memory

Names that are sentences already, such as those of studies of older releases, stay as they are. JSON documents keep the names.
"""

from __future__ import annotations

from collections.abc import Mapping

from autotune.space.constraint import LAWS
from autotune.space.rl_laws import RL_LAWS
from autotune.trainers import trainer_names

MEMORY = "memory"
"""the name under which configs are counted that are expected to run out of memory"""
_WORDS = {law.name: law.broken for law in (*LAWS, *RL_LAWS)} | {MEMORY: "expected to run out of memory"}


def exclusion_words(name: str) -> str:
    """What is wrong with the configs that are counted under this name."""
    if name in _WORDS:
        return _WORDS[name]
    trainer = next((known for known in trainer_names() if name.startswith(f"{known}_")), None)
    if trainer is not None and " " not in name:
        return f"{trainer} cannot run this {name.removeprefix(f'{trainer}_')}"
    return name


def in_words(counts: Mapping[str, int]) -> dict[str, int]:
    """The counts by what is wrong, the most frequent first."""
    found: dict[str, int] = {}
    for name, count in counts.items():
        words = exclusion_words(name)
        found[words] = found.get(words, 0) + count
    return dict(sorted(found.items(), key=lambda item: -item[1]))
