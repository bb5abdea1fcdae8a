"""The option `training` of a program: what its exported launch has in place of what only trials are
told.

    argv: [python, train.py, "--max_steps={steps}", "--save_strategy=no", "--seed={seed}"]
    training: {steps: 100, seed: null, "--save_strategy=no": "--save_strategy=steps", append: [--wandb]}

A key is a word of `argv`, `steps`, `seed`, `append`, a variable in `env` or a name in `files`. Its
value takes the place of the word or of the variable's value: text, a list of words, or null, which
leaves it out. A null for `steps` or `seed` leaves out the words and variables that name them, so
that the program's own value holds. Of a file it is what the training's has in place of the trials':
`config.yaml: {report_every: 50}`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from autotune.errors import SpecError
from autotune.spec.checks import nearest
from autotune.trainers.documents.placeholders import parse
from autotune.trainers.present_configuration import merged

APPEND = "append"
"""the key of words that trials leave out"""
NUMBERS = ("steps", "seed")
"""placeholders that a training has values of its own for"""


def check_training(
    training: Mapping[str, Any],
    argv: Sequence[str],
    files: Mapping[str, Any],
    env: Mapping[str, Any],
) -> None:
    """Raises `SpecError` for a key that is no word of `argv`, and for a value that cannot take its
    place."""
    known = {*argv, *NUMBERS, APPEND, *files, *env}
    for key, value in training.items():
        where = f"trainer.training.{key}"
        if key not in known:
            near = nearest(str(key), known)
            raise SpecError(
                f"a key of `training` must be steps, seed, append, or the name of an argument in argv, a variable in env or a file in files, but is {key!r}",
                remedy=near or "write the argument exactly as in argv",
                field=where,
            )
        if key in files:
            if not (isinstance(value, Mapping) and isinstance(files[key], Mapping)):
                raise SpecError(
                    f"`training` changes keys of {key}, so the value must be a mapping of keys to values, and `files` must contain the file inline",
                    field=where,
                )
        elif key in NUMBERS:
            if value is not None and (
                isinstance(value, bool) or not isinstance(value, int) or value < 0
            ):
                raise SpecError(
                    f"{key} must be a whole number or null, but is {value!r:.80}", field=where
                )
        elif key in env:
            if value is not None and not isinstance(value, str):
                raise SpecError(
                    f"the value must be text or null, but is {value!r:.80}", field=where
                )
        elif value is not None and not _is_words(value):
            raise SpecError(
                f"the value must be text, a list of texts or null, but is {value!r:.80}",
                field=where,
            )


def in_training(options: Mapping[str, Any], argv: Sequence[str]) -> dict[str, Any]:
    """The trainer's options with the argv, variables, files, steps and seed of a training; the same
    options where there is no `training`."""
    training = options.get("training") or {}
    if not training:
        return dict(options)
    left_out = {name for name in NUMBERS if name in training and training[name] is None}
    words: list[str] = []
    for word in argv:
        if word in training:
            words += _words(training[word])
        elif not left_out & _names(word):
            words.append(word)
    words += _words(training.get(APPEND))
    files = dict(options.get("files") or {})
    files |= {name: merged(files[name], training[name]) for name in files if name in training}
    numbers = {name: training[name] for name in NUMBERS if training.get(name) is not None}
    env = {
        name: training.get(name, value)
        for name, value in (options.get("env") or {}).items()
        if name in training or not (isinstance(value, str) and left_out & _names(value))
    }
    env = {name: value for name, value in env.items() if value is not None}
    told = {"files": files} if files else {}
    if options.get("env"):
        told["env"] = env
    return {**options, "argv": tuple(words), **told, **numbers}


def _names(text: str) -> set[str]:
    """Names in its placeholders."""
    return {name for part in parse(text).expressions for name in part.names}


def _words(value: Any) -> list[str]:
    if value is None:
        return []
    return [value] if isinstance(value, str) else list(value)


def _is_words(value: Any) -> bool:
    return isinstance(value, str) or (
        isinstance(value, list | tuple) and all(isinstance(word, str) for word in value)
    )
