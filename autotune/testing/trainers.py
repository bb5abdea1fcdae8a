"""The contract of trainers as a test suite. Inherit from `TrainerContract` in a test module, set the
trainer, and provide log lines that it really prints.

The tests use a grid of configs on 2 nodes of 8 GPUs. Each config is either launched with all its
knobs, or rejected by limits that name the knob and whose nearest values can be launched. Each value
of each knob changes the launch, is rejected by name, or the knob is declared neutral. A trainer
that can only be started from Python (`Trainer.in_python`) rejects every launch, with the line that
starts it.
"""

from __future__ import annotations

import itertools
import json
import string
from collections.abc import Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, ClassVar

import pytest

from autotune.errors import CatalogError, ExportError, SpecError
from autotune.spec import FIELDS, Knob, ParallelConfig, Workload, catalog
from autotune.spec.workload import LOOPS
from autotune.testing.checked_configs import (
    EXPERTS,
    GPT,
    MODEL,
    WORKLOAD,
    configs,
    one_node_configs,
)
from autotune.testing.knobs import (
    EXPERT_KNOBS,
    base_configs,
    complaints_of,
    variations,
    varied_configs,
)
from autotune.trainers import (
    Launch,
    Limit,
    StepMetrics,
    Trainer,
    trainer,
    trainer_names,
    write_launch,
)
from autotune.trainers.base.effective import effective
from autotune.trainers.present_configuration import SETTINGS, PresentConfiguration, without_equal

__all__ = ["EXPERTS", "GPT", "MODEL", "WORKLOAD", "TrainerContract", "configs", "one_node_configs"]

Rendered = tuple[Limit, ...] | dict[str, Any]
"""the limits that reject a config, or its launch as a document"""


class TrainerContract:
    """Tests that every trainer must pass. A subclass sets `trainer`, and required `options`."""

    trainer: ClassVar[str]
    """registered name"""
    options: ClassVar[Mapping[str, Any]] = {}
    """options that a launch needs besides the config"""
    workload: ClassVar[Workload] = WORKLOAD
    """the workload to launch"""
    settings_of_a_knob: ClassVar[Mapping[str, Any]] = {}
    """settings that correspond to a knob, which the trainer rejects; only for trainers with the
    option `settings`"""
    notes_count: ClassVar[bool] = False
    """whether the value of a knob may appear only in a note; for trainers that start the user's own
    program, which may have no option for it"""
    log_lines: ClassVar[Mapping[str, StepMetrics | None]] = {}
    """lines that it prints, with their metrics; None for lines that do not report a step"""

    def subject(self) -> Trainer:
        """The trainer."""
        return trainer(self.trainer)

    def launched(self, **knobs: Any) -> Launch:
        """The launch of a config with these knobs; accumulation_steps defaults to a batch of 64."""
        config = ParallelConfig(**knobs)
        if "accumulation_steps" not in knobs:
            config = replace(config, accumulation_steps=64 // (config.dp * config.micro_batch_size))
        return self.subject().launch(self.workload, config, self._options_with_master())

    def test_it_is_found_by_its_name(self) -> None:
        assert self.trainer in trainer_names()
        assert self.subject().name == self.trainer
        assert self.subject().summary

    def test_its_loop_is_one_that_the_cost_model_knows(self) -> None:
        assert self.subject().loop in ("", *LOOPS)

    def test_every_config_is_launched_or_refused_with_the_knob(self) -> None:
        self._skip_without_launches()
        subject, launched = self.subject(), 0
        given = self._options_with_master()
        for config in configs():
            limits = subject.limits(self.workload, config, given)
            if not limits:
                self._check_launch(subject.launch(self.workload, config, given), config)
                launched += 1
                continue
            for limit in limits:
                assert limit.knob in FIELDS or limit.knob.split(".")[0] in ("model", "workload")
                assert limit.message
            with pytest.raises(ExportError) as caught:
                subject.launch(self.workload, config, given)
            assert all(limit.knob in str(caught.value) for limit in limits)
            assert caught.value.field == limits[0].knob
        assert launched > 0, (
            f"the {subject.name} trainer rejects every config, even plain data parallelism; the last config was rejected because of {limits}"
        )

    def test_a_trainer_that_only_python_starts_refuses_every_launch_with_the_line_that_does(
        self,
    ) -> None:
        subject, given = self.subject(), self._options_with_master()
        if not subject.in_python:
            pytest.skip("its launches start it")
        for config in configs():
            if subject.limits(self.workload, config, given):
                continue
            with pytest.raises(ExportError) as caught:
                subject.launch(self.workload, config, given)
            assert subject.in_python in caught.value.remedy

    def test_every_knob_is_read_or_declared_neutral_or_impossible(self) -> None:
        complaints = complaints_of(self.subject().knob_use)
        assert not complaints, "; ".join(complaints)

    def test_every_value_of_every_knob_changes_the_launch_or_is_refused_or_neutral(self) -> None:
        self._skip_without_launches()
        subject = self.subject()
        seen: dict[tuple[str, Any], bool] = {}
        experts = replace(self.workload, model=EXPERTS)
        for workload, knobs in ((self.workload, FIELDS), (experts, EXPERT_KNOBS)):
            for base in base_configs(workload):
                start = self._rendered(workload, base)
                for knob, value, config in variations(workload, base, knobs):
                    # one value is enough for degrees and counts
                    key = (knob.name, value if knob.values else None)
                    rendered = self._rendered(workload, config)
                    seen[key] = seen.get(key, False) | self._makes_a_difference(
                        knob, (base, start), (config, rendered)
                    )
        assert {name for name, _ in seen} == set(FIELDS)
        ignored = [f"{name}={value}" for (name, value), differs in seen.items() if not differs]
        ignored = [item for item in ignored if item.partition("=")[0] not in subject.neutral]
        assert not ignored, (
            f"the {subject.name} trainer reads {', '.join(ignored)}, but no launch changes and nothing is rejected"
        )

    def test_every_refusal_says_what_to_do_instead(self) -> None:
        subject, given = self.subject(), self._options_with_master()
        models = (
            self.workload.model,
            EXPERTS,
            GPT,
            *map(catalog.model, ("deepseek-v3", "gemma-2-9b", "qwen2-57b-a14b")),
        )
        silent = set()
        for model in models:
            workload = replace(self.workload, model=model, seq_len=2050)
            asked = itertools.chain(configs(), one_node_configs(), varied_configs(workload))
            for config in itertools.islice(asked, 0, None, 7):
                silent |= {
                    str(limit)
                    for limit in subject.limits(workload, config, given)
                    if not limit.way_out
                }
        assert not silent

    def test_a_knob_of_the_study_is_carried_or_refused_by_name(self) -> None:
        subject, given = self.subject(), self._options_with_master()
        plain = ParallelConfig(dp=8, micro_batch_size=2, accumulation_steps=4)
        one, two = (replace(plain, extra={"made_up_knob": value}) for value in ("red", "green"))
        if not subject.own_knob_refusal("made_up_knob", subject.checked(given)):
            subject.check_own_knobs(["made_up_knob"], given)
            self._skip_without_launches()
            assert self._rendered(self.workload, one) != self._rendered(self.workload, two)
            return
        assert "made_up_knob" in {limit.knob for limit in subject.limits(self.workload, one, given)}
        with pytest.raises(SpecError) as caught:
            subject.check_own_knobs(["made_up_knob"], given)
        assert caught.value.field == "knobs.made_up_knob"

    def test_a_launch_is_read_as_the_config_that_was_launched(self) -> None:
        subject, given, read = self.subject(), self._options_with_master(), 0
        if not subject.can_import:
            with pytest.raises(SpecError, match="no configuration format to read"):
                subject.read_config(PresentConfiguration(files={"config.json": "{}"}))
            pytest.skip("it declares that it reads no configuration")
        experts = replace(self.workload, model=EXPERTS)
        for workload, config in itertools.chain(
            ((self.workload, config) for config in itertools.islice(configs(), 0, None, 5)),
            ((self.workload, config) for config in one_node_configs()),
            ((self.workload, config) for config in varied_configs(self.workload)),
            ((experts, config) for config in varied_configs(experts, EXPERT_KNOBS)),
        ):
            if subject.limits(workload, config, given):
                continue
            reading = subject.read_config(
                PresentConfiguration.of_launch(subject.launch(workload, config, given))
            )
            # the launch of the user's own program does not contain the knobs that only the program
            # knows
            unknown = [
                n
                for n in FIELDS
                if n in subject.neutral or (self.notes_count and n not in reading.knobs)
            ]
            knobs = {**reading.knobs, **{name: config.value(name) for name in unknown}}
            assert effective(ParallelConfig(**knobs)) == effective(config), reading
            assert reading.global_batch_size == config.global_batch_size or (
                self.notes_count and unknown
            )
            assert not reading.remarks
            read += 1
        assert read > 0

    def test_settings_of_the_trainers_own_are_read_and_written_again(self) -> None:
        subject, given = self.subject(), self._options_with_master()
        if SETTINGS not in subject.options:
            pytest.skip("it cannot carry settings that it does not know")
        config = ParallelConfig(dp=8, micro_batch_size=2, accumulation_steps=4, zero_stage=1)
        limits = subject.limits(self.workload, config, given)
        config = replace(config, zero_stage=2) if limits else config
        plain = subject.launch(self.workload, config, given)
        settings = {"made-up-setting": 7}
        launch = subject.launch(self.workload, config, {**given, "settings": settings})
        assert launch != plain
        reading = subject.read_config(PresentConfiguration.of_launch(launch))
        known = subject.read_config(PresentConfiguration.of_launch(plain))
        assert without_equal(reading.settings, known.settings) == settings
        assert reading.knobs == known.knobs

    def test_settings_that_a_knob_stands_for_are_refused(self) -> None:
        subject = self.subject()
        if SETTINGS not in subject.options:
            pytest.skip("it cannot carry settings that it does not know")
        with pytest.raises(SpecError, match="follows from the knobs") as caught:
            subject.check_own_knobs(
                (), {**self._options_with_master(), "settings": self.settings_of_a_knob}
            )
        assert caught.value.field.startswith("trainer.settings.")

    def test_nearest_values_lead_to_a_launch_that_says_so(self) -> None:
        subject = self.subject()
        if "nearest" not in {option.name for option in subject.options}:
            pytest.skip("it takes configs as they are")
        given = {**self._options_with_master(), "nearest": True}
        for config in itertools.islice(configs(), 0, None, 3):
            limits = subject.limits(self.workload, config, given)
            if not limits or any(limit.nearest is None for limit in limits):
                continue
            try:
                launch = subject.launch(self.workload, config, given)
            except ExportError:
                continue  # the nearest values violate another limit
            assert all(
                any(note.startswith(f"changed to {limit.knob}=") for note in launch.notes)
                for limit in limits
            )

    def test_limits_do_not_depend_on_knobs_without_effect(self) -> None:
        subject = self.subject()
        plain = ParallelConfig(dp=8, micro_batch_size=2, accumulation_steps=4)
        idle = replace(plain, sequence_parallel=True, pp_schedule="gpipe")
        assert subject.limits(self.workload, idle, self._options_with_master()) == subject.limits(
            self.workload, plain, self._options_with_master()
        )

    def test_limits_depend_on_the_knobs_in_limited_by_alone(self) -> None:
        subject, given = self.subject(), self._options_with_master()
        first: dict[tuple[Any, ...], tuple[ParallelConfig, set[str]]] = {}
        varied = (
            replace(c, micro_batch_size=m, accumulation_steps=64 // (m * c.dp))
            for c in configs()
            for m in (1, 8)
        )
        for config in varied:
            limits = {limit.knob for limit in subject.limits(self.workload, config, given)}
            depends = tuple(config.value(name) for name in sorted(subject.limited_by))
            other, expected = first.setdefault(depends, (config, limits))
            assert limits == expected, (
                f"{config} and {other} have the same values of limited_by, but different limits"
            )

    def test_ranks_that_do_not_fit_are_refused(self) -> None:
        config = ParallelConfig(dp=32, micro_batch_size=2, accumulation_steps=1)
        with pytest.raises(ExportError, match="32 ranks do not fit on 2 nodes with 8 ranks each"):
            self.subject().launch(self.workload, config, self._options_with_master())

    def test_unknown_options_are_named(self) -> None:
        self._skip_without_steps()
        with pytest.raises(SpecError, match=r"has no option 'stpes'.*did you mean steps"):
            self.subject().launch(
                self.workload, ParallelConfig(dp=8, micro_batch_size=8), {"stpes": 3}
            )

    def test_options_of_a_wrong_type_are_named(self) -> None:
        self._skip_without_steps()
        with pytest.raises(SpecError, match="steps must be a whole number"):
            self.subject().launch(
                self.workload, ParallelConfig(dp=8, micro_batch_size=8), {"steps": "many"}
            )

    def test_unknown_names_are_answered_with_the_nearest(self) -> None:
        with pytest.raises(CatalogError, match=f"did you mean {self.trainer}"):
            trainer(self.trainer[:-1] + "_")

    def test_its_log_lines_are_read(self) -> None:
        read = self.subject().reader(self.options)
        for line, metrics in self.log_lines.items():
            found = read(line)
            assert (None if found is None else asdict(found)) == (
                None if metrics is None else pytest.approx(asdict(metrics))
            ), line

    def test_any_other_line_says_nothing_and_raises_nothing(self) -> None:
        read = self.subject().reader(self.options)
        for line in (
            "",
            "\n",
            "Traceback (most recent call last):",
            "{" * 5000,
            "step:" * 5000,
            string.printable,
            "\0\x1b[",
            "nan",
        ):
            assert read(line) is None, line[:40]

    def test_a_launch_lands_whole_and_again(self, tmp_path: Path) -> None:
        self._skip_without_launches()
        launch = self.launched(dp=8, micro_batch_size=2)
        folder = tmp_path / "out"
        written = write_launch(launch, folder)
        assert {path.relative_to(folder.resolve()).as_posix() for path in written} == {
            *launch.files,
            "launch.sh",
            "launch.json",
        }
        assert json.loads((folder / "launch.json").read_text())["argv"] == list(launch.argv)
        assert write_launch(launch, folder) == written

    def _skip_without_launches(self) -> None:
        if self.subject().in_python:
            pytest.skip(
                "the trainer declares that only Python code starts it, so no launch is exported"
            )

    def _skip_without_steps(self) -> None:
        if "steps" not in {option.name for option in self.subject().options}:
            pytest.skip("its number of steps is set by whoever starts it")

    def _makes_a_difference(
        self,
        knob: Knob,
        first: tuple[ParallelConfig, Rendered],
        second: tuple[ParallelConfig, Rendered],
    ) -> bool:
        """Whether the second config, which differs from the first in this knob, has a different
        launch or is rejected because of the knob."""
        subject, (base, start), (config, changed) = self.subject(), first, second
        knob_value = f"{knob.name}={getattr(config, knob.name)}"
        if isinstance(changed, tuple):
            refused = any(limit.knob == knob.name for limit in changed)
            assert not (refused and knob.name in subject.neutral), (
                f"the {subject.name} trainer rejects {knob_value}, but declares {knob.name} neutral"
            )
            return refused
        if isinstance(start, tuple):
            return any(limit.knob == knob.name for limit in start)
        if knob.name in subject.neutral:
            assert changed == start, (
                f"{knob_value} changes the {subject.name} trainer's launch for {base}, but the trainer declares {knob.name} neutral"
            )
        elif effective(config) != effective(base):
            assert changed != start, (
                f"the {subject.name} trainer ignores {knob_value}, because its launch is the same as for {base}"
            )
        return changed != start

    def _rendered(self, workload: Workload, config: ParallelConfig) -> Rendered:
        """The limits that reject the config, or its launch as a document."""
        given = self._options_with_master()
        if limits := self.subject().limits(workload, config, given):
            return limits
        launch = self.subject().launch(workload, config, given).to_dict()
        return {part: item for part, item in launch.items() if part != "notes" or self.notes_count}

    def _options_with_master(self) -> dict[str, Any]:
        known = {option.name for option in self.subject().options}
        return {**({"master_addr": "node0"} if "master_addr" in known else {}), **self.options}

    @staticmethod
    def _check_launch(launch: Launch, config: ParallelConfig) -> None:
        assert all(isinstance(argument, str) and "\n" not in argument for argument in launch.argv)
        text = " ".join(launch.argv)
        if launch.argv[0] == "torchrun":
            per_node = min(config.world_size, 8)
            assert f"--nproc-per-node={per_node}" in text
            assert f"--nnodes={config.world_size // per_node}" in text
            assert ("--standalone" in text) == (config.world_size <= 8)
        for name, content in launch.files.items():
            if name.endswith(".json"):
                json.loads(content)
            elif name.endswith(".py"):
                compile(content, name, "exec")
