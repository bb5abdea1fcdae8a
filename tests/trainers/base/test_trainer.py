"""What all trainers share: options, the time of a step from whatever a line says, knobs without
effect."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

import pytest

from autotune.errors import SpecError
from autotune.spec import ParallelConfig, Peft
from autotune.testing.trainers import WORKLOAD
from autotune.trainers import Option, StepMetrics, trainer, trainer_names
from autotune.trainers.base.effective import effective
from autotune.trainers.base.trainer import MAX_LINE, clean, number

OWN_PROGRAMS = {"command", "ray_train"}
CHOOSE_THE_KERNEL = {"megatron", "megatron_bridge", "nanotron", "native", "torchtitan"}


@pytest.mark.parametrize(
    ("metrics", "seconds"),
    [
        (StepMetrics(step_time_s=0.5, tokens_per_s_per_gpu=1.0), 0.5),
        (StepMetrics(tokens_per_s_per_gpu=1000.0), 64 * 2048 / 8000),
        (StepMetrics(samples_per_s=32.0), 2.0),
        (StepMetrics(loss=2.0), None),
    ],
)
def test_the_time_of_a_step(metrics: StepMetrics, seconds: float | None) -> None:
    assert metrics.time_of(tokens_per_step=64 * 2048, sequences_per_step=64, num_ranks=8) == seconds


@pytest.mark.parametrize(
    ("default", "given", "value"),
    [
        (1, "12", 12),
        (0.5, "1e-3", 1e-3),
        (0.5, 2, 2.0),
        (False, "true", True),
        ("", "text", "text"),
        ((), '["a", "b"]', ("a", "b")),
        ((), ["a"], ("a",)),
        ({}, '{"a": "b"}', {"a": "b"}),
    ],
)
def test_options_are_read_from_a_command_line_too(default: Any, given: Any, value: Any) -> None:
    assert Option(name="x", meaning="", default=default).check(given) == value


@pytest.mark.parametrize(
    ("name", "given", "words"),
    [
        ("steps", "0", "must be at least 1, but is 0"),
        ("steps", -1, "must be at least 1, but is -1"),
        ("seed", "-1", "must be at least 0, but is -1"),
        ("learning_rate", "nan", "must be at least 0, but is nan"),
        ("learning_rate", float("inf"), "must be at least 0, but is inf"),
        ("learning_rate", "-1e-4", "must be at least 0, but is -0.0001"),
        ("master_port", "65536", "must be 0 to 65535, but is 65536"),
    ],
)
def test_a_number_that_no_launch_can_have_is_refused_by_every_trainer(
    name: str, given: Any, words: str
) -> None:
    options = [
        option
        for each in trainer_names()
        for option in trainer(each).options
        if option.name == name
    ]
    assert len(options) > 2
    for option in options:
        with pytest.raises(SpecError, match=f"{name} {words}"):
            option.check(given)
        assert option.check(option.default) == option.default


@pytest.mark.parametrize(
    ("default", "given"),
    [
        (1, "x"),
        (1, 1.5),
        (1, True),
        (False, 1),
        ("", 3),
        ("", "a\nb"),
        ("", "a\x1b"),
        ((), "a b"),
        ({}, "[1]"),
        ("", "x" * 5000),
    ],
)
def test_wrong_options_name_their_field(default: Any, given: Any) -> None:
    with pytest.raises(SpecError) as caught:
        Option(name="x", meaning="", default=default).check(given)
    assert caught.value.field == "trainer.x"


def test_knobs_without_effect_are_neutral() -> None:
    config = ParallelConfig(
        zero_stage=3, sequence_parallel=True, pp_schedule="gpipe", virtual_stages=4
    )
    assert effective(config) == ParallelConfig()
    used = ParallelConfig(
        tp=2, dp=2, pp=2, zero_stage=3, sequence_parallel=True, pp_schedule="gpipe"
    )
    assert effective(used) == used


def test_nearest_values_are_applied_until_no_limit_is_left() -> None:
    # Beside pipeline stages Megatron-FSDP gives way to the distributed optimizer, and torch.compile
    # is dropped.
    config = ParallelConfig(
        pp=2,
        dp=4,
        micro_batch_size=2,
        accumulation_steps=8,
        zero_stage=3,
        compile=True,
        pp_schedule="gpipe",
    )
    launch = trainer("megatron").launch(WORKLOAD, config, {"nearest": "true"})
    assert "--use-distributed-optimizer" in launch.argv
    assert sum(note.startswith("changed to") for note in launch.notes) == 3


@pytest.mark.parametrize(
    "name", [name for name in trainer_names() if "lora" not in trainer(name).peft_methods]
)
def test_a_trainer_without_adapters_says_why(name: str) -> None:
    limits = trainer(name).limits(
        replace(WORKLOAD, peft=Peft()), ParallelConfig(dp=8, accumulation_steps=8)
    )
    said = next(str(limit) for limit in limits if limit.knob == "workload.peft")
    assert trainer(name).no_adapters in said
    assert "native for lora" in said


@pytest.mark.parametrize(
    ("field", "value", "launched_by", "remedy"),
    [
        (
            "pure_bf16",
            True,
            OWN_PROGRAMS | {"torchtitan", "lightning"},
            "command with your own program",
        ),
        ("unfused_attention", True, OWN_PROGRAMS | {"megatron"}, "remove unfused_attention"),
        ("attention_kernel", "flash3", {*trainer_names()} - CHOOSE_THE_KERNEL, ""),
    ],
)
@pytest.mark.parametrize("name", trainer_names())
def test_what_a_workload_says_of_the_program_is_refused_by_trainers_that_do_otherwise(
    name: str, field: str, value: Any, launched_by: set[str], remedy: str
) -> None:
    workload = replace(WORKLOAD, **{field: value})
    limits = trainer(name).limits(workload, ParallelConfig(dp=8, accumulation_steps=8))
    said = [str(limit) for limit in limits if limit.knob == f"workload.{field}"]
    assert (not said) == (name in launched_by)
    assert all(remedy in message for message in said)


def test_lines_are_cut_and_without_colors() -> None:
    assert clean("\x1b[31mred\x1b[0m") == "red"
    assert len(clean("x" * 10**6)) == MAX_LINE
    assert number("1,024.5") == 1024.5
    assert number("x") is None


@pytest.mark.parametrize("given", ["0.3", 0.3])
def test_an_option_with_choices_takes_a_number_as_it_is_written(given: Any) -> None:
    assert (
        Option(name="version", meaning="", default="0.2", choices=("0.2", "0.3")).check(given)
        == "0.3"
    )


@pytest.mark.parametrize("given", ["0.4", True, None, ["0.3"]])
def test_an_option_with_choices_names_them(given: Any) -> None:
    with pytest.raises(SpecError, match=r"version must be one of 0\.2, 0\.3, but is"):
        Option(name="version", meaning="", default="0.2", choices=("0.2", "0.3")).check(given)


@pytest.mark.parametrize(
    "name", [n for n in trainer_names() if n != "native" and not trainer(n).runs_own_program]
)
def test_a_trainer_of_another_package_says_the_releases_that_it_was_checked_against(
    name: str,
) -> None:
    assert re.search(r"\d\.\d", trainer(name).checked_against)
