"""Listeners to a study: what `on_event` of the tests gathers, and what it does when a trial
ends."""

from __future__ import annotations

from collections.abc import Callable

from autotune.study.progress import LoopEvent, Notice, TrialEnded


def notices(said: list[str]) -> Callable[[LoopEvent], None]:
    """Gathers what the study says."""

    def hear(event: LoopEvent) -> None:
        if isinstance(event, Notice):
            said.append(event.message)

    return hear


def when_ended(number: int, act: Callable[[str], object]) -> Callable[[LoopEvent], None]:
    """Acts on the study, by its id, when this trial has ended."""

    def hear(event: LoopEvent) -> None:
        if isinstance(event, TrialEnded) and event.trial.number == number:
            act(event.trial.study)

    return hear
