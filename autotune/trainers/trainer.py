"""The trainer: somebody's training loop, as a way to launch a config and to read what it prints.

A trainer is one file in `autotune/trainers/catalog/`; the file's stem is its name, and its last line is `TRAINER = TheClass()`. It says
which knobs it reads (`reads`, `neutral`) and what it cannot express of them (`find_limits`), writes the launch (`build`) and reads its own log lines
(`parse_line`). A knob that it does not name is refused for it. Everything that all
trainers share, the checks of options, ranks and batch among them, is in `launch` here.
"""

from __future__ import annotations

import json
import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar, final

from autotune.errors import ExportError, SpecError
from autotune.spec import KnobUse, ParallelConfig, Workload
from autotune.spec.checks import nearest
from autotune.spec.knob_use import OWN_KNOB_REMEDY
from autotune.trainers.launch_files import Launch
from autotune.trainers.limit import Limit, refuse
from autotune.trainers.torchrun import place

MAX_LINE = 2000
"""characters of a log line that are read; the rest is ignored"""
MAX_MOVES = 3
"""times that nearest values are taken, each of which may meet another limit"""
MAX_OPTION = 4096
"""characters of an option's text"""
_COLOUR = re.compile(r"\x1b\[[0-9;]{0,20}m")


@dataclass(frozen=True, slots=True, kw_only=True)
class StepMetrics:
    """What one log line says about one optimizer step; None where it is silent."""

    step: int | None = None
    """the step, as the trainer counts"""
    step_time_s: float | None = None
    """seconds of the step (mean since the last line, where the trainer logs every few steps)"""
    tokens_per_s_per_gpu: float | None = None
    """tokens per second and rank, where the trainer says that instead of a time"""
    samples_per_s: float | None = None
    """sequences per second of the whole job, where the trainer says that instead of a time"""
    loss: float | None = None
    """training loss, nats per token"""
    grad_norm: float | None = None
    """global gradient norm"""
    peak_memory_bytes: float | None = None
    """peak device memory of the rank that wrote the line"""
    skipped: bool = False
    """whether loss scaling skipped the step"""

    def time_of(self, *, tokens_per_step: int, sequences_per_step: int, num_ranks: int) -> float | None:
        """Seconds of the step, from whatever the line says: the time itself, or tokens or sequences per second."""
        if self.step_time_s is not None:
            return self.step_time_s
        if self.tokens_per_s_per_gpu:
            return tokens_per_step / (self.tokens_per_s_per_gpu * num_ranks)
        if self.samples_per_s:
            return sequences_per_step / self.samples_per_s
        return None


LineReader = Callable[[str], StepMetrics | None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Option:
    """Something that a trainer wants to know beside the config."""

    name: str
    """how it is written"""
    meaning: str
    """one line, for people"""
    default: Any = None
    """its value when it is left out; its type is the type that is asked for (None: text)"""
    export_only: bool = False
    """whether trials take it from elsewhere: a study that sets it would be misled"""

    def check(self, value: Any) -> Any:
        """`value` in the option's type; text from a command line is turned into numbers, flags, and JSON
        lists and mappings. Raises `SpecError`."""
        kind = str if self.default is None else type(self.default)
        if kind is bool and isinstance(value, str) and value.lower() in ("true", "false"):
            return value.lower() == "true"
        if kind in (int, float) and isinstance(value, str):
            try:
                return kind(value)
            except ValueError:
                raise self._wrong(value, kind) from None
        if kind in (tuple, dict) and isinstance(value, str):
            try:
                value = json.loads(value[:MAX_OPTION])
            except (ValueError, RecursionError):
                raise self._wrong(value, kind) from None
        if kind is float and isinstance(value, int) and not isinstance(value, bool):
            return float(value)
        if kind is tuple and isinstance(value, list | tuple):
            return tuple(value)
        if kind is dict and isinstance(value, Mapping):
            return dict(value)
        if not isinstance(value, kind) or (isinstance(value, bool) and kind is not bool):
            raise self._wrong(value, kind)
        if isinstance(value, str) and (len(value) > MAX_OPTION or not value.isprintable()):
            raise SpecError(
                f"{self.name} must be printable text of at most {MAX_OPTION} characters", field=f"trainer.{self.name}"
            )
        return value

    def _wrong(self, value: Any, kind: type) -> SpecError:
        words = {str: "text", int: "a whole number", float: "a number", bool: "true or false"}
        return SpecError(
            f"{self.name} must be {words.get(kind, 'a list' if kind is tuple else 'a mapping')}, but is {value!r}",
            field=f"trainer.{self.name}",
        )


SHARED_OPTIONS = (
    Option(name="nearest", meaning="take the nearest values that the trainer can express", default=False),
    Option(name="steps", meaning="optimizer steps to run", default=50),
    Option(name="master_addr", meaning="host at which several nodes meet", default=""),
    Option(name="master_port", meaning="port at which several nodes meet", default=29500),
    Option(name="learning_rate", meaning="peak learning rate", default=3e-4),
    Option(name="seed", meaning="seed of weights and data", default=1234),
)
"""Options of every trainer that starts through torchrun."""


class Trainer(ABC):
    """A training loop by name. Stateless: one instance serves everybody."""

    name: ClassVar[str]
    """the name under which it is asked for"""
    summary: ClassVar[str]
    """one line, with the release whose names it writes"""
    options: ClassVar[tuple[Option, ...]] = SHARED_OPTIONS
    """what it wants to know beside the config"""
    reads: ClassVar[frozenset[str]] = frozenset()
    """the knobs that it knows: each value changes the launch, or is refused by a limit that names the knob. Written out name by name, so that a
    knob that is added later is not among them by accident"""
    neutral: ClassVar[Mapping[str, str]] = {}
    """why a knob changes nothing in its launches, by name"""

    @abstractmethod
    def find_limits(self, workload: Workload, config: ParallelConfig, options: Mapping[str, Any]) -> tuple[Limit, ...]:
        """What it cannot express of the knobs that it reads; empty when it can do all of it. `options` are checked and complete."""

    @abstractmethod
    def build(self, workload: Workload, config: ParallelConfig, options: Mapping[str, Any]) -> Launch:
        """The launch of a config without limits; `options` are checked and complete."""

    @abstractmethod
    def parse_line(self, line: str) -> StepMetrics | None:
        """What a line of its log says about a step; None for every other line. Never raises."""

    def reader(self, options: Mapping[str, Any] | None = None) -> LineReader:
        """`parse_line`, for trainers whose log depends on options."""
        return self.parse_line

    def own_knob_refusal(self, name: str, options: Mapping[str, Any]) -> str:
        """Why a launch with these options cannot carry the knob `name` of a single study, in words; empty when it does."""
        return f"its launches have no place for a study's own knob; {OWN_KNOB_REMEDY}"

    @final
    @property
    def knob_use(self) -> KnobUse:
        """What it does with each knob."""
        return KnobUse(part=f"trainer {self.name}", reads=self.reads, neutral=self.neutral)

    @final
    def limits(
        self, workload: Workload, config: ParallelConfig, options: Mapping[str, Any] | None = None
    ) -> tuple[Limit, ...]:
        """What it cannot express of this config; empty when it can do all of it. `options` as they are given to `launch`.

        Values other than the default of knobs that it neither reads nor declares neutral are refused here, and so are the study's own knobs that
        its launch cannot carry.
        """
        values = self.checked(options)
        forgotten = [
            Limit(
                knob=knob.name,
                value=getattr(config, knob.name),
                message=f"the trainer {self.name} does not know this knob",
                nearest=None if knob.kind == "degree" else knob.default,
            )
            for knob in self.knob_use.forgotten()
            if getattr(config, knob.name) != knob.default
        ]
        refused = ((name, self.own_knob_refusal(name, values)) for name in config.extra)
        own = [Limit(knob=name, value=config.extra[name], message=message) for name, message in refused if message]
        return (*forgotten, *own, *self.find_limits(workload, config, values))

    @final
    def check_own_knobs(self, names: Iterable[str], options: Mapping[str, Any] | None = None) -> None:
        """Raises `SpecError` for the first of a study's own knobs that no launch of this trainer would carry."""
        values = self.checked(options)
        for name in names:
            if message := self.own_knob_refusal(name, values):
                raise SpecError(
                    f"the trainer {self.name} cannot carry the knob {name}: {message}", field=f"knobs.{name}"
                )

    @final
    def checked(self, options: Mapping[str, Any] | None) -> dict[str, Any]:
        """All options with their values, defaults filled in. Raises `SpecError` for an unknown one or a wrong type."""
        known = {option.name: option for option in self.options}
        for name in options or {}:
            if name not in known:
                raise SpecError(
                    f"{self.name} has no option called {name!r}",
                    remedy=nearest(name, known) or f"options: {', '.join(known)}",
                    field=f"trainer.{name}",
                )
        given = {name: known[name].check(value) for name, value in (options or {}).items()}
        return {name: given.get(name, option.default) for name, option in known.items()}

    @final
    def launch(self, workload: Workload, config: ParallelConfig, options: Mapping[str, Any] | None = None) -> Launch:
        """The config as a launch of this trainer.

        Raises `SpecError` for wrong options, and `ExportError` when the ranks do not fit the cluster or when the trainer cannot
        express the config; with the option `nearest`, values that it can express are taken instead, and a note says which.
        """
        values = self.checked(options)
        limits = self.limits(workload, config, values)
        notes: list[str] = []
        for _ in range(MAX_MOVES if values.get("nearest") else 0):
            if not limits or any(limit.nearest is None for limit in limits):
                break
            workload, config = _moved(workload, config, limits)
            notes += [f"changed to {limit.knob}={limit.nearest}: {limit}" for limit in limits]
            limits = self.limits(workload, config, values)
        refuse(self.name, limits)
        place(workload.cluster, config)
        launch = self.build(workload, config, values)
        return replace(launch, notes=(*notes, *launch.notes))


def _moved(workload: Workload, config: ParallelConfig, limits: tuple[Limit, ...]) -> tuple[Workload, ParallelConfig]:
    model = {limit.knob.removeprefix("model."): limit.nearest for limit in limits if limit.knob.startswith("model.")}
    fixed = {
        limit.knob.removeprefix("workload."): limit.nearest for limit in limits if limit.knob.startswith("workload.")
    }
    knobs = {limit.knob: limit.nearest for limit in limits if "." not in limit.knob}
    return replace(workload, model=replace(workload.model, **model), **fixed), replace(config, **knobs)


def needs(options: Mapping[str, Any], name: str, because: str) -> Any:
    """The option's value. Raises `ExportError` that says why it is needed when it was left out."""
    if not options.get(name):
        raise ExportError(f"{because}, but {name} is not set", remedy=f"give the option {name}=...", field=name)
    return options[name]


def clean(line: str) -> str:
    """The line as patterns see it: without colour codes, and cut at `MAX_LINE` characters."""
    return _COLOUR.sub("", line[: 2 * MAX_LINE])[:MAX_LINE]


def number(text: str | None) -> float | None:
    """A number as trainers print it (`1,024`, `nan`, `2.5E+00`); None when it is none."""
    if text is None:
        return None
    try:
        return float(text.replace(",", ""))
    except ValueError:
        return None


__all__ = [
    "MAX_LINE",
    "SHARED_OPTIONS",
    "ExportError",
    "LineReader",
    "Option",
    "StepMetrics",
    "Trainer",
    "clean",
    "needs",
    "number",
]
