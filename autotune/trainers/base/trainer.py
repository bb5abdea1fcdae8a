"""The base class of trainers: how to launch a config with an existing training loop, and how to
read its log.

A trainer is a folder in `autotune/trainers/`. The folder's name is the trainer's name, and the last
line of its `trainer.py` is `TRAINER = TheClass()`. The class declares which knobs it reads
(`reads`, `neutral`, `cannot`) and which of their values it cannot express (`find_limits`), writes
the launch (`build`) and parses its own log lines (`parse_line`). Values of undeclared knobs are
rejected. `launch` has the checks of options, ranks and batch that all trainers share.
"""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from importlib import import_module
from typing import Any, ClassVar, final

from autotune.errors import ExportError, SpecError
from autotune.spec import KNOBS, KnobUse, ParallelConfig, Workload
from autotune.spec.checks import nearest
from autotune.spec.hugging_face.figures import figures_of
from autotune.spec.knob_use import own_knob_remedy
from autotune.trainers.base.abilities import UNCOMMON_SHAPES, Abilities
from autotune.trainers.base.effective import effective
from autotune.trainers.base.limit import Limit, moved, refuse
from autotune.trainers.base.own_program import CWD, in_its_folder
from autotune.trainers.base.torchrun import place
from autotune.trainers.base.trainer_option import PYTHON, SAME_DATA, SHARED_OPTIONS, Option
from autotune.trainers.base.workload_limits import shape_limits, workload_limits
from autotune.trainers.launch_files import Launch, started_by
from autotune.trainers.logs.step_metrics import (
    MAX_LINE,
    LineReader,
    LineTest,
    StepMetrics,
    clean,
    number,
)
from autotune.trainers.logs.steplines import parse_step_line
from autotune.trainers.present_configuration import (
    SETTINGS,
    PresentConfiguration,
    Reading,
    document_text,
    dotted,
    merged,
    parse_document,
    split_by_path,
)

MAX_MOVES = 3
"""rounds of replacing values with the nearest ones; each may violate another limit"""


class Trainer(Abilities, ABC):
    """A training loop by name. Stateless: one instance serves all callers."""

    summary: ClassVar[str]
    """one line: what it starts, and what it writes"""
    checked_against: ClassVar[str] = ""
    """the package releases that its launches were checked against; empty if no other package is
    involved"""
    in_python: ClassVar[str] = ""
    """for a trainer that can only be started from Python, the line of code that starts the best
    config (the trainer's `build` then raises `ExportError`). Empty: a launch starts it"""
    options: ClassVar[tuple[Option, ...]] = SHARED_OPTIONS
    """its options in addition to the config"""
    reads: ClassVar[frozenset[str]] = frozenset()
    """names of the knobs that it handles: each value changes the launch or is rejected by a limit.
    List every name, so that a later knob is not included by mistake"""
    limited_by: ClassVar[frozenset[str]] = frozenset(KNOBS) - {
        "micro_batch_size",
        "accumulation_steps",
    }
    """knobs whose values its limits depend on: configs that differ only in other knobs have the
    same limits"""
    limited_by_own: ClassVar[frozenset[str]] = frozenset()
    """the study's own knobs that its limits depend on, by name"""
    same_data: ClassVar[bool] = False
    """whether every config sees the same batches in the same order; if False, a study of a program
    can declare it with the option `same_data`"""
    neutral: ClassVar[Mapping[str, str]] = {}
    """knobs that do not change its launches, each with the reason"""
    cannot: ClassVar[Mapping[str, str]] = {}
    """knobs, and single values such as `recompute=norm`, that it does not support, each with the
    reason"""

    @abstractmethod
    def find_limits(
        self, workload: Workload, config: ParallelConfig, options: Mapping[str, Any]
    ) -> tuple[Limit, ...]:
        """The values of knobs that the trainer reads but cannot express; empty if there are none.
        `options` are checked and complete."""

    @abstractmethod
    def build(
        self, workload: Workload, config: ParallelConfig, options: Mapping[str, Any]
    ) -> Launch:
        """The launch of a config for which `find_limits` found nothing; `options` are checked and
        complete."""

    @abstractmethod
    def parse_line(self, line: str) -> StepMetrics | None:
        """The step metrics in a line of its log; None for any other line. Never raises."""

    can_import: ClassVar[bool] = False
    """whether `read_config` reads what `build` writes"""
    recognized_by: ClassVar[tuple[str, ...]] = ()
    """what identifies its configuration, so that `autotune init` recognizes the trainer: paths of
    keys from the top of a document (`parallelism.tp_mode`), whole words of a command or of a Python
    file (`--num-layers`)"""
    settings_file: ClassVar[str] = ""
    """name of the launch file that holds `settings`"""

    def read_config(self, present: PresentConfiguration) -> Reading:
        """The current configuration of a program that uses this trainer: what `read` in its
        folder's `read.py` returns. Write that function, or override this method, and set
        `can_import`, if the trainer's own files can be read: reading a launch must give the
        launched config. Raises `SpecError` if the files do not belong to this trainer."""
        if not self.can_import:
            raise SpecError(
                f"the {self.name} trainer has no configuration format to read",
                remedy="run `autotune init FILE` to write a first spec from a script",
                field="--from",
            )
        return self.read_by_its_folder(present)

    @final
    def read_by_its_folder(self, source: Any) -> Reading:
        """The result of the function `read` in `read.py` of the trainer's folder."""
        found: Reading = import_module(f"{type(self).__module__.rpartition('.')[0]}.read").read(
            source
        )
        return found

    watching: ClassVar[tuple[str, ...]] = ()
    """patterns of settings that only monitor a run, such as `profiling.*`: exports have them, but
    trials do not, because they would slow the steps"""

    @final
    def in_trial(self, options: Mapping[str, Any]) -> dict[str, Any]:
        """A study's options as used by trials."""
        settings = options.get(SETTINGS.name)
        if not isinstance(settings, Mapping):
            return dict(options)
        return {**options, SETTINGS.name: split_by_path(settings, self.watching)[0]}

    @final
    def with_own(
        self, options: Mapping[str, Any], *, in_exports: bool = False, **own: Any
    ) -> dict[str, Any]:
        """The options, completed with those of `own` that this trainer has. `in_exports`: also with
        options that only exports use."""
        known = {option.name for option in self.options if in_exports or not option.export_only}
        return {**{name: own[name] for name in own if name in known}, **options}

    def with_settings(self, launch: Launch, settings: Mapping[str, Any]) -> Launch:
        """The launch with additional settings of the trainer."""
        name = self.settings_file
        text = document_text(name, merged(parse_document(name, launch.files[name]), settings))
        return replace(launch, files={**launch.files, name: text})

    def present_of(self, settings: Mapping[str, Any]) -> PresentConfiguration:
        """A current configuration reduced to these settings."""
        return PresentConfiguration(
            files={self.settings_file: document_text(self.settings_file, settings)}
        )

    def reader(self, options: Mapping[str, Any] | None = None) -> LineReader:
        """The function that reads its log; override it if the log format depends on options."""
        return self.parse_line

    step_marks: ClassVar[tuple[str, ...]] = ()
    """texts such that each line read by `parse_line` contains at least one of them; empty if
    unknown"""

    def step_line_test(self, options: Mapping[str, Any] | None = None) -> LineTest:
        """Tests which lines may describe a step; the others are left out if a log is too long.
        Override it if what `reader` reads from a line depends on earlier lines."""
        read = self.reader(options)
        return LineTest(may_tell=lambda line: read(line) is not None, marks=self.step_marks)

    def own_knob_refusal(self, name: str, options: Mapping[str, Any]) -> str:
        """Why a launch with these options cannot pass the study's own knob `name` on, as text;
        empty if it can."""
        return f"this trainer's launches cannot set a study's own knob; {own_knob_remedy(name)}"

    def check_options(
        self, options: Mapping[str, Any], own_knobs: Iterable[str]
    ) -> None:  # most trainers have nothing to check
        """Raise `SpecError` for options that are wrong for any config; `own_knobs`: names of the
        study's own knobs. Override it if options are more than plain values."""

    def for_space(self, options: Mapping[str, Any], fixed: Mapping[str, Any]) -> dict[str, Any]:
        """The options of a study, completed from its space; `fixed`: the knobs with one value in
        all its configs."""
        return dict(options)

    @final
    @property
    def knob_use(self) -> KnobUse:
        """Which knobs it reads, and which have no effect."""
        return KnobUse(
            part=f"trainer {self.name}", reads=self.reads, neutral=self.neutral, cannot=self.cannot
        )

    @final
    def limits(
        self, workload: Workload, config: ParallelConfig, options: Mapping[str, Any] | None = None
    ) -> tuple[Limit, ...]:
        """The values of this config that the trainer cannot express; empty if there are none.
        `options`: as passed to `launch`.

        They are of three kinds: values that the trainer declares impossible, non-default values of
        knobs that it has not declared, and the study's own knobs that its launch cannot pass on.
        """
        values = self.checked(options)
        refused = ((name, self.own_knob_refusal(name, values)) for name in config.extra)
        own = [
            Limit(
                knob=name,
                value=config.extra[name],
                message=message,
                remedy=f"or remove {name} from `knobs`",
            )
            for name, message in refused
            if message
        ]
        refusals = (
            *self._knob_limits(config),
            *own,
            *workload_limits(self, workload, config),
            *shape_limits(self, workload),
        )
        return (*refusals, *self.find_limits(workload, config, values))

    def _knob_limits(self, config: ParallelConfig) -> Iterator[Limit]:
        use, asked = self.knob_use, effective(config)
        forgotten = {knob.name for knob in use.forgotten()}
        for knob in KNOBS.values():
            if (value := getattr(asked, knob.name)) == knob.default:
                continue
            message = use.impossible(knob, value)
            if knob.name in forgotten:
                message = f"the {self.name} trainer does not support this knob"
            if message:
                nearest = None if knob.kind == "degree" else knob.default
                yield Limit(knob=knob.name, value=value, message=message, nearest=nearest)

    @final
    def check_own_knobs(
        self, names: Iterable[str], options: Mapping[str, Any] | None = None
    ) -> None:
        """Raise `SpecError` for the first of a study's own knobs that this trainer cannot pass on,
        and for options that are wrong for any config."""
        values, names = self.checked(options), tuple(names)
        for name in names:
            if message := self.own_knob_refusal(name, values):
                raise SpecError(
                    f"the {self.name} trainer does not support the knob {name}: {message}",
                    field=f"knobs.{name}",
                )
        self._check_settings(values)
        self.check_options(values, names)

    def _check_settings(self, options: Mapping[str, Any]) -> None:
        """Raises `SpecError` for settings that a knob or an option sets, because they would
        override the config."""
        given = options.get(SETTINGS.name)
        if not given:
            return
        kept = set(dotted(self.read_config(self.present_of(given)).settings))
        for path in dotted(given):
            if path not in kept:
                raise SpecError(
                    f"{path} follows from the knobs, the workload or another option of the {self.name} trainer",
                    remedy="remove this setting from `settings`",
                    field=f"trainer.settings.{path}",
                )

    @final
    def checked(self, options: Mapping[str, Any] | None) -> dict[str, Any]:
        """All options with their values, defaults filled in. Raises `SpecError` for an unknown
        option or a wrong type."""
        known = {option.name: option for option in self.options}
        for name in options or {}:
            if name not in known:
                raise SpecError(
                    f"{self.name} has no option {name!r}",
                    remedy=nearest(name, known) or f"options: {', '.join(known)}",
                    field=f"trainer.{name}",
                )
        given = {name: known[name].check(value) for name, value in (options or {}).items()}
        return {name: given.get(name, option.default) for name, option in known.items()}

    def in_training(self, options: Mapping[str, Any]) -> dict[str, Any]:
        """A study's options for its exported launch, without those that apply only to trials."""
        return dict(options)

    @final
    def launch(
        self, workload: Workload, config: ParallelConfig, options: Mapping[str, Any] | None = None
    ) -> Launch:
        """The launch of a config with this trainer.

        Raises `SpecError` for wrong options, and `ExportError` if the ranks do not fit on the
        cluster or the trainer cannot express the config. With the option `nearest`, it uses the
        nearest values that the trainer can express and lists them in a note.
        """
        values = self.checked(options)
        limits = self.limits(workload, config, values)
        notes: list[str] = []
        for _ in range(MAX_MOVES if values.get("nearest") else 0):
            if not limits or any(limit.nearest is None for limit in limits):
                break
            workload, config = moved(workload, config, limits)
            notes += [
                f"changed to {limit.knob}={limit.nearest} (from {limit.value}): {limit.message}"
                for limit in limits
            ]
            limits = self.limits(workload, config, values)
        refuse(self.name, limits, can_move="nearest" in values)
        place(workload.cluster, config)
        launch = self.build(workload, config, values)
        if settings := values.get(SETTINGS.name):
            launch = self.with_settings(launch, settings)
        if CWD in self.options:
            launch = in_its_folder(launch, values)
        python = values.get(PYTHON.name, "")
        if python and not os.path.isabs(python):
            raise SpecError(
                f"python must be an absolute path, because every node uses this path, but is {python!r}",
                remedy="set the full path of the environment or its interpreter",
                field="trainer.python",
            )
        return replace(
            launch,
            argv=started_by(python, launch.argv),
            python=python,
            notes=(*notes, *launch.notes, *self._figure_notes(workload)),
        )

    def _figure_notes(self, workload: Workload) -> Iterator[str]:
        """Notes on properties of the model that the launch does not carry over."""
        if (
            self.same_data or self.has_own_model
        ):  # with same_data, every trial builds the same decoder
            return
        figures = figures_of(workload.model)
        if figures is None:
            yield (
                "the model is given only by its shape, so rotary base, norm epsilon and similar values are the trainer's defaults; set the model's config.json in the spec to carry over the model's values"
            )
            return
        if not (self.reads_config_json or self.knows(figures.family)):
            yield (
                f"the {self.name} trainer trains a model of this shape, but without {figures.family}'s other features; the trainer supports {self.known_families}"
            )
        if figures.rotary_scaling and not (
            self.reads_config_json or figures.rotary_scaling in self.rotary_scalings
        ):
            yield f"the model's config.json has the rotary scaling {figures.rotary_scaling!r}, which is not carried over; {self.rotary_remedy}"


class StepLineTrainer(Trainer):
    """A trainer whose program, or runner, prints a JSON object for each step."""

    step_marks: ClassVar[tuple[str, ...]] = ("{",)

    def parse_line(self, line: str) -> StepMetrics | None:
        """The metrics in the JSON object of a line."""
        return parse_step_line(line)


def needs(options: Mapping[str, Any], name: str, because: str) -> Any:
    """The value of an option. Raises `ExportError` with the reason if it is not set."""
    if not options.get(name):
        raise ExportError(
            f"{because}, but {name} is not set", remedy=f"set the option {name}", field=name
        )
    return options[name]


__all__ = [
    "MAX_LINE",
    "PYTHON",
    "SAME_DATA",
    "SETTINGS",
    "SHARED_OPTIONS",
    "UNCOMMON_SHAPES",
    "ExportError",
    "LineReader",
    "LineTest",
    "Option",
    "PresentConfiguration",
    "Reading",
    "StepLineTrainer",
    "StepMetrics",
    "Trainer",
    "clean",
    "needs",
    "number",
]
