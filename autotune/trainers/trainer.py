"""The base class of trainers: how to launch a config with somebody's training loop, and how to read its log.

A trainer is one module in `autotune/trainers/catalog/`. The module's name is the trainer's name, and its last line is `TRAINER = TheClass()`. It
says which knobs it reads (`reads`, `neutral`) and which of their values it cannot express (`find_limits`), writes the launch (`build`) and reads
its own log lines (`parse_line`). Values of a knob that it does not name are refused. The checks that all trainers share, of options, ranks and
batch, are in `launch` here.
"""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar, final

from autotune.errors import ExportError, SpecError
from autotune.spec import KNOBS, KnobUse, ParallelConfig, Workload
from autotune.spec.checks import nearest
from autotune.spec.knob_use import own_knob_remedy
from autotune.spec.model_figures import figures_of
from autotune.trainers.launch_files import Launch
from autotune.trainers.limit import Limit, refuse
from autotune.trainers.step_metrics import MAX_LINE, LineReader, StepMetrics, clean, number
from autotune.trainers.torchrun import place

MAX_MOVES = 3
"""rounds of replacing values by the nearest ones, each of which may violate another limit"""
MAX_OPTION = 4096
"""characters of an option's value"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Option:
    """An argument of a trainer that is not part of the config."""

    name: str
    """its key in the spec"""
    meaning: str
    """one line of documentation"""
    default: Any = None
    """its value when it is left out; also determines its type (None: text)"""
    export_only: bool = False
    """whether only exports use it: trials take the value from the study, so a study may not set it"""
    choices: tuple[str, ...] = ()
    """the words that it may be; empty: any. A number is taken as it is written: YAML reads `version: 0.3` as one"""

    def check(self, value: Any) -> Any:
        """`value` in the option's type. Text from a command line is converted to numbers, flags, and JSON lists and mappings. Raises
        `SpecError` for a value of another type."""
        if self.choices:
            return self._chosen(value)
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

    def _chosen(self, value: Any) -> str:
        word = str(value) if isinstance(value, str | int | float) and not isinstance(value, bool) else ""
        if word not in self.choices:
            raise SpecError(
                f"{self.name} must be one of {', '.join(self.choices)}, but is {value!r:.80}",
                remedy=nearest(word, self.choices),
                field=f"trainer.{self.name}",
            )
        return word

    def _wrong(self, value: Any, kind: type) -> SpecError:
        words = {str: "text", int: "a whole number", float: "a number", bool: "true or false"}
        return SpecError(
            f"{self.name} must be {words.get(kind, 'a list' if kind is tuple else 'a mapping')}, but is {value!r}",
            field=f"trainer.{self.name}",
        )


SAME_DATA = Option(
    name="same_data",
    meaning="whether every config sees the same batches in the same order, so that losses can be compared step by step",
    default=False,
)
SHARED_OPTIONS = (
    Option(name="nearest", meaning="use the nearest values that the trainer can express", default=False),
    Option(name="steps", meaning="optimizer steps to run", default=50),
    Option(name="master_addr", meaning="address of node 0; default: each node is told when it starts", default=""),
    Option(name="master_port", meaning="port at which several nodes meet; default: as told, else 29500", default=0),
    Option(name="learning_rate", meaning="peak learning rate", default=3e-4),
    Option(name="seed", meaning="seed of weights and data", default=1234),
    SAME_DATA,
)
"""options of every trainer that torchrun starts"""


UNCOMMON_SHAPES = {
    "num_dense_layers": "model whose layers have experts only in part",
    "shared_ffn_hidden_size": "experts that every token visits",
    "kv_lora_rank": "latent attention",
}
"""Fields of `ModelSpec` that are set only for models that most trainers cannot build, each with what it stands for."""


class Trainer(ABC):
    """A training loop by name. Stateless: one instance serves all callers."""

    name: ClassVar[str]
    """its registered name"""
    summary: ClassVar[str]
    """one line: what it starts, and what it writes"""
    checked_against: ClassVar[str] = ""
    """the releases whose names and rules its launches were checked against; empty: no other package is involved"""
    options: ClassVar[tuple[Option, ...]] = SHARED_OPTIONS
    """its arguments beside the config"""
    reads: ClassVar[frozenset[str]] = frozenset()
    """names of the knobs that it handles: each of their values changes the launch or is refused by a limit. List every name, so that a knob that is
    added later is not included by accident"""
    limited_by: ClassVar[frozenset[str]] = frozenset(KNOBS) - {"micro_batch_size", "accumulation_steps"}
    """knobs on whose values its limits depend: configs that differ in others only have the same limits"""
    same_data: ClassVar[bool] = False
    """whether every config sees the same batches in the same order; where it is False, the option `same_data` may say so for a program that does"""
    neutral: ClassVar[Mapping[str, str]] = {}
    """knobs that do not change its launches, each with the reason"""

    shapes: ClassVar[frozenset[str]] = frozenset()
    """fields of `ModelSpec` among `UNCOMMON_SHAPES` that it can train"""

    reads_config_json: ClassVar[bool] = False
    """whether it builds the model from the user's config.json, where there is one"""
    families: ClassVar[frozenset[str] | None] = None
    """values of `model_type` that it trains as a config.json means them; None: any, by the shape"""

    @abstractmethod
    def find_limits(self, workload: Workload, config: ParallelConfig, options: Mapping[str, Any]) -> tuple[Limit, ...]:
        """The values of the knobs that it reads that it cannot express; empty when there are none. `options` are checked and complete."""

    @abstractmethod
    def build(self, workload: Workload, config: ParallelConfig, options: Mapping[str, Any]) -> Launch:
        """The launch of a config that has no limits; `options` are checked and complete."""

    @abstractmethod
    def parse_line(self, line: str) -> StepMetrics | None:
        """The step metrics of a line of its log; None for any other line. Never raises."""

    def reader(self, options: Mapping[str, Any] | None = None) -> LineReader:
        """The function that reads its log; override it if the format of the log depends on options."""
        return self.parse_line

    def own_knob_refusal(self, name: str, options: Mapping[str, Any]) -> str:
        """Why a launch with these options cannot pass on the study's own knob `name`, in words; empty if it can."""
        return f"its launches have no place for a study's own knob; {own_knob_remedy(name)}"

    def check_options(self, options: Mapping[str, Any], own_knobs: Iterable[str]) -> None:  # noqa: B027  # nothing to check is the rule
        """Raises `SpecError` for options that fit no launch, whatever the config; `own_knobs`: names of the study's own knobs. Override it
        where options are more than plain values."""

    def for_space(self, options: Mapping[str, Any], fixed: Mapping[str, Any]) -> dict[str, Any]:
        """The options of a study, as given, completed with what its space says; `fixed`: the knobs with one value in all its configs."""
        return dict(options)

    @final
    @property
    def knob_use(self) -> KnobUse:
        """Which knobs it reads, and which have no effect."""
        return KnobUse(part=f"trainer {self.name}", reads=self.reads, neutral=self.neutral)

    @final
    def limits(
        self, workload: Workload, config: ParallelConfig, options: Mapping[str, Any] | None = None
    ) -> tuple[Limit, ...]:
        """The values of this config that it cannot express; empty when there are none. `options`: as given to `launch`.

        Non-default values of knobs that it neither reads nor declares neutral are refused here, and so are a study's own knobs that its launch
        cannot pass on.
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
        return (*forgotten, *own, *self._shape_limits(workload), *self.find_limits(workload, config, values))

    def _shape_limits(self, workload: Workload) -> Iterator[Limit]:
        figures = figures_of(workload.model)
        if figures is not None and self.reads_config_json:
            return
        if figures is not None and self.families is not None and figures.family not in self.families:
            known = ", ".join(sorted(self.families))
            message = f"the trainer {self.name} would train another model than this config.json means; it knows {known}"
            yield Limit(knob="model.family", value=figures.family, message=message)
        for name, what in UNCOMMON_SHAPES.items():
            value = getattr(workload.model, name)
            if value and name not in self.shapes:
                yield Limit(knob=f"model.{name}", value=value, message=f"the trainer {self.name} builds no {what}")

    @final
    def check_own_knobs(self, names: Iterable[str], options: Mapping[str, Any] | None = None) -> None:
        """Raises `SpecError` for the first of a study's own knobs that this trainer cannot pass on, and for options that fit no launch."""
        values, names = self.checked(options), tuple(names)
        for name in names:
            if message := self.own_knob_refusal(name, values):
                raise SpecError(
                    f"the trainer {self.name} cannot carry the knob {name}: {message}", field=f"knobs.{name}"
                )
        self.check_options(values, names)

    @final
    def checked(self, options: Mapping[str, Any] | None) -> dict[str, Any]:
        """All options with their values, defaults filled in. Raises `SpecError` for an unknown option or a wrong type."""
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

        Raises `SpecError` for wrong options, and `ExportError` when the ranks do not fit the cluster or the trainer cannot express the
        config. With the option `nearest` it uses the nearest values that it can express instead, and a note names them.
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
        refuse(self.name, limits, can_move="nearest" in values)
        place(workload.cluster, config)
        launch = self.build(workload, config, values)
        return replace(launch, notes=(*notes, *launch.notes, *self._figure_notes(workload)))

    def _figure_notes(self, workload: Workload) -> Iterator[str]:
        """What the launch could not be told of the model, in words."""
        if (
            self.same_data or UNCOMMON_SHAPES.keys() <= self.shapes
        ):  # trials of the same decoder, or a program with a model of its own
            return
        figures = figures_of(workload.model)
        if figures is None:
            yield (
                "the model is given by its shape alone: rotary base, norm epsilon and the like are the defaults of the trainer; "
                "name the model's config.json in the spec to carry over its own"
            )
        elif figures.rotary_scaling and not self.reads_config_json:
            yield f"the rotary scaling {figures.rotary_scaling!r} of the model's config.json is not carried over: set it in the trainer"


def _moved(workload: Workload, config: ParallelConfig, limits: tuple[Limit, ...]) -> tuple[Workload, ParallelConfig]:
    model = {limit.knob.removeprefix("model."): limit.nearest for limit in limits if limit.knob.startswith("model.")}
    fixed = {
        limit.knob.removeprefix("workload."): limit.nearest for limit in limits if limit.knob.startswith("workload.")
    }
    knobs = {limit.knob: limit.nearest for limit in limits if "." not in limit.knob}
    return replace(workload, model=replace(workload.model, **model), **fixed), replace(config, **knobs)


def needs(options: Mapping[str, Any], name: str, because: str) -> Any:
    """The option's value. Raises an `ExportError` that says why it is needed when it was left out."""
    if not options.get(name):
        raise ExportError(f"{because}, but {name} is not set", remedy=f"give the option {name}=...", field=name)
    return options[name]


__all__ = [
    "MAX_LINE",
    "SAME_DATA",
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
