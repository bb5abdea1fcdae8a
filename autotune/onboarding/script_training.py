"""What a training has in place of what only trials are told: the user's own steps, seed, saving, logging and trackers, for the exported launch."""

from __future__ import annotations

from typing import Any

from autotune.onboarding.option_matches import OptionMatches
from autotune.onboarding.script_argv import trial_words, written
from autotune.trainers.command_training import APPEND


def training_of(found: OptionMatches) -> dict[str, Any]:
    """The option `training` of the trainer: by word of `argv`, `steps` and `seed`, what the script is started with today; null where it is told nothing."""
    started = found.script.started
    given: dict[str, list[str]] = {}
    for argument in started.arguments if started else ():
        given.setdefault(argument.name, []).extend(written(argument, found.script.is_read))

    def own(name: str) -> Any:
        words = given.get(name, [])
        return words[0] if len(words) == 1 else words or None

    training: dict[str, Any] = {}
    for target in ("steps", "seed"):
        if target in found.used:
            option, _ = found.used[target]
            value = option.present if option.is_in_file else option.given
            training[target] = value if isinstance(value, int) and not isinstance(value, bool) else None
    for word in trial_words(found):
        training[word] = own(word.lstrip("-+").partition("=")[0].replace("-", "_"))
    if watched := [word for option in found.trackers for word in given.get(option.name, ())]:
        training[APPEND] = watched
    return training
