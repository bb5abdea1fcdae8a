"""How one part of the program handles each knob. The part is a trainer, the native loop, the cost
model or the simulated runner.

    read        a value changes what the part does, or is rejected with a reason
    neutral     a value has no effect on the part, for a stated reason
    cannot      the part has no such feature: every value except the default is rejected, for a stated reason
    forgotten   not declared: every value except the default is rejected

A knob that is added to `ParallelConfig` is forgotten until each part declares it. Its values are
rejected, never silently ignored. `python -m autotune.testing.knobs` lists forgotten knobs.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, final

import numpy as np

from autotune.errors import ConfigError
from autotune.spec.config import KNOBS, ParallelConfig
from autotune.spec.knob import Knob
from autotune.spec.table import ConfigTable


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class KnobUse:
    """Which knobs a part of the program reads, and why the other knobs have no effect on the
    part."""

    part: str
    """name of the part: `trainer megatron`, `cost model`"""
    reads: frozenset[str]
    """names of the knobs that the part reads; written out, so that a new knob is not included by
    accident"""
    neutral: Mapping[str, str] = field(default_factory=dict)
    """why a knob has no effect, by name"""
    cannot: Mapping[str, str] = field(default_factory=dict)
    """why a knob must keep its default, by name; an entry such as `recompute=norm` excludes a
    single value of a knob that the part reads"""
    own_knobs_neutral: str = ""
    """why a study's own knobs have no effect; empty if the part rejects them"""

    def forgotten(self) -> tuple[Knob, ...]:
        """Return the knobs that the part neither reads nor declares as neutral or impossible."""
        declared = self.reads | self.neutral.keys() | self.cannot.keys()
        return tuple(knob for name, knob in KNOBS.items() if name not in declared)

    def mistakes(self) -> tuple[str, ...]:
        """Return the mistakes in the declaration, as text: unknown knobs, unknown values, and knobs
        declared in two ways."""
        whole, single = _split(self.cannot)
        unknown = sorted(
            (self.reads | self.neutral.keys() | whole | {name for name, _ in single}) - KNOBS.keys()
        )
        declarations = (
            (self.reads, "reads it"),
            (self.neutral.keys(), "declares it neutral"),
            (whole, "says that it cannot"),
        )
        declared = {
            name: [words for names, words in declarations if name in names]
            for name in sorted(self.reads | self.neutral.keys() | whole)
        }
        return (
            *(f"the {self.part} declares {name}, which is not a knob" for name in unknown),
            *(
                f"{name}: the {self.part} {' and '.join(words)}"
                for name, words in declared.items()
                if len(words) > 1
            ),
            *(
                f"the {self.part} declares {name}={value} impossible, but {name} never has this value"
                for name, value in sorted(single)
                if name in KNOBS and value not in map(KNOBS[name].text, KNOBS[name].values)
            ),
            *(
                f"the {self.part} declares {name}={value} impossible although it does not read {name}"
                for name, value in sorted(single)
                if name not in self.reads
            ),
        )

    def impossible(self, knob: Knob, value: Any) -> str:
        """Return why the part does not support this value; empty if it supports the value, and for
        knobs that it does not declare."""
        if value == knob.default:
            return ""
        return self.cannot.get(knob.name) or self.cannot.get(f"{knob.name}={knob.text(value)}", "")

    def check(self, config: ParallelConfig) -> None:
        """Raise `ConfigError` if the config has a value that the part does not support, a
        non-default value of an undeclared knob, or own knobs of the study that are not neutral."""
        for knob, forgotten in self._limited():
            if (value := getattr(config, knob.name)) != knob.default:
                self._check_value(knob, value, forgotten)
        for name in config.extra if not self.own_knobs_neutral else ():
            raise ConfigError(
                f"the {self.part} does not support the study's own knob {name}",
                remedy=own_knob_remedy(name),
                field=name,
            )

    def check_table(self, table: ConfigTable) -> None:
        """Like `check`, but for many configs and only for the built-in knobs."""
        for knob, forgotten in self._limited():
            for code in np.unique(table.column(knob.name)):
                if (value := knob.decode(code)) != knob.default:
                    self._check_value(knob, value, forgotten)

    def key(self, config: ParallelConfig) -> str:
        """Return the knobs that this part reads as text, which is equal for configs that are equal
        for this part. As in `str(config)`, knobs at their defaults are omitted unless they are
        always shown."""
        shown = [
            knob
            for name, knob in KNOBS.items()
            if name in self.reads and (knob.always_shown or getattr(config, name) != knob.default)
        ]
        return ",".join(f"{knob.name}={knob.text(getattr(config, knob.name))}" for knob in shown)

    def _limited(self) -> tuple[tuple[Knob, bool], ...]:
        """Return the knobs with values that the part rejects, each with a flag for whether the knob
        was forgotten."""
        forgotten = {knob.name for knob in self.forgotten()}
        limited = forgotten | {name.partition("=")[0] for name in self.cannot}
        return tuple((KNOBS[name], name in forgotten) for name in KNOBS if name in limited)

    def _check_value(self, knob: Knob, value: Any, forgotten: bool) -> None:
        """Raise `ConfigError` if the part does not support this value, or forgot the knob."""
        setting = f"{knob.name}={knob.text(value)}"
        if reason := self.impossible(knob, value):
            raise ConfigError(
                f"the {self.part} does not support {setting}: {reason}",
                remedy=f"use {knob.name}={knob.text(knob.default)}",
                field=knob.name,
            )
        if forgotten:
            raise ConfigError(
                f"the {self.part} does not support {knob.name}, but {setting}",
                remedy=f"use {knob.name}={knob.text(knob.default)}, or add support to the {self.part} (see {__name__})",
                field=knob.name,
            )


def own_knob_remedy(name: str) -> str:
    """Return the remedy for a study's own knob that a trainer cannot pass to its program."""
    return f"use `trainer: {{kind: command, ...}}` and pass the knob to your program in argv or env, with the placeholder {{{name}}}"


def _split(cannot: Mapping[str, str]) -> tuple[set[str], set[tuple[str, str]]]:
    """Return (impossible knobs, impossible single values as (knob, value))."""
    pieces = [name.partition("=") for name in cannot]
    return {name for name, sign, _ in pieces if not sign}, {
        (name, value) for name, sign, value in pieces if sign
    }
