"""What one part of the program does with each knob: a trainer, the native loop, the cost model or the simulated runner.

    read        a value changes what the part does, or is refused with a reason
    neutral     a value changes nothing there, for a stated reason
    forgotten   neither: nobody has taught the part about the knob, so it refuses every value but the default

A knob that is added to `ParallelConfig` is forgotten everywhere until each part is taught: it is refused by name, never dropped in silence.
`python -m autotune.testing.knobs` lists what is forgotten.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import final

import numpy as np

from autotune.errors import ConfigError
from autotune.spec.config import KNOBS, ParallelConfig
from autotune.spec.knob import Knob
from autotune.spec.table import ConfigTable


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class KnobUse:
    """Which knobs a part of the program reads, and why the others change nothing there."""

    part: str
    """what people call it: `trainer megatron`, `cost model`"""
    reads: frozenset[str]
    """names of the knobs that it reads; written out, so that a new knob is not among them by accident"""
    neutral: Mapping[str, str] = field(default_factory=dict)
    """why a knob changes nothing there, by name"""
    own_knobs_neutral: str = ""
    """why the knobs that a single study adds change nothing there; empty: they are refused"""

    def forgotten(self, knobs: Mapping[str, Knob] = KNOBS) -> tuple[Knob, ...]:
        """The knobs that it neither reads nor declares neutral."""
        return tuple(knob for name, knob in knobs.items() if name not in self.reads and name not in self.neutral)

    def mistakes(self, knobs: Mapping[str, Knob] = KNOBS) -> tuple[str, ...]:
        """What is wrong with the declaration itself, in words: names that are no knob, and knobs both read and neutral."""
        strange = sorted((self.reads | self.neutral.keys()) - knobs.keys())
        both = sorted(self.reads & self.neutral.keys())
        return (
            *(f"the {self.part} declares {name}, which is no knob" for name in strange),
            *(f"the {self.part} both reads {name} and declares it neutral" for name in both),
        )

    def check(self, config: ParallelConfig) -> None:
        """Raises `ConfigError` when the config gives a forgotten knob another value than its default, or has own knobs that are not neutral."""
        for knob in self.forgotten():
            if (value := getattr(config, knob.name)) != knob.default:
                raise self._forgot(knob, value)
        for name in config.extra if not self.own_knobs_neutral else ():
            raise ConfigError(
                f"the {self.part} does not know the study's own knob {name}", remedy=own_knob_remedy(name), field=name
            )

    def check_table(self, table: ConfigTable) -> None:
        """The same for many configs, of the knobs that every config has."""
        for knob in self.forgotten():
            column = table.column(knob.name)
            others = np.flatnonzero(column != knob.encode(knob.default))
            if len(others):
                raise self._forgot(knob, knob.decode(column[others[0]]))

    def key(self, config: ParallelConfig) -> str:
        """The config as text of the knobs that are read: the same for configs between which this part sees no difference.

        As `str(config)` writes them: those at their defaults are left out unless they are always shown.
        """
        shown = [
            knob
            for name, knob in KNOBS.items()
            if name in self.reads and (knob.always_shown or getattr(config, name) != knob.default)
        ]
        return ",".join(f"{knob.name}={knob.text(getattr(config, knob.name))}" for knob in shown)

    def _forgot(self, knob: Knob, value: object) -> ConfigError:
        return ConfigError(
            f"the {self.part} does not know {knob.name}, but it is {knob.text(value)}",
            remedy=f"leave {knob.name} at {knob.text(knob.default)}, or teach the {self.part} what it means (see {__name__})",
            field=knob.name,
        )


def own_knob_remedy(name: str) -> str:
    """What to do where a study's own knob cannot be carried."""
    return f"use a trainer of kind command, whose argv or env carries it to your program by the placeholder {{{name}}}"
