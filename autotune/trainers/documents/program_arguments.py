"""The program after a launcher, with its arguments: the one that an export includes, or the user's
own.

torchrun --nproc-per-node=8 train.py --seq-len 2048 --steps 50
                            ^ the program, and its arguments
"""

from __future__ import annotations

from typing import Any

from autotune.trainers.present_configuration import (
    KeyReader,
    PresentConfiguration,
    Reading,
    options_of,
)

EXPORTED = "train.py"
"""file name of the program that an export includes"""


def exported_program(present: PresentConfiguration) -> Reading:
    """The configuration of the exported program, from its arguments; empty if the command is
    unknown."""
    given = {name: value or True for name, value in options_of(program_of(present.argv))}
    keys = KeyReader(given, EXPORTED)
    knobs: dict[str, Any] = {
        "micro_batch_size": keys.count("micro-batch-size"),
        "accumulation_steps": keys.count("accumulation-steps"),
        "recompute": "full" if keys.find("recompute") is True else keys.text("recompute"),
        "compile": keys.flag("compile"),
    }
    options: dict[str, Any] = {
        "steps": keys.count("steps"),
        "seed": keys.count("seed"),
        "learning_rate": keys.number("learning-rate"),
        "data": keys.text("data"),
    }
    return Reading(
        knobs={name: value for name, value in knobs.items() if value is not None},
        options=options,
        seq_len=keys.count("seq-len"),
        model_file=keys.text("model") or "",
        optimizer=keys.text("optimizer") or "",
    )


def own_program(present: PresentConfiguration, *ours: str) -> Reading | None:
    """The user's own program with all its arguments; None if it is the exported one or unknown.
    `ours`: options that an export adds."""
    words = program_of(present.argv)
    if not words or (words[0] == EXPORTED and EXPORTED in present.files):
        return None
    arguments, rest = [], iter(words[1:])
    for word in rest:
        if word in ours:
            next(rest, None)
        else:
            arguments.append(word)
    return Reading(knobs={}, options={"script": words[0], "script_args": arguments or None})


def program_of(argv: tuple[str, ...]) -> tuple[str, ...]:
    """The program and its arguments: the words from the first one that ends with .py."""
    at = next((i for i, word in enumerate(argv) if word.endswith(".py")), len(argv))
    return argv[at:]
