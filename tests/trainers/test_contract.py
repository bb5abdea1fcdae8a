"""The contract notices a trainer that says that it reads a knob but ignores it, that forgets a
knob, or that calls one neutral which is not."""

from __future__ import annotations

from typing import ClassVar

import pytest

from autotune.errors import ExportError, SpecError
from autotune.spec import ParallelConfig
from autotune.testing.trainers import WORKLOAD, TrainerContract
from autotune.trainers import Trainer, trainer
from autotune.trainers.hf_trainer.trainer import HfTrainer

CONFIG = ParallelConfig(dp=8, micro_batch_size=2, accumulation_steps=4)


class Boaster(HfTrainer):
    """Says that it reads a knob that it ignores."""

    reads = HfTrainer.reads | {"pp_schedule"}
    neutral: ClassVar = {
        name: why for name, why in HfTrainer.neutral.items() if name != "pp_schedule"
    }


class Forgetful(HfTrainer):
    """Has never heard of torch.compile."""

    reads = HfTrainer.reads - {"compile"}


class Belittler(HfTrainer):
    """Calls a knob neutral that changes its launch."""

    reads = HfTrainer.reads - {"compile"}
    neutral: ClassVar = {**HfTrainer.neutral, "compile": "it is said to change nothing"}


class Misspelled(HfTrainer):
    """Declares a knob that does not exist."""

    reads = HfTrainer.reads | {"zero_stages"}


def contract_of(subject: Trainer) -> TrainerContract:
    """The contract of a trainer that nobody registered."""

    class Contract(TrainerContract):
        def subject(self) -> Trainer:
            return subject

    return Contract()


def test_a_knob_that_is_read_but_ignored_is_named_with_the_trainer() -> None:
    with pytest.raises(
        AssertionError, match="hf_trainer trainer reads pp_schedule=gpipe"
    ) as caught:
        contract_of(
            Boaster()
        ).test_every_value_of_every_knob_changes_the_launch_or_is_refused_or_neutral()
    assert "zero_stage" not in str(caught.value)


def test_a_knob_that_is_neutral_by_mistake_is_named_with_the_trainer() -> None:
    with pytest.raises(
        AssertionError,
        match=r"compile=True changes the hf_trainer trainer's launch for .* but the trainer declares compile neutral",
    ):
        contract_of(
            Belittler()
        ).test_every_value_of_every_knob_changes_the_launch_or_is_refused_or_neutral()


@pytest.mark.parametrize(
    ("subject", "sentence"),
    [
        (Forgetful(), "neither reads compile nor declares it neutral or impossible"),
        (Misspelled(), "zero_stages, which is not a knob"),
    ],
)
def test_forgotten_and_unknown_knobs_are_named(subject: Trainer, sentence: str) -> None:
    with pytest.raises(AssertionError, match=f"trainer hf_trainer .*{sentence}"):
        contract_of(subject).test_every_knob_is_read_or_declared_neutral_or_impossible()


def test_a_forgotten_knob_is_refused_by_name_and_may_stay_at_its_default() -> None:
    assert Forgetful().launch(WORKLOAD, CONFIG).argv
    compiled = ParallelConfig(dp=8, micro_batch_size=2, accumulation_steps=4, compile=True)
    with pytest.raises(
        ExportError, match="compile=true: the hf_trainer trainer does not support this knob"
    ) as caught:
        Forgetful().launch(WORKLOAD, compiled)
    assert caught.value.field == "compile"
    assert (
        Forgetful().launch(WORKLOAD, compiled, {"nearest": True}).files
        == Forgetful().launch(WORKLOAD, CONFIG).files
    )


def test_a_knob_of_the_study_is_refused_with_the_way_out() -> None:
    with pytest.raises(SpecError, match="and pass the knob to your program") as caught:
        trainer("native").check_own_knobs(["num_workers"])
    assert caught.value.field == "knobs.num_workers"
    config = ParallelConfig(
        dp=8, micro_batch_size=2, accumulation_steps=4, extra={"num_workers": 2}
    )
    with pytest.raises(ExportError, match="num_workers=2"):
        trainer("native").launch(WORKLOAD, config)


def test_a_placeholder_carries_a_knob_of_the_study() -> None:
    config = ParallelConfig(dp=8, micro_batch_size=8, extra={"num_workers": 2, "flash": True})
    options = {
        "argv": ["x", "{dp}", "{micro_batch_size}", "{num_workers}"],
        "env": {"FLASH": "{flash}"},
    }
    launch = trainer("command").launch(WORKLOAD, config, options)
    assert (launch.argv[-1], launch.env) == ("2", {"FLASH": "true"})
    with pytest.raises(SpecError, match=r"no placeholder \{other\}"):
        trainer("command").check_own_knobs(["num_workers", "other"], options)


def test_a_knob_of_the_study_cannot_take_the_name_of_another_placeholder() -> None:
    with pytest.raises(SpecError, match=r"the placeholder \{seq_len\} is reserved"):
        trainer("command").check_own_knobs(["seq_len"], {"argv": ["x", "{seq_len}"]})
