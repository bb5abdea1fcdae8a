"""How many ranks a program is started on today, how many a trial has, and how many of them have data of their own.

ranks       as the launch says; else those of the cluster that was named; else a usual node, which is said to be assumed
replicas    ranks / (tp x pp x cp), by the degrees that the program is started with
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import final

from autotune.onboarding.named_cluster import Place
from autotune.onboarding.option_matches import DEGREES, OptionMatches
from autotune.onboarding.script import starts_one


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class RanksToday:
    """Ranks of the present launch and of trials."""

    today: int
    """of the present launch"""
    of_trials: int
    """of a trial that is like it: no more than the cluster has"""
    of_cluster: int
    degrees: Mapping[str, int]
    """degrees above 1 that it is started with"""
    is_assumed: bool
    """whether neither the launch nor a cluster says how many there are"""
    is_started: bool
    """whether a launch says something of it"""

    @property
    def _model(self) -> int:
        return math.prod(self.degrees.get(degree, 1) for degree in ("tp", "pp", "cp"))

    @property
    def replicas(self) -> int:
        """Ranks of the present launch with data of their own."""
        return max(1, self.today // self._model)

    @property
    def replicas_of_trials(self) -> int:
        """The same of a trial."""
        return max(1, self.of_trials // self._model)

    @property
    def is_part(self) -> bool:
        """Whether the launch uses a part of the cluster."""
        return self.is_started and self.of_trials < self.of_cluster

    @property
    def is_elsewhere(self) -> bool:
        """Whether the launch has more ranks than the cluster."""
        return self.today > self.of_trials

    @property
    def said(self) -> str:
        """In words."""
        shared = f", {self.replicas} with their own data" if self.replicas < self.today else ""
        return f"{self.today} ranks{shared}"

    @property
    def problem(self) -> str:
        """Why its degrees are not those of a config; empty where they are."""
        if self._model > 1 and (self.of_trials % self._model or self.today % self._model):
            shown = " x ".join(f"{name}={value}" for name, value in self.degrees.items())
            return f"{shown} does not divide {min(self.of_trials, self.today)} ranks"
        return ""


def ranks_today(found: OptionMatches, place: Place) -> RanksToday:
    """The ranks of a script at that place."""
    degrees = {degree: value for degree in DEGREES if (value := found.count(degree)) is not None and value > 1}
    if starts_one(found.script):
        return RanksToday(
            today=1, of_trials=1, of_cluster=place.ranks, degrees=degrees, is_assumed=False, is_started=False
        )
    asked = place.asked if found.script.started else None
    cluster = place.ranks
    today = asked or cluster
    return RanksToday(
        today=today,
        of_trials=min(today, cluster),
        of_cluster=cluster,
        degrees=degrees,
        is_assumed=bool(found.script.started) and asked is None and place.name is None,
        is_started=asked is not None,
    )
